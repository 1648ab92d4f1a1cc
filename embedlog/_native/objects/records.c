/* Creates records from columns, many at a time. */
#include "objects/columns.h"
#include "objects/record.h"

typedef struct {
    PyObject *topic;
    int partition;
    Py_buffer offsets, timestamps, types, epochs;
    el_column keys, values, header_keys, header_values;
    Py_buffer header_starts; /* obj NULL: no headers */
    Py_ssize_t start, stop;
} el_source;

static void source_release(el_source *source) {
    Py_buffer *views[] = {&source->offsets, &source->timestamps, &source->types, &source->epochs,
                          &source->header_starts};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        if (views[i]->obj) {
            PyBuffer_Release(views[i]);
        }
    }
    el_column_release(&source->keys);
    el_column_release(&source->values);
    el_column_release(&source->header_keys);
    el_column_release(&source->header_values);
}

static int source_check(const el_source *source) {
    Py_ssize_t n = source->stop;
    int good = source->start >= 0 && source->start <= n && source->offsets.len / 8 >= n &&
               source->timestamps.len / 8 >= n && source->types.len >= n &&
               source->epochs.len / 4 >= n && (!source->keys.width || source->keys.count >= n) &&
               (!source->values.width || source->values.count >= n) &&
               (!source->header_starts.obj || source->header_starts.len / 4 > n);
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "start or stop is outside the columns");
    }
    return good ? 0 : -1;
}

static int source_take(PyObject *args, el_source *source) {
    PyObject *offsets, *timestamps, *types, *epochs, *keys, *values, *headers, *starts,
        *header_keys, *header_values;
    memset(source, 0, sizeof *source);
    if (!PyArg_ParseTuple(args, "OiOOOOOOOnn:records_from_columns", &source->topic,
                          &source->partition, &offsets, &timestamps, &types, &epochs, &keys,
                          &values, &headers, &source->start, &source->stop)) {
        return -1;
    }
    if (PyObject_GetBuffer(offsets, &source->offsets, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(timestamps, &source->timestamps, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(types, &source->types, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(epochs, &source->epochs, PyBUF_SIMPLE) < 0 ||
        el_column_take(keys, &source->keys) < 0 || el_column_take(values, &source->values) < 0) {
        return -1;
    }
    if (headers != Py_None) {
        if (!PyTuple_Check(headers)) {
            return PyErr_SetString(PyExc_TypeError, "headers are None or (starts, keys, values)"),
                   -1;
        }
        if (!PyArg_ParseTuple(headers, "OOO:headers", &starts, &header_keys, &header_values)) {
            return -1;
        }
        if (PyObject_GetBuffer(starts, &source->header_starts, PyBUF_SIMPLE) < 0 ||
            el_column_take(header_keys, &source->header_keys) < 0 ||
            el_column_take(header_values, &source->header_values) < 0) {
            return -1;
        }
    }
    return source_check(source);
}

static PyObject *source_header(const el_source *source, Py_ssize_t place) {
    const uint8_t *name;
    Py_ssize_t size;
    int found = el_column_find(&source->header_keys, place, &name, &size);
    if (found < 0) {
        return NULL;
    }
    if (!found) {
        return PyErr_SetString(PyExc_ValueError, "a header's key is null"), NULL;
    }
    PyObject *key = PyUnicode_DecodeUTF8((const char *)name, size, "replace");
    PyObject *value = key ? el_column_item(&source->header_values, place) : NULL;
    PyObject *pair = value ? PyTuple_Pack(2, key, value) : NULL;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return pair;
}

static PyObject *source_headers(const el_source *source, Py_ssize_t row) {
    int32_t bounds[2] = {0, 0};
    if (source->header_starts.obj) {
        memcpy(bounds, (const char *)source->header_starts.buf + row * 4, sizeof bounds);
    }
    if (bounds[0] == bounds[1]) {
        return Py_NewRef(el_no_headers);
    }
    if (bounds[0] < 0 || bounds[1] < bounds[0] || bounds[1] > source->header_keys.count ||
        bounds[1] > source->header_values.count) {
        return PyErr_Format(PyExc_ValueError, "the headers of row %zd are outside their columns",
                            row),
               NULL;
    }
    PyObject *all = PyTuple_New(bounds[1] - bounds[0]);
    for (int32_t place = bounds[0]; all && place < bounds[1]; place++) {
        PyObject *pair = source_header(source, place);
        if (!pair || PyTuple_SetItem(all, place - bounds[0], pair) < 0) {
            Py_CLEAR(all);
        }
    }
    return all;
}

static PyObject *source_record(const el_source *source, Py_ssize_t row) {
    el_record *record = el_record_alloc();
    if (!record) {
        return NULL;
    }
    record->topic = Py_NewRef(source->topic);
    record->partition = source->partition;
    memcpy(&record->offset, (const char *)source->offsets.buf + row * 8, 8);
    memcpy(&record->timestamp_ms, (const char *)source->timestamps.buf + row * 8, 8);
    memcpy(&record->leader_epoch, (const char *)source->epochs.buf + row * 4, 4);
    record->timestamp_type = ((const int8_t *)source->types.buf)[row];
    record->key = source->keys.width ? el_column_item(&source->keys, row) : Py_NewRef(Py_None);
    record->value =
        source->values.width ? el_column_item(&source->values, row) : Py_NewRef(Py_None);
    record->headers = source_headers(source, row);
    if (!record->key || !record->value || !record->headers) {
        Py_CLEAR(record);
    }
    return EL_OBJECT(record);
}

static PyObject *records_from_columns(PyObject *module, PyObject *args) {
    el_source source;
    PyObject *list = source_take(args, &source) < 0 ? NULL : PyList_New(source.stop - source.start);
    for (Py_ssize_t row = source.start; list && row < source.stop; row++) {
        PyObject *record = source_record(&source, row);
        if (!record || PyList_SetItem(list, row - source.start, record) < 0) {
            Py_CLEAR(list);
        }
    }
    source_release(&source);
    return list;
}

PyMethodDef el_record_methods[] = {
    {"records_from_columns", records_from_columns, METH_VARARGS,
     "records_from_columns(topic, partition, offsets, timestamps, timestamp_types, leader_epochs, "
     "keys, values, headers, start, stop)\n\n"
     "The rows start .. stop as a list of Record. A column is None or (data, offsets, validity, "
     "validity_offset), headers are None\n"
     "or (starts, keys, values)."},
    {NULL},
};
