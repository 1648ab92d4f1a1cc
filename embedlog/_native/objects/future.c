/* Future: a number in a parcel, and the questions one can ask about its fate. */
#include "objects/objects.h"

#include <structmember.h>

PyTypeObject *el_future_type;

el_future *el_future_new(int64_t timestamp_ms) {
    el_future *future = PyObject_GC_New(el_future, el_future_type); /* untracked: most futures are never part of a cycle */
    if (!future) return NULL;
    future->parcel = NULL;
    future->timestamp_ms = timestamp_ms;
    future->heard = 0;
    return future;
}

void el_future_join(el_future *future, el_parcel *parcel, int32_t index) {
    future->parcel = (el_parcel *)Py_NewRef(EL_OBJECT(parcel));
    future->index = index;
}

/* From here on a cycle may lead through it: by a callback, or by the traceback of what it raised. */
static void future_track(el_future *self) {
    if (!PyObject_GC_IsTracked(EL_OBJECT(self))) PyObject_GC_Track(self);
}

static int future_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(EL_OBJECT(Py_TYPE(object)));
    Py_VISIT(EL_OBJECT(((el_future *)object)->parcel));
    return 0;
}

static void future_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(EL_OBJECT(((el_future *)object)->parcel));
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

/* 0 when the fate is known; -1 with DeadlineError or what a signal's handler raised. */
static int future_await(const el_future *self, PyObject *args, PyObject *keywords, const char *format) {
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, format, names, &timeout)) return -1;
    double seconds = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Format(PyExc_TypeError, "timeout: seconds or None (for ever), not %R", timeout);
        return -1;
    }
    int known = el_parcel_wait(self->parcel, timeout != Py_None && seconds < 0 ? 0 : seconds);
    if (known == 0)
        PyErr_Format(self->parcel->accumulator->deadline_error, "the record was not acknowledged within %R s; it may still be", timeout);
    return known > 0 ? 0 : -1;
}

static PyObject *future_metadata(const el_future *self) {
    const el_parcel *parcel = self->parcel;
    if (self->index == EL_WHOLE) return Py_NewRef(parcel->result ? parcel->result : Py_None);
    int known = self->index != EL_NOT_AWAITED && parcel->base_offset >= 0;
    long long offset = known ? (long long)parcel->base_offset + self->index : -1;
    long long timestamp_ms = parcel->append_time_ms >= 0 ? parcel->append_time_ms : self->timestamp_ms;
    return PyObject_CallFunction(parcel->accumulator->metadata, "OiLL", parcel->topic, parcel->partition, offset, timestamp_ms);
}

/* What is raised takes the frames that it leaves. The parcel's own error would keep them alive for good: futures that were never asked are
 * untracked, and the collector sees no cycle that leads through them. */
static void failure_raise(const el_parcel *parcel) {
    PyObject *raised = PyObject_CallFunctionObjArgs(parcel->accumulator->raised_of, parcel->error, NULL);
    if (!raised) return;
    PyErr_SetObject(EL_OBJECT(Py_TYPE(raised)), raised);
    Py_DECREF(raised);
}

static PyObject *future_result(PyObject *object, PyObject *args, PyObject *keywords) {
    el_future *self = (el_future *)object;
    if (future_await(self, args, keywords, "|O:result") < 0) return NULL;
    if (!self->parcel->error) return future_metadata(self);
    el_future_hear(self);
    future_track(self);
    failure_raise(self->parcel);
    return NULL;
}

static PyObject *future_exception(PyObject *object, PyObject *args, PyObject *keywords) {
    el_future *self = (el_future *)object;
    if (future_await(self, args, keywords, "|O:exception") < 0) return NULL;
    if (self->parcel->error) {
        el_future_hear(self);
        future_track(self);
    }
    return Py_NewRef(self->parcel->error ? self->parcel->error : Py_None);
}

static PyObject *future_done(PyObject *object, PyObject *unused) { EL_RETURN_TRUTH(el_fate_known(((el_future *)object)->parcel)); }

/* ---- being told ------------------------------------------------------------------------------------------------- */

/* The callback, when the fate is known: on the thread, in its turn; here and now if there is no thread for it. */
static PyObject *future_call(el_future *self, PyObject *callable, int quiet) {
    el_parcel *parcel = self->parcel;
    el_accumulator *shared = parcel->accumulator;
    if (el_fate_known(parcel) && (parcel->early || shared->ended))
        return PyObject_CallFunctionObjArgs(shared->run_callback, EL_OBJECT(self), callable, NULL);
    if (el_callback_add(parcel, self, callable, quiet) < 0) return NULL;
    if (el_fate_known(parcel)) el_late_push(parcel);
    Py_RETURN_NONE;
}

static PyObject *future_add_done_callback(PyObject *object, PyObject *callable) {
    el_future *self = (el_future *)object;
    if (!PyCallable_Check(callable)) return PyErr_Format(PyExc_TypeError, "a callback is a callable, not %R", callable), NULL;
    future_track(self);
    PyObject *answer = future_call(self, callable, 0);
    if (answer) el_future_hear(self);
    return answer;
}

static PyObject *future_observe(PyObject *object, PyObject *callable) {
    future_track((el_future *)object);
    return future_call((el_future *)object, callable, 1);
}

static PyObject *future_get_failure(PyObject *object, void *unused) {
    PyObject *error = ((el_future *)object)->parcel->error;
    return Py_NewRef(error ? error : Py_None);
}

static PyObject *future_hasten(PyObject *object, PyObject *unused) {
    el_parcel *parcel = ((el_future *)object)->parcel;
    if (parcel->lane && parcel->fate == EL_OPEN) el_lane_seal(parcel->lane);
    Py_RETURN_NONE;
}

static PyObject *future_await_slot(PyObject *object) {
    return PyObject_CallFunctionObjArgs(((el_future *)object)->parcel->accumulator->await_future, object, NULL);
}

static PyObject *future_repr(PyObject *object) {
    static const char *const words[] = {"pending", "pending", "pending", "done", "failed"};
    return PyUnicode_FromFormat("<embedlog.Future %s>", words[((el_future *)object)->parcel->fate]);
}

static PyObject *future_get_partition(PyObject *object, void *unused) {
    const el_parcel *parcel = ((el_future *)object)->parcel;
    return PyLong_FromLong(parcel->topic ? parcel->partition : -1);
}

static PyObject *future_reduce(PyObject *object, PyObject *unused) {
    PyErr_SetString(PyExc_TypeError, "a Future cannot be pickled: it belongs to its producer; send what result() returns");
    return NULL;
}

static PyGetSetDef future_getset[] = {
    {"partition", future_get_partition, NULL, "The partition that was chosen for the record; -1 if there is none, or many.", NULL},
    {"_failure", future_get_failure, NULL, "What it failed of so far, or None; that the user has heard of it is not said by that.", NULL},
    {NULL},
};

static PyMethodDef future_methods[] = {
    {"_observe", future_observe, METH_O, "As add_done_callback, for the producer itself: a failure stays unheard."},
    {"hasten", future_hasten, METH_NOARGS, "Sends the record's batch at once: it does not sit out its linger."},
    {"done", future_done, METH_NOARGS, "Whether the record is acknowledged or has failed."},
    {"result", (PyCFunction)(void (*)(void))future_result, METH_VARARGS | METH_KEYWORDS,
     "result(timeout=None)\n\nSends the record's batch at once, waits, and returns its RecordMetadata or raises what it failed of.\n"
     "DeadlineError after `timeout` seconds; None waits until the fate is known, which delivery.timeout.ms bounds."},
    {"exception", (PyCFunction)(void (*)(void))future_exception, METH_VARARGS | METH_KEYWORDS,
     "exception(timeout=None)\n\nWaits like result(), and returns what the record failed of, or None."},
    {"add_done_callback", future_add_done_callback, METH_O,
     "add_done_callback(callable)\n\nCalls callable(future) on the producer's thread when the future is done, in the order of the records\n"
     "of a partition. What it raises is logged."},
    {"__reduce__", future_reduce, METH_NOARGS, "Refused."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Future[T]: for annotations."},
    {NULL},
};

static PyType_Slot future_slots[] = {
    {Py_tp_dealloc, future_dealloc}, {Py_tp_traverse, future_traverse},
    {Py_tp_methods, future_methods}, {Py_tp_getset, future_getset}, {Py_tp_repr, future_repr},
    {Py_am_await, future_await_slot},
    {Py_tp_doc, "What becomes of a sent record; awaitable."}, {0, NULL},
};

static PyType_Spec future_spec = {"embedlog.Future", sizeof(el_future), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  future_slots};

int el_future_ready(PyObject *module) {
    el_future_type = el_type_ready(module, &future_spec);
    return el_future_type ? 0 : -1;
}
