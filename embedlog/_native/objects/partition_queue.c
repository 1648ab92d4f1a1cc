/* Lane: the queue of one partition's parcels; the last one may be open, and records are encoded straight into it. */
#include "objects/encode_record.h"

#include <structmember.h>

PyTypeObject *el_lane_type;

enum { CAPACITY_MIN = 2048 };

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"accumulator", "topic", "partition", "limit", NULL};
    PyObject *accumulator, *topic;
    int partition;
    long long limit;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OiL:Lane", names, el_accumulator_type, &accumulator, &topic, &partition, &limit)) return NULL;
    el_lane *self = (el_lane *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->accumulator = (el_accumulator *)Py_NewRef(accumulator);
    self->topic = Py_NewRef(topic);
    self->partition = partition;
    self->limit = limit;
    self->producer_id = self->producer_epoch = -1;
    self->seen = -1;
    if (!self->accumulator->unacknowledged) return EL_OBJECT(self);
    el_parcel *shared = el_parcel_new(self->accumulator);
    if (shared) {
        shared->topic = Py_NewRef(topic);
        shared->partition = partition;
        shared->fate = EL_DELIVERED;
        self->unacknowledged = shared;
    } else {
        Py_CLEAR(self);
    }
    return EL_OBJECT(self);
}

static int lane_traverse(PyObject *object, visitproc visit, void *arg) {
    el_lane *self = (el_lane *)object;
    PyObject *owned[] = {EL_OBJECT(Py_TYPE(object)), EL_OBJECT(self->accumulator), self->topic, EL_OBJECT(self->first),
                         EL_OBJECT(self->unacknowledged), EL_OBJECT(self->next_active), self->target, self->mutex, self->writer, self->config};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) Py_VISIT(owned[i]);
    return 0;
}

static int lane_clear(PyObject *object) {
    el_lane *self = (el_lane *)object;
    self->last = NULL;
    el_parcels_drop(&self->first);
    Py_CLEAR(self->unacknowledged);
    Py_XDECREF(el_shut_direct(object, NULL));
    return 0;
}

static void lane_dealloc(PyObject *object) {
    el_lane *self = (el_lane *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    lane_clear(object);
    Py_XDECREF(self->topic);
    Py_XDECREF(EL_OBJECT(self->accumulator));
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- putting ---------------------------------------------------------------------------------------------------- */

void el_lane_seal(el_lane *lane) {
    if (!lane->last || lane->last->fate != EL_OPEN) return;
    lane->last->fate = EL_SEALED;
    lane->capacity_hint = lane->last->size;
    el_ring(lane->accumulator);
}

int el_lane_fits(const el_lane *lane, const el_item *item) {
    const el_parcel *open = lane->last;
    if (!open || open->fate != EL_OPEN || open->count == INT32_MAX) return 0;
    int64_t size = el_item_size(item, item->timestamp_ms - open->base_timestamp, open->count);
    return open->size + varint_size(size) + size <= lane->limit;
}

static int parcel_reserve(el_parcel *parcel, int64_t size) {
    if (size <= parcel->capacity) return 0;
    int64_t capacity = parcel->capacity * 2 > size ? parcel->capacity * 2 : size;
    uint8_t *data = PyMem_Realloc(parcel->data, (size_t)capacity);
    if (!data) return PyErr_NoMemory(), -1;
    parcel->data = data;
    parcel->capacity = capacity;
    return 0;
}

/* A fresh open parcel of no lane yet, with room for this item as its first, or NULL. */
static el_parcel *parcel_open(const el_lane *lane, const el_item *item) {
    el_parcel *parcel = el_parcel_new(lane->accumulator);
    if (!parcel) return NULL;
    int64_t size = el_item_size(item, 0, 0);
    int64_t hint = lane->capacity_hint > CAPACITY_MIN ? lane->capacity_hint : CAPACITY_MIN;
    int64_t least = EL_HEADER_SIZE + varint_size(size) + size;
    if (parcel_reserve(parcel, hint > least ? hint : least) < 0) {
        Py_DECREF(EL_OBJECT(parcel));
        return NULL;
    }
    parcel->size = EL_HEADER_SIZE;
    parcel->base_timestamp = parcel->max_timestamp = parcel->min_timestamp = item->timestamp_ms;
    return parcel;
}

/* Puts what parcel_open made at the lane's end. */
static void lane_begin(el_lane *lane, el_parcel *parcel) {
    el_accumulator *shared = lane->accumulator;
    el_lane_seal(lane);
    el_lane_link(lane, parcel);
    lane->queued_bytes += EL_HEADER_SIZE;
    shared->memory_used += EL_HEADER_SIZE;
    if (!shared->napping && (shared->idle || !shared->linger_ns)) el_ring(shared);
}

/* The item in the parcel, at the lane's end. REQUIRES: room. Cannot fail. */
static void parcel_write(el_lane *lane, el_parcel *parcel, const el_item *item, int64_t size, int64_t delta) {
    int64_t whole = varint_size(size) + size;
    el_item_write(item, size, delta, parcel->count, parcel->data + parcel->size);
    parcel->size += whole;
    parcel->count++;
    if (item->timestamp_ms > parcel->max_timestamp) parcel->max_timestamp = item->timestamp_ms;
    if (item->timestamp_ms < parcel->min_timestamp) parcel->min_timestamp = item->timestamp_ms;
    lane->queued_bytes += whole;
    lane->accumulator->memory_used += whole;
    lane->accumulator->record_count++;
    if (parcel->size >= lane->limit) el_lane_seal(lane);
}

/* All that may fail comes before the lane is changed, and all that may run other code before it is looked at: new objects may make the
 * interpreter collect garbage, and what is collected may send, and close. */
PyObject *el_lane_put(el_lane *lane, const el_item *item) {
    el_future *future = el_future_new(item->timestamp_ms);
    if (!future) return NULL;
    int fits = el_lane_fits(lane, item);
    el_parcel *fresh = fits ? NULL : parcel_open(lane, item);
    int failed = !fits && !fresh;
    el_parcel *parcel = fits || (fresh && el_lane_fits(lane, item)) ? lane->last : fresh;
    int refused = lane->accumulator->closed || lane->accumulator->shut;
    int64_t delta = failed ? 0 : item->timestamp_ms - parcel->base_timestamp;
    int64_t size = failed ? 0 : el_item_size(item, delta, parcel->count);
    if (failed || refused || parcel_reserve(parcel, parcel->size + varint_size(size) + size) < 0) {
        Py_XDECREF(EL_OBJECT(fresh));
        Py_DECREF(EL_OBJECT(future));
        return refused && !failed ? Py_NewRef(Py_None) : NULL;
    }
    if (lane->unacknowledged) el_future_join(future, lane->unacknowledged, EL_NOT_AWAITED);
    else el_future_join(future, parcel, parcel->count);
    if (parcel == fresh) lane_begin(lane, fresh);
    else Py_XDECREF(EL_OBJECT(fresh));
    parcel_write(lane, parcel, item, size, delta);
    return EL_OBJECT(future);
}

/* ---- what the sending thread and send_batch do ------------------------------------------------------------------ */

static PyObject *lane_push_run(PyObject *object, PyObject *args) {
    el_lane *self = (el_lane *)object;
    PyObject *run;
    int count;
    long long size;
    if (!PyArg_ParseTuple(args, "OiL:push_run", &run, &count, &size)) return NULL;
    el_parcel *parcel = el_parcel_new(self->accumulator);
    if (!parcel) return NULL;
    if (self->accumulator->closed || self->accumulator->shut) { /* asked last: whatever ran meanwhile may have ended it */
        Py_DECREF(EL_OBJECT(parcel));
        Py_RETURN_NONE;
    }
    parcel->run = Py_NewRef(run);
    parcel->count = count;
    parcel->size = size;
    parcel->fate = EL_SEALED;
    el_lane_seal(self);
    el_lane_link(self, parcel);
    self->queued_bytes += size;
    self->accumulator->memory_used += size;
    self->accumulator->record_count += count;
    el_ring(self->accumulator);
    return Py_NewRef(EL_OBJECT(parcel));
}

/* Runs go alone; parcels of send() go together until max_bytes. What was taken before and is still here comes again. */
static PyObject *lane_take(PyObject *object, PyObject *argument) {
    int64_t left = PyLong_AsLongLong(argument);
    PyObject *taken = PyErr_Occurred() ? NULL : PyList_New(0);
    for (el_parcel *parcel = ((el_lane *)object)->first; taken && parcel; parcel = parcel->next) {
        int alone = parcel->run != NULL;
        Py_ssize_t before = PyList_Size(taken);
        if (parcel->fate == EL_OPEN || (before && (alone || parcel->size > left))) break;
        if (PyList_Append(taken, EL_OBJECT(parcel)) < 0) {
            Py_CLEAR(taken);
            break;
        }
        left -= parcel->size;
        if (alone) break;
    }
    for (Py_ssize_t i = taken ? PyList_Size(taken) : 0; i-- > 0;) ((el_parcel *)PyList_GetItem(taken, i))->fate = EL_TAKEN;
    return taken;
}

int el_lane_enter(el_lane *lane) {
    if (lane->busy) return 0;
    lane->busy = 1;
    return 1;
}

void el_lane_leave(el_lane *lane) {
    lane->busy = 0;
    if ((lane->first && (lane->first->fate != EL_OPEN || lane->last->hurried)) || lane->look) el_ring(lane->accumulator);
}

static PyObject *lane_enter(PyObject *object, PyObject *unused) { EL_RETURN_TRUTH(el_lane_enter((el_lane *)object)); }

static PyObject *lane_leave(PyObject *object, PyObject *unused) {
    el_lane *self = (el_lane *)object;
    self->look = 0;
    self->looked_ns = el_now_ns();
    el_lane_leave(self);
    Py_RETURN_NONE;
}

/* The next attempt comes after so many seconds. */
static PyObject *lane_rest(PyObject *object, PyObject *argument) {
    double seconds = PyFloat_AsDouble(argument);
    if (PyErr_Occurred()) return NULL;
    ((el_lane *)object)->not_before_ns = seconds > 0 ? el_now_ns() + (int64_t)(seconds * 1e9) : 0;
    Py_RETURN_NONE;
}

static PyObject *lane_append(PyObject *object, PyObject *args) {
    PyObject *value, *key, *headers;
    long long timestamp_ms;
    el_item item;
    if (!PyArg_ParseTuple(args, "OOLO:append", &value, &key, &timestamp_ms, &headers)) return NULL;
    if (!el_item_take(&item, value, key, headers)) Py_RETURN_NONE;
    item.timestamp_ms = timestamp_ms;
    return el_lane_put((el_lane *)object, &item);
}

static PyObject *lane_seal(PyObject *object, PyObject *unused) {
    el_lane_seal((el_lane *)object);
    Py_RETURN_NONE;
}

static PyMemberDef lane_members[] = {
    {"topic", T_OBJECT_EX, offsetof(el_lane, topic), READONLY, "Name of the topic."},
    {"partition", T_INT, offsetof(el_lane, partition), READONLY, "Number of the partition."},
    {"limit", T_LONGLONG, offsetof(el_lane, limit), 0, "Bytes of a parcel before compression."},
    {"producer_id", T_LONGLONG, offsetof(el_lane, producer_id), 0, "What batches are stamped with; -1: nothing."},
    {"producer_epoch", T_SHORT, offsetof(el_lane, producer_epoch), 0, "The same."},
    {"seen", T_LONGLONG, offsetof(el_lane, seen), 0, "What the producer's slot in the page held behind its last append; -1: unknown."},
    {"next_sequence", T_INT, offsetof(el_lane, next_sequence), 0, "Of the first record that is not written yet."},
    {"queued_bytes", T_LONGLONG, offsetof(el_lane, queued_bytes), READONLY, "Bytes whose fate is not known."},
    {"parcel_count", T_INT, offsetof(el_lane, parcel_count), READONLY, "Parcels whose fate is not known: the length of the queue."},
    {NULL},
};

static PyMethodDef lane_methods[] = {
    {"append", lane_append, METH_VARARGS,
     "append(value, key, timestamp_ms, headers) -> Future; None for types that Python must look at, and if the producer takes nothing now."},
    {"seal", lane_seal, METH_NOARGS, "Closes the open parcel."},
    {"push_run", lane_push_run, METH_VARARGS, "push_run(run, count, size) -> Parcel, after what is there; None if the producer takes nothing."},
    {"take", lane_take, METH_O, "take(max_bytes) -> closed parcels in order: one run, or several that can be sealed together."},
    {"enter", lane_enter, METH_NOARGS, "enter() -> whether this is the caller's turn now; only who has the turn takes parcels."},
    {"leave", lane_leave, METH_NOARGS, "Ends the turn."},
    {"rest", lane_rest, METH_O, "rest(seconds): the next attempt comes no earlier; 0 ends it."},
    {"open_direct", (PyCFunction)el_open_direct, METH_VARARGS,
     "open_direct(partition, mutex, writer, config, append's address, writer's address, flush_ms, batch_bytes_max): callers may write."},
    {"harvest", el_harvest_direct, METH_NOARGS,
     "harvest() -> figures of what callers wrote since the last harvest, None if that is nothing: batches, records, bytes, largest batch,\n"
     "time spent, longest, time waited before, longest (ns)."},
    {"shut_direct", el_shut_direct, METH_NOARGS, "Everything goes by the thread."},
    {NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_new, lane_new}, {Py_tp_dealloc, lane_dealloc}, {Py_tp_traverse, lane_traverse}, {Py_tp_clear, lane_clear},
    {Py_tp_members, lane_members}, {Py_tp_methods, lane_methods},
    {Py_tp_doc, "The queue of one partition's parcels."}, {0, NULL},
};

static PyType_Spec lane_spec = {"embedlog._native._rows.Lane", sizeof(el_lane), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, lane_slots};

int el_lane_ready(PyObject *module) {
    el_lane_type = el_type_ready(module, &lane_spec);
    return el_lane_type ? 0 : -1;
}
