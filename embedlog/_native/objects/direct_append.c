/* Direct append: a caller that waits for a record appends it in its own thread, if every condition
 * is the usual one.
 *
 * - No byte code runs between entering and leaving the queue: no signal handler runs, and no
 *   operation is interrupted half done.
 * - Every unusual case (a roll, a lock that is not free, an error, columns, a durable topic) is
 *   left to the producer's thread. The batches are unchanged and the thread starts with them. A
 *   batch with an unknown outcome has the same sequences there.
 * - The thread is asked at intervals to check the queue, as it does after every write of its own.
 * - A batch is compressed before the queue is entered, because that runs byte code. It is sealed
 *   first, and written from a copy.
 *
 * A batch may have been judged by older settings of its topic than those for which direct appends
 * were enabled: it is judged again by its keys and times. The append itself writes nothing if a
 * topic has changed since these settings were read, also in another process. */
#include "codec/batch.h"
#include "objects/packed.h"

enum {
    BATCHES_MAX = 8,           /* that a caller appends before its own */
    CHECK_NS = 100000000,      /* between checks by the thread */
    LOCK_TIMEOUT_NS = 20000000 /* for the append lock */
};

static const int64_t BYTES_MAX = 1 << 20;

static int followers_valid(PyObject *followers) {
    if (!PyTuple_Check(followers)) {
        return 0;
    }
    for (Py_ssize_t at = 0; at < PyTuple_Size(followers); at++) {
        PyObject *each = PyTuple_GetItem(followers, at);
        if (!PyTuple_Check(each) || PyTuple_Size(each) != 3) {
            return 0;
        }
    }
    return 1;
}

PyObject *el_open_direct(PyObject *object, PyObject *args) {
    el_queue *self = (el_queue *)object;
    PyObject *partition, *mutex, *writer, *config, *followers;
    unsigned long long append, raw;
    PyObject *packer;
    long long flush_ms, batch_bytes_max, past_ms, future_ms, packed_max;
    int codec, keys_required;
    if (!PyArg_ParseTuple(args, "OOOOKKLLpLLOOiL:open_direct", &partition, &mutex, &writer, &config,
                          &append, &raw, &flush_ms, &batch_bytes_max, &keys_required, &past_ms,
                          &future_ms, &followers, &packer, &codec, &packed_max)) {
        return NULL;
    }
    if (followers == Py_None) {
        followers = NULL;
    }
    if (followers && !followers_valid(followers)) {
        PyErr_SetString(PyExc_TypeError,
                        "open_direct: each follower is (partition, mutex, writer)");
        return NULL;
    }
    PyObject *before[] = {self->target, self->mutex,     self->writer,
                          self->config, self->followers, self->packer};
    self->target = Py_NewRef(partition);
    self->mutex = Py_NewRef(mutex);
    self->writer = Py_NewRef(writer);
    self->config = Py_NewRef(config);
    self->followers = Py_XNewRef(followers);
    self->packer = packer == Py_None ? NULL : Py_NewRef(packer);
    self->codec = codec;
    self->packed_max = packed_max;
    self->append = followers ? NULL : (el_append_call)(uintptr_t)append;
    self->raw = followers ? NULL : (el_writer *)(uintptr_t)raw;
    self->append_together = followers ? (el_together_call)(uintptr_t)append : NULL;
    self->together = followers ? (el_together *)(uintptr_t)raw : NULL;
    self->flush_ns = flush_ms > INT64_MAX / 1000000 ? INT64_MAX : flush_ms * 1000000;
    self->batch_bytes_max = batch_bytes_max;
    self->keys_required = keys_required;
    self->past_ms = past_ms;
    self->future_ms = future_ms;
    /* last: the queue is complete */
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        Py_XDECREF(before[i]);
    }
    Py_RETURN_NONE;
}

PyObject *el_close_direct(PyObject *object, PyObject *unused) {
    el_queue *self = (el_queue *)object;
    PyObject *before[] = {self->target, self->mutex,     self->writer,
                          self->config, self->followers, self->packer};
    self->target = self->mutex = self->writer = self->config = self->followers = self->packer =
        NULL;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        Py_XDECREF(before[i]);
    }
    Py_RETURN_NONE;
}

/* ---- the conditions -------------------------------------------------------------------------- */

/* Names made once: an acquired mutex can then be released without memory. */
static struct {
    PyObject *is_owned, *acquire, *release, *writer, *config;
} names;

int el_direct_ready(PyObject *module) {
    names.is_owned = PyUnicode_InternFromString("_is_owned");
    names.acquire = PyUnicode_InternFromString("acquire");
    names.release = PyUnicode_InternFromString("release");
    names.writer = PyUnicode_InternFromString("writer");
    names.config = PyUnicode_InternFromString("config");
    return names.is_owned && names.acquire && names.release && names.writer && names.config ? 0
                                                                                            : -1;
}

static int answers(PyObject *object, PyObject *method, PyObject *expected, PyObject *argument) {
    PyObject *answer = PyObject_CallMethodObjArgs(object, method, argument, NULL);
    Py_XDECREF(answer);
    if (!answer) {
        PyErr_Clear();
    }
    return answer == expected;
}

static int attribute_is(PyObject *object, PyObject *name, PyObject *expected) {
    PyObject *found = PyObject_GetAttr(object, name);
    Py_XDECREF(found);
    if (!found) {
        PyErr_Clear();
    }
    return found == expected;
}

/* Whether the settings accept each record of a batch that was judged by other ones. */
static int batch_accepted(const el_queue *queue, const el_producer_batch *batch, int64_t now_ms) {
    if (queue->keys_required && batch->keyless) {
        return 0;
    }
    return batch->max_timestamp - now_ms <= queue->future_ms &&
           now_ms - batch->min_timestamp <= queue->past_ms;
}

static int queue_usual(const el_queue *queue, const el_producer_batch *batch, int64_t now_ms) {
    const el_accumulator *shared = queue->accumulator;
    if (!queue->target || queue->busy || queue->check_due || queue->not_before_ns ||
        queue->queued_bytes > BYTES_MAX) {
        return 0;
    }
    if (queue->producer_id >= 0 && queue->seen < 0) {
        return 0; /* the log must be read first */
    }
    if (shared->waiting || shared->closed || shared->shut) {
        return 0;
    }
    int ahead = 0;
    for (const el_producer_batch *each = queue->first; each; each = each->next) {
        if (each->run || each->state == EL_TAKEN || each->size > queue->batch_bytes_max ||
            ++ahead > BATCHES_MAX) {
            return 0;
        }
        if (!batch_accepted(queue, each, now_ms)) {
            return 0;
        }
        if (each == batch) {
            return 1;
        }
    }
    return 0;
}

/* The objects of the queue, held during an append: the queue itself may be disabled meanwhile. The
 * files stay open for another reason: the partition closes them under its mutex, which the caller
 * holds. */
typedef struct {
    PyObject *target, *mutex, *writer, *config, *followers;
} el_held;

static el_held held_take(const el_queue *queue) {
    return (el_held){Py_NewRef(queue->target), Py_NewRef(queue->mutex), Py_NewRef(queue->writer),
                     Py_NewRef(queue->config), Py_XNewRef(queue->followers)};
}

static void held_release(el_held *held) {
    Py_DECREF(held->target);
    Py_DECREF(held->mutex);
    Py_DECREF(held->writer);
    Py_DECREF(held->config);
    Py_XDECREF(held->followers);
}

/* Takes a partition's mutex if it is free, and checks that its writer is still the given one. A
 * lock that this thread already holds is not free. */
static int mutex_enter(PyObject *target, PyObject *mutex, PyObject *writer) {
    if (!answers(mutex, names.is_owned, Py_False, NULL) ||
        !answers(mutex, names.acquire, Py_True, Py_False)) {
        return 0;
    }
    if (attribute_is(target, names.writer, writer)) {
        return 1;
    }
    answers(mutex, names.release, Py_None, NULL);
    return 0;
}

static PyObject *follower_part(const el_held *held, Py_ssize_t at, Py_ssize_t part) {
    return PyTuple_GetItem(PyTuple_GetItem(held->followers, at), part);
}

static void followers_leave(const el_held *held, Py_ssize_t count) {
    while (count--) {
        answers(follower_part(held, count, 1), names.release, Py_None, NULL);
    }
}

static int followers_enter(const el_held *held) {
    Py_ssize_t count = held->followers ? PyTuple_Size(held->followers) : 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        if (mutex_enter(follower_part(held, at, 0), follower_part(held, at, 1),
                        follower_part(held, at, 2))) {
            continue;
        }
        followers_leave(held, at);
        return 0;
    }
    return 1;
}

/* Takes the mutexes of the partition, and of its followers in a set. */
static int partition_enter(const el_held *held) {
    if (!mutex_enter(held->target, held->mutex, held->writer)) {
        return 0;
    }
    if (attribute_is(held->target, names.config, held->config) && followers_enter(held)) {
        return 1;
    }
    answers(held->mutex, names.release, Py_None, NULL);
    return 0;
}

static void partition_leave(const el_held *held) {
    if (held->followers) {
        followers_leave(held, PyTuple_Size(held->followers));
    }
    answers(held->mutex, names.release, Py_None, NULL);
}

/* ---- the write ------------------------------------------------------------------------------- */

static void raise_to(int64_t *most, int64_t value) {
    if (value > *most) {
        *most = value;
    }
}

static void metrics_note(el_metrics *metrics, const el_producer_batch *batch, int64_t size,
                         int64_t began_ns) {
    int64_t latency_ns = el_now_ns() - began_ns;
    int64_t queue_ns = began_ns - batch->opened_ns;
    metrics->batches++;
    metrics->records += batch->count;
    metrics->bytes += size;
    metrics->plain_bytes += batch->size;
    metrics->latency_ns += latency_ns;
    metrics->queue_ns += queue_ns;
    raise_to(&metrics->bytes_most, size);
    raise_to(&metrics->record_most, batch->record_most);
    raise_to(&metrics->latency_most_ns, latency_ns);
    raise_to(&metrics->queue_most_ns, queue_ns);
}

PyObject *el_collect_direct(PyObject *object, PyObject *unused) {
    el_queue *self = (el_queue *)object;
    el_metrics found = self->metrics;
    if (!found.batches) {
        Py_RETURN_NONE;
    }
    self->metrics = (el_metrics){0};
    return Py_BuildValue("(LLLLLLLLLL)", (long long)found.batches, (long long)found.records,
                         (long long)found.bytes, (long long)found.plain_bytes,
                         (long long)found.bytes_most, (long long)found.record_most,
                         (long long)found.latency_ns, (long long)found.latency_most_ns,
                         (long long)found.queue_ns, (long long)found.queue_most_ns);
}

static int batch_write(el_queue *queue, el_producer_batch *batch, const el_packed *packed,
                       const el_held *held, int64_t deadline_ns, el_appended *out) {
    int64_t began_ns = el_now_ns();
    el_together *together = queue->together;
    enum el_batch_state before = (enum el_batch_state)batch->state;
    batch->state = EL_TAKEN;
    el_batch row;
    uint8_t *data = packed->data ? packed->data : batch->data;
    int64_t size = packed->data ? packed->size : batch->size;
    el_header_write(data, batch, size, 0, packed->data ? queue->codec : 0, queue->next_sequence,
                    &row);
    el_known known = {.producer_id = queue->producer_id,
                      .seen = queue->seen,
                      .next_sequence = queue->next_sequence,
                      .epoch = queue->producer_epoch};
    int32_t code;
    Py_BEGIN_ALLOW_THREADS
    el_known *state = queue->producer_id >= 0 ? &known : NULL;
    if (together) {
        code = queue->append_together(together, data, size, &row, 1, state, deadline_ns, out);
    } else {
        code = queue->append(queue->raw, data, size, &row, 1, state, deadline_ns, out);
    }
    Py_END_ALLOW_THREADS
    batch->state = (int8_t)before;
    if (together && together->left >= 0) {
        /* a thread is inside a disk that hangs, and uses writers and pages when that continues:
         * they stay for ever */
        Py_INCREF(held->target);
    }
    if (code != EL_APPENDED) {
        return 0;
    }
    if (queue->producer_id >= 0) {
        queue->seen = out->seen;
    }
    batch->base_offset = out->base_offset;
    batch->append_time_ms = out->append_time_ms;
    queue->next_sequence = el_sequence_after(queue->next_sequence, row.last_offset_delta);
    metrics_note(&queue->metrics, batch, size, began_ns);
    el_store(queue->accumulator->direct_count, queue->accumulator->direct_count + 1);
    el_batch_settle(batch, EL_DELIVERED);
    return 1;
}

/* Appends all batches up to this one while the conditions hold. REQUIRES: the entered queue and the
 * partition's mutex. */
static void queue_write(el_queue *queue, el_producer_batch *batch, const el_packed *packed,
                        const el_held *held, int64_t limit_ns) {
    el_appended out = {0};
    if (queue->last->state == EL_OPEN) {
        queue->last->state = EL_SEALED;
    }
    int64_t now = el_now_ns();
    int64_t patience_ns = limit_ns - now < LOCK_TIMEOUT_NS ? limit_ns - now : LOCK_TIMEOUT_NS;
    int64_t deadline_ns = el_boot_ns() + (patience_ns > 0 ? patience_ns : 0);
    while (!el_is_settled(batch) &&
           batch_write(queue, queue->first, packed, held, deadline_ns, &out)) {
        continue;
    }
    queue->check_due =
        now - queue->checked_ns > CHECK_NS || out.unsynced_ms > queue->flush_ns / 1000000;
}

/* Whether the settings count until the topics word changes. REQUIRES the partition's mutex. */
static int settings_known(const el_queue *queue) {
    const el_writer *writer = queue->together ? queue->together->leader : queue->raw;
    return !(writer->topics & 1);
}

/* Enters partition and queue, and writes. Other code may have run since the conditions were
 * checked: they are checked again. */
static void direct_write(el_queue *queue, el_producer_batch *batch, const el_packed *packed,
                         int64_t now_ms, int64_t limit_ns) {
    el_held held = held_take(queue);
    int turn = 0;
    if (partition_enter(&held)) {
        int same = queue->writer == held.writer && queue->followers == held.followers &&
                   (!queue->packer || queue->first == batch);
        int usual = batch->queue == queue && queue_usual(queue, batch, now_ms) && same &&
                    settings_known(queue);
        turn = usual && el_queue_enter(queue);
        if (turn) {
            queue_write(queue, batch, packed, &held, limit_ns);
        }
        partition_leave(&held);
    }
    if (turn) {
        el_queue_leave(queue);
    }
    held_release(&held);
}

int el_direct_write(el_producer_batch *batch, int64_t limit_ns) {
    el_queue *queue = batch->queue;
    el_packed packed = {NULL, 0};
    int64_t now_ms = el_wall_ms();
    if (!queue || !queue_usual(queue, batch, now_ms)) {
        return 0;
    }
    Py_INCREF(EL_OBJECT(queue));
    int ready = el_packed_make(&packed, queue, batch);
    if (ready > 0 && batch->queue == queue && queue_usual(queue, batch, now_ms)) {
        direct_write(queue, batch, &packed, now_ms, limit_ns);
    }
    PyMem_Free(packed.data);
    /* sealed here: the thread writes it */
    if (!el_is_settled(batch) && batch->state == EL_SEALED) {
        el_wake_thread(batch->accumulator);
    }
    Py_DECREF(EL_OBJECT(queue));
    return ready < 0 ? -1 : el_is_settled(batch);
}
