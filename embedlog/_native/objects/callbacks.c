/* Callbacks of settled records, and the count of failures that were not observed.
 *
 * - A callback is stored with its batch in the caller's thread, where this may fail. To enqueue it
 *   later means to link the batch into the accumulator's list, which cannot fail.
 * - Callbacks of a batch run in record order, batches in the order of settlement, each callback
 *   once, in any thread.
 * - An exception in a callback does not stop the others.
 * - A failed record is unobserved until its future is read, unless it has a callback of the
 *   user. */
#include "objects/producer.h"

#include <structmember.h>

PyTypeObject *el_tally_type;

enum { CAPACITY_FIRST = 4 };

/* ---- storing --------------------------------------------------------------------------------- */

static int callbacks_reserve(el_producer_batch *batch) {
    if (batch->callback_end < batch->callback_capacity) {
        return 0;
    }
    int32_t capacity = batch->callback_capacity ? batch->callback_capacity : CAPACITY_FIRST / 2;
    el_callback *moved =
        capacity > INT32_MAX / 2
            ? NULL
            : PyMem_Realloc(batch->callbacks, (size_t)capacity * 2 * sizeof *moved);
    if (!moved) {
        return PyErr_NoMemory(), -1;
    }
    batch->callbacks = moved;
    batch->callback_capacity = capacity * 2;
    return 0;
}

int el_callback_add(el_producer_batch *batch, el_future *future, PyObject *callable, int quiet) {
    if (callbacks_reserve(batch) < 0) {
        return -1;
    }
    int32_t place = batch->callback_end++;
    for (;
         place > batch->callback_first && batch->callbacks[place - 1].future->index > future->index;
         place--) {
        batch->callbacks[place] = batch->callbacks[place - 1];
    }
    batch->callbacks[place] =
        (el_callback){(el_future *)Py_NewRef(EL_OBJECT(future)), Py_NewRef(callable), quiet};
    return 0;
}

/* Takes the next callback that has not run; the caller owns it: 1, or 0 if there is none. */
static int callback_take(el_producer_batch *batch, el_callback *taken) {
    if (batch->callback_first < batch->callback_end) {
        *taken = batch->callbacks[batch->callback_first++];
        return 1;
    }
    PyMem_Free(batch->callbacks);
    batch->callbacks = NULL;
    batch->callback_first = batch->callback_end = batch->callback_capacity = 0;
    return 0;
}

void el_callbacks_drop(el_producer_batch *batch) {
    el_callback each;
    while (callback_take(batch, &each)) {
        Py_DECREF(each.callable);
        Py_DECREF(EL_OBJECT(each.future));
    }
}

int el_callbacks_visit(el_producer_batch *batch, visitproc visit, void *arg) {
    for (int32_t i = batch->callback_first; i < batch->callback_end; i++) {
        Py_VISIT(EL_OBJECT(batch->callbacks[i].future));
        Py_VISIT(batch->callbacks[i].callable);
    }
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

void el_callbacks_enqueue(el_producer_batch *batch) {
    el_accumulator *shared = batch->accumulator;
    if (batch->enqueued) {
        return;
    }
    batch->enqueued = 1;
    Py_INCREF(EL_OBJECT(batch));
    if (shared->ready_last) {
        shared->ready_last->next = batch;
    } else {
        shared->ready_first = batch;
    }
    shared->ready_last = batch;
    el_wake_thread(shared);
}

/* Removes the first batch, whose callbacks have all run. An unsettled one is the mark of a waiting
 * thread. */
static void ready_pop(el_accumulator *shared) {
    el_producer_batch *batch = shared->ready_first;
    shared->ready_first = batch->next;
    if (!shared->ready_first) {
        shared->ready_last = NULL;
    }
    batch->next = NULL;
    batch->enqueued = 0;
    if (!el_is_settled(batch)) {
        el_batch_settle(batch, EL_DELIVERED);
    }
    Py_DECREF(EL_OBJECT(batch));
}

/* Keeps the first exception of the callbacks; the others are only reported. */
static void raised_keep(PyObject **first, PyObject *callable) {
    PyObject *type, *value, *trace;
    if (*first) {
        PyErr_WriteUnraisable(callable);
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace) {
        PyException_SetTraceback(value, trace);
    }
    *first = value;
    Py_XDECREF(type);
    Py_XDECREF(trace);
}

PyObject *el_callbacks_run(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    PyObject *raised = NULL;
    while (self->ready_first) {
        el_callback next;
        if (!callback_take(self->ready_first, &next)) {
            ready_pop(self);
            continue;
        }
        self->calling++;
        PyObject *answer = PyObject_CallFunctionObjArgs(self->run_callback, EL_OBJECT(next.future),
                                                        next.callable, NULL);
        if (!answer) {
            raised_keep(&raised, next.callable);
        }
        Py_XDECREF(answer);
        Py_DECREF(next.callable);
        Py_DECREF(EL_OBJECT(next.future));
        self->calling--;
    }
    if (!raised) {
        Py_RETURN_NONE;
    }
    PyErr_SetObject(EL_OBJECT(Py_TYPE(raised)), raised);
    Py_DECREF(raised);
    return NULL;
}

/* ---- observed failures ----------------------------------------------------------------------- */

void el_future_observe(el_future *future) {
    el_tally *tally = future->batch->tally;
    if (future->observed || !tally) {
        return;
    }
    future->observed = 1;
    int64_t count = future->index == EL_WHOLE ? future->batch->count : 1;
    int64_t before = __atomic_load_n(&tally->unobserved, __ATOMIC_RELAXED);
    int64_t after;
    do {
        after = before - (count < before ? count : before);
    } while (!__atomic_compare_exchange_n(&tally->unobserved, &before, after, 1, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
}

int64_t el_callbacks_observe(el_producer_batch *batch, int64_t count) {
    int64_t heard = 0;
    for (int32_t i = batch->callback_first; i < batch->callback_end; i++) {
        el_future *future = batch->callbacks[i].future;
        if (batch->callbacks[i].quiet || future->observed) {
            continue;
        }
        future->observed = 1;
        heard += future->index == EL_WHOLE ? count : 1;
    }
    return heard < count ? heard : count;
}

static PyObject *tally_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {NULL};
    return PyArg_ParseTupleAndKeywords(args, keywords, ":Tally", names)
               ? PyType_GenericAlloc(type, 0)
               : NULL;
}

static void tally_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *tally_get(PyObject *object, void *unused) {
    return PyLong_FromLongLong(
        __atomic_load_n(&((el_tally *)object)->unobserved, __ATOMIC_RELAXED));
}

static PyGetSetDef tally_fields[] = {
    {"unobserved", tally_get, NULL, "Failed records that were not observed.", NULL},
    {NULL},
};

static PyType_Slot tally_slots[] = {
    {Py_tp_new, tally_new},
    {Py_tp_dealloc, tally_dealloc},
    {Py_tp_getset, tally_fields},
    {Py_tp_doc, "Counts failed records that were not observed."},
    {0, NULL},
};

static PyType_Spec tally_spec = {"embedlog._native._rows.Tally", sizeof(el_tally), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, tally_slots};

int el_tally_ready(PyObject *module) {
    el_tally_type = el_type_ready(module, &tally_spec);
    return el_tally_type ? 0 : -1;
}
