/* Sealing: parcels become one run of batches, ready to be stamped and appended. */
#include "rows.h"

/* Field positions of a batch header, magic 2. */
enum {
    AT_LENGTH = 8, AT_EPOCH = 12, AT_MAGIC = 16, AT_CRC = 17, AT_ATTRIBUTES = 21, AT_LAST_DELTA = 23, AT_BASE_TIMESTAMP = 27,
    AT_MAX_TIMESTAMP = 35, AT_PRODUCER_ID = 43, AT_PRODUCER_EPOCH = 51, AT_BASE_SEQUENCE = 53, AT_COUNT = 57,
    LENGTH_OVERHEAD = 12, MAGIC = 2
};

void el_header_write(uint8_t *batch, const el_parcel *parcel, int64_t size, int64_t base_offset, int codec, int32_t sequence) {
    store_be64(batch, (uint64_t)base_offset);
    store_be32(batch + AT_LENGTH, (uint32_t)(size - LENGTH_OVERHEAD));
    store_be32(batch + AT_EPOCH, 0);
    batch[AT_MAGIC] = MAGIC;
    store_be16(batch + AT_ATTRIBUTES, (uint16_t)codec);
    store_be32(batch + AT_LAST_DELTA, (uint32_t)(parcel->count - 1));
    store_be64(batch + AT_BASE_TIMESTAMP, (uint64_t)parcel->base_timestamp);
    store_be64(batch + AT_MAX_TIMESTAMP, (uint64_t)parcel->max_timestamp);
    store_be64(batch + AT_PRODUCER_ID, (uint64_t)parcel->lane->producer_id);
    store_be16(batch + AT_PRODUCER_EPOCH, (uint16_t)parcel->lane->producer_epoch);
    store_be32(batch + AT_BASE_SEQUENCE, parcel->lane->producer_id < 0 ? UINT32_MAX : (uint32_t)sequence);
    store_be32(batch + AT_COUNT, (uint32_t)parcel->count);
    store_be32(batch + AT_CRC, el_crc32c(0, batch + AT_ATTRIBUTES, (size_t)(size - AT_ATTRIBUTES)));
}

typedef struct {
    el_parcel *parcel;
    Py_buffer body; /* obj NULL: the parcel's own */
    int64_t size;
} el_piece;

static int piece_take(el_piece *piece, PyObject *parcel, PyObject *body) {
    if (!parcel || !Py_IS_TYPE(parcel, el_parcel_type)) return PyErr_SetString(PyExc_TypeError, "only parcels can be sealed"), -1;
    piece->parcel = (el_parcel *)parcel;
    if (!piece->parcel->data || !piece->parcel->lane || piece->parcel->fate == EL_OPEN || !piece->parcel->count)
        return PyErr_SetString(PyExc_ValueError, "the parcel is open, empty or gone"), -1;
    piece->size = piece->parcel->size;
    if (!body) return 0;
    if (PyObject_GetBuffer(body, &piece->body, PyBUF_SIMPLE) < 0) return -1;
    piece->size = EL_HEADER_SIZE + (int64_t)piece->body.len;
    return 0;
}

static void pieces_release(el_piece *pieces, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (pieces[i].body.obj) PyBuffer_Release(&pieces[i].body);
        pieces[i].parcel->pinned = 0;
        Py_DECREF(EL_OBJECT(pieces[i].parcel));
    }
    PyMem_Free(pieces);
}

/* The same header as a row of numbers. */
static void row_write(el_batch *row, const uint8_t *batch, const el_piece *piece, int64_t position, int64_t base_offset) {
    memset(row, 0, sizeof *row);
    row->position = position;
    row->size = (int32_t)piece->size;
    row->base_offset = base_offset;
    row->base_timestamp = piece->parcel->base_timestamp;
    row->max_timestamp = piece->parcel->max_timestamp;
    row->min_timestamp = piece->parcel->min_timestamp < 0 ? -1 : piece->parcel->min_timestamp;
    row->producer_id = (int64_t)load_be64(batch + AT_PRODUCER_ID);
    row->producer_epoch = (int16_t)load_be16(batch + AT_PRODUCER_EPOCH);
    row->base_sequence = (int32_t)load_be32(batch + AT_BASE_SEQUENCE);
    row->last_offset_delta = piece->parcel->count - 1;
    row->records = piece->parcel->count;
    row->attributes = (int16_t)load_be16(batch + AT_ATTRIBUTES);
    row->magic = MAGIC;
    row->crc = load_be32(batch + AT_CRC);
}

static void pieces_write(const el_piece *pieces, Py_ssize_t count, int codec, uint8_t *run, el_batch *rows) {
    int64_t base_offset = 0;
    int32_t sequence = count ? pieces->parcel->lane->next_sequence : 0;
    uint8_t *out = run;
    for (Py_ssize_t i = 0; i < count; i++) {
        const el_piece *piece = &pieces[i];
        const uint8_t *body = piece->body.obj ? piece->body.buf : piece->parcel->data + EL_HEADER_SIZE;
        memcpy(out + EL_HEADER_SIZE, body, (size_t)piece->size - EL_HEADER_SIZE);
        el_header_write(out, piece->parcel, piece->size, base_offset, piece->body.obj ? codec : 0, sequence);
        sequence = (int32_t)(((int64_t)sequence + piece->parcel->count) & INT32_MAX);
        row_write(&rows[i], out, piece, out - run, base_offset);
        out += piece->size;
        base_offset += piece->parcel->count;
    }
}

static PyObject *pieces_join(const el_piece *pieces, Py_ssize_t count, int codec) {
    int64_t size = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (pieces[i].size > INT32_MAX) return PyErr_SetString(PyExc_OverflowError, "a batch is larger than 2 GiB"), NULL;
        size += pieces[i].size;
    }
    PyObject *run = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    PyObject *rows = run ? PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(el_batch)) : NULL;
    if (!rows) {
        Py_XDECREF(run);
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyByteArray_AsString(run);
    el_batch *numbers = (el_batch *)(void *)PyByteArray_AsString(rows);
    Py_BEGIN_ALLOW_THREADS
    pieces_write(pieces, count, codec, out, numbers);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(NN)", run, rows);
}

static PyObject *seal(PyObject *module, PyObject *args) {
    PyObject *parcels, *bodies;
    int codec;
    if (!PyArg_ParseTuple(args, "O!Oi:seal", &PyList_Type, &parcels, &bodies, &codec)) return NULL;
    Py_ssize_t count = PyList_Size(parcels);
    if (bodies != Py_None && (!PyList_Check(bodies) || PyList_Size(bodies) != count))
        return PyErr_SetString(PyExc_ValueError, "one body for each parcel"), NULL;
    el_piece *pieces = PyMem_Calloc((size_t)count + 1, sizeof *pieces);
    if (!pieces) return PyErr_NoMemory();
    Py_ssize_t taken = 0;
    for (; taken < count; taken++) {
        PyObject *body = bodies == Py_None ? NULL : PyList_GetItem(bodies, taken);
        if (piece_take(&pieces[taken], PyList_GetItem(parcels, taken), body == Py_None ? NULL : body) < 0) break;
        pieces[taken].parcel->pinned = 1;
        Py_INCREF(EL_OBJECT(pieces[taken].parcel));
    }
    PyObject *run = taken == count ? pieces_join(pieces, count, codec) : NULL;
    pieces_release(pieces, taken);
    return run;
}

PyMethodDef el_parcel_functions[] = {
    {"seal", seal, METH_VARARGS,
     "seal(parcels, bodies or None, codec) -> (run, rows)\n\n"
     "Joins closed parcels of one lane into consecutive batches whose base offsets count from 0. bodies[i] is parcel i's records\n"
     "section compressed by `codec`, or None to take it as it is. `rows` has an el_batch for each."},
    {NULL},
};
