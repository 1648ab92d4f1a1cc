/* Columns of byte strings that Python gives, row by row. */
#ifndef EL_COLUMNS_H
#define EL_COLUMNS_H

#include "objects/objects.h"

/* A column given by Python as None or as (data, offsets, validity, validity_offset); holds its
 * buffers. */
typedef struct {
    Py_buffer data, offsets, validity;
    const uint8_t *bits; /* validity, or NULL: no nulls */
    int64_t bits_offset; /* in bits */
    Py_ssize_t count;    /* rows */
    int width;           /* of an offset: 4 or 8; 0: the column is absent */
} el_column;

/* 0, or -1 with an exception set and no buffer held. */
int el_column_take(PyObject *given, el_column *column);
void el_column_release(el_column *column);

/* Row `row` as bytes, or None for a null: a new reference. NULL with an exception set: the offsets
 * leave the data. REQUIRES: 0 <= row < count. */
PyObject *el_column_item(const el_column *column, Py_ssize_t row);

/* Finds the bytes of a row: 1, 0 for a null, or -1 with an exception set. */
int el_column_find(const el_column *column, Py_ssize_t row, const uint8_t **data, Py_ssize_t *size);

#endif
