/* Settling: stores the outcome of a producer batch.
 *
 * - Storing cannot fail, needs no memory and calls no code of the user: waiters wake, and callbacks
 *   are only enqueued.
 * - Waiters and callbacks see the batch outside its queue, with its memory released. */
#include "objects/producer.h"

/* Unlinks the batch from its queue. */
static void queue_unlink(el_queue *queue, el_producer_batch *batch) {
    el_store(queue->accumulator->memory_used, queue->accumulator->memory_used - batch->size);
    queue->queued_bytes -= batch->size;
    queue->batch_count--;
    for (el_producer_batch *before = NULL, *each = queue->first; each;
         before = each, each = each->next) {
        if (each != batch) {
            continue;
        }
        if (before) {
            before->next = batch->next;
        } else {
            queue->first = batch->next;
        }
        if (queue->last == batch) {
            queue->last = before;
        }
        batch->next = NULL;
        return;
    }
}

/* All state is stored before any reference is released: a deallocation may run any code. */
void el_batch_settle(el_producer_batch *self, enum el_batch_state state) {
    el_queue *queue = self->queue;
    PyObject *run = self->run;
    self->state = (int8_t)state;
    self->run = NULL;
    self->queue = NULL;
    if (!self->pinned) {
        PyMem_Free(self->data);
        self->data = NULL;
    }
    if (queue) {
        queue_unlink(queue, self);
    }
    for (el_waiter *waiter = self->waiters; waiter; waiter = waiter->next) {
        PyThread_release_lock(waiter->lock);
    }
    self->waiters = NULL;
    if (self->callback_first < self->callback_end) {
        el_callbacks_enqueue(self);
    }
    Py_XDECREF(run);
    if (!queue) {
        return;
    }
    Py_DECREF(EL_OBJECT(self)); /* the queue's reference, which may be the last */
    Py_DECREF(EL_OBJECT(queue));
}

/* `tally`, if given, counts the records without callbacks. */
void el_batch_fail(el_producer_batch *self, PyObject *error, PyObject *tally) {
    el_replace(&self->error, error);
    if (tally && tally != Py_None) {
        self->tally = (el_tally *)Py_NewRef(tally);
        __atomic_fetch_add(&self->tally->unobserved,
                           self->count - el_callbacks_observe(self, self->count), __ATOMIC_RELAXED);
    }
    el_batch_settle(self, EL_FAILED);
}

static void batch_settle_open(el_producer_batch *batch, PyObject *error) {
    el_section section;
    el_section_enter(&section, EL_OBJECT(batch->accumulator));
    if (el_is_settled(batch))
        ;
    else if (error == Py_None) {
        el_batch_settle(batch, EL_DELIVERED);
    } else {
        el_batch_fail(batch, error, NULL);
    }
    el_section_leave(&section);
}

/* Settles batches after a failure between an append and their settlement: needs no memory. */
static PyObject *settle_open(PyObject *module, PyObject *args) {
    PyObject *batches, *error;
    if (!PyArg_ParseTuple(args, "O!O:settle_open", &PyList_Type, &batches, &error)) {
        return NULL;
    }
    for (Py_ssize_t i = PyList_Size(batches); i-- > 0;) {
        PyObject *each = el_list_item(batches, i);
        if (each && Py_IS_TYPE(each, el_producer_batch_type)) {
            batch_settle_open((el_producer_batch *)each, error);
        }
        Py_XDECREF(each);
    }
    PyErr_Clear(); /* the list was shortened meanwhile */
    Py_RETURN_NONE;
}

PyMethodDef el_settling_functions[] = {
    {"settle_open", settle_open, METH_VARARGS,
     "settle_open(batches, exception or None): the unsettled ones fail, or are delivered at an "
     "unknown offset. Cannot fail."},
    {NULL},
};
