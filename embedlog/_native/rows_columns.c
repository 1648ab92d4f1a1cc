/* Columns of byte strings: out of Python buffers, and out of lists of bytes. */
#include "rows.h"

#include <limits.h>

/* ---- buffers given as a column ---------------------------------------------------------------------------------- */

void el_column_release(el_column *column) {
    if (column->data.obj) PyBuffer_Release(&column->data);
    if (column->offsets.obj) PyBuffer_Release(&column->offsets);
    if (column->validity.obj) PyBuffer_Release(&column->validity);
    column->width = 0;
}

static int column_check(el_column *column) {
    if (column->offsets.itemsize != 4 && column->offsets.itemsize != 8)
        return PyErr_SetString(PyExc_ValueError, "a column's offsets are int32 or int64"), -1;
    column->width = (int)column->offsets.itemsize;
    column->count = column->offsets.len / column->width - 1;
    if (column->count < 0) return PyErr_SetString(PyExc_ValueError, "a column has one offset more than rows"), -1;
    if (!column->bits) return 0;
    if (column->bits_offset < 0 || column->bits_offset > INT64_MAX / 2 || (column->bits_offset + column->count + 7) / 8 > column->validity.len)
        return PyErr_SetString(PyExc_ValueError, "a column's validity is shorter than its rows"), -1;
    return 0;
}

int el_column_take(PyObject *given, el_column *column) {
    PyObject *data, *offsets, *validity = Py_None;
    long long bits_offset = 0;
    memset(column, 0, sizeof *column);
    if (given == Py_None) return 0;
    if (!PyTuple_Check(given)) return PyErr_SetString(PyExc_TypeError, "a column is None or (data, offsets, validity, validity_offset)"), -1;
    if (!PyArg_ParseTuple(given, "OO|OL:column", &data, &offsets, &validity, &bits_offset)) return -1;
    int failed = PyObject_GetBuffer(data, &column->data, PyBUF_SIMPLE) < 0 || PyObject_GetBuffer(offsets, &column->offsets, PyBUF_SIMPLE) < 0;
    if (!failed && validity != Py_None) failed = PyObject_GetBuffer(validity, &column->validity, PyBUF_SIMPLE) < 0;
    if (!failed) {
        column->bits = column->validity.obj ? column->validity.buf : NULL;
        column->bits_offset = bits_offset;
        failed = column_check(column) < 0;
    }
    if (failed) el_column_release(column);
    return failed ? -1 : 0;
}

static int64_t column_offset(const el_column *column, Py_ssize_t place) {
    if (column->width == 8) {
        int64_t wide;
        memcpy(&wide, (const char *)column->offsets.buf + place * 8, sizeof wide);
        return wide;
    }
    int32_t narrow;
    memcpy(&narrow, (const char *)column->offsets.buf + place * 4, sizeof narrow);
    return narrow;
}

int el_column_find(const el_column *column, Py_ssize_t row, const uint8_t **data, Py_ssize_t *size) {
    if (column->bits) {
        int64_t bit = column->bits_offset + row;
        if (!(column->bits[bit >> 3] >> (bit & 7) & 1)) return 0;
    }
    int64_t start = column_offset(column, row), end = column_offset(column, row + 1);
    if (start < 0 || end < start || end > column->data.len)
        return PyErr_Format(PyExc_ValueError, "row %zd of a column lies outside its data", row), -1;
    *data = (const uint8_t *)column->data.buf + start;
    *size = (Py_ssize_t)(end - start);
    return 1;
}

PyObject *el_column_item(const el_column *column, Py_ssize_t row) {
    const uint8_t *data;
    Py_ssize_t size;
    int found = el_column_find(column, row, &data, &size);
    if (found > 0) return PyBytes_FromStringAndSize((const char *)data, size);
    if (found < 0) return NULL;
    return Py_NewRef(Py_None);
}

/* ---- lists of bytes --------------------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t start, end; /* of the list */
    int64_t size;          /* bytes */
    int nulls;
} el_slice;

/* Extends the slice until it has max_bytes; at least one item. -1 with an exception set for what is neither bytes nor None. */
static int slice_measure(PyObject *list, Py_ssize_t count, int64_t max_bytes, el_slice *slice) {
    Py_ssize_t row = slice->start;
    for (; row < count; row++) {
        PyObject *item = PyList_GetItem(list, row);
        int64_t size = 0;
        if (item == Py_None) slice->nulls = 1;
        else if (!Py_IS_TYPE(item, &PyBytes_Type)) return PyErr_SetObject(PyExc_TypeError, EL_OBJECT(Py_TYPE(item))), -1;
        else size = PyBytes_Size(item);
        if (row > slice->start && slice->size + size > max_bytes) break;
        slice->size += size;
    }
    slice->end = row;
    if (slice->size > INT_MAX) return PyErr_SetString(PyExc_OverflowError, "one item of the list is larger than 2 GiB"), -1;
    return 0;
}

/* REQUIRES: the three were made for exactly this slice, and the GIL was not given up since it was measured. */
static void slice_copy(PyObject *list, const el_slice *slice, char *data, char *offsets, char *bits) {
    int32_t at = 0;
    for (Py_ssize_t row = slice->start; row < slice->end; row++) {
        PyObject *item = PyList_GetItem(list, row);
        Py_ssize_t place = row - slice->start;
        memcpy(offsets + place * 4, &at, sizeof at);
        if (item == Py_None) continue;
        Py_ssize_t size = PyBytes_Size(item);
        memcpy(data + at, PyBytes_AsString(item), (size_t)size);
        at += (int32_t)size;
        if (bits) bits[place >> 3] |= (char)(1 << (place & 7));
    }
    memcpy(offsets + (slice->end - slice->start) * 4, &at, sizeof at);
}

static PyObject *column_from_list(PyObject *module, PyObject *args) {
    PyObject *list;
    el_slice slice = {0};
    long long max_bytes;
    if (!PyArg_ParseTuple(args, "O!nL:column_from_list", &PyList_Type, &list, &slice.start, &max_bytes)) return NULL;
    Py_ssize_t count = PyList_Size(list);
    if (slice.start < 0 || slice.start > count) return PyErr_SetString(PyExc_IndexError, "start lies outside the list"), NULL;
    if (slice_measure(list, count, max_bytes, &slice) < 0) return NULL;
    Py_ssize_t rows = slice.end - slice.start;
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)slice.size);
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4);
    PyObject *bits = slice.nulls ? PyBytes_FromStringAndSize(NULL, (rows + 7) / 8) : Py_NewRef(Py_None);
    PyObject *answer = NULL;
    if (data && offsets && bits) {
        char *bit_bytes = slice.nulls ? PyBytes_AsString(bits) : NULL;
        if (bit_bytes) memset(bit_bytes, 0, (size_t)((rows + 7) / 8));
        slice_copy(list, &slice, PyBytes_AsString(data), PyBytes_AsString(offsets), bit_bytes);
        answer = Py_BuildValue("OOOn", data, offsets, bits, slice.end);
    }
    Py_XDECREF(data);
    Py_XDECREF(offsets);
    Py_XDECREF(bits);
    return answer;
}

/* (bytes of all, bytes of the largest) */
static PyObject *list_measure(PyObject *module, PyObject *list) {
    int64_t total = 0, largest = 0;
    if (!PyList_Check(list)) return PyErr_SetString(PyExc_TypeError, "list_measure() takes a list"), NULL;
    for (Py_ssize_t row = 0; row < PyList_Size(list); row++) {
        PyObject *item = PyList_GetItem(list, row);
        if (item == Py_None) continue;
        if (!Py_IS_TYPE(item, &PyBytes_Type)) return PyErr_SetObject(PyExc_TypeError, EL_OBJECT(Py_TYPE(item))), NULL;
        int64_t size = PyBytes_Size(item);
        total += size;
        if (size > largest) largest = size;
    }
    return Py_BuildValue("(LL)", (long long)total, (long long)largest);
}

PyMethodDef el_column_methods[] = {
    {"list_measure", list_measure, METH_O,
     "list_measure(items) -> (bytes of all, bytes of the largest); a TypeError for what is neither bytes nor None carries the type."},
    {"column_from_list", column_from_list, METH_VARARGS,
     "column_from_list(items, start, max_bytes) -> (data, offsets, validity or None, next)\n\n"
     "Bytes and None from `start` on as one column with int32 offsets, at most max_bytes (but one item at least).\n"
     "A TypeError for anything else carries the type."},
    {NULL},
};
