/* Settling: a parcel's fate is stored.
 *
 * S1  storing it cannot fail, asks for no memory and calls nothing of the user's: waiters wake, and callbacks are only handed on
 * S2  who waits for a fate and who is called back sees the parcel outside of its lane, with its memory given back
 */
#include "objects/objects.h"

/* Takes the parcel out of the lane's queue. */
static void lane_unlink(el_lane *lane, el_parcel *parcel) {
    lane->accumulator->memory_used -= parcel->size;
    lane->queued_bytes -= parcel->size;
    lane->parcel_count--;
    for (el_parcel *before = NULL, *each = lane->first; each; before = each, each = each->next) {
        if (each != parcel) continue;
        if (before) before->next = parcel->next;
        else lane->first = parcel->next;
        if (lane->last == parcel) lane->last = before;
        parcel->next = NULL;
        return;
    }
}

/* All is stored before anything is let go of: what is freed may run any code. */
void el_parcel_settle(el_parcel *self, enum el_fate fate) {
    el_lane *lane = self->lane;
    PyObject *run = self->run;
    self->fate = (int8_t)fate;
    self->run = NULL;
    self->lane = NULL;
    if (!self->pinned) {
        PyMem_Free(self->data);
        self->data = NULL;
    }
    if (lane) lane_unlink(lane, self);
    for (el_waiter *waiter = self->waiters; waiter; waiter = waiter->next) PyThread_release_lock(waiter->lock);
    self->waiters = NULL;
    if (self->callback_first < self->callback_end) el_late_push(self);
    Py_XDECREF(run);
    if (!lane) return;
    Py_DECREF(EL_OBJECT(self)); /* the queue's, which may be the last */
    Py_DECREF(EL_OBJECT(lane));
}

/* Its records are counted by `tally`, if there is one, unless they have callbacks. */
void el_parcel_fail(el_parcel *self, PyObject *error, PyObject *tally) {
    el_replace(&self->error, error);
    if (tally && tally != Py_None) {
        self->tally = (el_tally *)Py_NewRef(tally);
        self->tally->unheard += self->count - el_callbacks_hear(self, self->count);
    }
    el_parcel_settle(self, EL_FAILED);
}

/* The way out where something failed between an append and the fates of its parcels: this needs no memory. */
static PyObject *settle_open(PyObject *module, PyObject *args) {
    PyObject *parcels, *error;
    if (!PyArg_ParseTuple(args, "O!O:settle_open", &PyList_Type, &parcels, &error)) return NULL;
    for (Py_ssize_t i = PyList_Size(parcels); i-- > 0;) {
        PyObject *each = PyList_GetItem(parcels, i);
        if (!each || !Py_IS_TYPE(each, el_parcel_type) || el_fate_known((el_parcel *)each)) continue;
        Py_INCREF(each);
        if (error == Py_None) el_parcel_settle((el_parcel *)each, EL_DELIVERED);
        else el_parcel_fail((el_parcel *)each, error, NULL);
        Py_DECREF(each);
    }
    PyErr_Clear(); /* the list became shorter meanwhile */
    Py_RETURN_NONE;
}

PyMethodDef el_settling_functions[] = {
    {"settle_open", settle_open, METH_VARARGS,
     "settle_open(parcels, exception or None): those whose fate is not known fail, or are delivered at an unknown offset. Cannot fail."},
    {NULL},
};
