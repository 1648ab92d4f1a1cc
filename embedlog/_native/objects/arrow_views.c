/* Copies Arrow's view layouts (binary_view, string_view) to a column with offsets: the only byte
 * strings that need a copy. */
#include "objects/columns.h"

#include <limits.h>

enum { VIEW_SIZE = 16, INLINE_SIZE_MAX = 12 };

typedef struct {
    Py_buffer views, validity; /* validity.obj NULL: no nulls */
    Py_buffer *pools;
    Py_ssize_t pool_count, start, count;
} el_views;

static void views_release(el_views *given) {
    if (given->views.obj) {
        PyBuffer_Release(&given->views);
    }
    if (given->validity.obj) {
        PyBuffer_Release(&given->validity);
    }
    for (Py_ssize_t i = 0; given->pools && i < given->pool_count; i++) {
        if (given->pools[i].obj) {
            PyBuffer_Release(&given->pools[i]);
        }
    }
    PyMem_Free(given->pools);
}

static int views_take(PyObject *args, el_views *given) {
    PyObject *views, *validity, *pools;
    memset(given, 0, sizeof *given);
    if (!PyArg_ParseTuple(args, "OOO!nn:column_from_views", &views, &validity, &PyTuple_Type,
                          &pools, &given->start, &given->count)) {
        return -1;
    }
    given->pool_count = PyTuple_Size(pools);
    given->pools = PyMem_Calloc((size_t)given->pool_count + 1, sizeof *given->pools);
    if (!given->pools) {
        return PyErr_NoMemory(), -1;
    }
    for (Py_ssize_t i = 0; i < given->pool_count; i++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(pools, i), &given->pools[i], PyBUF_SIMPLE) < 0) {
            return -1;
        }
    }
    if (PyObject_GetBuffer(views, &given->views, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    if (validity != Py_None && PyObject_GetBuffer(validity, &given->validity, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    Py_ssize_t end = given->start + given->count;
    if (given->start < 0 || given->count < 0 || end > given->views.len / VIEW_SIZE ||
        (given->validity.obj && (end + 7) / 8 > given->validity.len)) {
        return PyErr_SetString(PyExc_ValueError, "start or count is outside the views"), -1;
    }
    return 0;
}

/* The bytes of one row, of size 0 for a null; -1 if they are outside their buffer. */
static int64_t view_find(const el_views *given, Py_ssize_t row, const uint8_t **data) {
    Py_ssize_t place = given->start + row;
    if (given->validity.obj &&
        !(((const uint8_t *)given->validity.buf)[place >> 3] >> (place & 7) & 1)) {
        return 0;
    }
    const uint8_t *view = (const uint8_t *)given->views.buf + place * VIEW_SIZE;
    int32_t size = load_i32(view);
    *data = view + 4;
    if (size <= INLINE_SIZE_MAX) {
        return size;
    }
    int32_t pool = load_i32(view + 8);
    int32_t start = load_i32(view + 12);
    if (pool < 0 || pool >= given->pool_count || start < 0 ||
        (Py_ssize_t)start + size > given->pools[pool].len) {
        return -1;
    }
    *data = (const uint8_t *)given->pools[pool].buf + start;
    return size;
}

static int64_t views_measure(const el_views *given) {
    int64_t total = 0;
    const uint8_t *data;
    for (Py_ssize_t row = 0; row < given->count; row++) {
        int64_t size = view_find(given, row, &data);
        if (size < 0) {
            return PyErr_Format(PyExc_ValueError, "row %zd of a view column is outside its data",
                                row),
                   -1;
        }
        total += size;
    }
    return total;
}

/* 0, or -1 with an exception set if the views differ from the measured ones: another thread may
 * write into them. */
static int views_copy(const el_views *given, uint8_t *out, int64_t total, uint8_t *offsets) {
    int64_t at = 0;
    const uint8_t *data = NULL;
    memcpy(offsets, &at, 8);
    for (Py_ssize_t row = 0; row < given->count; row++) {
        int64_t size = view_find(given, row, &data);
        if (size < 0 || size > total - at) {
            return PyErr_Format(PyExc_ValueError,
                                "row %zd of a view column changed while it was read", row),
                   -1;
        }
        if (size) {
            memcpy(out + at, data, (size_t)size);
        }
        at += size;
        memcpy(offsets + (row + 1) * 8, &at, 8);
    }
    return at == total
               ? 0
               : (PyErr_SetString(PyExc_ValueError, "a view column changed while it was read"), -1);
}

static PyObject *column_from_views(PyObject *module, PyObject *args) {
    el_views given;
    PyObject *data = NULL;
    PyObject *offsets = NULL;
    PyObject *answer = NULL;
    int64_t total = views_take(args, &given) < 0 ? -1 : views_measure(&given);
    if (total >= 0) {
        data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
        offsets = PyBytes_FromStringAndSize(NULL, (given.count + 1) * 8);
    }
    if (data && offsets) {
        int rc = views_copy(&given, (uint8_t *)PyBytes_AsString(data), total,
                            (uint8_t *)PyBytes_AsString(offsets));
        answer = rc == 0 ? PyTuple_Pack(2, data, offsets) : NULL;
    }
    Py_XDECREF(data);
    Py_XDECREF(offsets);
    views_release(&given);
    return answer;
}

PyMethodDef el_view_methods[] = {
    {"column_from_views", column_from_views, METH_VARARGS,
     "column_from_views(views, validity or None, buffers, start, count) -> (data, int64 offsets)"},
    {NULL},
};
