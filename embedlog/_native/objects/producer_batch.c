/* Parcel: one Kafka batch from its first record to its fate; and several of them joined into one run of bytes. */
#include "objects/objects.h"

#include <structmember.h>
#include <unistd.h>

PyTypeObject *el_parcel_type;

el_parcel *el_parcel_new(el_accumulator *accumulator) {
    el_parcel *parcel = (el_parcel *)PyType_GenericAlloc(el_parcel_type, 0);
    if (!parcel) return NULL;
    parcel->accumulator = (el_accumulator *)Py_NewRef(EL_OBJECT(accumulator));
    parcel->opened_ns = el_now_ns();
    parcel->base_offset = parcel->append_time_ms = -1;
    return parcel;
}

void el_lane_link(el_lane *lane, el_parcel *parcel) {
    el_accumulator *accumulator = lane->accumulator;
    parcel->lane = (el_lane *)Py_NewRef(EL_OBJECT(lane));
    parcel->topic = Py_NewRef(lane->topic);
    parcel->partition = lane->partition;
    lane->parcel_count++;
    lane->used = 1;
    if (lane->last) lane->last->next = parcel;
    else lane->first = parcel;
    lane->last = parcel;
    if (lane->active) return;
    lane->active = 1;
    Py_INCREF(EL_OBJECT(lane));
    if (accumulator->last_active) accumulator->last_active->next_active = lane;
    else accumulator->first_active = lane;
    accumulator->last_active = lane;
}

void el_parcels_drop(el_parcel **first) {
    el_parcel *parcel = *first;
    *first = NULL;
    while (parcel) {
        el_parcel *next = parcel->next;
        parcel->next = NULL;
        Py_CLEAR(parcel->lane);
        Py_DECREF(EL_OBJECT(parcel));
        parcel = next;
    }
}

static int parcel_traverse(PyObject *object, visitproc visit, void *arg) {
    el_parcel *self = (el_parcel *)object;
    PyObject *owned[] = {EL_OBJECT(Py_TYPE(object)), EL_OBJECT(self->accumulator), EL_OBJECT(self->lane), EL_OBJECT(self->next),
                         self->topic, self->run, self->result, self->error};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) Py_VISIT(owned[i]);
    return el_callbacks_visit(self, visit, arg);
}

/* Chains of parcels are cut by their lane or accumulator, results and errors by themselves. */
static int parcel_clear(PyObject *object) {
    el_callbacks_drop((el_parcel *)object);
    return 0;
}

static void parcel_dealloc(PyObject *object) {
    el_parcel *self = (el_parcel *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    el_callbacks_drop(self);
    PyMem_Free(self->data);
    PyObject *owned[] = {EL_OBJECT(self->accumulator), EL_OBJECT(self->lane), EL_OBJECT(self->next), self->topic,
                         self->run, self->result, self->error, EL_OBJECT(self->tally)};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) Py_XDECREF(owned[i]);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- waiting for its fate --------------------------------------------------------------------------------------- */

static void waiter_unlink(el_parcel *parcel, el_waiter *waiter) {
    for (el_waiter **link = &parcel->waiters; *link; link = &(*link)->next)
        if (*link == waiter) {
            *link = waiter->next;
            return;
        }
}

/* Sleeps in the waiter's lock; a signal's handler that raises ends it. 1, 0 or -1 as el_parcel_wait. */
static int waiter_sleep(const el_parcel *parcel, el_waiter *waiter, int64_t limit_ns) {
    while (!el_fate_known(parcel)) {
        int64_t left_us = limit_ns == INT64_MAX ? -1 : (limit_ns - el_now_ns()) / 1000;
        if (left_us <= 0 && limit_ns != INT64_MAX) return 0;
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS
        status = PyThread_acquire_lock_timed(waiter->lock, left_us, 1);
        Py_END_ALLOW_THREADS
        if (status == PY_LOCK_INTR && PyErr_CheckSignals() < 0) return -1;
    }
    return 1;
}

/* Writes the parcel in this thread, or sees to it that the producer's does. */
static void parcel_send(el_parcel *parcel, int64_t limit_ns) {
    if (el_direct_write(parcel, limit_ns) || !parcel->lane || parcel->fate != EL_OPEN) return;
    parcel->hurried = 1; /* while somebody else writes, more records may come into it */
    if (!parcel->lane->busy) el_lane_seal(parcel->lane);
}

int el_parcel_wait(el_parcel *parcel, double timeout_s) {
    if (el_fate_known(parcel)) return 1;
    if (parcel->accumulator->pid != (long)getpid()) {
        PyErr_SetString(parcel->accumulator->forked_error, "the record was sent by the parent process, which alone learns its fate");
        return -1;
    }
    if (parcel->accumulator->thread == PyThread_get_thread_ident()) {
        PyErr_SetString(parcel->accumulator->state_error, "result() inside a callback of this producer would wait for itself");
        return -1;
    }
    int64_t limit_ns = timeout_s < 0 || timeout_s > 1e9 ? INT64_MAX : el_now_ns() + (int64_t)(timeout_s * 1e9);
    Py_INCREF(EL_OBJECT(parcel));
    parcel_send(parcel, limit_ns);
    int answer = el_fate_known(parcel) ? 1 : -1;
    el_waiter waiter = {parcel->waiters, answer < 0 ? PyThread_allocate_lock() : NULL};
    if (waiter.lock) {
        PyThread_acquire_lock(waiter.lock, WAIT_LOCK);
        parcel->waiters = &waiter;
        answer = waiter_sleep(parcel, &waiter, limit_ns);
        waiter_unlink(parcel, &waiter);
        PyThread_release_lock(waiter.lock); /* held by the waker or by us: free it unlocked */
        PyThread_free_lock(waiter.lock);
    } else if (answer < 0) {
        PyErr_NoMemory();
    }
    Py_DECREF(EL_OBJECT(parcel));
    return answer;
}

static PyObject *parcel_wait(PyObject *object, PyObject *timeout) {
    double seconds = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) return NULL;
    int answer = el_parcel_wait((el_parcel *)object, timeout != Py_None && seconds < 0 ? 0 : seconds);
    if (answer < 0) return NULL;
    EL_RETURN_TRUTH(answer);
}

/* ---- its fate --------------------------------------------------------------------------------------------------- */

static int parcel_settle_check(const el_parcel *self) {
    if (!el_fate_known(self)) return 0;
    PyErr_SetString(PyExc_RuntimeError, "the parcel's fate is known already");
    return -1;
}

static PyObject *parcel_deliver(PyObject *object, PyObject *args) {
    el_parcel *self = (el_parcel *)object;
    long long base_offset, append_time_ms;
    if (!PyArg_ParseTuple(args, "LL:deliver", &base_offset, &append_time_ms) || parcel_settle_check(self) < 0) return NULL;
    self->base_offset = base_offset;
    self->append_time_ms = append_time_ms;
    el_parcel_settle(self, EL_DELIVERED);
    Py_RETURN_NONE;
}

static PyObject *parcel_keep(PyObject *object, PyObject *result) {
    el_parcel *self = (el_parcel *)object;
    if (parcel_settle_check(self) < 0) return NULL;
    el_replace(&self->result, result);
    el_parcel_settle(self, EL_DELIVERED);
    Py_RETURN_NONE;
}

static PyObject *parcel_fail(PyObject *object, PyObject *args) {
    el_parcel *self = (el_parcel *)object;
    PyObject *error, *tally = Py_None;
    int count = self->count;
    if (!PyArg_ParseTuple(args, "O|Oi:fail", &error, &tally, &count) || parcel_settle_check(self) < 0) return NULL;
    if (!PyExceptionInstance_Check(error)) return PyErr_SetString(PyExc_TypeError, "a parcel fails with an exception"), NULL;
    if (tally != Py_None && !Py_IS_TYPE(tally, el_tally_type)) return PyErr_SetString(PyExc_TypeError, "a Tally counts failures"), NULL;
    self->count = count;
    el_parcel_fail(self, error, tally);
    Py_RETURN_NONE;
}

/* For a forced close: what the sending thread has taken is its own to settle. */
static PyObject *parcel_abandon(PyObject *object, PyObject *args) {
    if (((el_parcel *)object)->fate >= EL_TAKEN) Py_RETURN_FALSE;
    PyObject *answer = parcel_fail(object, args);
    Py_XDECREF(answer);
    return answer ? Py_NewRef(Py_True) : NULL;
}

static PyObject *parcel_get_done(PyObject *object, void *unused) { EL_RETURN_TRUTH(el_fate_known((el_parcel *)object)); }
static PyObject *parcel_get_opened(PyObject *object, void *unused) { return PyFloat_FromDouble((double)((el_parcel *)object)->opened_ns / 1e9); }

/* The records section, without a copy of ours: valid until the fate is known, so it is handed out as bytes. */
static PyObject *parcel_get_body(PyObject *object, void *unused) {
    el_parcel *self = (el_parcel *)object;
    if (!self->data) return PyErr_SetString(PyExc_ValueError, "the parcel has no body of its own"), NULL;
    return PyBytes_FromStringAndSize((const char *)self->data + EL_HEADER_SIZE, (Py_ssize_t)self->size - EL_HEADER_SIZE);
}

static PyMemberDef parcel_members[] = {
    {"topic", T_OBJECT_EX, offsetof(el_parcel, topic), READONLY, "Name of the topic; a promise has none."},
    {"count", T_INT, offsetof(el_parcel, count), READONLY, "Records."},
    {"size", T_LONGLONG, offsetof(el_parcel, size), READONLY, "Bytes, the batch header included, before compression."},
    {"partition", T_INT, offsetof(el_parcel, partition), READONLY, "Number of the partition."},
    {"run", T_OBJECT, offsetof(el_parcel, run), READONLY, "What send_batch encoded, or None."},
    {"base_offset", T_LONGLONG, offsetof(el_parcel, base_offset), READONLY, "Offset of the first record, or -1."},
    {"max_timestamp", T_LONGLONG, offsetof(el_parcel, max_timestamp), READONLY, "Largest timestamp."},
    {NULL},
};

static PyGetSetDef parcel_getset[] = {
    {"done", parcel_get_done, NULL, "Whether its fate is known.", NULL},
    {"opened", parcel_get_opened, NULL, "When its first record came, on the monotonic clock, in seconds.", NULL},
    {"body", parcel_get_body, NULL, "A copy of its records section.", NULL},
    {NULL},
};

static PyMethodDef parcel_methods[] = {
    {"wait", parcel_wait, METH_O, "wait(timeout_s or None) -> done: sends it on its way and waits for its fate."},
    {"deliver", parcel_deliver, METH_VARARGS, "deliver(base_offset, append_time_ms or -1)."},
    {"keep", parcel_keep, METH_O, "keep(result): fulfils a promise."},
    {"abandon", parcel_abandon, METH_VARARGS, "abandon(exception, tally=None) -> True; False, and nothing done, if it was taken to be written."},
    {"fail", parcel_fail, METH_VARARGS, "fail(exception, tally=None, count=its records): `tally` counts the records that were not asked about."},
    {NULL},
};

static PyType_Slot parcel_slots[] = {
    {Py_tp_dealloc, parcel_dealloc}, {Py_tp_traverse, parcel_traverse}, {Py_tp_clear, parcel_clear},
    {Py_tp_members, parcel_members}, {Py_tp_getset, parcel_getset}, {Py_tp_methods, parcel_methods},
    {Py_tp_doc, "One batch on its way."}, {0, NULL},
};

static PyType_Spec parcel_spec = {"embedlog._native._rows.Parcel", sizeof(el_parcel), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  parcel_slots};

int el_parcel_ready(PyObject *module) {
    el_parcel_type = el_type_ready(module, &parcel_spec);
    return el_parcel_type ? 0 : -1;
}
