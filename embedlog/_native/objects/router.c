/* Route: the lanes of one topic, and the choice among them; the fast path of send(). */
#include "objects/encode_record.h"

#include <structmember.h>

#define EL_SECONDS_FROM 100000000 /* of the year 1973, in seconds */

PyTypeObject *el_route_type;

typedef struct {
    PyObject_HEAD
    el_accumulator *accumulator;
    PyObject *lanes;             /* list of Lane, one a partition that is here, by rising numbers */
    int64_t partition_count;     /* what keys are spread over: partitions that other brokers hold count as well */
    int64_t batch_size;          /* Kafka's batch.size: how long a partition is stuck to */
    int64_t request_limit;       /* Kafka's max.request.size, of one record */
    int64_t past_ms, future_ms;  /* how far a given timestamp may lie from now */
    int64_t seconds_until_ms;    /* below it, and from EL_SECONDS_FROM on, a timestamp is perhaps one in seconds */
    int64_t stuck_bytes;         /* appended to `sticky` since it was drawn */
    uint64_t random;
    int64_t availability_ns;     /* who has not been written for so long gets nothing new; 0: no matter */
    int32_t sticky, count;
    int8_t keys_required, keys_ignored, adaptive;
    int8_t sparse;               /* a lane's place is not its partition's number */
} el_route;

static el_lane *route_lane(const el_route *self, int32_t place) { return (el_lane *)PyList_GetItem(self->lanes, place); }

/* Lanes of one topic, by rising numbers below the count of partitions. Sets an exception. */
static int lanes_check(el_route *self) {
    int64_t before = -1;
    for (int32_t place = 0; place < self->count; place++) {
        PyObject *each = PyList_GetItem(self->lanes, place);
        if (!Py_IS_TYPE(each, el_lane_type)) return PyErr_SetString(PyExc_TypeError, "a route is made of lanes"), -1;
        int64_t number = ((el_lane *)each)->partition;
        if (number <= before) return PyErr_SetString(PyExc_ValueError, "the lanes of a route rise"), -1;
        self->sparse |= number != place;
        before = number;
    }
    if (self->partition_count == 0) self->partition_count = before + 1;
    self->sparse |= self->partition_count != self->count;
    if (before < self->partition_count && self->partition_count <= INT64_C(1) + INT32_MAX) return 0;
    return PyErr_SetString(PyExc_ValueError, "a partition's number lies below their count"), -1;
}

/* Where the lane of a partition stands, -1 if the partition is not here. */
static int32_t route_place(const el_route *self, int64_t partition) {
    if (!self->sparse) return partition >= 0 && partition < self->count ? (int32_t)partition : -1;
    int32_t low = 0, high = self->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (route_lane(self, middle)->partition < partition) low = middle + 1;
        else high = middle;
    }
    return low < self->count && route_lane(self, low)->partition == partition ? low : -1;
}

static PyObject *route_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"accumulator", "lanes", "batch_size", "request_limit", "past_ms", "future_ms", "keys_required",
                            "keys_ignored", "seed", "adaptive", "availability_ms", "partition_count", NULL};
    PyObject *accumulator, *lanes;
    long long batch_size, request_limit, past_ms, future_ms, availability_ms = 0, partition_count = 0;
    unsigned long long seed;
    int keys_required, keys_ignored, adaptive = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!LLLLppK|pLL:Route", names, el_accumulator_type, &accumulator, &PyList_Type, &lanes,
                                     &batch_size, &request_limit, &past_ms, &future_ms, &keys_required, &keys_ignored, &seed, &adaptive,
                                     &availability_ms, &partition_count))
        return NULL;
    Py_ssize_t count = PyList_Size(lanes);
    if (count < 1 || count > INT32_MAX) return PyErr_SetString(PyExc_ValueError, "a route has a lane at least"), NULL;
    el_route *self = (el_route *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->accumulator = (el_accumulator *)Py_NewRef(accumulator);
    self->lanes = PyList_GetSlice(lanes, 0, count);
    self->batch_size = batch_size;
    self->request_limit = request_limit;
    self->past_ms = past_ms;
    self->future_ms = future_ms;
    self->seconds_until_ms = 31536000000; /* the end of the year 1970 */
    self->keys_required = (int8_t)keys_required;
    self->keys_ignored = (int8_t)keys_ignored;
    self->random = seed | 1;
    self->adaptive = (int8_t)adaptive;
    self->availability_ns = availability_ms < INT64_MAX / 2000000 ? availability_ms * 1000000 : INT64_MAX / 2;
    self->count = (int32_t)count;
    self->partition_count = partition_count;
    self->sticky = -1;
    if (self->lanes && lanes_check(self) == 0) return EL_OBJECT(self);
    Py_DECREF(EL_OBJECT(self));
    return NULL;
}

static int route_traverse(PyObject *object, visitproc visit, void *arg) {
    el_route *self = (el_route *)object;
    Py_VISIT(EL_OBJECT(Py_TYPE(object)));
    Py_VISIT(EL_OBJECT(self->accumulator));
    Py_VISIT(self->lanes);
    return 0;
}

static void route_dealloc(PyObject *object) {
    el_route *self = (el_route *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(EL_OBJECT(self->accumulator));
    Py_XDECREF(self->lanes);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- the choice ------------------------------------------------------------------------------------------------- */

static uint64_t random_below(el_route *self, uint64_t bound) {
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return (self->random >> 16) % bound;
}

/* The queues as one draw sees them; `longest` is INT32_MAX where their lengths are not to matter. */
typedef struct {
    int64_t overdue_ns; /* a first parcel that was due before has waited too long */
    int32_t shortest, longest;
} el_queues;

static int lane_late(const el_lane *lane, const el_queues *queues) {
    if (!lane->first || queues->overdue_ns == INT64_MIN) return 0;
    return lane->first->opened_ns < queues->overdue_ns;
}

/* Kafka's rule: lengths count only once every partition has been written to and only if they differ. */
static el_queues queues_look(const el_route *self) {
    el_queues queues = {INT64_MIN, INT32_MAX, 0};
    if (self->availability_ns && self->accumulator->linger_ns < INT64_MAX / 4)
        queues.overdue_ns = el_now_ns() - self->accumulator->linger_ns - self->availability_ns;
    int used = 1;
    for (int32_t i = 0; i < self->count; i++) {
        const el_lane *lane = route_lane(self, i);
        used &= lane->used;
        if (lane_late(lane, &queues)) continue;
        if (lane->parcel_count > queues.longest) queues.longest = lane->parcel_count;
        if (lane->parcel_count < queues.shortest) queues.shortest = lane->parcel_count;
    }
    if (!used || queues.longest == queues.shortest) queues.longest = INT32_MAX;
    return queues;
}

static uint64_t lane_weight(const el_lane *lane, const el_queues *queues) {
    if (lane_late(lane, queues)) return 0;
    return queues->longest == INT32_MAX ? 1 : (uint64_t)(queues->longest - lane->parcel_count) + 1;
}

/* Any partition, those with short queues more likely; or -1 if none is better than another. */
static int32_t adaptive_draw(el_route *self) {
    el_queues queues = queues_look(self);
    uint64_t total = 0;
    for (int32_t i = 0; i < self->count; i++) total += lane_weight(route_lane(self, i), &queues);
    if (!total) return -1;
    uint64_t place = random_below(self, total);
    for (int32_t i = 0; i < self->count; i++) {
        uint64_t weight = lane_weight(route_lane(self, i), &queues);
        if (place < weight) return i;
        place -= weight;
    }
    return -1;
}

static void sticky_draw(el_route *self) {
    int32_t drawn = self->adaptive && self->count > 1 ? adaptive_draw(self) : -1;
    self->sticky = drawn >= 0 ? drawn : (int32_t)random_below(self, (uint64_t)self->count);
    self->stuck_bytes = 0;
}

/* The place of a lane: stays with it until batch.size bytes went there and its last parcel is full or gone, or until twice that in any case. */
static int32_t sticky_partition(el_route *self, const el_item *item) {
    if (self->sticky < 0 || self->stuck_bytes >= 2 * self->batch_size ||
        (self->stuck_bytes >= self->batch_size && !el_lane_fits(route_lane(self, self->sticky), item)))
        sticky_draw(self);
    return self->sticky;
}

static int32_t key_partition(const el_route *self, const uint8_t *key, Py_ssize_t size) {
    return route_place(self, (el_murmur2(key, (size_t)size) & 0x7fffffff) % (uint32_t)self->partition_count);
}

/* ---- the fast path ---------------------------------------------------------------------------------------------- */

/* 1 with the time filled in; 0 if Python must look at it. */
static int time_take(const el_route *self, PyObject *given, el_item *item) {
    item->timestamp_ms = el_now_ms();
    if (given == Py_None) return 1;
    if (!Py_IS_TYPE(given, &PyLong_Type)) return 0;
    long long timestamp_ms = PyLong_AsLongLong(given);
    if (timestamp_ms == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    int64_t ahead = timestamp_ms - item->timestamp_ms;
    if (timestamp_ms >= EL_SECONDS_FROM && timestamp_ms < self->seconds_until_ms) return 0;
    if (timestamp_ms < 0 || ahead > self->future_ms || -ahead > self->past_ms) return 0;
    item->timestamp_ms = timestamp_ms;
    return 1;
}

/* The place of the partition's lane, or -1 if Python must look at it; `stuck`: it is the one that records without keys stay with. */
static int32_t partition_take(el_route *self, PyObject *given, const el_item *item, int *stuck) {
    *stuck = given == Py_None && (item->key_size < 0 || self->keys_ignored);
    if (given == Py_None) return *stuck ? sticky_partition(self, item) : key_partition(self, item->key, item->key_size);
    if (!Py_IS_TYPE(given, &PyLong_Type)) return -1;
    long long partition = PyLong_AsLongLong(given);
    if (partition == -1 && PyErr_Occurred()) PyErr_Clear();
    return route_place(self, partition);
}

static PyObject *route_append(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    el_route *self = (el_route *)object;
    el_accumulator *shared = self->accumulator;
    el_item item;
    if (count != 5 && count != 6) return PyErr_SetString(PyExc_TypeError, "append(value, key, partition, timestamp_ms, headers, waited=False)"), NULL;
    if (shared->closed || shared->shut || !el_item_take(&item, args[0], args[1], args[4]) || !time_take(self, args[3], &item)) Py_RETURN_NONE;
    int64_t bound = el_item_bound(&item);
    int waited = count == 6 && args[5] == Py_True;
    if (bound > self->request_limit || bound > shared->memory_limit - shared->memory_used || (shared->waiting && !waited)) Py_RETURN_NONE;
    if (self->keys_required && item.key_size < 0) Py_RETURN_NONE;
    int stuck;
    int32_t partition = partition_take(self, args[2], &item, &stuck);
    if (partition < 0) Py_RETURN_NONE;
    int64_t before = shared->memory_used;
    PyObject *future = el_lane_put(route_lane(self, partition), &item);
    if (stuck) self->stuck_bytes += shared->memory_used - before;
    return future;
}

/* ---- for send_batch --------------------------------------------------------------------------------------------- */

static PyObject *route_stick(PyObject *object, PyObject *argument) {
    el_route *self = (el_route *)object;
    int64_t size = PyLong_AsLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    if (self->sticky < 0 || self->stuck_bytes >= self->batch_size) sticky_draw(self);
    self->stuck_bytes += size;
    return PyLong_FromLong(route_lane(self, self->sticky)->partition);
}

static PyMemberDef route_members[] = {
    {"lanes", T_OBJECT_EX, offsetof(el_route, lanes), READONLY, "The lanes, by rising partitions."},
    {"request_limit", T_LONGLONG, offsetof(el_route, request_limit), READONLY, "Upper bound of one record."},
    {"seconds_until_ms", T_LONGLONG, offsetof(el_route, seconds_until_ms), 0, "Timestamps below it are looked at for their unit; 0: none."},
    {"sticky", T_INT, offsetof(el_route, sticky), READONLY, "Place among the lanes where records without keys go at present; -1 before the first."},
    {"stuck_bytes", T_LONGLONG, offsetof(el_route, stuck_bytes), READONLY, "What went there since it was drawn."},
    {NULL},
};

static PyMethodDef route_methods[] = {
    {"append", (PyCFunction)(void (*)(void))route_append, METH_FASTCALL,
     "append(value, key, partition, timestamp_ms, headers, waited=False) -> Future\n\n"
     "None if anything is unusual: types, sizes, times, partitions, no room, closed. `waited`: it is this thread's turn for memory."},
    {"stick", route_stick, METH_O, "stick(size) -> the partition that takes the next `size` bytes without keys."},
    {NULL},
};

static PyType_Slot route_slots[] = {
    {Py_tp_new, route_new}, {Py_tp_dealloc, route_dealloc}, {Py_tp_traverse, route_traverse},
    {Py_tp_members, route_members}, {Py_tp_methods, route_methods},
    {Py_tp_doc, "The lanes of one topic and the choice among them."}, {0, NULL},
};

static PyType_Spec route_spec = {"embedlog._native._rows.Route", sizeof(el_route), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, route_slots};

int el_route_ready(PyObject *module) {
    el_route_type = el_type_ready(module, &route_spec);
    return el_route_type ? 0 : -1;
}
