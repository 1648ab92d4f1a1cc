/* The queues of an accumulator that have batches, and lists of queues and batches for Python.
 *
 * A list may be made only where other code may run. So its items are counted before and after that,
 * and taken in one step. */
#include "objects/producer.h"

/* Drops the list of queues; none of them will be written any more. */
void el_queues_drop(el_accumulator *self) {
    for (el_queue *queue; (queue = self->first_active);) {
        self->first_active = queue->next_active;
        if (!self->first_active) {
            self->last_active = NULL;
        }
        queue->next_active = NULL;
        queue->active = 0;
        Py_DECREF(EL_OBJECT(queue));
    }
}

/* Closes the open batch of the queue when it is due. Returns whether there is something to write;
 * else lowers *deadline_ns. */
static int queue_due(el_accumulator *self, el_queue *queue, int64_t now, int64_t *deadline_ns) {
    if (queue->busy) {
        return 0; /* the thread that leaves the queue wakes this one */
    }
    el_producer_batch *last = queue->last;
    int64_t due = now;
    if (last && last->state == EL_OPEN && !last->urgent && !self->waiting && !self->closed) {
        due = self->linger_ns > INT64_MAX - last->opened_ns ? INT64_MAX
                                                            : last->opened_ns + self->linger_ns;
    }
    if (last && last->state == EL_OPEN && due <= now) {
        last->state = EL_SEALED;
    }
    if (queue->check_due || (queue->first && queue->first->state != EL_OPEN)) {
        due = queue->not_before_ns;
    }
    if (due > now && due < *deadline_ns) {
        *deadline_ns = due;
    }
    return due <= now;
}

enum { PRUNED_MAX = 16 };

/* Removes empty queues from the list, at most PRUNED_MAX; the caller takes over their
 * references. */
static int queues_unlink_empty(el_accumulator *self, el_queue **pruned) {
    int count = 0;
    el_queue **link = &self->first_active;
    self->last_active = NULL;
    while (*link) {
        el_queue *queue = *link;
        if (queue->first || queue->check_due || count == PRUNED_MAX) {
            self->last_active = queue;
            link = &queue->next_active;
            continue;
        }
        *link = queue->next_active;
        queue->next_active = NULL;
        queue->active = 0;
        pruned[count++] = queue;
    }
    return count;
}

static void queues_prune(el_accumulator *self) {
    el_queue *pruned[PRUNED_MAX];
    int count;
    do {
        count = queues_unlink_empty(self, pruned);
        /* after the list is complete */
        for (int i = 0; i < count; i++) {
            Py_DECREF(EL_OBJECT(pruned[i]));
        }
    } while (count == PRUNED_MAX);
}

/* The due queues as a list. Other code may run before the list is made, so their number is counted
 * again. */
static PyObject *queues_collect(el_accumulator *self, int64_t *pause_ns) {
    PyObject *ready = NULL;
    Py_ssize_t count = 0;
    Py_ssize_t expected = 0;
    do {
        Py_XDECREF(ready);
        ready = PyList_New(expected = count);
        if (!ready) {
            return NULL;
        }
        int64_t now = el_now_ns();
        *pause_ns = INT64_MAX;
        count = 0;
        for (el_queue *queue = self->first_active; queue; queue = queue->next_active) {
            if (!queue_due(self, queue, now, pause_ns)) {
                continue;
            }
            if (count < expected) {
                PyList_SetItem(ready, count, Py_NewRef(EL_OBJECT(queue)));
            }
            count++;
        }
        if (*pause_ns != INT64_MAX) {
            *pause_ns = *pause_ns > now ? *pause_ns - now : 0;
        }
    } while (count != expected);
    return ready;
}

PyObject *el_queues_ready(el_accumulator *self, int64_t *pause_ns) {
    queues_prune(self);
    return queues_collect(self, pause_ns);
}

/* The unsettled batches; the list keeps them alive, but not their place in a queue. */
PyObject *el_queues_pending(PyObject *object, PyObject *unused) {
    PyObject *pending = NULL;
    Py_ssize_t count = 0;
    Py_ssize_t expected = 0;
    do {
        Py_XDECREF(pending);
        pending = PyList_New(expected = count);
        if (!pending) {
            return NULL;
        }
        count = 0;
        for (el_queue *queue = ((el_accumulator *)object)->first_active; queue;
             queue = queue->next_active) {
            for (el_producer_batch *batch = queue->first; batch; batch = batch->next, count++) {
                if (count < expected) {
                    PyList_SetItem(pending, count, Py_NewRef(EL_OBJECT(batch)));
                }
            }
        }
    } while (count != expected);
    return pending;
}

/* How many closed batches are taken together: a run alone, batches of send() until `most` bytes. */
static Py_ssize_t queue_count_taken(const el_queue *queue, int64_t most) {
    Py_ssize_t count = 0;
    for (el_producer_batch *batch = queue->first; batch && batch->state != EL_OPEN;
         batch = batch->next) {
        int alone = batch->run != NULL;
        if (count && (alone || batch->size > most)) {
            break;
        }
        count++;
        most -= batch->size;
        if (alone) {
            break;
        }
    }
    return count;
}

/* Batches that were taken before and are still queued come again. Other code may run before the
 * list is made: the batches are counted again. */
PyObject *el_queue_take(PyObject *object, PyObject *argument) {
    el_queue *self = (el_queue *)object;
    int64_t most = PyLong_AsLongLong(argument);
    if (PyErr_Occurred()) {
        return NULL;
    }
    PyObject *taken = NULL;
    Py_ssize_t count;
    do {
        Py_XDECREF(taken);
        taken = PyList_New(count = queue_count_taken(self, most));
    } while (taken && count != queue_count_taken(self, most));
    el_producer_batch *batch = self->first;
    for (Py_ssize_t place = 0; taken && place < count; place++, batch = batch->next) {
        PyList_SetItem(taken, place, Py_NewRef(EL_OBJECT(batch)));
        batch->state = EL_TAKEN;
    }
    return taken;
}
