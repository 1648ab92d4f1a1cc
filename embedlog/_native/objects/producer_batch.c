/* ProducerBatch: one Kafka batch from its first record until it is settled. */
#include "objects/producer.h"

#include <structmember.h>
#include <unistd.h>

PyTypeObject *el_producer_batch_type;

el_producer_batch *el_batch_new(el_accumulator *accumulator) {
    el_producer_batch *batch = (el_producer_batch *)PyType_GenericAlloc(el_producer_batch_type, 0);
    if (!batch) {
        return NULL;
    }
    batch->accumulator = (el_accumulator *)Py_NewRef(EL_OBJECT(accumulator));
    batch->opened_ns = el_now_ns();
    batch->base_offset = batch->append_time_ms = -1;
    return batch;
}

void el_queue_link(el_queue *queue, el_producer_batch *batch) {
    el_accumulator *accumulator = queue->accumulator;
    batch->queue = (el_queue *)Py_NewRef(EL_OBJECT(queue));
    batch->topic = Py_NewRef(queue->topic);
    batch->partition = queue->partition;
    queue->batch_count++;
    queue->used = 1;
    if (queue->last) {
        queue->last->next = batch;
    } else {
        queue->first = batch;
    }
    queue->last = batch;
    if (queue->active) {
        return;
    }
    queue->active = 1;
    Py_INCREF(EL_OBJECT(queue));
    if (accumulator->last_active) {
        accumulator->last_active->next_active = queue;
    } else {
        accumulator->first_active = queue;
    }
    accumulator->last_active = queue;
}

void el_batches_drop(el_producer_batch **first) {
    el_producer_batch *batch = *first;
    *first = NULL;
    while (batch) {
        el_producer_batch *next = batch->next;
        batch->next = NULL;
        Py_CLEAR(batch->queue);
        Py_DECREF(EL_OBJECT(batch));
        batch = next;
    }
}

static int batch_traverse(PyObject *object, visitproc visit, void *arg) {
    el_producer_batch *self = (el_producer_batch *)object;
    PyObject *owned[] = {EL_OBJECT(Py_TYPE(object)),
                         EL_OBJECT(self->accumulator),
                         EL_OBJECT(self->queue),
                         EL_OBJECT(self->next),
                         self->topic,
                         self->run,
                         self->result,
                         self->error};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_VISIT(owned[i]);
    }
    return el_callbacks_visit(self, visit, arg);
}

/* Chains of batches are broken by their queue or accumulator, results and errors by their own
 * types. */
static int batch_clear(PyObject *object) {
    el_callbacks_drop((el_producer_batch *)object);
    return 0;
}

static void batch_dealloc(PyObject *object) {
    el_producer_batch *self = (el_producer_batch *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    el_callbacks_drop(self);
    PyMem_Free(self->data);
    PyObject *owned[] = {EL_OBJECT(self->accumulator),
                         EL_OBJECT(self->queue),
                         EL_OBJECT(self->next),
                         self->topic,
                         self->run,
                         self->result,
                         self->error,
                         EL_OBJECT(self->tally)};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_XDECREF(owned[i]);
    }
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void waiter_unlink(el_producer_batch *batch, el_waiter *waiter) {
    for (el_waiter **link = &batch->waiters; *link; link = &(*link)->next) {
        if (*link == waiter) {
            *link = waiter->next;
            return;
        }
    }
}

/* Sleeps in the waiter's lock; a raising signal handler ends it. 1, 0 or -1 as el_batch_wait. */
static int waiter_sleep(const el_producer_batch *batch, el_waiter *waiter, int64_t limit_ns) {
    while (!el_is_settled(batch)) {
        int64_t left_us = limit_ns == INT64_MAX ? -1 : (limit_ns - el_now_ns()) / 1000;
        if (left_us <= 0 && limit_ns != INT64_MAX) {
            return 0;
        }
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS
        status = PyThread_acquire_lock_timed(waiter->lock, left_us, 1);
        Py_END_ALLOW_THREADS
        if (status == PY_LOCK_INTR && PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
    return 1;
}

/* Appends the batch in this thread, or hands it to the producer's thread: 0, or -1 with the
 * exception of a signal handler. */
static int batch_send(el_producer_batch *batch, int64_t limit_ns) {
    int written = el_direct_write(batch, limit_ns);
    if (written || !batch->queue || batch->state != EL_OPEN) {
        return written < 0 ? -1 : 0;
    }
    batch->urgent = 1; /* while another thread appends, more records may be added to it */
    if (!batch->queue->busy) {
        el_queue_seal(batch->queue);
    }
    return 0;
}

int el_batch_wait(el_producer_batch *batch, double timeout_s) {
    if (el_is_settled(batch)) {
        return 1;
    }
    if (batch->accumulator->pid != (long)getpid()) {
        PyErr_SetString(
            batch->accumulator->forked_error,
            "the record was sent by the parent process: only its futures receive the result");
        return -1;
    }
    if (batch->accumulator->thread == PyThread_get_thread_ident()) {
        PyErr_SetString(batch->accumulator->state_error,
                        "result() inside a callback of this producer would wait for itself");
        return -1;
    }
    int64_t limit_ns =
        timeout_s < 0 || timeout_s > 1e9 ? INT64_MAX : el_now_ns() + (int64_t)(timeout_s * 1e9);
    Py_INCREF(EL_OBJECT(batch));
    if (batch_send(batch, limit_ns) < 0) {
        Py_DECREF(EL_OBJECT(batch));
        return -1;
    }
    int answer = el_is_settled(batch) ? 1 : -1;
    el_waiter waiter = {batch->waiters, answer < 0 ? PyThread_allocate_lock() : NULL};
    if (waiter.lock) {
        PyThread_acquire_lock(waiter.lock, WAIT_LOCK);
        batch->waiters = &waiter;
        answer = waiter_sleep(batch, &waiter, limit_ns);
        waiter_unlink(batch, &waiter);
        /* held by the waking or by this thread: free it unlocked */
        PyThread_release_lock(waiter.lock);
        PyThread_free_lock(waiter.lock);
    } else if (answer < 0) {
        PyErr_NoMemory();
    }
    Py_DECREF(EL_OBJECT(batch));
    return answer;
}

static PyObject *batch_wait(PyObject *object, PyObject *timeout) {
    double seconds = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int answer =
        el_batch_wait((el_producer_batch *)object, timeout != Py_None && seconds < 0 ? 0 : seconds);
    if (answer < 0) {
        return NULL;
    }
    EL_RETURN_TRUTH(answer);
}

/* ---- settling -------------------------------------------------------------------------------- */

static int batch_settle_check(const el_producer_batch *self) {
    if (!el_is_settled(self)) {
        return 0;
    }
    PyErr_SetString(PyExc_RuntimeError, "the batch is settled already");
    return -1;
}

static PyObject *batch_deliver(PyObject *object, PyObject *args) {
    el_producer_batch *self = (el_producer_batch *)object;
    long long base_offset, append_time_ms;
    if (!PyArg_ParseTuple(args, "LL:deliver", &base_offset, &append_time_ms) ||
        batch_settle_check(self) < 0) {
        return NULL;
    }
    self->base_offset = base_offset;
    self->append_time_ms = append_time_ms;
    el_batch_settle(self, EL_DELIVERED);
    Py_RETURN_NONE;
}

static PyObject *batch_keep(PyObject *object, PyObject *result) {
    el_producer_batch *self = (el_producer_batch *)object;
    if (batch_settle_check(self) < 0) {
        return NULL;
    }
    el_replace(&self->result, result);
    el_batch_settle(self, EL_DELIVERED);
    Py_RETURN_NONE;
}

static PyObject *batch_fail(PyObject *object, PyObject *args) {
    el_producer_batch *self = (el_producer_batch *)object;
    PyObject *error;
    PyObject *tally = Py_None;
    int count = self->count;
    if (!PyArg_ParseTuple(args, "O|Oi:fail", &error, &tally, &count) ||
        batch_settle_check(self) < 0) {
        return NULL;
    }
    if (!PyExceptionInstance_Check(error)) {
        return PyErr_SetString(PyExc_TypeError, "a batch fails with an exception"), NULL;
    }
    if (tally != Py_None && !Py_IS_TYPE(tally, el_tally_type)) {
        return PyErr_SetString(PyExc_TypeError, "a Tally counts failures"), NULL;
    }
    self->count = count;
    el_batch_fail(self, error, tally);
    Py_RETURN_NONE;
}

/* For a forced close: the sending thread settles the batches that it has taken. */
static PyObject *batch_abandon(PyObject *object, PyObject *args) {
    if (((el_producer_batch *)object)->state >= EL_TAKEN) {
        Py_RETURN_FALSE;
    }
    PyObject *answer = batch_fail(object, args);
    Py_XDECREF(answer);
    return answer ? Py_NewRef(Py_True) : NULL;
}

static PyObject *batch_get_done(PyObject *object, void *unused) {
    EL_RETURN_TRUTH(el_is_settled((el_producer_batch *)object));
}
static PyObject *batch_get_opened(PyObject *object, void *unused) {
    return PyFloat_FromDouble((double)((el_producer_batch *)object)->opened_ns / 1e9);
}

/* The records section as bytes: the memory of the batch is valid only until it is settled. */
static PyObject *batch_get_body(PyObject *object, void *unused) {
    el_producer_batch *self = (el_producer_batch *)object;
    if (!self->data) {
        return PyErr_SetString(PyExc_ValueError, "the batch has no body of its own"), NULL;
    }
    return PyBytes_FromStringAndSize((const char *)self->data + EL_HEADER_SIZE,
                                     (Py_ssize_t)self->size - EL_HEADER_SIZE);
}

EL_METHOD(EL_OF_BATCH, batch_wait)
EL_METHOD(EL_OF_BATCH, batch_deliver)
EL_METHOD(EL_OF_BATCH, batch_keep)
EL_METHOD(EL_OF_BATCH, batch_abandon)
EL_METHOD(EL_OF_BATCH, batch_fail)
EL_GETTER(EL_OF_BATCH, batch_get_done)
EL_GETTER(EL_OF_BATCH, batch_get_body)
EL_FIELDS(EL_OF_BATCH)

static PyGetSetDef batch_fields[] = {
    EL_FIELD(topic, T_OBJECT_EX, el_producer_batch, "Name of the topic; a promise has none."),
    EL_FIELD(count, T_INT, el_producer_batch, "Records."),
    EL_FIELD(size, T_LONGLONG, el_producer_batch,
             "Bytes, the batch header included, before compression."),
    EL_FIELD(record_most, T_LONGLONG, el_producer_batch,
             "Bytes of the largest record; 0 for a run."),
    EL_FIELD(partition, T_INT, el_producer_batch, "Number of the partition."),
    EL_FIELD(run, T_OBJECT, el_producer_batch, "The run that send_batch encoded, or None."),
    EL_FIELD(base_offset, T_LONGLONG, el_producer_batch, "Offset of the first record, or -1."),
    EL_FIELD(max_timestamp, T_LONGLONG, el_producer_batch, "Largest timestamp."),
    EL_FIELD(min_timestamp, T_LONGLONG, el_producer_batch, "Smallest timestamp."),
    EL_FIELD(keyless, T_INT, el_producer_batch, "1 if a record has no key, else 0."),
    {"done", EL_ALONE(batch_get_done), NULL, "Whether it is settled.", NULL},
    {"opened", batch_get_opened, NULL,
     "Time of its first record on the monotonic clock, in seconds.", NULL},
    {"body", EL_ALONE(batch_get_body), NULL, "A copy of its records section.", NULL},
    {NULL},
};

static PyMethodDef batch_methods[] = {
    {"wait", EL_ALONE(batch_wait), METH_O,
     "wait(timeout_s or None) -> done: sends it and waits until it is settled."},
    {"deliver", EL_ALONE(batch_deliver), METH_VARARGS,
     "deliver(base_offset, append_time_ms or -1)."},
    {"keep", EL_ALONE(batch_keep), METH_O, "keep(result): fulfils a promise."},
    {"abandon", EL_ALONE(batch_abandon), METH_VARARGS,
     "abandon(exception, tally=None) -> True; False, without any change, if it was taken to be "
     "written."},
    {"fail", EL_ALONE(batch_fail), METH_VARARGS,
     "fail(exception, tally=None, count=its records): `tally` counts the unobserved records."},
    {NULL},
};

static PyType_Slot batch_slots[] = {
    {Py_tp_dealloc, batch_dealloc},
    {Py_tp_traverse, batch_traverse},
    {Py_tp_clear, batch_clear},
    {Py_tp_getset, batch_fields},
    {Py_tp_methods, batch_methods},
    {Py_tp_doc, "One Kafka batch from its first record until it is settled."},
    {0, NULL},
};

static PyType_Spec batch_spec = {"embedlog._native._rows.ProducerBatch", sizeof(el_producer_batch),
                                 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                     Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 batch_slots};

int el_producer_batch_ready(PyObject *module) {
    el_producer_batch_type = el_type_ready(module, &batch_spec);
    return el_producer_batch_type ? 0 : -1;
}
