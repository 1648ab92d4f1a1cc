/* The active queues of an accumulator. */
#ifndef EL_ACTIVE_QUEUES_H
#define EL_ACTIVE_QUEUES_H

#include "objects/objects.h"

/* Drops the list of queues; none of them will be written any more. */
void el_queues_drop(el_accumulator *self);

/* Removes empty queues from the list: the due ones as a list of Python, and the time until the next
 * one is due (INT64_MAX: none). */
PyObject *el_queues_ready(el_accumulator *self, int64_t *pause_ns);

/* The unsettled batches; the list keeps them alive, but not their place in a queue. */
PyObject *el_queues_pending(PyObject *accumulator, PyObject *unused);

/* The closed batches of a queue, from the first on, that are written together. */
PyObject *el_queue_take(PyObject *queue, PyObject *most_bytes);

#endif
