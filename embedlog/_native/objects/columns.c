/* Columns of byte strings, from Python buffers and from lists of bytes. */
#include "codec/varint.h"
#include "objects/columns.h"

#include <limits.h>

/* ---- buffers given as a column --------------------------------------------------------------- */

void el_column_release(el_column *column) {
    if (column->data.obj) {
        PyBuffer_Release(&column->data);
    }
    if (column->offsets.obj) {
        PyBuffer_Release(&column->offsets);
    }
    if (column->validity.obj) {
        PyBuffer_Release(&column->validity);
    }
    column->width = 0;
}

static int column_check(el_column *column) {
    if (column->offsets.itemsize != 4 && column->offsets.itemsize != 8) {
        return PyErr_SetString(PyExc_ValueError, "a column's offsets are int32 or int64"), -1;
    }
    column->width = (int)column->offsets.itemsize;
    column->count = column->offsets.len / column->width - 1;
    if (column->count < 0) {
        return PyErr_SetString(PyExc_ValueError, "a column has one offset more than rows"), -1;
    }
    if (!column->bits) {
        return 0;
    }
    if (column->bits_offset < 0 || column->bits_offset > INT64_MAX / 2 ||
        (column->bits_offset + column->count + 7) / 8 > column->validity.len) {
        return PyErr_SetString(PyExc_ValueError, "a column's validity is shorter than its rows"),
               -1;
    }
    return 0;
}

int el_column_take(PyObject *given, el_column *column) {
    PyObject *data;
    PyObject *offsets;
    PyObject *validity = Py_None;
    long long bits_offset = 0;
    memset(column, 0, sizeof *column);
    if (given == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(given)) {
        return PyErr_SetString(PyExc_TypeError,
                               "a column is None or (data, offsets, validity, validity_offset)"),
               -1;
    }
    if (!PyArg_ParseTuple(given, "OO|OL:column", &data, &offsets, &validity, &bits_offset)) {
        return -1;
    }
    int failed = PyObject_GetBuffer(data, &column->data, PyBUF_SIMPLE) < 0 ||
                 PyObject_GetBuffer(offsets, &column->offsets, PyBUF_SIMPLE) < 0;
    if (!failed && validity != Py_None) {
        failed = PyObject_GetBuffer(validity, &column->validity, PyBUF_SIMPLE) < 0;
    }
    if (!failed) {
        column->bits = column->validity.obj ? column->validity.buf : NULL;
        column->bits_offset = bits_offset;
        failed = column_check(column) < 0;
    }
    if (failed) {
        el_column_release(column);
    }
    return failed ? -1 : 0;
}

int el_column_find(const el_column *column, Py_ssize_t row, const uint8_t **data,
                   Py_ssize_t *size) {
    if (column->bits) {
        int64_t bit = column->bits_offset + row;
        if (!(column->bits[bit >> 3] >> (bit & 7) & 1)) {
            return 0;
        }
    }
    int64_t start = offset_at(column->offsets.buf, row, column->width);
    int64_t end = offset_at(column->offsets.buf, row + 1, column->width);
    if (start < 0 || end < start || end > column->data.len) {
        return PyErr_Format(PyExc_ValueError, "row %zd of a column is outside its data", row), -1;
    }
    *data = (const uint8_t *)column->data.buf + start;
    *size = (Py_ssize_t)(end - start);
    return 1;
}

PyObject *el_column_item(const el_column *column, Py_ssize_t row) {
    const uint8_t *data;
    Py_ssize_t size;
    int found = el_column_find(column, row, &data, &size);
    if (found > 0) {
        return PyBytes_FromStringAndSize((const char *)data, size);
    }
    if (found < 0) {
        return NULL;
    }
    return Py_NewRef(Py_None);
}

/* ---- lists of bytes -------------------------------------------------------------------------- */

enum { AHEAD = 8 }; /* items prefetched before they are read: they are scattered in memory */

static void fetch_ahead(PyObject *list, Py_ssize_t row, Py_ssize_t count) {
    if (row + AHEAD < count) {
        __builtin_prefetch(PyList_GetItem(list, row + AHEAD), 1);
    }
}

/* The size of an item, 0 for None; -1 with an exception set for another type, or if the total
 * exceeds the offsets. */
static Py_ssize_t item_size(PyObject *item) {
    if (item == Py_None) {
        return 0;
    }
    if (!Py_IS_TYPE(item, &PyBytes_Type)) {
        return PyErr_SetObject(PyExc_TypeError, EL_OBJECT(Py_TYPE(item))), -1;
    }
    Py_ssize_t size = PyBytes_Size(item);
    if (size > INT_MAX) {
        return PyErr_SetString(PyExc_OverflowError, "one item of the list is larger than 2 GiB"),
               -1;
    }
    return size;
}

/* (a list of the same items, bytes of all, bytes of the largest, count of None). Checked and copied
 * in one step, without running Python code in between. Bytes are in no cycle, so the copy needs no
 * garbage collection. */
static PyObject *items_take(PyObject *list) {
    int64_t total = 0;
    int64_t largest = 0;
    int64_t nulls = 0;
    Py_ssize_t count;
    PyObject *own = NULL;
    do { /* other code may change the list while the copy is made */
        Py_XDECREF(own);
        own = PyList_New(count = PyList_Size(list));
    } while (own && count != PyList_Size(list));
    for (Py_ssize_t row = 0; own && row < count; row++) {
        fetch_ahead(list, row, count);
        PyObject *item = PyList_GetItem(list, row);
        Py_ssize_t size = item_size(item);
        if (size < 0) {
            Py_CLEAR(own);
            break;
        }
        total += size;
        nulls += item == Py_None;
        if (size > largest) {
            largest = size;
        }
        PyList_SetItem(own, row, Py_NewRef(item));
    }
    if (!own) {
        return NULL;
    }
    PyObject_GC_UnTrack(own);
    return Py_BuildValue("(NLLL)", own, (long long)total, (long long)largest, (long long)nulls);
}

static PyObject *list_take(PyObject *module, PyObject *list) {
    if (!PyList_Check(list)) {
        return PyErr_SetString(PyExc_TypeError, "list_take() takes a list"), NULL;
    }
    el_section section;
    el_section_enter(&section, list);
    PyObject *answer = items_take(list);
    el_section_leave(&section);
    return answer;
}

/* Copies items from `start` on into the buffers, as many as fit: the next row, or -1 with an
 * exception set. */
static Py_ssize_t items_move(PyObject *list, Py_ssize_t start, Py_buffer *data, Py_buffer *offsets,
                             Py_buffer *bits, int64_t *used) {
    Py_ssize_t count = PyList_Size(list);
    Py_ssize_t most = offsets->len / 4 - 1;
    Py_ssize_t row = start;
    if (bits->obj && most > bits->len * 8) {
        most = bits->len * 8;
    }
    if (bits->obj) {
        memset(bits->buf, 0, (size_t)bits->len);
    }
    int32_t at = 0;
    for (; row < count && row - start < most; row++) {
        fetch_ahead(list, row, count);
        PyObject *item = PyList_GetItem(list, row);
        if (!item) {
            return -1; /* the list was shortened meanwhile */
        }
        Py_ssize_t place = row - start;
        Py_ssize_t size = item_size(item);
        if (size < 0) {
            return -1;
        }
        if (size > data->len - at || size > INT_MAX - at) {
            break;
        }
        memcpy((char *)offsets->buf + place * 4, &at, sizeof at);
        if (item == Py_None) {
            continue;
        }
        if (bits->obj) {
            ((uint8_t *)bits->buf)[place >> 3] |= (uint8_t)(1 << (place & 7));
        }
        memcpy((char *)data->buf + at, PyBytes_AsString(item), (size_t)size);
        at += (int32_t)size;
        PyList_SetItem(list, row, Py_NewRef(Py_None)); /* released while it is in the cache */
    }
    if (most >= 0) {
        memcpy((char *)offsets->buf + (row - start) * 4, &at, sizeof at);
    }
    *used = at;
    return row;
}

static PyObject *column_fill(PyObject *module, PyObject *args) {
    PyObject *list, *validity;
    Py_ssize_t start;
    Py_buffer data = {0};
    Py_buffer offsets = {0};
    Py_buffer bits = {0};
    int64_t used = 0;
    if (!PyArg_ParseTuple(args, "O!nw*w*O:column_fill", &PyList_Type, &list, &start, &data,
                          &offsets, &validity)) {
        return NULL;
    }
    Py_ssize_t next = -1;
    el_section section;
    el_section_enter(&section, list);
    if (start < 0 || start > PyList_Size(list)) {
        PyErr_SetString(PyExc_IndexError, "start is outside the list");
    } else if (validity == Py_None || PyObject_GetBuffer(validity, &bits, PyBUF_WRITABLE) == 0) {
        next = items_move(list, start, &data, &offsets, &bits, &used);
    }
    el_section_leave(&section);
    PyBuffer_Release(&data);
    PyBuffer_Release(&offsets);
    if (bits.obj) {
        PyBuffer_Release(&bits);
    }
    return next < 0 ? NULL : Py_BuildValue("(nL)", next, (long long)used);
}

PyMethodDef el_column_methods[] = {
    {"list_take", list_take, METH_O,
     "list_take(items) -> (a copy, bytes of all, bytes of the largest, count of None)\n\n"
     "Raises TypeError with the type of an item that is neither bytes nor None."},
    {"column_fill", column_fill, METH_VARARGS,
     "column_fill(items, start, data, offsets, validity) -> (next, bytes)\n\n"
     "Copies bytes and None from `start` on into buffers: int32 offsets, and a bitmap (None if no "
     "item is None). As many as fit.\n"
     "The copied items of the list become None."},
    {NULL},
};
