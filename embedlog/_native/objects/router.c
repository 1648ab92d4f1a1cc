/* Router: the partition queues of one topic and the choice among them; the fast path of send(). */
#include "objects/encode_record.h"

#include <structmember.h>

#define EL_SECONDS_FROM 100000000 /* a time in the year 1973, in seconds */

PyTypeObject *el_router_type;

enum { WATCHED_MAX = 8 };

typedef int64_t (*topics_read)(const uint8_t *page); /* el_topics */

typedef struct {
    PyObject_HEAD el_accumulator *accumulator;
    /* list of PartitionQueue, one for each local partition, in increasing order */
    PyObject *queues;
    int64_t partition_count; /* base of the key hash: partitions on other brokers count as well */
    int64_t batch_size;      /* Kafka's batch.size: bytes before the sticky partition changes */
    int64_t request_limit;   /* Kafka's max.request.size, of one record */
    int64_t past_ms, future_ms; /* allowed distance of a given timestamp from now */
    /* a timestamp below it and from EL_SECONDS_FROM on may be in seconds */
    int64_t seconds_until_ms;
    int64_t stuck_bytes; /* appended to `sticky` since it was chosen */
    uint64_t random;
    /* a partition without a write for so long gets no new records; 0: unlimited */
    int64_t availability_ns;
    int32_t sticky, count;
    int8_t keys_required, keys_ignored, adaptive;
    int8_t sparse; /* the index of a queue is not its partition number */
    int32_t watched_count;
    /* the control pages of the directories, whose topics words show that topics may have changed */
    const uint8_t *watched[WATCHED_MAX];
    topics_read topics;
    int64_t seen;    /* the sum of these words before the topic was read */
    PyObject *pages; /* what keeps their memory */
} el_router;

#define EL_OF_ROUTER(object) (((el_router *)(object))->accumulator)

static el_queue *router_queue(const el_router *self, int32_t place) {
    return (el_queue *)PyList_GetItem(self->queues, place);
}

/* Checks the queues: one topic, increasing numbers below the partition count. Sets an exception. */
static int queues_check(el_router *self) {
    int64_t before = -1;
    for (int32_t place = 0; place < self->count; place++) {
        PyObject *each = PyList_GetItem(self->queues, place);
        if (!Py_IS_TYPE(each, el_queue_type)) {
            return PyErr_SetString(PyExc_TypeError, "a router consists of partition queues"), -1;
        }
        int64_t number = ((el_queue *)each)->partition;
        if (number <= before) {
            return PyErr_SetString(PyExc_ValueError,
                                   "the queues of a router must be in increasing order"),
                   -1;
        }
        self->sparse |= number != place;
        before = number;
    }
    if (self->partition_count == 0) {
        self->partition_count = before + 1;
    }
    self->sparse |= self->partition_count != self->count;
    if (before < self->partition_count && self->partition_count <= INT64_C(1) + INT32_MAX) {
        return 0;
    }
    return PyErr_SetString(PyExc_ValueError,
                           "a partition number must be below the partition count"),
           -1;
}

/* Index of the queue of a partition, -1 if the partition is not local. */
static int32_t router_place(const el_router *self, int64_t partition) {
    if (!self->sparse) {
        return partition >= 0 && partition < self->count ? (int32_t)partition : -1;
    }
    int32_t low = 0;
    int32_t high = self->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (router_queue(self, middle)->partition < partition) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < self->count && router_queue(self, low)->partition == partition ? low : -1;
}

static PyObject *router_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"accumulator", "queues",    "batch_size",      "request_limit",
                            "past_ms",     "future_ms", "keys_required",   "keys_ignored",
                            "seed",        "adaptive",  "availability_ms", "partition_count",
                            NULL};
    PyObject *accumulator, *queues;
    long long batch_size;
    long long request_limit;
    long long past_ms;
    long long future_ms;
    long long availability_ms = 0;
    long long partition_count = 0;
    unsigned long long seed;
    int keys_required;
    int keys_ignored;
    int adaptive = 0;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "O!O!LLLLppK|pLL:Router", names, el_accumulator_type, &accumulator,
            &PyList_Type, &queues, &batch_size, &request_limit, &past_ms, &future_ms,
            &keys_required, &keys_ignored, &seed, &adaptive, &availability_ms, &partition_count)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(queues);
    if (count < 1 || count > INT32_MAX) {
        return PyErr_SetString(PyExc_ValueError, "a router has at least one queue"), NULL;
    }
    el_router *self = (el_router *)PyType_GenericAlloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->accumulator = (el_accumulator *)Py_NewRef(accumulator);
    self->queues = PyList_GetSlice(queues, 0, count);
    self->batch_size = batch_size;
    self->request_limit = request_limit;
    self->past_ms = past_ms;
    self->future_ms = future_ms;
    self->seconds_until_ms = 31536000000; /* the end of the year 1970 */
    self->keys_required = (int8_t)keys_required;
    self->keys_ignored = (int8_t)keys_ignored;
    self->random = seed | 1;
    self->adaptive = (int8_t)adaptive;
    self->availability_ns =
        availability_ms < INT64_MAX / 2000000 ? availability_ms * 1000000 : INT64_MAX / 2;
    self->count = (int32_t)count;
    self->partition_count = partition_count;
    self->sticky = -1;
    if (self->queues && queues_check(self) == 0) {
        return EL_OBJECT(self);
    }
    Py_DECREF(EL_OBJECT(self));
    return NULL;
}

static int router_traverse(PyObject *object, visitproc visit, void *arg) {
    el_router *self = (el_router *)object;
    Py_VISIT(EL_OBJECT(Py_TYPE(object)));
    Py_VISIT(EL_OBJECT(self->accumulator));
    Py_VISIT(self->queues);
    Py_VISIT(self->pages);
    return 0;
}

static void router_dealloc(PyObject *object) {
    el_router *self = (el_router *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(EL_OBJECT(self->accumulator));
    Py_XDECREF(self->queues);
    Py_XDECREF(self->pages);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- changes of the topics ------------------------------------------------------------------- */

/* Whether topics have changed since `follow`; 0 without pages. */
static int topics_moved(const el_router *self) {
    int64_t sum = 0;
    for (int32_t place = 0; place < self->watched_count; place++) {
        sum += self->topics(self->watched[place]);
    }
    return self->watched_count && sum != self->seen;
}

static PyObject *router_follow(PyObject *object, PyObject *args) {
    el_router *self = (el_router *)object;
    PyObject *pages;
    unsigned long long function;
    long long seen;
    if (!PyArg_ParseTuple(args, "O!KL:follow", &PyTuple_Type, &pages, &function, &seen)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(pages);
    if (count > WATCHED_MAX) {
        return PyErr_Format(PyExc_ValueError, "at most %d pages, not %zd", WATCHED_MAX, count),
               NULL;
    }
    const uint8_t *watched[WATCHED_MAX];
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *page = PyTuple_GetItem(pages, place);
        PyObject *owner;
        unsigned long long address;
        if (!PyTuple_Check(page)) {
            return PyErr_SetString(PyExc_TypeError,
                                   "a page is a tuple of its owner and its address"),
                   NULL;
        }
        if (!PyArg_ParseTuple(page, "OK:follow", &owner, &address)) {
            return NULL;
        }
        watched[place] = (const uint8_t *)(uintptr_t)address;
    }
    PyObject *before = self->pages;
    self->pages = Py_NewRef(pages);
    for (Py_ssize_t place = 0; place < count; place++) {
        self->watched[place] = watched[place];
    }
    self->topics = (topics_read)(uintptr_t)function;
    self->watched_count = (int32_t)count;
    self->seen = seen;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *router_moved(PyObject *object, void *unused) {
    return PyBool_FromLong(topics_moved((el_router *)object));
}

/* ---- the choice ------------------------------------------------------------------------------ */

static uint64_t random_below(el_router *self, uint64_t bound) {
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return (self->random >> 16) % bound;
}

/* The queue lengths during one draw; `longest` is INT32_MAX if lengths are ignored. */
typedef struct {
    int64_t overdue_ns; /* a first batch opened before this time has waited too long */
    int32_t shortest, longest;
} el_draw;

static int queue_overdue(const el_queue *queue, const el_draw *draw) {
    if (!queue->first || draw->overdue_ns == INT64_MIN) {
        return 0;
    }
    return queue->first->opened_ns < draw->overdue_ns;
}

/* Kafka's rule: lengths count only after every partition was written to, and only if they
 * differ. */
static el_draw draw_begin(const el_router *self) {
    el_draw draw = {INT64_MIN, INT32_MAX, 0};
    if (self->availability_ns && self->accumulator->linger_ns < INT64_MAX / 4) {
        draw.overdue_ns = el_now_ns() - self->accumulator->linger_ns - self->availability_ns;
    }
    int used = 1;
    for (int32_t i = 0; i < self->count; i++) {
        const el_queue *queue = router_queue(self, i);
        used &= queue->used;
        if (queue_overdue(queue, &draw)) {
            continue;
        }
        if (queue->batch_count > draw.longest) {
            draw.longest = queue->batch_count;
        }
        if (queue->batch_count < draw.shortest) {
            draw.shortest = queue->batch_count;
        }
    }
    if (!used || draw.longest == draw.shortest) {
        draw.longest = INT32_MAX;
    }
    return draw;
}

static uint64_t queue_weight(const el_queue *queue, const el_draw *draw) {
    if (queue_overdue(queue, draw)) {
        return 0;
    }
    return draw->longest == INT32_MAX ? 1 : (uint64_t)(draw->longest - queue->batch_count) + 1;
}

/* A random partition, more likely one with a short queue; -1 if none is preferable. */
static int32_t adaptive_draw(el_router *self) {
    el_draw draw = draw_begin(self);
    uint64_t total = 0;
    for (int32_t i = 0; i < self->count; i++) {
        total += queue_weight(router_queue(self, i), &draw);
    }
    if (!total) {
        return -1;
    }
    uint64_t place = random_below(self, total);
    for (int32_t i = 0; i < self->count; i++) {
        uint64_t weight = queue_weight(router_queue(self, i), &draw);
        if (place < weight) {
            return i;
        }
        place -= weight;
    }
    return -1;
}

static void sticky_draw(el_router *self) {
    int32_t drawn = self->adaptive && self->count > 1 ? adaptive_draw(self) : -1;
    self->sticky = drawn >= 0 ? drawn : (int32_t)random_below(self, (uint64_t)self->count);
    self->stuck_bytes = 0;
}

/* Index of a queue. It changes after batch.size bytes when the last batch is full or gone, and
 * after twice that in any case. */
static int32_t sticky_partition(el_router *self, const el_item *item) {
    if (self->sticky < 0 || self->stuck_bytes >= 2 * self->batch_size ||
        (self->stuck_bytes >= self->batch_size &&
         !el_queue_fits(router_queue(self, self->sticky), item))) {
        sticky_draw(self);
    }
    return self->sticky;
}

static int32_t key_partition(const el_router *self, const uint8_t *key, Py_ssize_t size) {
    return router_place(self, (el_murmur2(key, (size_t)size) & 0x7fffffff) %
                                  (uint32_t)self->partition_count);
}

/* ---- the fast path --------------------------------------------------------------------------- */

/* 1 with the timestamp filled in; 0 if Python must check it. */
static int time_take(const el_router *self, PyObject *given, el_item *item) {
    item->timestamp_ms = el_wall_ms();
    if (given == Py_None) {
        return 1;
    }
    if (!Py_IS_TYPE(given, &PyLong_Type)) {
        return 0;
    }
    long long timestamp_ms = PyLong_AsLongLong(given);
    if (timestamp_ms == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    int64_t ahead = timestamp_ms - item->timestamp_ms;
    if (timestamp_ms >= EL_SECONDS_FROM && timestamp_ms < self->seconds_until_ms) {
        return 0;
    }
    if (timestamp_ms < 0 || ahead > self->future_ms || -ahead > self->past_ms) {
        return 0;
    }
    item->timestamp_ms = timestamp_ms;
    return 1;
}

/* Index of the partition's queue, or -1 if Python must check it; `stuck`: it is the sticky
 * partition of records without keys. */
static int32_t partition_take(el_router *self, PyObject *given, const el_item *item, int *stuck) {
    *stuck = given == Py_None && (item->key_size < 0 || self->keys_ignored);
    if (given == Py_None) {
        return *stuck ? sticky_partition(self, item)
                      : key_partition(self, item->key, item->key_size);
    }
    if (!Py_IS_TYPE(given, &PyLong_Type)) {
        return -1;
    }
    long long partition = PyLong_AsLongLong(given);
    if (partition == -1 && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return router_place(self, partition);
}

static PyObject *router_append(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    el_router *self = (el_router *)object;
    el_accumulator *shared = self->accumulator;
    el_item item;
    if (count != 5 && count != 6) {
        return PyErr_SetString(
                   PyExc_TypeError,
                   "append(value, key, partition, timestamp_ms, headers, waited=False)"),
               NULL;
    }
    if (shared->closed || shared->shut || !el_item_take(&item, args[0], args[1], args[4]) ||
        !time_take(self, args[3], &item)) {
        Py_RETURN_NONE;
    }
    int64_t bound = el_item_bound(&item);
    int waited = count == 6 && args[5] == Py_True;
    if (bound > self->request_limit || bound > shared->memory_limit - shared->memory_used ||
        (shared->waiting && !waited)) {
        Py_RETURN_NONE;
    }
    if (self->keys_required && item.key_size < 0) {
        Py_RETURN_NONE;
    }
    if (count == 5 && topics_moved(self)) {
        Py_RETURN_NONE;
    }
    int stuck;
    int32_t partition = partition_take(self, args[2], &item, &stuck);
    if (partition < 0) {
        Py_RETURN_NONE;
    }
    int64_t before = shared->memory_used;
    PyObject *future = el_queue_put(router_queue(self, partition), &item);
    if (stuck) {
        self->stuck_bytes += shared->memory_used - before;
    }
    return future;
}

/* ---- for send_batch -------------------------------------------------------------------------- */

static PyObject *router_stick(PyObject *object, PyObject *argument) {
    el_router *self = (el_router *)object;
    int64_t size = PyLong_AsLongLong(argument);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (self->sticky < 0 || self->stuck_bytes >= self->batch_size) {
        sticky_draw(self);
    }
    self->stuck_bytes += size;
    return PyLong_FromLong(router_queue(self, self->sticky)->partition);
}

EL_FASTCALL(EL_OF_ROUTER, router_append)
EL_METHOD(EL_OF_ROUTER, router_stick)
EL_METHOD(EL_OF_ROUTER, router_follow)
EL_GETTER(EL_OF_ROUTER, router_moved)
EL_FIELDS(EL_OF_ROUTER)

static PyMemberDef router_members[] = {
    {"queues", T_OBJECT_EX, offsetof(el_router, queues), READONLY,
     "The queues, in the order of their partitions."},
    {"request_limit", T_LONGLONG, offsetof(el_router, request_limit), READONLY,
     "Upper bound of one record."},
    {NULL},
};

static PyGetSetDef router_fields[] = {
    EL_FIELD_SET(seconds_until_ms, T_LONGLONG, el_router,
                 "The unit of timestamps below it is checked; 0: no check."),
    EL_FIELD(sticky, T_INT, el_router,
             "Index of the queue for records without keys; -1 before the first."),
    {"moved", EL_ALONE(router_moved), NULL, "Whether topics have changed since `follow`.", NULL},
    EL_FIELD(stuck_bytes, T_LONGLONG, el_router, "Bytes appended there since it was chosen."),
    {NULL},
};

static PyMethodDef router_methods[] = {
    {"append", (PyCFunction)(void (*)(void))EL_ALONE(router_append), METH_FASTCALL,
     "append(value, key, partition, timestamp_ms, headers, waited=False) -> Future\n\n"
     "None for every unusual case: types, sizes, times, partitions, no memory, closed. `waited`: "
     "this thread is the next one to get memory.\n"
     "Without `waited` it is None, too, if topics have changed since `follow`."},
    {"follow", EL_ALONE(router_follow), METH_VARARGS,
     "follow(pages, function, seen): `pages` are (owner, address) of control pages, `function` is "
     "the address of el_topics, and `seen` the sum\n"
     "of their topics words before the topic was read."},
    {"stick", EL_ALONE(router_stick), METH_O,
     "stick(size) -> the partition that takes the next `size` bytes without keys."},
    {NULL},
};

static PyType_Slot router_slots[] = {
    {Py_tp_new, router_new},
    {Py_tp_dealloc, router_dealloc},
    {Py_tp_traverse, router_traverse},
    {Py_tp_members, router_members},
    {Py_tp_getset, router_fields},
    {Py_tp_methods, router_methods},
    {Py_tp_doc, "The partition queues of one topic and the choice among them."},
    {0, NULL},
};

static PyType_Spec router_spec = {
    "embedlog._native._rows.Router", sizeof(el_router), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, router_slots};

int el_router_ready(PyObject *module) {
    el_router_type = el_type_ready(module, &router_spec);
    return el_router_type ? 0 : -1;
}
