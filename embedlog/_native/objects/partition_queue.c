/* PartitionQueue: the producer batches of one partition; the last one may be open, and records are
 * encoded directly into it. */
#include "objects/encode_record.h"

#include <structmember.h>

PyTypeObject *el_queue_type;

enum { CAPACITY_MIN = 2048 };

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"accumulator", "topic", "partition", "limit", NULL};
    PyObject *accumulator, *topic;
    int partition;
    long long limit;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OiL:PartitionQueue", names,
                                     el_accumulator_type, &accumulator, &topic, &partition,
                                     &limit)) {
        return NULL;
    }
    el_queue *self = (el_queue *)PyType_GenericAlloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->accumulator = (el_accumulator *)Py_NewRef(accumulator);
    self->topic = Py_NewRef(topic);
    self->partition = partition;
    self->limit = limit;
    self->producer_id = self->producer_epoch = -1;
    self->seen = -1;
    if (!self->accumulator->unacknowledged) {
        return EL_OBJECT(self);
    }
    el_producer_batch *shared = el_batch_new(self->accumulator);
    if (shared) {
        shared->topic = Py_NewRef(topic);
        shared->partition = partition;
        shared->state = EL_DELIVERED;
        self->unacknowledged = shared;
    } else {
        Py_CLEAR(self);
    }
    return EL_OBJECT(self);
}

static int queue_traverse(PyObject *object, visitproc visit, void *arg) {
    el_queue *self = (el_queue *)object;
    PyObject *owned[] = {EL_OBJECT(Py_TYPE(object)),
                         EL_OBJECT(self->accumulator),
                         self->topic,
                         EL_OBJECT(self->first),
                         EL_OBJECT(self->unacknowledged),
                         EL_OBJECT(self->next_active),
                         self->target,
                         self->mutex,
                         self->writer,
                         self->config,
                         self->followers,
                         self->packer};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_VISIT(owned[i]);
    }
    return 0;
}

static int queue_clear(PyObject *object) {
    el_queue *self = (el_queue *)object;
    self->last = NULL;
    el_batches_drop(&self->first);
    Py_CLEAR(self->unacknowledged);
    Py_XDECREF(el_close_direct(object, NULL));
    return 0;
}

static void queue_dealloc(PyObject *object) {
    el_queue *self = (el_queue *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    queue_clear(object);
    Py_XDECREF(self->topic);
    Py_XDECREF(EL_OBJECT(self->accumulator));
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- adding records -------------------------------------------------------------------------- */

void el_queue_seal(el_queue *queue) {
    if (!queue->last || queue->last->state != EL_OPEN) {
        return;
    }
    queue->last->state = EL_SEALED;
    queue->capacity_hint = queue->last->size;
    el_wake_thread(queue->accumulator);
}

int el_queue_fits(const el_queue *queue, const el_item *item) {
    const el_producer_batch *open = queue->last;
    if (!open || open->state != EL_OPEN || open->count == INT32_MAX) {
        return 0;
    }
    int64_t size = el_item_size(item, item->timestamp_ms - open->base_timestamp, open->count);
    return open->size + varint_size(size) + size <= queue->limit;
}

static int batch_reserve(el_producer_batch *batch, int64_t size) {
    if (size <= batch->capacity) {
        return 0;
    }
    int64_t capacity = batch->capacity * 2 > size ? batch->capacity * 2 : size;
    uint8_t *data = PyMem_Realloc(batch->data, (size_t)capacity);
    if (!data) {
        return PyErr_NoMemory(), -1;
    }
    batch->data = data;
    batch->capacity = capacity;
    return 0;
}

/* A new open batch without a queue, with memory for this item as its first, or NULL. */
static el_producer_batch *batch_open(const el_queue *queue, const el_item *item) {
    el_producer_batch *batch = el_batch_new(queue->accumulator);
    if (!batch) {
        return NULL;
    }
    int64_t size = el_item_size(item, 0, 0);
    int64_t hint = queue->capacity_hint > CAPACITY_MIN ? queue->capacity_hint : CAPACITY_MIN;
    int64_t least = EL_HEADER_SIZE + varint_size(size) + size;
    if (batch_reserve(batch, hint > least ? hint : least) < 0) {
        Py_DECREF(EL_OBJECT(batch));
        return NULL;
    }
    batch->size = EL_HEADER_SIZE;
    batch->base_timestamp = batch->max_timestamp = batch->min_timestamp = item->timestamp_ms;
    return batch;
}

/* Appends the result of batch_open to the queue. */
static void queue_begin(el_queue *queue, el_producer_batch *batch) {
    el_accumulator *shared = queue->accumulator;
    el_queue_seal(queue);
    el_queue_link(queue, batch);
    queue->queued_bytes += EL_HEADER_SIZE;
    el_store(shared->memory_used, shared->memory_used + EL_HEADER_SIZE);
    if (!shared->polling && (shared->idle || !shared->linger_ns)) {
        el_wake_thread(shared);
    }
}

/* Encodes the item at the end of the batch. REQUIRES: memory. Cannot fail. */
static void batch_write(el_queue *queue, el_producer_batch *batch, const el_item *item,
                        int64_t size, int64_t delta) {
    int64_t whole = varint_size(size) + size;
    el_item_write(item, size, delta, batch->count, batch->data + batch->size);
    batch->size += whole;
    batch->count++;
    if (whole > batch->record_most) {
        batch->record_most = whole;
    }
    if (item->timestamp_ms > batch->max_timestamp) {
        batch->max_timestamp = item->timestamp_ms;
    }
    if (item->timestamp_ms < batch->min_timestamp) {
        batch->min_timestamp = item->timestamp_ms;
    }
    if (item->key_size < 0) {
        batch->keyless = 1;
    }
    queue->queued_bytes += whole;
    el_store(queue->accumulator->memory_used, queue->accumulator->memory_used + whole);
    queue->accumulator->record_count++;
    if (batch->size >= queue->limit) {
        el_queue_seal(queue);
    }
}

/* Every step that may fail is before the change of the queue, and every step that may run other
 * code is before the checks. New objects may start a garbage collection, and a finaliser may send
 * or close. */
PyObject *el_queue_put(el_queue *queue, const el_item *item) {
    el_future *future = el_future_new(item->timestamp_ms);
    if (!future) {
        return NULL;
    }
    int fits = el_queue_fits(queue, item);
    el_producer_batch *fresh = fits ? NULL : batch_open(queue, item);
    int failed = !fits && !fresh;
    el_producer_batch *batch = fits || (fresh && el_queue_fits(queue, item)) ? queue->last : fresh;
    int refused = queue->accumulator->closed || queue->accumulator->shut;
    int64_t delta = failed ? 0 : item->timestamp_ms - batch->base_timestamp;
    int64_t size = failed ? 0 : el_item_size(item, delta, batch->count);
    if (failed || refused || batch_reserve(batch, batch->size + varint_size(size) + size) < 0) {
        Py_XDECREF(EL_OBJECT(fresh));
        Py_DECREF(EL_OBJECT(future));
        return refused && !failed ? Py_NewRef(Py_None) : NULL;
    }
    if (queue->unacknowledged) {
        el_future_join(future, queue->unacknowledged, EL_NOT_AWAITED);
    } else {
        el_future_join(future, batch, batch->count);
    }
    if (batch == fresh) {
        queue_begin(queue, fresh);
    }
    batch_write(queue, batch, item, size, delta);
    if (batch != fresh) {
        Py_XDECREF(EL_OBJECT(fresh)); /* last: the batch is complete */
    }
    return EL_OBJECT(future);
}

/* ---- functions for the sending thread and send_batch ----------------------------------------- */

static PyObject *queue_push_run(PyObject *object, PyObject *args) {
    el_queue *self = (el_queue *)object;
    PyObject *run;
    int count;
    long long size;
    if (!PyArg_ParseTuple(args, "OiL:push_run", &run, &count, &size)) {
        return NULL;
    }
    el_producer_batch *batch = el_batch_new(self->accumulator);
    if (!batch) {
        return NULL;
    }
    /* checked last: other code may have closed it meanwhile */
    if (self->accumulator->closed || self->accumulator->shut) {
        Py_DECREF(EL_OBJECT(batch));
        Py_RETURN_NONE;
    }
    batch->run = Py_NewRef(run);
    batch->count = count;
    batch->size = size;
    batch->state = EL_SEALED;
    el_queue_seal(self);
    el_queue_link(self, batch);
    self->queued_bytes += size;
    el_store(self->accumulator->memory_used, self->accumulator->memory_used + size);
    self->accumulator->record_count += count;
    el_wake_thread(self->accumulator);
    return Py_NewRef(EL_OBJECT(batch));
}

int el_queue_enter(el_queue *queue) {
    if (queue->busy) {
        return 0;
    }
    queue->busy = 1;
    return 1;
}

void el_queue_leave(el_queue *queue) {
    queue->busy = 0;
    if ((queue->first && (queue->first->state != EL_OPEN || queue->last->urgent)) ||
        queue->check_due) {
        el_wake_thread(queue->accumulator);
    }
}

static PyObject *queue_enter(PyObject *object, PyObject *unused) {
    EL_RETURN_TRUTH(el_queue_enter((el_queue *)object));
}

static PyObject *queue_leave(PyObject *object, PyObject *unused) {
    el_queue *self = (el_queue *)object;
    self->check_due = 0;
    self->checked_ns = el_now_ns();
    el_queue_leave(self);
    Py_RETURN_NONE;
}

/* Delays the next attempt by so many seconds. */
static PyObject *queue_rest(PyObject *object, PyObject *argument) {
    double seconds = PyFloat_AsDouble(argument);
    if (PyErr_Occurred()) {
        return NULL;
    }
    ((el_queue *)object)->not_before_ns = seconds > 0 ? el_now_ns() + (int64_t)(seconds * 1e9) : 0;
    Py_RETURN_NONE;
}

static PyObject *queue_append(PyObject *object, PyObject *args) {
    PyObject *value, *key, *headers;
    long long timestamp_ms;
    el_item item;
    if (!PyArg_ParseTuple(args, "OOLO:append", &value, &key, &timestamp_ms, &headers)) {
        return NULL;
    }
    if (!el_item_take(&item, value, key, headers)) {
        Py_RETURN_NONE;
    }
    item.timestamp_ms = timestamp_ms;
    return el_queue_put((el_queue *)object, &item);
}

static PyObject *queue_seal(PyObject *object, PyObject *unused) {
    el_queue_seal((el_queue *)object);
    Py_RETURN_NONE;
}

EL_METHOD(EL_OF_QUEUE, queue_append)
EL_METHOD(EL_OF_QUEUE, queue_push_run)
EL_METHOD(EL_OF_QUEUE, el_queue_take)
EL_METHOD(EL_OF_QUEUE, queue_seal)
EL_METHOD(EL_OF_QUEUE, queue_enter)
EL_METHOD(EL_OF_QUEUE, queue_leave)
EL_METHOD(EL_OF_QUEUE, queue_rest)
EL_METHOD(EL_OF_QUEUE, el_open_direct)
EL_METHOD(EL_OF_QUEUE, el_collect_direct)
EL_METHOD(EL_OF_QUEUE, el_close_direct)
EL_FIELDS(EL_OF_QUEUE)

static PyMemberDef queue_members[] = {
    {"topic", T_OBJECT_EX, offsetof(el_queue, topic), READONLY, "Name of the topic."},
    {"partition", T_INT, offsetof(el_queue, partition), READONLY, "Number of the partition."},
    {NULL},
};

static PyGetSetDef queue_fields[] = {
    EL_FIELD_SET(limit, T_LONGLONG, el_queue, "Bytes of a batch before compression."),
    EL_FIELD_SET(producer_id, T_LONGLONG, el_queue,
                 "Producer id stamped into its batches; -1: none."),
    EL_FIELD_SET(producer_epoch, T_SHORT, el_queue, "Producer epoch stamped into its batches."),
    EL_FIELD_SET(
        seen, T_LONGLONG, el_queue,
        "Content of the producer's slot in the control page after its last append; -1: unknown."),
    EL_FIELD_SET(next_sequence, T_INT, el_queue,
                 "Sequence of the first record that is not written yet."),
    EL_FIELD(queued_bytes, T_LONGLONG, el_queue, "Unsettled bytes."),
    EL_FIELD(batch_count, T_INT, el_queue, "Unsettled batches: the length of the queue."),
    {NULL},
};

static PyMethodDef queue_methods[] = {
    {"append", EL_ALONE(queue_append), METH_VARARGS,
     "append(value, key, timestamp_ms, headers) -> Future; None for types that Python must check, "
     "and while no records are accepted."},
    {"seal", EL_ALONE(queue_seal), METH_NOARGS, "Closes the open batch."},
    {"push_run", EL_ALONE(queue_push_run), METH_VARARGS,
     "push_run(run, count, size) -> ProducerBatch at the end of the queue; None while no records "
     "are accepted."},
    {"take", EL_ALONE(el_queue_take), METH_O,
     "take(max_bytes) -> closed batches in order: one run, or several that can be sealed "
     "together."},
    {"enter", EL_ALONE(queue_enter), METH_NOARGS,
     "enter() -> whether the caller has entered the queue, as one thread at a time can; only it "
     "takes batches."},
    {"leave", EL_ALONE(queue_leave), METH_NOARGS, "Leaves the queue."},
    {"rest", EL_ALONE(queue_rest), METH_O,
     "rest(seconds): delays the next attempt; 0 ends the delay."},
    {"open_direct", (PyCFunction)(void (*)(void))EL_ALONE(el_open_direct), METH_VARARGS,
     "open_direct(partition, mutex, writer, config, append's address, writer's address, flush_ms, "
     "batch_bytes_max,\n"
     "keys_required, past_ms, future_ms, followers, packer, codec, packed_max): enables\n"
     "direct appends. followers: None, or a tuple of (partition, mutex, writer), with the "
     "addresses of el_append_together."},
    {"collect_direct", EL_ALONE(el_collect_direct), METH_NOARGS,
     "collect_direct() -> metrics of direct appends since the last call, None if there were none: "
     "batches, records, bytes, largest batch,\n"
     "total time, longest time, total time in the queue, longest time in the queue (ns)."},
    {"close_direct", EL_ALONE(el_close_direct), METH_NOARGS, "Disables direct appends."},
    {NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_new, queue_new},
    {Py_tp_dealloc, queue_dealloc},
    {Py_tp_traverse, queue_traverse},
    {Py_tp_clear, queue_clear},
    {Py_tp_members, queue_members},
    {Py_tp_getset, queue_fields},
    {Py_tp_methods, queue_methods},
    {Py_tp_doc, "The producer batches of one partition, in order."},
    {0, NULL},
};

static PyType_Spec queue_spec = {"embedlog._native._rows.PartitionQueue", sizeof(el_queue), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
                                 queue_slots};

int el_queue_ready(PyObject *module) {
    el_queue_type = el_type_ready(module, &queue_spec);
    return el_queue_type ? 0 : -1;
}
