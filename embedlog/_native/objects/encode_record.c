/* Encodes one record into a producer batch: accepted types, sizes, bytes. */
#include "objects/encode_record.h"

/* Kafka's upper bound in addition to key, value and headers */
enum { HEADER_ESTIMATE = EL_HEADER_SIZE + 21 };

static int exact_bytes(PyObject *object, const uint8_t **data, Py_ssize_t *size) {
    *size = -1;
    if (object == Py_None) {
        return 1;
    }
    if (!Py_IS_TYPE(object, &PyBytes_Type)) {
        return 0;
    }
    *data = (const uint8_t *)PyBytes_AsString(object);
    *size = PyBytes_Size(object);
    return 1;
}

/* Header `place` of exact types, as borrowed pointers: 1, or 0 for any other types. */
static int header_find(PyObject *headers, Py_ssize_t place, const uint8_t **key,
                       Py_ssize_t *key_size, const uint8_t **value, Py_ssize_t *value_size) {
    PyObject *pair = PyTuple_GetItem(headers, place);
    if (!Py_IS_TYPE(pair, &PyTuple_Type) || PyTuple_Size(pair) != 2) {
        return 0;
    }
    PyObject *name = PyTuple_GetItem(pair, 0);
    if (!Py_IS_TYPE(name, &PyUnicode_Type)) {
        return 0;
    }
    *key = (const uint8_t *)PyUnicode_AsUTF8AndSize(name, key_size);
    if (!*key) {
        PyErr_Clear(); /* a lone surrogate: Python raises its own error for it */
        return 0;
    }
    return exact_bytes(PyTuple_GetItem(pair, 1), value, value_size);
}

static int headers_measure(el_item *item, PyObject *headers) {
    item->headers = NULL;
    item->header_bytes = 1;
    if (headers == el_no_headers || headers == Py_None) {
        return 1;
    }
    if (!Py_IS_TYPE(headers, &PyTuple_Type)) {
        return 0;
    }
    Py_ssize_t count = PyTuple_Size(headers);
    Py_ssize_t key_size;
    Py_ssize_t value_size;
    const uint8_t *key, *value;
    item->headers = headers;
    item->header_bytes = varint_size(count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!header_find(headers, i, &key, &key_size, &value, &value_size)) {
            return 0;
        }
        item->header_bytes += varint_size(key_size) + key_size + varint_size(value_size) +
                              (value_size > 0 ? value_size : 0);
    }
    return 1;
}

int el_item_take(el_item *item, PyObject *value, PyObject *key, PyObject *headers) {
    return exact_bytes(value, &item->value, &item->value_size) &&
           exact_bytes(key, &item->key, &item->key_size) && headers_measure(item, headers);
}

int64_t el_item_bound(const el_item *item) {
    return HEADER_ESTIMATE + (item->key_size > 0 ? item->key_size : 0) +
           (item->value_size > 0 ? item->value_size : 0) + item->header_bytes;
}

int64_t el_item_size(const el_item *item, int64_t timestamp_delta, int32_t offset_delta) {
    return 1 + varint_size(timestamp_delta) + varint_size(offset_delta) +
           varint_size(item->key_size) + (item->key_size > 0 ? item->key_size : 0) +
           varint_size(item->value_size) + (item->value_size > 0 ? item->value_size : 0) +
           item->header_bytes;
}

static uint8_t *bytes_write(uint8_t *out, const uint8_t *data, Py_ssize_t size) {
    out = put_length(out, size);
    if (size <= 0) {
        return out;
    }
    memcpy(out, data, (size_t)size);
    return out + size;
}

static uint8_t *headers_write(uint8_t *out, const el_item *item) {
    const uint8_t *key = NULL;
    const uint8_t *value = NULL;
    Py_ssize_t key_size = 0;
    Py_ssize_t value_size = -1; /* found again: tuples, texts and bytes are immutable */
    Py_ssize_t count = item->headers ? PyTuple_Size(item->headers) : 0;
    out = put_small(out, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        header_find(item->headers, i, &key, &key_size, &value, &value_size);
        out = bytes_write(bytes_write(out, key, key_size), value, value_size);
    }
    return out;
}

uint8_t *el_item_write(const el_item *item, int64_t size, int64_t timestamp_delta,
                       int32_t offset_delta, uint8_t *out) {
    out = put_length(out, size);
    *out++ = 0; /* attributes, unused */
    out = put_small(out, timestamp_delta);
    out = put_length(out, offset_delta);
    out = bytes_write(out, item->key, item->key_size);
    out = bytes_write(out, item->value, item->value_size);
    if (item->headers) {
        return headers_write(out, item);
    }
    *out++ = 0;
    return out;
}
