/* RecordRun: the records of one verified batch, as objects that are made when they are taken.
 *
 * CRECORDRUN-1  a run exists only if the whole batch can be parsed: no record of a damaged batch is returned
 * CRECORDRUN-2  the records section is read again while records are taken, with the same checks: its memory may be shared */
#include "objects/wire_record.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *topic;
    Py_buffer body;      /* the records section, uncompressed; held */
    el_batch batch;
    el_walk walk;        /* before the next record */
    int64_t offset;      /* of the next record; after the last one the end of the batch */
    Py_ssize_t count;    /* records that were not taken */
    int32_t partition;
} el_run;

static PyTypeObject *run_type;

/* Parses the whole section. The walk of the run stops before the first record from `start` on: 0, or -1 if the batch is not plain. */
static int run_open(el_run *run, int64_t start) {
    el_walk walk;
    if (run->batch.magic != MAGIC || (run->batch.attributes & CONTROL_BATCH)) return -1;
    if (walk_begin(&walk, &run->batch, run->body.buf, run->body.len)) return -1;
    run->offset = run->batch.base_offset + run->batch.last_offset_delta + 1;
    run->walk = walk;
    for (int32_t left = walk.records; left > 0; left--) {
        el_walk before = walk;
        el_wire_record wire;
        if (walk_next(&walk, &wire, EL_MEASURED)) return -1;
        if (run->batch.base_offset + wire.offset_delta < start) continue;
        run->walk = before;
        run->count = left;
        run->offset = run->batch.base_offset + wire.offset_delta;
        while (walk.taken < walk.records)
            if (walk_next(&walk, &wire, EL_MEASURED)) return -1;
        break;
    }
    return walk_end(&walk) ? -1 : 0;
}

/* record_run(topic, partition, row, body, start_offset) */
static PyObject *record_run(PyObject *module, PyObject *args) {
    PyObject *topic;
    Py_buffer row, body;
    int partition;
    long long start;
    if (!PyArg_ParseTuple(args, "Oiy*y*L:record_run", &topic, &partition, &row, &body, &start)) return NULL;
    el_run *run = row.len == sizeof(el_batch) ? PyObject_New(el_run, run_type) : NULL;
    if (!run) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "not one row of a batch");
        PyBuffer_Release(&row);
        PyBuffer_Release(&body);
        return NULL;
    }
    memcpy(&run->batch, row.buf, sizeof run->batch);
    PyBuffer_Release(&row);
    run->topic = Py_NewRef(topic);
    run->partition = partition;
    run->body = body;
    run->count = 0;
    if (run_open(run, start) == 0) return EL_OBJECT(run);
    Py_DECREF(EL_OBJECT(run));
    Py_RETURN_NONE;
}

static void run_dealloc(PyObject *object) {
    el_run *run = (el_run *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyBuffer_Release(&run->body);
    Py_DECREF(run->topic);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* The next record, NULL with an exception set. REQUIRES: there is one. */
static PyObject *run_next(el_run *run) {
    el_wire_record wire;
    el_walk walk = run->walk;
    int32_t what = walk_next(&walk, &wire, EL_MEASURED);
    el_record *record = what ? NULL : el_record_of_wire(run->topic, run->partition, &run->batch, &wire);
    if (!record) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the bytes of a batch changed while its records were taken");
        return NULL;
    }
    run->walk = walk;
    run->count--;
    run->offset = record->offset + 1;
    return EL_OBJECT(record);
}

static PyObject *run_take(PyObject *object, PyObject *limit) {
    el_run *run = (el_run *)object;
    Py_ssize_t most = PyLong_AsSsize_t(limit);
    if (most == -1 && PyErr_Occurred()) return NULL;
    Py_ssize_t count = most < run->count ? most : run->count;
    PyObject *list = PyList_New(count < 0 ? 0 : count);
    for (Py_ssize_t at = 0; list && at < count; at++) {
        PyObject *record = run_next(run);
        if (!record || PyList_SetItem(list, at, record) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyMethodDef run_methods[] = {
    {"take", run_take, METH_O, "take(limit)\n\nThe next records, at most `limit`, as a list."},
    {NULL},
};

static PyMemberDef run_members[] = {
    {"count", T_PYSSIZET, offsetof(el_run, count), READONLY, "Records that were not taken."},
    {"offset", T_LONGLONG, offsetof(el_run, offset), READONLY, "Offset at which the next record is searched."},
    {"leader_epoch", T_INT, offsetof(el_run, batch) + offsetof(el_batch, leader_epoch), READONLY, "Leader epoch of all its records."},
    {NULL},
};

static PyType_Slot run_slots[] = {
    {Py_tp_dealloc, run_dealloc},
    {Py_tp_methods, run_methods},
    {Py_tp_members, run_members},
    {Py_tp_doc, "The records of one verified batch, made when they are taken. Threads: one at a time."},
    {0, NULL},
};

static PyType_Spec run_spec = {"embedlog._native._rows.RecordRun", sizeof(el_run), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, run_slots};

PyMethodDef el_record_run_functions[] = {
    {"record_run", record_run, METH_VARARGS,
     "record_run(topic, partition, row, body, start_offset)\n\n"
     "The records from start_offset on of a verified batch: its BATCH row, and its uncompressed records section. None if it is not plain."},
    {NULL},
};

int el_record_run_ready(PyObject *module) {
    run_type = el_type_ready(module, &run_spec);
    return run_type ? 0 : -1;
}
