/* Future: an index in a producer batch, and queries of its state. */
#include "objects/producer.h"

#include <structmember.h>

PyTypeObject *el_future_type;

el_future *el_future_new(int64_t timestamp_ms) {
    /* untracked: most futures are never part of a cycle */
    el_future *future = PyObject_GC_New(el_future, el_future_type);
    if (!future) {
        return NULL;
    }
    future->batch = NULL;
    future->timestamp_ms = timestamp_ms;
    future->observed = 0;
    return future;
}

void el_future_join(el_future *future, el_producer_batch *batch, int32_t index) {
    future->batch = (el_producer_batch *)Py_NewRef(EL_OBJECT(batch));
    future->index = index;
}

/* From now on a cycle may lead through it: by a callback, or by the traceback of a raised error. */
static void future_track(el_future *self) {
    if (!PyObject_GC_IsTracked(EL_OBJECT(self))) {
        PyObject_GC_Track(self);
    }
}

static int future_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(EL_OBJECT(Py_TYPE(object)));
    Py_VISIT(EL_OBJECT(((el_future *)object)->batch));
    return 0;
}

static void future_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(EL_OBJECT(((el_future *)object)->batch));
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* 0 when the batch is settled; -1 with DeadlineError or the exception of a signal handler. */
static int future_await(const el_future *self, PyObject *args, PyObject *keywords,
                        const char *format) {
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, format, names, &timeout)) {
        return -1;
    }
    double seconds = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "timeout: seconds or None (for ever), not %R", timeout);
        }
        return -1;
    }
    int known = el_batch_wait(self->batch, timeout != Py_None && seconds < 0 ? 0 : seconds);
    if (known == 0) {
        PyErr_Format(self->batch->accumulator->deadline_error,
                     "the record was not acknowledged within %R s; it may still be", timeout);
    }
    return known > 0 ? 0 : -1;
}

static PyObject *future_metadata(const el_future *self) {
    const el_producer_batch *batch = self->batch;
    if (self->index == EL_WHOLE) {
        return Py_NewRef(batch->result ? batch->result : Py_None);
    }
    int known = self->index != EL_NOT_AWAITED && batch->base_offset >= 0;
    long long offset = known ? (long long)batch->base_offset + self->index : -1;
    long long timestamp_ms =
        batch->append_time_ms >= 0 ? batch->append_time_ms : self->timestamp_ms;
    return PyObject_CallFunction(batch->accumulator->metadata, "OiLL", batch->topic,
                                 batch->partition, offset, timestamp_ms);
}

/* A raised exception keeps the frames that it passes. The batch's own error would keep them alive
 * for good: futures without callbacks are untracked, so the collector would not find a cycle
 * through them. */
static void failure_raise(const el_producer_batch *batch) {
    PyObject *raised =
        PyObject_CallFunctionObjArgs(batch->accumulator->raised_of, batch->error, NULL);
    if (!raised) {
        return;
    }
    PyErr_SetObject(EL_OBJECT(Py_TYPE(raised)), raised);
    Py_DECREF(raised);
}

static PyObject *future_result(PyObject *object, PyObject *args, PyObject *keywords) {
    el_future *self = (el_future *)object;
    if (future_await(self, args, keywords, "|O:result") < 0) {
        return NULL;
    }
    if (!self->batch->error) {
        return future_metadata(self);
    }
    el_future_observe(self);
    future_track(self);
    failure_raise(self->batch);
    return NULL;
}

static PyObject *future_exception(PyObject *object, PyObject *args, PyObject *keywords) {
    el_future *self = (el_future *)object;
    if (future_await(self, args, keywords, "|O:exception") < 0) {
        return NULL;
    }
    if (self->batch->error) {
        el_future_observe(self);
        future_track(self);
    }
    return Py_NewRef(self->batch->error ? self->batch->error : Py_None);
}

static PyObject *future_done(PyObject *object, PyObject *unused) {
    EL_RETURN_TRUTH(el_is_settled(((el_future *)object)->batch));
}

/* ---- names of other clients ------------------------------------------------------------------ */

/* Properties whose getter raises: a lookup of other names costs nothing, as it does with a
 * tp_getattro. */
static PyObject *future_get_absent(PyObject *object, void *hint) {
    return PyErr_SetString(PyExc_AttributeError, hint), NULL;
}

#define ABSENT(name, hint)                                                                         \
    {name, future_get_absent, NULL, "Absent: its AttributeError states the call.",                 \
     "a Future has no attribute " name "; " hint}
#define BOTH "add_done_callback(callable) calls callable(future) after success and failure"

/* ---- callbacks ------------------------------------------------------------------------------- */

/* Runs the callback when the batch is settled: on the thread, in order; immediately if there is no
 * thread. */
static PyObject *future_call(el_future *self, PyObject *callable, int quiet) {
    el_producer_batch *batch = self->batch;
    el_accumulator *shared = batch->accumulator;
    if (el_is_settled(batch) && (batch->early || shared->ended)) {
        return PyObject_CallFunctionObjArgs(shared->run_callback, EL_OBJECT(self), callable, NULL);
    }
    if (el_callback_add(batch, self, callable, quiet) < 0) {
        return NULL;
    }
    if (el_is_settled(batch)) {
        el_callbacks_enqueue(batch);
    }
    Py_RETURN_NONE;
}

static PyObject *future_add_done_callback(PyObject *object, PyObject *callable) {
    el_future *self = (el_future *)object;
    if (!PyCallable_Check(callable)) {
        return PyErr_Format(PyExc_TypeError, "a callback is a callable, not %R", callable), NULL;
    }
    future_track(self);
    PyObject *answer = future_call(self, callable, 0);
    if (answer) {
        el_future_observe(self);
    }
    return answer;
}

static PyObject *future_observe(PyObject *object, PyObject *callable) {
    future_track((el_future *)object);
    return future_call((el_future *)object, callable, 1);
}

static PyObject *future_get_failure(PyObject *object, void *unused) {
    PyObject *error = ((el_future *)object)->batch->error;
    return Py_NewRef(error ? error : Py_None);
}

static PyObject *future_hasten(PyObject *object, PyObject *unused) {
    el_producer_batch *batch = ((el_future *)object)->batch;
    if (batch->queue && batch->state == EL_OPEN) {
        el_queue_seal(batch->queue);
    }
    Py_RETURN_NONE;
}

static PyObject *future_await_slot(PyObject *object) {
    return PyObject_CallFunctionObjArgs(((el_future *)object)->batch->accumulator->await_future,
                                        object, NULL);
}

static PyObject *future_repr(PyObject *object) {
    /* asyncio.run shows it in its error */
    static const char waiting[] = "pending; result() waits, and a coroutine can await it";
    static const char *const words[] = {waiting, waiting, waiting, "done", "failed"};
    return PyUnicode_FromFormat("<embedlog.Future %s>", words[((el_future *)object)->batch->state]);
}

static PyObject *future_get_partition(PyObject *object, void *unused) {
    const el_producer_batch *batch = ((el_future *)object)->batch;
    return PyLong_FromLong(batch->topic ? batch->partition : -1);
}

static PyObject *future_reduce(PyObject *object, PyObject *unused) {
    PyErr_SetString(
        PyExc_TypeError,
        "a Future cannot be pickled: it belongs to its producer; send what result() returns");
    return NULL;
}

EL_METHOD(EL_OF_FUTURE, future_observe)
EL_METHOD(EL_OF_FUTURE, future_hasten)
EL_METHOD(EL_OF_FUTURE, future_done)
EL_METHOD(EL_OF_FUTURE, future_add_done_callback)
EL_KEYWORDS(EL_OF_FUTURE, future_result)
EL_KEYWORDS(EL_OF_FUTURE, future_exception)
EL_GETTER(EL_OF_FUTURE, future_get_partition)
EL_GETTER(EL_OF_FUTURE, future_get_failure)
EL_SECTIONED(EL_OF_FUTURE, future_repr, PyObject *, (PyObject * self), (self))

static PyGetSetDef future_getset[] = {
    {"partition", EL_ALONE(future_get_partition), NULL,
     "The partition of the record; -1 if there is none, or several.", NULL},
    ABSENT("add_callback", BOTH),
    ABSENT("add_errback", BOTH),
    ABSENT("add_both", BOTH),
    ABSENT("is_done", "the call is done()"),
    ABSENT("succeeded", "done() and exception() is None"),
    ABSENT("failed", "done() and exception() is not None"),
    ABSENT("value", "the call is result()"),
    ABSENT("offset", "result() waits, and returns the RecordMetadata with it"),
    ABSENT("timestamp_ms", "result() waits, and returns the RecordMetadata with it"),
    ABSENT("topic", "result() waits, and returns the RecordMetadata with it"),
    {"_failure", EL_ALONE(future_get_failure), NULL,
     "The exception so far, or None; reading it does not count as observation.", NULL},
    {NULL},
};

static PyMethodDef future_methods[] = {
    {"_observe", EL_ALONE(future_observe), METH_O,
     "As add_done_callback, for the producer itself: a failure remains unobserved."},
    {"hasten", EL_ALONE(future_hasten), METH_NOARGS,
     "Sends the record's batch at once, before its linger time ends."},
    {"done", EL_ALONE(future_done), METH_NOARGS,
     "Whether the record is acknowledged or has failed."},
    {"result", (PyCFunction)(void (*)(void))EL_ALONE(future_result), METH_VARARGS | METH_KEYWORDS,
     "result(timeout=None)\n\nSends the record's batch at once, waits, and returns its "
     "RecordMetadata or raises the reason of its failure.\n"
     "DeadlineError after `timeout` seconds; None waits until the record is settled, at most "
     "delivery.timeout.ms."},
    {"get", (PyCFunction)(void (*)(void))EL_ALONE(future_result), METH_VARARGS | METH_KEYWORDS,
     "get(timeout=None)\n\n`result`, under the name of kafka-python."},
    {"exception", (PyCFunction)(void (*)(void))EL_ALONE(future_exception),
     METH_VARARGS | METH_KEYWORDS,
     "exception(timeout=None)\n\nWaits like result() and returns the reason of the failure, or "
     "None."},
    {"add_done_callback", EL_ALONE(future_add_done_callback), METH_O,
     "add_done_callback(callable)\n\nCalls callable(future) on the producer's thread when the "
     "future is done, in the order of the records\n"
     "of a partition. Its exceptions are logged."},
    {"__reduce__", future_reduce, METH_NOARGS, "Refused."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Future[T]: for annotations."},
    {NULL},
};

static PyType_Slot future_slots[] = {
    {Py_tp_dealloc, future_dealloc},
    {Py_tp_traverse, future_traverse},
    {Py_tp_methods, future_methods},
    {Py_tp_getset, future_getset},
    {Py_tp_repr, EL_ALONE(future_repr)},
    {Py_am_await, future_await_slot},
    {Py_tp_doc, "The future result of a sent record; awaitable."},
    {0, NULL},
};

static PyType_Spec future_spec = {"embedlog.Future", sizeof(el_future), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                      Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  future_slots};

int el_future_ready(PyObject *module) {
    el_future_type = el_type_ready(module, &future_spec);
    return el_future_type ? 0 : -1;
}
