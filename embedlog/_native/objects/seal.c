/* Sealing: joins producer batches to one run of batches, ready to be stamped and appended. */
#include "codec/batch.h"
#include "objects/producer.h"

void el_header_write(uint8_t *head, const el_producer_batch *batch, int64_t size,
                     int64_t base_offset, int codec, int32_t sequence, el_batch *row) {
    const el_queue *queue = batch->queue;
    *row = (el_batch){
        .size = (int32_t)size,
        .base_offset = base_offset,
        .base_timestamp = batch->base_timestamp,
        .max_timestamp = batch->max_timestamp,
        .min_timestamp = batch->min_timestamp < 0 ? -1 : batch->min_timestamp,
        .producer_id = queue->producer_id,
        .producer_epoch = queue->producer_epoch,
        .base_sequence = queue->producer_id < 0 ? -1 : sequence,
        .last_offset_delta = batch->count - 1,
        .records = batch->count,
        .attributes = (int16_t)codec,
        .magic = MAGIC,
    };
    el_header_seal(head, row);
    row->crc = load_be32(head + CRC_AT);
}

typedef struct {
    el_producer_batch *batch;
    Py_buffer body; /* obj NULL: the batch's own */
    int64_t size;
} el_piece;

/* Pins the batch, so that its data stay: whether it can be sealed. */
static int batch_pin(el_producer_batch *batch) {
    el_section section;
    el_section_enter(&section, EL_OBJECT(batch->accumulator));
    int usable = batch->data && batch->queue && batch->state != EL_OPEN && batch->count;
    if (usable) {
        batch->pinned = 1;
    }
    el_section_leave(&section);
    return usable;
}

static void batch_unpin(el_producer_batch *batch) {
    el_section section;
    el_section_enter(&section, EL_OBJECT(batch->accumulator));
    batch->pinned = 0;
    el_section_leave(&section);
}

/* Takes over the reference to the batch, if it succeeds. */
static int piece_take(el_piece *piece, PyObject *batch, PyObject *body) {
    if (!batch || !Py_IS_TYPE(batch, el_producer_batch_type)) {
        return PyErr_SetString(PyExc_TypeError, "only batches can be sealed"), -1;
    }
    el_producer_batch *taken = (el_producer_batch *)batch;
    if (!batch_pin(taken)) {
        return PyErr_SetString(PyExc_ValueError, "the batch is open, empty or settled"), -1;
    }
    if (body && PyObject_GetBuffer(body, &piece->body, PyBUF_SIMPLE) < 0) {
        batch_unpin(taken);
        return -1;
    }
    piece->batch = taken;
    piece->size = body ? EL_HEADER_SIZE + (int64_t)piece->body.len : taken->size;
    return 0;
}

/* Takes item `place` of both lists; `bodies` is None or a list. */
static int items_take(el_piece *piece, PyObject *batches, PyObject *bodies, Py_ssize_t place) {
    PyObject *batch = el_list_item(batches, place);
    PyObject *body = batch && bodies != Py_None ? el_list_item(bodies, place) : Py_NewRef(Py_None);
    int taken = batch && body ? piece_take(piece, batch, body == Py_None ? NULL : body) : -1;
    if (taken < 0) {
        Py_XDECREF(batch);
    }
    Py_XDECREF(body); /* its view holds it */
    return taken;
}

static void pieces_release(el_piece *pieces, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (pieces[i].body.obj) {
            PyBuffer_Release(&pieces[i].body);
        }
        batch_unpin(pieces[i].batch);
        Py_DECREF(EL_OBJECT(pieces[i].batch));
    }
    PyMem_Free(pieces);
}

static void pieces_write(const el_piece *pieces, Py_ssize_t count, int codec, uint8_t *run,
                         el_batch *rows) {
    int64_t base_offset = 0;
    int32_t sequence = count ? pieces->batch->queue->next_sequence : 0;
    uint8_t *out = run;
    for (Py_ssize_t i = 0; i < count; i++) {
        const el_piece *piece = &pieces[i];
        const uint8_t *body =
            piece->body.obj ? piece->body.buf : piece->batch->data + EL_HEADER_SIZE;
        memcpy(out + EL_HEADER_SIZE, body, (size_t)piece->size - EL_HEADER_SIZE);
        el_header_write(out, piece->batch, piece->size, base_offset, piece->body.obj ? codec : 0,
                        sequence, &rows[i]);
        rows[i].position = out - run;
        sequence = el_sequence_after(sequence, rows[i].last_offset_delta);
        out += piece->size;
        base_offset += piece->batch->count;
    }
}

static PyObject *pieces_join(const el_piece *pieces, Py_ssize_t count, int codec) {
    int64_t size = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (pieces[i].size > INT32_MAX) {
            return PyErr_SetString(PyExc_OverflowError, "a batch is larger than 2 GiB"), NULL;
        }
        size += pieces[i].size;
    }
    PyObject *run = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    PyObject *rows =
        run ? PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(el_batch)) : NULL;
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
    PyObject *batches, *bodies;
    int codec;
    if (!PyArg_ParseTuple(args, "O!Oi:seal", &PyList_Type, &batches, &bodies, &codec)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(batches);
    if (bodies != Py_None && (!PyList_Check(bodies) || PyList_Size(bodies) != count)) {
        return PyErr_SetString(PyExc_ValueError, "one body for each batch"), NULL;
    }
    el_piece *pieces = PyMem_Calloc((size_t)count + 1, sizeof *pieces);
    if (!pieces) {
        return PyErr_NoMemory();
    }
    Py_ssize_t taken = 0;
    while (taken < count && items_take(&pieces[taken], batches, bodies, taken) == 0) {
        taken++;
    }
    PyObject *run = taken == count ? pieces_join(pieces, count, codec) : NULL;
    pieces_release(pieces, taken);
    return run;
}

PyMethodDef el_producer_batch_functions[] = {
    {"seal", seal, METH_VARARGS,
     "seal(batches, bodies or None, codec) -> (run, rows)\n\n"
     "Joins closed batches of one queue into consecutive batches whose base offsets count from 0. "
     "bodies[i] is batch i's records\n"
     "section compressed by `codec`, or None to take it as it is. `rows` has an el_batch for "
     "each."},
    {NULL},
};
