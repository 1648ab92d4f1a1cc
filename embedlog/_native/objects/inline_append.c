/* The way past the producer's thread: who waits for a record writes it himself, if nothing about that is unusual.
 *
 * D1  no byte code runs between taking the lane's turn and giving it back, so no signal's handler can, and nothing can be
 *     interrupted half done
 * D2  whatever is unusual (a roll, a lock that is not free, an error, columns, a durable topic) is the thread's: the parcels are
 *     as they were, and the thread begins with them; a batch that may or may not be in has the same sequences again there
 * D3  the thread is told to look after the lane now and then, as it does behind every write of its own */
#include "codec/batch.h"
#include "objects/objects.h"

#include <time.h>

enum {
    PARCELS_MAX = 8,                  /* that a caller writes before his own */
    LOOK_NS = 100000000,              /* between looks of the thread */
    PATIENCE_NS = 20000000            /* for the partition's lock */
};

static const int64_t BYTES_MAX = 1 << 20;

PyObject *el_open_direct(PyObject *object, PyObject *args) {
    el_lane *self = (el_lane *)object;
    PyObject *partition, *mutex, *writer, *config;
    unsigned long long append, raw;
    long long flush_ms, batch_bytes_max;
    if (!PyArg_ParseTuple(args, "OOOOKKLL:open_direct", &partition, &mutex, &writer, &config, &append, &raw, &flush_ms, &batch_bytes_max))
        return NULL;
    el_replace(&self->target, partition);
    el_replace(&self->mutex, mutex);
    el_replace(&self->writer, writer);
    el_replace(&self->config, config);
    self->append = (el_append_call)(uintptr_t)append;
    self->raw = (el_writer *)(uintptr_t)raw;
    self->flush_ns = flush_ms > INT64_MAX / 1000000 ? INT64_MAX : flush_ms * 1000000;
    self->batch_bytes_max = batch_bytes_max;
    Py_RETURN_NONE;
}

PyObject *el_shut_direct(PyObject *object, PyObject *unused) {
    el_lane *self = (el_lane *)object;
    Py_CLEAR(self->target);
    Py_CLEAR(self->mutex);
    Py_CLEAR(self->writer);
    Py_CLEAR(self->config);
    Py_RETURN_NONE;
}

static int64_t boot_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- whether it is usual ---------------------------------------------------------------------------------------- */

/* Names that are made once: without memory a mutex that was acquired can still be released. */
static struct {
    PyObject *is_owned, *acquire, *release, *writer, *config;
} names;

int el_direct_ready(PyObject *module) {
    names.is_owned = PyUnicode_InternFromString("_is_owned");
    names.acquire = PyUnicode_InternFromString("acquire");
    names.release = PyUnicode_InternFromString("release");
    names.writer = PyUnicode_InternFromString("writer");
    names.config = PyUnicode_InternFromString("config");
    return names.is_owned && names.acquire && names.release && names.writer && names.config ? 0 : -1;
}

static int answers(PyObject *object, PyObject *method, PyObject *expected, PyObject *argument) {
    PyObject *answer = PyObject_CallMethodObjArgs(object, method, argument, NULL);
    Py_XDECREF(answer);
    if (!answer) PyErr_Clear();
    return answer == expected;
}

static int attribute_is(PyObject *object, PyObject *name, PyObject *expected) {
    PyObject *found = PyObject_GetAttr(object, name);
    Py_XDECREF(found);
    if (!found) PyErr_Clear();
    return found == expected;
}

static int lane_usual(const el_lane *lane, const el_parcel *parcel) {
    const el_accumulator *shared = lane->accumulator;
    if (!lane->target || lane->busy || lane->look || lane->not_before_ns || lane->queued_bytes > BYTES_MAX) return 0;
    if (lane->producer_id >= 0 && lane->seen < 0) return 0; /* the log has to be asked */
    if (shared->waiting || shared->closed || shared->shut) return 0;
    int ahead = 0;
    for (const el_parcel *each = lane->first; each; each = each->next) {
        if (each->run || each->fate == EL_TAKEN || each->size > lane->batch_bytes_max || ++ahead > PARCELS_MAX) return 0;
        if (each == parcel) return 1;
    }
    return 0;
}

/* What the lane leads to, held for as long as a caller writes: the lane itself may be shut meanwhile. That the files stay open is not due
 * to these references: the partition closes them under its mutex, which the caller has. */
typedef struct {
    PyObject *target, *mutex, *writer, *config;
} el_held;

static el_held held_take(const el_lane *lane) {
    return (el_held){Py_NewRef(lane->target), Py_NewRef(lane->mutex), Py_NewRef(lane->writer), Py_NewRef(lane->config)};
}

static void held_release(el_held *held) {
    Py_DECREF(held->target);
    Py_DECREF(held->mutex);
    Py_DECREF(held->writer);
    Py_DECREF(held->config);
}

/* The partition's mutex, if it is free, and writer and settings are still those that were given. A lock that this thread has already is not. */
static int partition_enter(const el_held *held) {
    if (!answers(held->mutex, names.is_owned, Py_False, NULL) || !answers(held->mutex, names.acquire, Py_True, Py_False)) return 0;
    if (attribute_is(held->target, names.writer, held->writer) && attribute_is(held->target, names.config, held->config)) return 1;
    answers(held->mutex, names.release, Py_None, NULL);
    return 0;
}

/* ---- the write -------------------------------------------------------------------------------------------------- */

static void raise_to(int64_t *most, int64_t value) {
    if (value > *most) *most = value;
}

static void figures_note(el_figures *figures, const el_parcel *parcel, int64_t began_ns) {
    int64_t latency_ns = el_now_ns() - began_ns, queue_ns = began_ns - parcel->opened_ns;
    figures->batches++;
    figures->records += parcel->count;
    figures->bytes += parcel->size;
    figures->latency_ns += latency_ns;
    figures->queue_ns += queue_ns;
    raise_to(&figures->bytes_most, parcel->size);
    raise_to(&figures->latency_most_ns, latency_ns);
    raise_to(&figures->queue_most_ns, queue_ns);
}

PyObject *el_harvest_direct(PyObject *object, PyObject *unused) {
    el_lane *self = (el_lane *)object;
    el_figures found = self->figures;
    if (!found.batches) Py_RETURN_NONE;
    self->figures = (el_figures){0};
    return Py_BuildValue("(LLLLLLLL)", (long long)found.batches, (long long)found.records, (long long)found.bytes, (long long)found.bytes_most,
                         (long long)found.latency_ns, (long long)found.latency_most_ns, (long long)found.queue_ns, (long long)found.queue_most_ns);
}

static int parcel_write(el_lane *lane, el_parcel *parcel, int64_t deadline_ns, el_appended *out) {
    int64_t began_ns = el_now_ns();
    enum el_fate before = (enum el_fate)parcel->fate;
    parcel->fate = EL_TAKEN;
    el_batch row;
    el_header_write(parcel->data, parcel, parcel->size, 0, 0, lane->next_sequence, &row);
    el_known known = {.producer_id = lane->producer_id, .seen = lane->seen, .next_sequence = lane->next_sequence, .epoch = lane->producer_epoch};
    int32_t code;
    Py_BEGIN_ALLOW_THREADS
    code = lane->append(lane->raw, parcel->data, parcel->size, &row, 1, lane->producer_id >= 0 ? &known : NULL, deadline_ns, out);
    Py_END_ALLOW_THREADS
    parcel->fate = (int8_t)before;
    if (code != EL_APPENDED) return 0;
    if (lane->producer_id >= 0) lane->seen = out->seen;
    parcel->base_offset = out->base_offset;
    parcel->append_time_ms = out->append_time_ms;
    lane->next_sequence = el_sequence_after(lane->next_sequence, row.last_offset_delta);
    figures_note(&lane->figures, parcel, began_ns);
    lane->accumulator->direct_count++;
    el_parcel_settle(parcel, EL_DELIVERED);
    return 1;
}

/* All up to this parcel, as long as that is usual. REQUIRES: the lane's turn and the partition's mutex. */
static void lane_write(el_lane *lane, el_parcel *parcel, int64_t limit_ns) {
    el_appended out = {0};
    if (lane->last->fate == EL_OPEN) lane->last->fate = EL_SEALED;
    int64_t now = el_now_ns(), patience_ns = limit_ns - now < PATIENCE_NS ? limit_ns - now : PATIENCE_NS;
    int64_t deadline_ns = boot_ns() + (patience_ns > 0 ? patience_ns : 0);
    while (!el_fate_known(parcel) && parcel_write(lane, lane->first, deadline_ns, &out)) continue;
    lane->look = now - lane->looked_ns > LOOK_NS || out.unsynced_ms > lane->flush_ns / 1000000;
}

int el_direct_write(el_parcel *parcel, int64_t limit_ns) {
    el_lane *lane = parcel->lane;
    if (!lane || !lane_usual(lane, parcel)) return 0;
    Py_INCREF(EL_OBJECT(lane));
    el_held held = held_take(lane);
    int turn = 0;
    if (partition_enter(&held)) { /* whose calls may have run other code: the lane is looked at again */
        turn = parcel->lane == lane && lane_usual(lane, parcel) && lane->writer == held.writer && el_lane_enter(lane);
        if (turn) lane_write(lane, parcel, limit_ns);
        answers(held.mutex, names.release, Py_None, NULL);
    }
    if (turn) el_lane_leave(lane);
    held_release(&held);
    Py_DECREF(EL_OBJECT(lane));
    return el_fate_known(parcel);
}
