/* Accumulator: what all lanes of one producer share: the memory, the linger, and the bell of the thread that sends. */
#include "objects/objects.h"

#include <structmember.h>
#include <time.h>
#include <unistd.h>

PyTypeObject *el_accumulator_type;

enum { NAP_US = 1000 };

static int64_t clock_read(clockid_t clock, int64_t per_second) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * per_second + now.tv_nsec / (1000000000 / per_second);
}

int64_t el_now_ns(void) { return clock_read(CLOCK_MONOTONIC, 1000000000); }
int64_t el_now_ms(void) { return clock_read(CLOCK_REALTIME, 1000); }

void el_ring(el_accumulator *accumulator) {
    if (accumulator->rung) return;
    accumulator->rung = 1;
    PyThread_release_lock(accumulator->bell);
}

static PyObject *accumulator_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"memory_limit", "linger_ms", "unacknowledged", "metadata", "run_callback", "await_future",
                            "raised_of", "deadline_error", "forked_error", "state_error", NULL};
    PyObject *metadata, *run_callback, *await_future, *raised_of, *deadline_error, *forked_error, *state_error;
    long long memory_limit;
    double linger_ms;
    int unacknowledged;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "LdpOOOOOOO:Accumulator", names, &memory_limit, &linger_ms, &unacknowledged, &metadata,
                                     &run_callback, &await_future, &raised_of, &deadline_error, &forked_error, &state_error))
        return NULL;
    el_accumulator *self = (el_accumulator *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->bell = PyThread_allocate_lock();
    if (!self->bell) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    PyThread_acquire_lock(self->bell, WAIT_LOCK);
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
    PyObject *owned[] = {EL_OBJECT(Py_TYPE(object)), EL_OBJECT(self->first_active), EL_OBJECT(self->late_first), self->metadata, self->run_callback,
                         self->await_future, self->raised_of, self->deadline_error, self->forked_error, self->state_error};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) Py_VISIT(owned[i]);
    return 0;
}

/* Lanes that nothing is to be written of any more. */
static void lanes_drop(el_accumulator *self) {
    el_lane *lane = self->first_active;
    self->first_active = self->last_active = NULL;
    while (lane) {
        el_lane *next = lane->next_active;
        lane->next_active = NULL;
        lane->active = 0;
        Py_DECREF(EL_OBJECT(lane));
        lane = next;
    }
}

static int accumulator_clear(PyObject *object) {
    el_accumulator *self = (el_accumulator *)object;
    lanes_drop(self);
    self->late_last = NULL;
    el_parcels_drop(&self->late_first);
    return 0;
}

static void accumulator_dealloc(PyObject *object) {
    el_accumulator *self = (el_accumulator *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    accumulator_clear(object);
    PyObject **owned[] = {&self->metadata,       &self->run_callback, &self->await_future, &self->raised_of,
                          &self->deadline_error, &self->forked_error, &self->state_error};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) Py_CLEAR(*owned[i]);
    if (self->bell) {
        if (!self->rung) PyThread_release_lock(self->bell);
        PyThread_free_lock(self->bell);
    }
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- what the sending thread does ------------------------------------------------------------------------------- */

/* Sleeps until the bell rings, until `limit_us` (negative: none), or while napping until there is something to write. Without the GIL. */
static PyLockStatus bell_wait(el_accumulator *self, PY_TIMEOUT_T limit_us) {
    PyLockStatus status = PY_LOCK_FAILURE;
    uint32_t seen = self->direct_count;
    for (PY_TIMEOUT_T slept_us = 0; status != PY_LOCK_ACQUIRED && (limit_us < 0 || slept_us < limit_us); slept_us += NAP_US) {
        PY_TIMEOUT_T left_us = limit_us < 0 ? NAP_US : limit_us - slept_us;
        status = PyThread_acquire_lock_timed(self->bell, left_us < NAP_US ? left_us : NAP_US, 0);
        if (__atomic_load_n(&self->memory_used, __ATOMIC_RELAXED)) break;
        uint32_t now = __atomic_load_n(&self->direct_count, __ATOMIC_RELAXED);
        if (now == seen) break; /* the callers have stopped: time for a real sleep */
        seen = now;
    }
    return status;
}

/* While callers write by themselves a bell for every record would only cost them time: the thread naps, and looks each time. */
static PyObject *accumulator_wait(PyObject *object, PyObject *timeout) {
    el_accumulator *self = (el_accumulator *)object;
    double seconds = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) return NULL;
    PY_TIMEOUT_T microseconds = seconds < 0 ? -1 : seconds > 1e6 ? (PY_TIMEOUT_T)1e12 : (PY_TIMEOUT_T)(seconds * 1e6);
    self->thread = PyThread_get_thread_ident();
    self->napping = self->direct_count != self->direct_seen;
    self->direct_seen = self->direct_count;
    PyLockStatus status;
    Py_BEGIN_ALLOW_THREADS
    status = self->napping ? bell_wait(self, microseconds) : PyThread_acquire_lock_timed(self->bell, microseconds, 0);
    Py_END_ALLOW_THREADS
    self->napping = 0;
    if (status == PY_LOCK_ACQUIRED) self->rung = 0;
    EL_RETURN_TRUTH(status == PY_LOCK_ACQUIRED);
}

static PyObject *accumulator_ring(PyObject *object, PyObject *unused) {
    el_ring((el_accumulator *)object);
    Py_RETURN_NONE;
}

/* Closes the lane's open parcel if its time has come. Whether there is something to write; else *deadline_ns may come nearer. */
static int lane_due(el_accumulator *self, el_lane *lane, int64_t now, int64_t *deadline_ns) {
    if (lane->busy) return 0; /* who has the turn rings when it is over */
    el_parcel *last = lane->last;
    int64_t due = now;
    if (last && last->fate == EL_OPEN && !last->hurried && !self->waiting && !self->closed)
        due = self->linger_ns > INT64_MAX - last->opened_ns ? INT64_MAX : last->opened_ns + self->linger_ns;
    if (last && last->fate == EL_OPEN && due <= now) last->fate = EL_SEALED;
    if (lane->look || (lane->first && lane->first->fate != EL_OPEN)) due = lane->not_before_ns;
    if (due > now && due < *deadline_ns) *deadline_ns = due;
    return due <= now;
}

/* Takes lanes that ran dry out of the list, and collects those that are due. */
static int collect_ready(el_accumulator *self, PyObject *ready, int64_t *deadline_ns) {
    int64_t now = el_now_ns();
    int failed = 0;
    el_lane **link = &self->first_active;
    self->last_active = NULL;
    while (*link) {
        el_lane *lane = *link;
        if (!lane->first && !lane->look) {
            *link = lane->next_active;
            lane->next_active = NULL;
            lane->active = 0;
            Py_DECREF(lane);
            continue;
        }
        if (lane_due(self, lane, now, deadline_ns) && PyList_Append(ready, EL_OBJECT(lane)) < 0) failed = -1;
        self->last_active = lane;
        link = &lane->next_active;
    }
    if (*deadline_ns != INT64_MAX) *deadline_ns = *deadline_ns > now ? *deadline_ns - now : 0;
    return failed;
}

static PyObject *accumulator_ready(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    int64_t pause_ns = INT64_MAX;
    PyObject *ready = PyList_New(0);
    if (!ready) return NULL;
    if (collect_ready(self, ready, &pause_ns) < 0) {
        Py_DECREF(ready);
        return NULL;
    }
    self->idle = pause_ns == INT64_MAX;
    if (self->idle) return Py_BuildValue("(NO)", ready, Py_None);
    return Py_BuildValue("(Nd)", ready, (double)pause_ns / 1e9);
}

static PyObject *accumulator_seal(PyObject *object, PyObject *unused) {
    for (el_lane *lane = ((el_accumulator *)object)->first_active; lane; lane = lane->next_active) el_lane_seal(lane);
    Py_RETURN_NONE;
}

/* Parcels whose fate is not known yet; the list keeps them alive, not their lanes' places. */
static PyObject *accumulator_pending(PyObject *object, PyObject *unused) {
    PyObject *pending = PyList_New(0);
    for (el_lane *lane = ((el_accumulator *)object)->first_active; pending && lane; lane = lane->next_active)
        for (el_parcel *parcel = lane->first; pending && parcel; parcel = parcel->next)
            if (PyList_Append(pending, EL_OBJECT(parcel)) < 0) Py_CLEAR(pending);
    return pending;
}

static PyObject *accumulator_close(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    self->closed = 1;
    el_ring(self);
    Py_RETURN_NONE;
}

/* One step: after it nothing comes in, and what has come in is settled and its callbacks have run. */
static PyObject *accumulator_end(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    if (!self->closed || self->late_first || self->calling) Py_RETURN_FALSE;
    for (el_lane *lane = self->first_active; lane; lane = lane->next_active)
        if (lane->first) Py_RETURN_FALSE;
    self->ended = 1;
    lanes_drop(self);
    Py_RETURN_TRUE;
}

/* In a forked child, where neither the records nor their callbacks are ours. */
static PyObject *accumulator_forget(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    self->closed = self->ended = 1;
    Py_RETURN_NONE;
}

static PyObject *accumulator_mark(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    el_parcel *mark = el_parcel_new(self);
    if (!mark) return NULL;
    if (self->ended || (!self->late_first && !self->calling)) el_parcel_settle(mark, EL_DELIVERED);
    else el_late_push(mark);
    return EL_OBJECT(mark);
}

static PyObject *accumulator_promise(PyObject *object, PyObject *early) {
    el_parcel *parcel = el_parcel_new((el_accumulator *)object);
    el_future *future = parcel ? el_future_new(0) : NULL;
    if (future) el_future_join(future, parcel, EL_WHOLE);
    if (parcel) parcel->early = (int8_t)PyObject_IsTrue(early);
    PyObject *pair = future ? PyTuple_Pack(2, EL_OBJECT(future), EL_OBJECT(parcel)) : NULL;
    Py_XDECREF(EL_OBJECT(future));
    Py_XDECREF(EL_OBJECT(parcel));
    return pair;
}

static PyMemberDef accumulator_members[] = {
    {"memory_limit", T_LONGLONG, offsetof(el_accumulator, memory_limit), READONLY, "Bytes that may be on their way."},
    {"memory_used", T_LONGLONG, offsetof(el_accumulator, memory_used), READONLY, "Bytes that are on their way."},
    {"waiting", T_LONGLONG, offsetof(el_accumulator, waiting), 0, "Threads that wait for memory: nobody overtakes them."},
    {"record_count", T_LONGLONG, offsetof(el_accumulator, record_count), READONLY, "Records ever accepted."},
    {"direct_count", T_UINT, offsetof(el_accumulator, direct_count), READONLY, "Batches that callers wrote past the thread."},
    {"shut", T_BOOL, offsetof(el_accumulator, shut), 0, "No transaction is open: lanes and routes take nothing."},
    {"closed", T_BOOL, offsetof(el_accumulator, closed), READONLY, "Nothing is accepted any more."},
    {"ended", T_BOOL, offsetof(el_accumulator, ended), READONLY, "Nothing is written any more, and callbacks run where they are added."},
    {NULL},
};

static PyMethodDef accumulator_methods[] = {
    {"wait", accumulator_wait, METH_O, "wait(timeout_s or None) -> rung: sleeps until somebody rings. One thread only."},
    {"ring", accumulator_ring, METH_NOARGS, "Ends the sleep of wait(), now or when it begins."},
    {"ready", accumulator_ready, METH_NOARGS, "(lanes with a closed parcel, seconds until the next linger is over or None)."},
    {"seal", accumulator_seal, METH_NOARGS, "Closes every open parcel: nothing sits out its linger."},
    {"pending", accumulator_pending, METH_NOARGS, "Parcels whose fate is not known."},
    {"close", accumulator_close, METH_NOARGS, "Accepts nothing any more; what is there can still be sent."},
    {"end", accumulator_end, METH_NOARGS, "end() -> whether it has ended: it is closed, all is settled and all callbacks have run."},
    {"forget", accumulator_forget, METH_NOARGS, "Ends it with all it holds: in a forked child that is the parent's."},
    {"mark", accumulator_mark, METH_NOARGS, "mark() -> Parcel that is done when the callbacks have run whose records are settled now."},
    {"run_late", el_late_run, METH_NOARGS, "Runs the callbacks of what is settled; raises, in the end, the first exception that came out of one."},
    {"promise", accumulator_promise, METH_O, "promise(early) -> (future, parcel): a future whose result somebody sets."},
    {NULL},
};

static PyType_Slot accumulator_slots[] = {
    {Py_tp_new, accumulator_new}, {Py_tp_dealloc, accumulator_dealloc}, {Py_tp_traverse, accumulator_traverse}, {Py_tp_clear, accumulator_clear},
    {Py_tp_members, accumulator_members},
    {Py_tp_methods, accumulator_methods}, {Py_tp_doc, "What the lanes of one producer share."}, {0, NULL},
};

static PyType_Spec accumulator_spec = {"embedlog._native._rows.Accumulator", sizeof(el_accumulator), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, accumulator_slots};

int el_accumulator_ready(PyObject *module) {
    el_accumulator_type = el_type_ready(module, &accumulator_spec);
    return el_accumulator_type ? 0 : -1;
}
