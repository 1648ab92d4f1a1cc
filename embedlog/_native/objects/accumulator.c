/* Accumulator: state shared by all partition queues of a producer: memory, linger time, and the
 * wake lock of the sending thread. */
#include "objects/producer.h"

#include <structmember.h>
#include <time.h>
#include <unistd.h>

PyTypeObject *el_accumulator_type;

enum { POLL_US = 1000 };

int64_t el_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void el_wake_thread(el_accumulator *accumulator) {
    if (accumulator->woken) {
        return;
    }
    accumulator->woken = 1;
    PyThread_release_lock(accumulator->wake_lock);
}

static PyObject *accumulator_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"memory_limit",
                            "linger_ms",
                            "unacknowledged",
                            "metadata",
                            "run_callback",
                            "await_future",
                            "raised_of",
                            "deadline_error",
                            "forked_error",
                            "state_error",
                            NULL};
    PyObject *metadata, *run_callback, *await_future, *raised_of, *deadline_error, *forked_error,
        *state_error;
    long long memory_limit;
    double linger_ms;
    int unacknowledged;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "LdpOOOOOOO:Accumulator", names, &memory_limit,
                                     &linger_ms, &unacknowledged, &metadata, &run_callback,
                                     &await_future, &raised_of, &deadline_error, &forked_error,
                                     &state_error)) {
        return NULL;
    }
    el_accumulator *self = (el_accumulator *)PyType_GenericAlloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->wake_lock = PyThread_allocate_lock();
    if (!self->wake_lock) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    PyThread_acquire_lock(self->wake_lock, WAIT_LOCK);
    self->memory_limit = memory_limit;
    self->linger_ns = linger_ms < 9e12 ? (int64_t)(linger_ms * 1e6) : INT64_MAX;
    self->unacknowledged = (int8_t)unacknowledged;
    self->metadata = Py_NewRef(metadata);
    self->run_callback = Py_NewRef(run_callback);
    self->await_future = Py_NewRef(await_future);
    self->raised_of = Py_NewRef(raised_of);
    self->deadline_error = Py_NewRef(deadline_error);
    self->forked_error = Py_NewRef(forked_error);
    self->state_error = Py_NewRef(state_error);
    self->pid = (long)getpid();
    return EL_OBJECT(self);
}

static int accumulator_traverse(PyObject *object, visitproc visit, void *arg) {
    el_accumulator *self = (el_accumulator *)object;
    PyObject *owned[] = {EL_OBJECT(Py_TYPE(object)),
                         EL_OBJECT(self->first_active),
                         EL_OBJECT(self->ready_first),
                         self->metadata,
                         self->run_callback,
                         self->await_future,
                         self->raised_of,
                         self->deadline_error,
                         self->forked_error,
                         self->state_error};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_VISIT(owned[i]);
    }
    return 0;
}

static int accumulator_clear(PyObject *object) {
    el_accumulator *self = (el_accumulator *)object;
    el_queues_drop(self);
    self->ready_last = NULL;
    el_batches_drop(&self->ready_first);
    return 0;
}

static void accumulator_dealloc(PyObject *object) {
    el_accumulator *self = (el_accumulator *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    accumulator_clear(object);
    PyObject **owned[] = {&self->metadata,   &self->run_callback,   &self->await_future,
                          &self->raised_of,  &self->deadline_error, &self->forked_error,
                          &self->state_error};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_CLEAR(*owned[i]);
    }
    if (self->wake_lock) {
        if (!self->woken) {
            PyThread_release_lock(self->wake_lock);
        }
        PyThread_free_lock(self->wake_lock);
    }
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- functions of the sending thread --------------------------------------------------------- */

/* Sleeps until it is woken, until `limit_us` (negative: none), or while polling until there are
 * batches to write. Without the GIL. */
static PyLockStatus wake_lock_wait(el_accumulator *self, PY_TIMEOUT_T limit_us) {
    PyLockStatus status = PY_LOCK_FAILURE;
    uint32_t seen = __atomic_load_n(&self->direct_count, __ATOMIC_RELAXED);
    for (PY_TIMEOUT_T slept_us = 0;
         status != PY_LOCK_ACQUIRED && (limit_us < 0 || slept_us < limit_us); slept_us += POLL_US) {
        PY_TIMEOUT_T left_us = limit_us < 0 ? POLL_US : limit_us - slept_us;
        status =
            PyThread_acquire_lock_timed(self->wake_lock, left_us < POLL_US ? left_us : POLL_US, 0);
        if (__atomic_load_n(&self->memory_used, __ATOMIC_RELAXED)) {
            break;
        }
        uint32_t now = __atomic_load_n(&self->direct_count, __ATOMIC_RELAXED);
        if (now == seen) {
            break; /* the callers have stopped: sleep without polling */
        }
        seen = now;
    }
    return status;
}

/* While callers append directly, a wake for every record would only cost them time: the thread
 * polls instead. */
static PyObject *accumulator_wait(PyObject *object, PyObject *timeout) {
    el_accumulator *self = (el_accumulator *)object;
    double seconds = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) {
        return NULL;
    }
    PY_TIMEOUT_T microseconds = seconds < 0     ? -1
                                : seconds > 1e6 ? (PY_TIMEOUT_T)1e12
                                                : (PY_TIMEOUT_T)(seconds * 1e6);
    self->thread = PyThread_get_thread_ident();
    self->polling = self->direct_count != self->direct_seen;
    self->direct_seen = self->direct_count;
    PyLockStatus status;
    Py_BEGIN_ALLOW_THREADS
    status = self->polling ? wake_lock_wait(self, microseconds)
                           : PyThread_acquire_lock_timed(self->wake_lock, microseconds, 0);
    Py_END_ALLOW_THREADS
    self->polling = 0;
    if (status == PY_LOCK_ACQUIRED) {
        self->woken = 0;
    }
    EL_RETURN_TRUTH(status == PY_LOCK_ACQUIRED);
}

static PyObject *accumulator_wake(PyObject *object, PyObject *unused) {
    el_wake_thread((el_accumulator *)object);
    Py_RETURN_NONE;
}

static PyObject *accumulator_ready(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    int64_t pause_ns;
    PyObject *ready = el_queues_ready(self, &pause_ns);
    if (!ready) {
        return NULL;
    }
    self->idle = pause_ns == INT64_MAX;
    if (self->idle) {
        return Py_BuildValue("(NO)", ready, Py_None);
    }
    return Py_BuildValue("(Nd)", ready, (double)pause_ns / 1e9);
}

static PyObject *accumulator_seal(PyObject *object, PyObject *unused) {
    for (el_queue *queue = ((el_accumulator *)object)->first_active; queue;
         queue = queue->next_active) {
        el_queue_seal(queue);
    }
    Py_RETURN_NONE;
}

static PyObject *accumulator_close(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    self->closed = 1;
    el_wake_thread(self);
    Py_RETURN_NONE;
}

/* One step: after it no record is accepted, all batches are settled and all callbacks have run. */
static PyObject *accumulator_end(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    if (!self->closed || self->ready_first || self->calling) {
        Py_RETURN_FALSE;
    }
    for (el_queue *queue = self->first_active; queue; queue = queue->next_active) {
        if (queue->first) {
            Py_RETURN_FALSE;
        }
    }
    self->ended = 1;
    el_queues_drop(self);
    Py_RETURN_TRUE;
}

/* In a forked child, where records and callbacks belong to the parent. */
static PyObject *accumulator_forget(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    self->closed = self->ended = 1;
    Py_RETURN_NONE;
}

static PyObject *accumulator_mark(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    el_producer_batch *mark = el_batch_new(self);
    if (!mark) {
        return NULL;
    }
    if (self->ended || (!self->ready_first && !self->calling)) {
        el_batch_settle(mark, EL_DELIVERED);
    } else {
        el_callbacks_enqueue(mark);
    }
    return EL_OBJECT(mark);
}

static PyObject *accumulator_promise(PyObject *object, PyObject *early) {
    el_producer_batch *batch = el_batch_new((el_accumulator *)object);
    el_future *future = batch ? el_future_new(0) : NULL;
    if (future) {
        el_future_join(future, batch, EL_WHOLE);
    }
    if (batch) {
        batch->early = (int8_t)PyObject_IsTrue(early);
    }
    PyObject *pair = future ? PyTuple_Pack(2, EL_OBJECT(future), EL_OBJECT(batch)) : NULL;
    Py_XDECREF(EL_OBJECT(future));
    Py_XDECREF(EL_OBJECT(batch));
    return pair;
}

EL_METHOD(EL_OF_ACCUMULATOR, accumulator_wait)
EL_METHOD(EL_OF_ACCUMULATOR, accumulator_wake)
EL_METHOD(EL_OF_ACCUMULATOR, accumulator_ready)
EL_METHOD(EL_OF_ACCUMULATOR, accumulator_seal)
EL_METHOD(EL_OF_ACCUMULATOR, el_queues_pending)
EL_METHOD(EL_OF_ACCUMULATOR, accumulator_close)
EL_METHOD(EL_OF_ACCUMULATOR, accumulator_end)
EL_METHOD(EL_OF_ACCUMULATOR, accumulator_forget)
EL_METHOD(EL_OF_ACCUMULATOR, accumulator_mark)
EL_METHOD(EL_OF_ACCUMULATOR, accumulator_promise)
EL_METHOD(EL_OF_ACCUMULATOR, el_callbacks_run)
EL_FIELDS(EL_OF_ACCUMULATOR)

static PyGetSetDef accumulator_fields[] = {
    EL_FIELD(memory_limit, T_LONGLONG, el_accumulator, "Upper bound of unsettled bytes."),
    EL_FIELD(memory_used, T_LONGLONG, el_accumulator, "Unsettled bytes."),
    EL_FIELD_SET(waiting, T_LONGLONG, el_accumulator,
                 "Threads that wait for memory; records are refused on the fast path meanwhile."),
    EL_FIELD(record_count, T_LONGLONG, el_accumulator, "Records accepted since the start."),
    EL_FIELD(direct_count, T_UINT, el_accumulator,
             "Batches appended by callers instead of the thread."),
    EL_FIELD_SET(shut, T_BOOL, el_accumulator,
                 "No transaction is open: queues and routers accept no records."),
    EL_FIELD(closed, T_BOOL, el_accumulator, "No more records are accepted."),
    EL_FIELD(ended, T_BOOL, el_accumulator,
             "No batch is written any more, and callbacks run where they are added."),
    {NULL},
};

static PyMethodDef accumulator_methods[] = {
    {"wait", EL_ALONE(accumulator_wait), METH_O,
     "wait(timeout_s or None) -> woken: sleeps until wake(). One thread only."},
    {"wake", EL_ALONE(accumulator_wake), METH_NOARGS,
     "Ends the sleep of wait(), the present or the next one."},
    {"ready", EL_ALONE(accumulator_ready), METH_NOARGS,
     "(queues with a closed batch, seconds until the next linger time ends or None)."},
    {"seal", EL_ALONE(accumulator_seal), METH_NOARGS,
     "Closes every open batch before its linger time ends."},
    {"pending", EL_ALONE(el_queues_pending), METH_NOARGS, "Unsettled batches."},
    {"close", EL_ALONE(accumulator_close), METH_NOARGS,
     "Accepts no more records; queued records can still be sent."},
    {"end", EL_ALONE(accumulator_end), METH_NOARGS,
     "end() -> whether it has ended: closed, all batches settled, all callbacks run."},
    {"forget", EL_ALONE(accumulator_forget), METH_NOARGS,
     "Ends it and drops its records: in a forked child they belong to the parent."},
    {"mark", EL_ALONE(accumulator_mark), METH_NOARGS,
     "mark() -> ProducerBatch, done when the callbacks of all records settled by now have run."},
    {"run_late", EL_ALONE(el_callbacks_run), METH_NOARGS,
     "Runs the callbacks of settled batches; raises their first exception at the end."},
    {"promise", EL_ALONE(accumulator_promise), METH_O,
     "promise(early) -> (future, batch): a future whose result is set by keep()."},
    {NULL},
};

static PyType_Slot accumulator_slots[] = {
    {Py_tp_new, accumulator_new},
    {Py_tp_dealloc, accumulator_dealloc},
    {Py_tp_traverse, accumulator_traverse},
    {Py_tp_clear, accumulator_clear},
    {Py_tp_getset, accumulator_fields},
    {Py_tp_methods, accumulator_methods},
    {Py_tp_doc, "State shared by the partition queues of a producer."},
    {0, NULL},
};

static PyType_Spec accumulator_spec = {
    "embedlog._native._rows.Accumulator", sizeof(el_accumulator), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, accumulator_slots};

int el_accumulator_ready(PyObject *module) {
    el_accumulator_type = el_type_ready(module, &accumulator_spec);
    return el_accumulator_type ? 0 : -1;
}
