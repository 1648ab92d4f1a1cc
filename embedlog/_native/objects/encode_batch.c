/* Encodes one batch of a few records with the same timestamp, for the internal topics. */
#include "codec/batch.h"
#include "objects/encode_record.h"

enum { FEW = 8 }; /* up to so many records are measured on the stack */

typedef struct {
    el_item item;
    int64_t size; /* after the length field */
} el_measured;

/* Measures the record in pair `place`: 0, or -1 with an exception set. */
static int pair_measure(PyObject *records, Py_ssize_t place, el_measured *measured) {
    PyObject *pair = PyList_GetItem(records, place);
    int taken =
        Py_IS_TYPE(pair, &PyTuple_Type) && PyTuple_Size(pair) == 2 &&
        el_item_take(&measured->item, PyTuple_GetItem(pair, 1), PyTuple_GetItem(pair, 0), Py_None);
    if (!taken) {
        return PyErr_SetString(PyExc_TypeError,
                               "a record is a tuple (key, value) of bytes or None"),
               -1;
    }
    measured->size = el_item_size(&measured->item, 0, (int32_t)place);
    return 0;
}

/* The size of the batch, or -1 with an exception set. */
static int64_t batch_measure(PyObject *records, Py_ssize_t count, el_measured *measured) {
    int64_t size = EL_HEADER_SIZE;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (pair_measure(records, i, &measured[i]) < 0) {
            return -1;
        }
        size += varint_size(measured[i].size) + measured[i].size;
        if (size > INT32_MAX) {
            return PyErr_SetString(PyExc_OverflowError, "a batch is larger than 2 GiB"), -1;
        }
    }
    return size;
}

static PyObject *batch_write(const el_measured *measured, Py_ssize_t count, el_batch *header) {
    PyObject *batch = PyBytes_FromStringAndSize(NULL, header->size);
    if (!batch) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AsString(batch);
    uint8_t *at = out + EL_HEADER_SIZE;
    for (Py_ssize_t i = 0; i < count; i++) {
        at = el_item_write(&measured[i].item, measured[i].size, 0, (int32_t)i, at);
    }
    el_header_seal(out, header);
    return batch;
}

/* `header` has the fields that do not follow from the records. */
static PyObject *records_encode(PyObject *records, el_batch header) {
    Py_ssize_t count = PyList_Size(records);
    if (count < 1 || count > INT32_MAX) {
        return PyErr_SetString(PyExc_ValueError, "a batch has at least one record"), NULL;
    }
    el_measured few[FEW];
    el_measured *measured = count <= FEW ? few : PyMem_Calloc((size_t)count, sizeof *measured);
    if (!measured) {
        return PyErr_NoMemory();
    }
    int64_t size = batch_measure(records, count, measured);
    header.size = (int32_t)size;
    header.last_offset_delta = (int32_t)count - 1;
    header.records = (int32_t)count;
    PyObject *batch = size < 0 ? NULL : batch_write(measured, count, &header);
    if (measured != few) {
        PyMem_Free(measured);
    }
    return batch;
}

static PyObject *encode_batch(PyObject *module, PyObject *args) {
    PyObject *records;
    long long timestamp_ms, producer_id;
    int attributes, epoch, sequence;
    if (!PyArg_ParseTuple(args, "O!LiLii:encode_batch", &PyList_Type, &records, &timestamp_ms,
                          &attributes, &producer_id, &epoch, &sequence)) {
        return NULL;
    }
    el_batch header = {
        .base_timestamp = timestamp_ms,
        .max_timestamp = timestamp_ms,
        .producer_id = producer_id,
        .producer_epoch = (int16_t)epoch,
        .base_sequence = sequence,
        .attributes = (int16_t)attributes,
        .magic = MAGIC,
    };
    el_section section;
    el_section_enter(&section, records); /* the measured bytes are those that are written */
    PyObject *batch = records_encode(records, header);
    el_section_leave(&section);
    return batch;
}

PyMethodDef el_batch_functions[] = {
    {"encode_batch", encode_batch, METH_VARARGS,
     "encode_batch(records, timestamp_ms, attributes, producer_id, producer_epoch, base_sequence) "
     "-> bytes\n\n"
     "A sealed batch with base offset 0 and leader epoch 0. `records` is a list of tuples (key, "
     "value) of bytes or None."},
    {NULL},
};
