/* Creates records directly from batches that were read and verified: the fast path of a reader at
 * the end of a log.
 *
 * - Every length is checked against the available bytes: a checksum proves the written bytes, not
 *   their validity.
 * - A batch that is not plain (compressed, old format, damaged inside) gives None: the general path
 *   handles it and reports.
 * - Control batches contain no records of the user; for a committed reader an abort marker gives
 *   None as well. */
#include "objects/wire_record.h"

static PyObject *bytes_of(const uint8_t *data, int32_t size) {
    return size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)data, size);
}

/* One header as (key, value); advances *at. NULL without an exception: invalid bytes. */
static PyObject *pair_of(const uint8_t **at, const uint8_t *end) {
    const uint8_t *name, *value;
    int32_t name_size, value_size, what;
    *at = get_header(*at, end, &name, &name_size, &value, &value_size, &what);
    if (!*at) {
        return NULL;
    }
    PyObject *key = PyUnicode_DecodeUTF8((const char *)name, name_size, "replace"),
             *content = key ? bytes_of(value, value_size) : NULL;
    PyObject *pair = content ? PyTuple_Pack(2, key, content) : NULL;
    Py_XDECREF(key);
    Py_XDECREF(content);
    return pair;
}

static PyObject *headers_of(const el_wire_record *wire) {
    if (wire->header_count == 0) {
        return Py_NewRef(el_no_headers);
    }
    const uint8_t *at = wire->headers;
    PyObject *all = PyTuple_New(wire->header_count);
    for (int32_t i = 0; all && i < wire->header_count; i++) {
        PyObject *pair = pair_of(&at, wire->end);
        if (!pair || PyTuple_SetItem(all, i, pair) < 0) {
            Py_CLEAR(all);
        }
    }
    return all;
}

typedef struct {
    PyObject *topic, *list;
    int64_t start_offset;
    int32_t partition;
    int committed;
} el_record_taker;

el_record *el_record_of_wire(PyObject *topic, int32_t partition, const el_batch *batch,
                             const el_wire_record *wire) {
    int append_time = (batch->attributes & LOG_APPEND_TIME) != 0;
    el_record *record = el_record_alloc();
    if (!record) {
        return NULL;
    }
    record->topic = Py_NewRef(topic);
    record->partition = partition;
    record->offset = batch->base_offset + wire->offset_delta;
    record->timestamp_ms =
        append_time ? batch->max_timestamp
                    : (int64_t)((uint64_t)batch->base_timestamp + (uint64_t)wire->timestamp_delta);
    record->timestamp_type = (int8_t)append_time;
    record->leader_epoch = batch->leader_epoch;
    record->key = bytes_of(wire->key, wire->key_size);
    record->value = bytes_of(wire->value, wire->value_size);
    record->headers = headers_of(wire);
    if (!record->key || !record->value || !record->headers) {
        Py_CLEAR(record);
    }
    return record;
}

static int take_record(const el_record_taker *taking, const el_batch *batch,
                       const el_wire_record *wire) {
    el_record *record = el_record_of_wire(taking->topic, taking->partition, batch, wire);
    int rc = record ? PyList_Append(taking->list, EL_OBJECT(record)) : -1;
    Py_XDECREF(EL_OBJECT(record));
    return rc;
}

/* 0 if this control batch can be skipped; -1 if it aborts earlier records or is unreadable. */
static int pass_marker(const el_record_taker *taking, const el_batch *batch, const uint8_t *body,
                       int64_t body_size) {
    enum { KEY_BYTES = 4, TYPE_AT = 2, COMMIT = 1 };
    el_walk walk;
    el_wire_record wire;
    if (!taking->committed) {
        return 0;
    }
    if (walk_begin(&walk, batch, body, body_size) || batch->records != 1 ||
        walk_next(&walk, &wire, EL_MEASURED) || walk_end(&walk)) {
        return -1;
    }
    return wire.key_size >= KEY_BYTES && load_be16(wire.key + TYPE_AT) == COMMIT ? 0 : -1;
}

/* The records of one batch from start_offset on: 0; -1 if they are not plain, with or without an
 * exception. */
static int take_batch(const el_record_taker *taking, const uint8_t *data, int64_t size,
                      const el_batch *batch) {
    const uint8_t *body = data + EL_HEADER_SIZE;
    int64_t body_size = size - EL_HEADER_SIZE;
    el_walk walk;
    if (batch->magic != MAGIC || (batch->attributes & CODEC_MASK)) {
        return -1;
    }
    if (batch->attributes & CONTROL_BATCH) {
        return pass_marker(taking, batch, body, body_size);
    }
    if (walk_begin(&walk, batch, body, body_size)) {
        return -1;
    }
    while (walk.taken < walk.records) {
        el_wire_record wire;
        if (walk_next(&walk, &wire, EL_MEASURED)) {
            return -1;
        }
        if (batch->base_offset + wire.offset_delta >= taking->start_offset &&
            take_record(taking, batch, &wire) < 0) {
            return -1;
        }
    }
    return walk_end(&walk) ? -1 : 0;
}

static int take_run(const el_record_taker *taking, const uint8_t *data, int64_t size) {
    while (size > 0) {
        el_batch batch;
        if (size < EL_HEADER_SIZE) {
            return -1;
        }
        int64_t bytes = (int64_t)(int32_t)load_be32(data + SIZE_AT) + AFTER_SIZE;
        if (bytes < EL_HEADER_SIZE || bytes > size) {
            return -1;
        }
        load_header(data, &batch);
        if (take_batch(taking, data, bytes, &batch) < 0) {
            return -1;
        }
        data += bytes;
        size -= bytes;
    }
    return 0;
}

static PyObject *records_from_run(PyObject *module, PyObject *args) {
    el_record_taker taking = {.list = NULL};
    Py_buffer data;
    Py_ssize_t size;
    long long start_offset;
    if (!PyArg_ParseTuple(args, "Oiy*nLp:records_from_run", &taking.topic, &taking.partition, &data,
                          &size, &start_offset, &taking.committed)) {
        return NULL;
    }
    taking.start_offset = start_offset;
    taking.list = size < 0 || size > data.len ? NULL : PyList_New(0);
    if (!taking.list && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "the run is larger than its buffer");
    }
    if (taking.list && take_run(&taking, data.buf, size) < 0) {
        Py_CLEAR(taking.list);
        if (!PyErr_Occurred()) {
            taking.list = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&data);
    return taking.list;
}

PyMethodDef el_run_methods[] = {
    {"records_from_run", records_from_run, METH_VARARGS,
     "records_from_run(topic, partition, data, size, start_offset, committed)\n\n"
     "The records from start_offset on of the verified batches in the first `size` bytes, as a "
     "list of Record; None if one is not plain,\n"
     "or if `committed` and they contain an abort marker."},
    {NULL},
};
