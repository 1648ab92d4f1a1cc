/* RecordRun: the records of one verified batch, as objects that are made when they are taken.
 *
 * - A run exists only if the whole batch can be parsed: no record of a damaged batch is returned.
 * - The records section is read again while records are taken, with the same checks: its memory may
 *   be shared.
 * - Marks lead to every MARK_RECORDS-th record of a large batch, so that another run of it begins
 *   anywhere at the same cost. */
#include "objects/wire_record.h"

#include <structmember.h>

enum { MARK_RECORDS = 16 };

typedef struct { /* before a record */
    /* byte of the section; a section is smaller than 2^31 bytes, or it gets no marks */
    uint32_t at;
    int32_t previous; /* offset delta of the record before it */
} el_mark;

typedef struct {
    PyObject_HEAD PyObject *topic;
    /* the el_marks of the batch as bytes, shared by all runs of it; NULL: few records */
    PyObject *marks;
    Py_buffer body; /* the records section, uncompressed; held */
    el_batch batch;
    el_walk walk;     /* before the next record */
    int64_t offset;   /* of the next record; after the last one the end of the batch */
    int64_t end;      /* after the last offset of the batch */
    Py_ssize_t count; /* records that were not taken */
    int32_t partition;
} el_run;

static PyTypeObject *run_type;

/* Parses the whole section and sets its marks: 0, or -1 if the batch is not plain; then an
 * exception may be set. */
static int run_check(el_run *run) {
    el_walk walk;
    el_wire_record wire;
    if (run->batch.magic != MAGIC || (run->batch.attributes & CONTROL_BATCH)) {
        return -1;
    }
    if (walk_begin(&walk, &run->batch, run->body.buf, run->body.len)) {
        return -1;
    }
    el_mark *marks = NULL;
    if (walk.records > 2 * MARK_RECORDS && run->body.len <= INT32_MAX) {
        run->marks =
            PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((walk.records - 1) / MARK_RECORDS + 1) *
                                                (Py_ssize_t)sizeof(el_mark));
        if (!run->marks) {
            return -1;
        }
        marks = (el_mark *)(void *)PyBytes_AsString(run->marks);
    }
    while (walk.taken < walk.records) {
        if (marks && walk.taken % MARK_RECORDS == 0) {
            marks[walk.taken / MARK_RECORDS] =
                (el_mark){(uint32_t)(walk.at - walk.body), walk.previous};
        }
        if (walk_next(&walk, &wire, EL_MEASURED)) {
            return -1;
        }
    }
    return walk_end(&walk) ? -1 : 0;
}

/* Moves the walk to the last mark before the record with this offset delta. */
static void run_skip(const el_run *run, el_walk *walk, int64_t delta) {
    if (!run->marks) {
        return;
    }
    const el_mark *marks = (const el_mark *)(const void *)PyBytes_AsString(run->marks);
    int32_t low = 0;
    /* mark `low` is before the record, mark `high` is not */
    int32_t high = (walk->records - 1) / MARK_RECORDS + 1;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (marks[middle].previous < delta) {
            low = middle;
        } else {
            high = middle;
        }
    }
    walk->at = walk->body + marks[low].at;
    walk->previous = marks[low].previous;
    walk->taken = low * MARK_RECORDS;
}

/* The run begins at the first record from `start` on. REQUIRES: run_check succeeded for these
 * bytes; they are checked again. */
static int run_begin(el_run *run, int64_t start) {
    el_walk walk;
    el_wire_record wire;
    if (walk_begin(&walk, &run->batch, run->body.buf, run->body.len)) {
        return -1;
    }
    int64_t delta = start > run->batch.base_offset ? start - run->batch.base_offset : 0;
    run_skip(run, &walk, delta);
    run->walk = walk;
    run->count = 0;
    run->end = run->offset = run->batch.base_offset + run->batch.last_offset_delta + 1;
    while (walk.taken < walk.records) {
        run->walk = walk;
        if (walk_next(&walk, &wire, EL_MEASURED)) {
            return -1;
        }
        if (wire.offset_delta < delta) {
            continue;
        }
        run->count = walk.records - run->walk.taken;
        run->offset = run->batch.base_offset + wire.offset_delta;
        break;
    }
    return 0;
}

static el_run *run_new(PyObject *topic, int32_t partition, const el_batch *batch,
                       const Py_buffer *body) {
    el_run *run = PyObject_New(el_run, run_type);
    if (!run) {
        return NULL;
    }
    run->topic = Py_NewRef(topic);
    run->marks = NULL;
    run->partition = partition;
    run->batch = *batch;
    run->body = *body;
    run->count = 0;
    run->offset = run->end = 0;
    return run;
}

/* record_run(topic, partition, row, body, start_offset) */
static PyObject *record_run(PyObject *module, PyObject *args) {
    PyObject *topic;
    Py_buffer row, body;
    int partition;
    long long start;
    if (!PyArg_ParseTuple(args, "Oiy*y*L:record_run", &topic, &partition, &row, &body, &start)) {
        return NULL;
    }
    el_batch batch;
    el_run *run = NULL;
    if (row.len == sizeof batch) {
        memcpy(&batch, row.buf, sizeof batch);
        run = run_new(topic, partition, &batch, &body);
    } else {
        PyErr_SetString(PyExc_ValueError, "not one row of a batch");
    }
    PyBuffer_Release(&row);
    if (!run) {
        PyBuffer_Release(&body);
        return NULL;
    }
    if (run_check(run) == 0 && run_begin(run, start) == 0) {
        return EL_OBJECT(run);
    }
    Py_DECREF(EL_OBJECT(run));
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *run_at(PyObject *object, PyObject *start) {
    el_run *run = (el_run *)object;
    Py_buffer body;
    long long offset = PyLong_AsLongLong(start);
    if (offset == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (offset < 0) {
        PyErr_SetString(PyExc_ValueError, "an offset is not negative");
        return NULL;
    }
    if (PyObject_GetBuffer(run->body.obj, &body, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    el_run *made = run_new(run->topic, run->partition, &run->batch, &body);
    if (!made) {
        PyBuffer_Release(&body);
        return NULL;
    }
    made->marks = Py_XNewRef(run->marks);
    if (body.len == run->body.len && run_begin(made, offset) == 0) {
        return EL_OBJECT(made);
    }
    Py_DECREF(EL_OBJECT(made));
    PyErr_SetString(PyExc_ValueError, "the bytes of a batch changed while its records were taken");
    return NULL;
}

/* The time of a record, as in the walk that decodes columns. */
static int64_t run_time(const el_run *run, const el_wire_record *wire) {
    if (run->batch.attributes & LOG_APPEND_TIME) {
        return run->batch.max_timestamp;
    }
    return (int64_t)((uint64_t)run->batch.base_timestamp + (uint64_t)wire->timestamp_delta);
}

static PyObject *run_since(PyObject *object, PyObject *time) {
    const el_run *run = (el_run *)object;
    el_wire_record wire;
    el_walk walk = run->walk;
    long long timestamp = PyLong_AsLongLong(time);
    if (timestamp == -1 && PyErr_Occurred()) {
        return NULL;
    }
    for (Py_ssize_t left = run->count; left > 0; left--) {
        if (walk_next(&walk, &wire, EL_MEASURED)) {
            PyErr_SetString(PyExc_ValueError,
                            "the bytes of a batch changed while its records were taken");
            return NULL;
        }
        int64_t found = run_time(run, &wire);
        if (found >= timestamp) {
            return Py_BuildValue("(LL)", (long long)(run->batch.base_offset + wire.offset_delta),
                                 (long long)found);
        }
    }
    Py_RETURN_NONE;
}

static void run_dealloc(PyObject *object) {
    el_run *run = (el_run *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyBuffer_Release(&run->body);
    Py_XDECREF(run->marks);
    Py_DECREF(run->topic);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* The next record, NULL with an exception set. REQUIRES: there is one. */
static PyObject *run_next(el_run *run) {
    el_wire_record wire;
    el_walk walk = run->walk;
    int32_t what = walk_next(&walk, &wire, EL_MEASURED);
    el_record *record =
        what ? NULL : el_record_of_wire(run->topic, run->partition, &run->batch, &wire);
    if (!record) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError,
                            "the bytes of a batch changed while its records were taken");
        }
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
    if (most == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t count = most < run->count ? most : run->count;
    PyObject *list = PyList_New(count < 0 ? 0 : count);
    for (Py_ssize_t at = 0; list && at < count; at++) {
        PyObject *record = run->count > 0 ? run_next(run) : NULL;
        if (!record && !PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError,
                            "two threads took records of one run at the same time");
        }
        if (!record || PyList_SetItem(list, at, record) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

#define EL_OF_RUN(object) (object)
EL_METHOD(EL_OF_RUN, run_take)
EL_METHOD(EL_OF_RUN, run_since)
EL_FIELDS(EL_OF_RUN)

static PyMethodDef run_methods[] = {
    {"take", EL_ALONE(run_take), METH_O,
     "take(limit)\n\nThe next records, at most `limit`, as a list."},
    {"since", EL_ALONE(run_since), METH_O,
     "since(timestamp)\n\nOffset and timestamp of the first record that was not taken and has this "
     "timestamp or a later one, or None."},
    {"at", run_at, METH_O,
     "at(start)\n\nAnother run of the same batch, from the offset `start` on. It may have no "
     "records."},
    {NULL},
};

static PyGetSetDef run_fields[] = {
    EL_FIELD(count, T_PYSSIZET, el_run, "Records that were not taken."),
    EL_FIELD(offset, T_LONGLONG, el_run, "Offset at which the next record is searched."),
    {NULL},
};

static PyMemberDef run_members[] = {
    {"end", T_LONGLONG, offsetof(el_run, end), READONLY, "Offset after the last one of the batch."},
    {"max_timestamp", T_LONGLONG, offsetof(el_run, batch) + offsetof(el_batch, max_timestamp),
     READONLY, "Largest timestamp, by the header."},
    {"leader_epoch", T_INT, offsetof(el_run, batch) + offsetof(el_batch, leader_epoch), READONLY,
     "Leader epoch of all its records."},
    {NULL},
};

static PyType_Slot run_slots[] = {
    {Py_tp_dealloc, run_dealloc},
    {Py_tp_methods, run_methods},
    {Py_tp_members, run_members},
    {Py_tp_getset, run_fields},
    {Py_tp_doc,
     "The records of one verified batch, made when they are taken. Threads: one at a time."},
    {0, NULL},
};

static PyType_Spec run_spec = {
    "embedlog._native._rows.RecordRun", sizeof(el_run), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, run_slots};

PyMethodDef el_record_run_functions[] = {
    {"record_run", record_run, METH_VARARGS,
     "record_run(topic, partition, row, body, start_offset)\n\n"
     "The records from start_offset on of a verified batch: its BATCH row, and its uncompressed "
     "records section. None if it is not plain."},
    {NULL},
};

int el_record_run_ready(PyObject *module) {
    run_type = el_type_ready(module, &run_spec);
    return run_type ? 0 : -1;
}
