/* Sealing: parcels become one run of batches, ready to be stamped and appended. */
#include "codec/batch.h"
#include "objects/objects.h"

void el_header_write(uint8_t *batch, const el_parcel *parcel, int64_t size, int64_t base_offset, int codec, int32_t sequence, el_batch *row) {
    const el_lane *lane = parcel->lane;
    *row = (el_batch){
        .size = (int32_t)size,
        .base_offset = base_offset,
        .base_timestamp = parcel->base_timestamp,
        .max_timestamp = parcel->max_timestamp,
        .min_timestamp = parcel->min_timestamp < 0 ? -1 : parcel->min_timestamp,
        .producer_id = lane->producer_id,
        .producer_epoch = lane->producer_epoch,
        .base_sequence = lane->producer_id < 0 ? -1 : sequence,
        .last_offset_delta = parcel->count - 1,
        .records = parcel->count,
        .attributes = (int16_t)codec,
        .magic = MAGIC,
    };
    el_header_seal(batch, row);
    row->crc = load_be32(batch + CRC_AT);
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

static void pieces_write(const el_piece *pieces, Py_ssize_t count, int codec, uint8_t *run, el_batch *rows) {
    int64_t base_offset = 0;
    int32_t sequence = count ? pieces->parcel->lane->next_sequence : 0;
    uint8_t *out = run;
    for (Py_ssize_t i = 0; i < count; i++) {
        const el_piece *piece = &pieces[i];
        const uint8_t *body = piece->body.obj ? piece->body.buf : piece->parcel->data + EL_HEADER_SIZE;
        memcpy(out + EL_HEADER_SIZE, body, (size_t)piece->size - EL_HEADER_SIZE);
        el_header_write(out, piece->parcel, piece->size, base_offset, piece->body.obj ? codec : 0, sequence, &rows[i]);
        rows[i].position = out - run;
        sequence = el_sequence_after(sequence, rows[i].last_offset_delta);
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
