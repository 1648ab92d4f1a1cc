/* Callbacks: what runs once the fate of a record is known, and how many failures no one has asked about.
 *
 * C1  a callback is stored with its parcel while that may fail, in the caller's thread; to hand it on is to link the parcel into the
 *     accumulator's queue, which cannot fail
 * C2  those of a parcel run in the order of its records, parcels in the order of their fates, each callback once, whoever runs the queue
 * C3  what one raises keeps no other from running
 * C4  a failed record is unheard until its future is asked, or if it has no callback of the user's
 */
#include "objects/objects.h"

#include <structmember.h>

PyTypeObject *el_tally_type;

enum { CAPACITY_FIRST = 4 };

/* ---- storing ---------------------------------------------------------------------------------------------------- */

static int callbacks_reserve(el_parcel *parcel) {
    if (parcel->callback_end < parcel->callback_capacity) return 0;
    int32_t capacity = parcel->callback_capacity ? parcel->callback_capacity : CAPACITY_FIRST / 2;
    el_callback *moved = capacity > INT32_MAX / 2 ? NULL : PyMem_Realloc(parcel->callbacks, (size_t)capacity * 2 * sizeof *moved);
    if (!moved) return PyErr_NoMemory(), -1;
    parcel->callbacks = moved;
    parcel->callback_capacity = capacity * 2;
    return 0;
}

int el_callback_add(el_parcel *parcel, el_future *future, PyObject *callable, int quiet) {
    if (callbacks_reserve(parcel) < 0) return -1;
    int32_t place = parcel->callback_end++;
    for (; place > parcel->callback_first && parcel->callbacks[place - 1].future->index > future->index; place--)
        parcel->callbacks[place] = parcel->callbacks[place - 1];
    parcel->callbacks[place] = (el_callback){(el_future *)Py_NewRef(EL_OBJECT(future)), Py_NewRef(callable), quiet};
    return 0;
}

/* The next one that has not run, which the caller owns: 1, or 0 if there is none. */
static int callback_take(el_parcel *parcel, el_callback *taken) {
    if (parcel->callback_first < parcel->callback_end) {
        *taken = parcel->callbacks[parcel->callback_first++];
        return 1;
    }
    PyMem_Free(parcel->callbacks);
    parcel->callbacks = NULL;
    parcel->callback_first = parcel->callback_end = parcel->callback_capacity = 0;
    return 0;
}

void el_callbacks_drop(el_parcel *parcel) {
    el_callback each;
    while (callback_take(parcel, &each)) {
        Py_DECREF(each.callable);
        Py_DECREF(EL_OBJECT(each.future));
    }
}

int el_callbacks_visit(el_parcel *parcel, visitproc visit, void *arg) {
    for (int32_t i = parcel->callback_first; i < parcel->callback_end; i++) {
        Py_VISIT(EL_OBJECT(parcel->callbacks[i].future));
        Py_VISIT(parcel->callbacks[i].callable);
    }
    return 0;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

void el_late_push(el_parcel *parcel) {
    el_accumulator *shared = parcel->accumulator;
    if (parcel->late) return;
    parcel->late = 1;
    Py_INCREF(EL_OBJECT(parcel));
    if (shared->late_last) shared->late_last->next = parcel;
    else shared->late_first = parcel;
    shared->late_last = parcel;
    el_ring(shared);
}

/* Takes the first parcel, all of whose callbacks have run, out of the queue; one without a fate is the mark of somebody who waits for that. */
static void late_pop(el_accumulator *shared) {
    el_parcel *parcel = shared->late_first;
    shared->late_first = parcel->next;
    if (!shared->late_first) shared->late_last = NULL;
    parcel->next = NULL;
    parcel->late = 0;
    if (!el_fate_known(parcel)) el_parcel_settle(parcel, EL_DELIVERED);
    Py_DECREF(EL_OBJECT(parcel));
}

/* What a callback raised: the first such exception is kept, the others can only be reported. */
static void raised_keep(PyObject **first, PyObject *callable) {
    PyObject *type, *value, *trace;
    if (*first) {
        PyErr_WriteUnraisable(callable);
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace) PyException_SetTraceback(value, trace);
    *first = value;
    Py_XDECREF(type);
    Py_XDECREF(trace);
}

PyObject *el_late_run(PyObject *object, PyObject *unused) {
    el_accumulator *self = (el_accumulator *)object;
    PyObject *raised = NULL;
    while (self->late_first) {
        el_callback next;
        if (!callback_take(self->late_first, &next)) {
            late_pop(self);
            continue;
        }
        self->calling++;
        PyObject *answer = PyObject_CallFunctionObjArgs(self->run_callback, EL_OBJECT(next.future), next.callable, NULL);
        if (!answer) raised_keep(&raised, next.callable);
        Py_XDECREF(answer);
        Py_DECREF(next.callable);
        Py_DECREF(EL_OBJECT(next.future));
        self->calling--;
    }
    if (!raised) Py_RETURN_NONE;
    PyErr_SetObject(EL_OBJECT(Py_TYPE(raised)), raised);
    Py_DECREF(raised);
    return NULL;
}

/* ---- who has heard ---------------------------------------------------------------------------------------------- */

void el_future_hear(el_future *future) {
    el_tally *tally = future->parcel->tally;
    if (future->heard || !tally) return;
    future->heard = 1;
    int64_t count = future->index == EL_WHOLE ? future->parcel->count : 1;
    tally->unheard -= count < tally->unheard ? count : tally->unheard;
}

int64_t el_callbacks_hear(el_parcel *parcel, int64_t count) {
    int64_t heard = 0;
    for (int32_t i = parcel->callback_first; i < parcel->callback_end; i++) {
        el_future *future = parcel->callbacks[i].future;
        if (parcel->callbacks[i].quiet || future->heard) continue;
        future->heard = 1;
        heard += future->index == EL_WHOLE ? count : 1;
    }
    return heard < count ? heard : count;
}

static PyObject *tally_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {NULL};
    return PyArg_ParseTupleAndKeywords(args, keywords, ":Tally", names) ? PyType_GenericAlloc(type, 0) : NULL;
}

static void tally_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMemberDef tally_members[] = {
    {"unheard", T_LONGLONG, offsetof(el_tally, unheard), READONLY, "Failed records that were not asked about."},
    {NULL},
};

static PyType_Slot tally_slots[] = {
    {Py_tp_new, tally_new}, {Py_tp_dealloc, tally_dealloc}, {Py_tp_members, tally_members},
    {Py_tp_doc, "Counts the failed records that were not asked about."}, {0, NULL},
};

static PyType_Spec tally_spec = {"embedlog._native._rows.Tally", sizeof(el_tally), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, tally_slots};

int el_tally_ready(PyObject *module) {
    el_tally_type = el_type_ready(module, &tally_spec);
    return el_tally_type ? 0 : -1;
}
