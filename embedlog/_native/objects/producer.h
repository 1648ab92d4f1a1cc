/* The objects of a producer, and what the files that implement them offer to each other.
 *
 * - A producer batch is one Kafka batch from its first record until it is settled (delivered or
 *   failed). A future is a pointer to its batch and an index, so that one store settles a thousand
 *   futures.
 * - A partition queue contains the unsettled batches of one partition in record order. A batch
 *   leaves it when it is settled; only the thread that has entered the queue takes batches.
 *
 * The sections below follow a record: `router.c` selects a queue for it, `partition_queue.c` puts
 * it into the open batch, `producer_batch.c` waits for it, `direct_append.c` writes the batch in
 * the thread that waits, or the producer's thread does (`accumulator.c`, `active_queues.c`,
 * `seal.c`). `settle.c` stores the outcome, which `callbacks.c` and `future.c` tell the user. */
#ifndef EL_PRODUCER_H
#define EL_PRODUCER_H

#include "objects/objects.h"

/* ---- the objects ----------------------------------------------------------------------------- */

typedef struct el_producer_batch el_producer_batch;
typedef struct el_queue el_queue;
typedef struct el_accumulator el_accumulator;
typedef struct el_future el_future;

/* A thread that sleeps until a batch is settled; on the stack of that thread. */
typedef struct el_waiter {
    struct el_waiter *next;
    PyThread_type_lock lock;
} el_waiter;

/* A callback that runs when a record is settled. */
typedef struct {
    el_future *future;  /* owned */
    PyObject *callable; /* owned */
    int quiet; /* of the producer: it does not count as observation of a failure by the user */
} el_callback;

/* Count of the records that failed for one reason in one place and were not observed. */
typedef struct {
    PyObject_HEAD int64_t unobserved;
} el_tally;

enum el_batch_state { EL_OPEN, EL_SEALED, EL_TAKEN, EL_DELIVERED, EL_FAILED };

struct el_producer_batch {
    PyObject_HEAD el_accumulator *accumulator; /* owned */
    el_queue *queue;         /* owned until the batch is settled; NULL for a promise */
    el_producer_batch *next; /* next in the partition queue, or in the queue of callbacks; owned */
    PyObject *topic;         /* NULL for a promise */
    uint8_t *data;           /* EL_HEADER_SIZE free bytes, then records */
    int64_t size, capacity;
    int64_t record_most; /* bytes of the largest record; 0 for a run */
    int64_t base_timestamp, max_timestamp, min_timestamp;
    /* whether a record has no key: a topic that has become compacted meanwhile refuses the batch */
    int keyless;
    int64_t opened_ns; /* monotonic */
    int64_t base_offset, append_time_ms;
    PyObject *run;          /* encoded by send_batch, instead of data */
    PyObject *result;       /* of a promise */
    PyObject *error;        /* exception instance when failed */
    el_tally *tally;        /* after a failure: counter of its unobserved records; owned, or NULL */
    el_callback *callbacks; /* from callback_first on they have not run, in record order */
    int32_t callback_first, callback_end, callback_capacity;
    el_waiter *waiters;
    int32_t partition, count;
    int8_t state;    /* enum el_batch_state */
    int8_t early;    /* failed inside send(): callbacks run in the caller's thread */
    int8_t pinned;   /* read without the GIL: the data must stay, whatever the state */
    int8_t urgent;   /* a thread waits for it: do not wait for the linger time */
    int8_t enqueued; /* in the queue of callbacks */
};

typedef struct {
    int64_t batches, records, bytes, plain_bytes, bytes_most, record_most, latency_ns,
        latency_most_ns, queue_ns, queue_most_ns;
} el_metrics;

/* The open and the waiting batches of one partition. The GIL protects every field; while `busy`,
 * one thread alone may append its batches, also without the GIL. */
struct el_queue {
    PyObject_HEAD el_accumulator *accumulator; /* owned */
    PyObject *topic;                           /* its name, owned */
    el_producer_batch *first, *last;           /* owned list; the last batch may be open */
    el_producer_batch *unacknowledged;         /* shared by the futures of acks=0, or NULL */
    el_queue *next_active; /* in the accumulator's list of queues with batches */
    int64_t limit;         /* bytes of a batch, header included */
    int64_t capacity_hint; /* bytes that the next batch allocates first: those of the last one */
    int64_t queued_bytes;  /* of the unsettled batches */
    int64_t packed_max;    /* larger records sections are compressed by the thread */
    int32_t partition, codec;
    int32_t batch_count;   /* unsettled batches */
    int8_t active;         /* in the accumulator's list of queues with batches */
    int8_t used;           /* it has had a batch */
    int8_t busy;           /* entered by a thread */
    int8_t check_due;      /* the producer's thread must check it, even if it is empty */
    int64_t not_before_ns; /* time of the next attempt after a failed one */
    int64_t producer_id;   /* stamped into its batches, -1: none */
    int32_t next_sequence;
    int16_t producer_epoch;
    /* content of the producer's slot after the last own append; -1 without a producer */
    int64_t seen;
    el_metrics metrics;      /* of appends by callers, since they were last collected */
    int64_t checked_ns;      /* last write or check by the producer's thread */
    int64_t flush_ns;        /* upper bound of unsynced time; later the thread must sync */
    int64_t batch_bytes_max; /* the thread rejects larger batches */
    int keys_required;       /* the thread rejects batches with a record without a key */
    /* the thread rejects batches with a timestamp that is farther from now */
    int64_t past_ms, future_ms;
    /* for direct appends; NULL: disabled, no followers, not compressed */
    PyObject *target, *mutex, *writer, *config, *followers, *packer;
    /* of the other extension: Python passes both addresses */
    el_append_call append;
    el_writer *raw;
    el_together_call append_together;
    el_together *together; /* the same with followers */
};

/* All queues of a producer, and the sleep of its thread. The GIL protects every field except those
 * that are "with el_store": they are atomic. */
struct el_accumulator {
    /* bytes of all batches, and their limit (buffer.memory). memory_used: with el_store */
    PyObject_HEAD int64_t memory_limit, memory_used;
    int64_t linger_ns;                    /* a batch that is not full waits so long */
    int64_t waiting;                      /* threads that wait for memory */
    int64_t record_count;                 /* accepted since the start */
    el_queue *first_active, *last_active; /* queues with batches, owned */
    /* settled batches with callbacks to run, in the order of settlement; owned list */
    el_producer_batch *ready_first, *ready_last;
    int64_t calling; /* running callbacks */
    /* of Python, owned: the class RecordMetadata; functions that run a callback, that await a
     * future, and that copy the error of a batch for whoever raises it; classes of errors */
    PyObject *metadata, *run_callback, *await_future, *raised_of, *deadline_error, *forked_error,
        *state_error;
    PyThread_type_lock wake_lock; /* held, except between a wake and the end of the wait */
    unsigned long thread;         /* the sending thread, after its first wait; 0 before */
    /* batches appended by callers (with el_store), and how many of them the thread has seen */
    uint32_t direct_count, direct_seen;
    int8_t polling;        /* the thread checks within a millisecond: no wake is needed */
    long pid;              /* of the process that made it: another one is a fork, and refused */
    int8_t woken;          /* wake_lock was released for the present wait */
    int8_t idle;           /* no time ends the thread's next wait: a new batch must wake it */
    int8_t unacknowledged; /* acks=0: the futures of a queue share one batch */
    int8_t closed;         /* records are refused; what was accepted is still sent */
    /* the thread has ended or never started: no batch is taken and no callback runs any more */
    int8_t ended;
    int8_t shut; /* no transaction is open: records are refused */
};

struct el_future {
    PyObject_HEAD el_producer_batch *batch; /* owned */
    int64_t timestamp_ms;
    int32_t index;   /* of the record in its batch, or one of the two values below */
    int8_t observed; /* its failure was requested */
};

enum { EL_WHOLE = -1, EL_NOT_AWAITED = -2 };

extern PyTypeObject *el_accumulator_type, *el_queue_type, *el_producer_batch_type, *el_future_type,
    *el_router_type, *el_tally_type;

static inline int el_is_settled(const el_producer_batch *batch) {
    return batch->state >= EL_DELIVERED;
}

/* ---- one record before it is in a queue: encode_record.c ------------------------------------- */

typedef struct {
    const uint8_t *key, *value;
    Py_ssize_t key_size, value_size; /* -1: null */
    PyObject *headers;               /* list or tuple of (str, bytes or None), or NULL */
    int64_t header_bytes;            /* encoded, the count included */
    int64_t timestamp_ms;
} el_item;

/* 1 if the objects have exactly the types that need no conversion (then fills the item), else 0.
 * Never raises. */
int el_item_take(el_item *item, PyObject *value, PyObject *key, PyObject *headers);

/* Upper bound of a batch that holds only this record, as Kafka estimates it. */
int64_t el_item_bound(const el_item *item);

/* ---- partition_queue.c ----------------------------------------------------------------------- */

/* 1 if the item fits into the open batch of the queue. */
int el_queue_fits(const el_queue *queue, const el_item *item);

/* Encodes the item at the end of the queue and returns its future. None: the producer accepts no
 * records now. NULL with an exception set. In both cases the queue is unchanged. */
PyObject *el_queue_put(el_queue *queue, const el_item *item);

/* Closes the open batch of the queue, if there is one, and wakes the thread. */
void el_queue_seal(el_queue *queue);

/* Enters the queue: 1, or 0 if another thread has entered it. */
int el_queue_enter(el_queue *queue);
void el_queue_leave(el_queue *queue);

/* ---- producer_batch.c ------------------------------------------------------------------------ */

/* A batch without a queue, or NULL with an exception set. May run any code, as it may start a
 * garbage collection. */
el_producer_batch *el_batch_new(el_accumulator *accumulator);

/* Appends the batch to the queue, which takes over the reference. Cannot fail. REQUIRES: the last
 * batch is closed. */
void el_queue_link(el_queue *queue, el_producer_batch *batch);

/* Drops a list of batches one by one: a chain would be freed by a recursion of its length. */
void el_batches_drop(el_producer_batch **first);

/* Sends the batch and sleeps until it is settled: 1, 0 after the timeout (negative: none), -1 with
 * an exception. */
int el_batch_wait(el_producer_batch *batch, double timeout_s);

/* ---- direct_append.c ------------------------------------------------------------------------- */

/* Appends all batches up to this one in the caller's thread: 1 if it is settled, 0 if the
 * producer's thread must do it. It is -1 with the exception of a signal handler. */
int el_direct_write(el_producer_batch *batch, int64_t limit_ns);
PyObject *el_open_direct(PyObject *queue, PyObject *args);
PyObject *el_collect_direct(PyObject *queue, PyObject *unused);
PyObject *el_close_direct(PyObject *queue, PyObject *unused);

/* ---- accumulator.c --------------------------------------------------------------------------- */

int64_t el_now_ns(void);

/* Ends the sleep of the accumulator's thread, now or at its next wait. */
void el_wake_thread(el_accumulator *accumulator);

/* ---- active_queues.c: the queues of an accumulator that have batches ------------------------- */

/* Drops the list of queues; none of them will be written any more. */
void el_queues_drop(el_accumulator *self);

/* Removes empty queues from the list: the due ones as a list of Python, and the time until the next
 * one is due (INT64_MAX: none). */
PyObject *el_queues_ready(el_accumulator *self, int64_t *pause_ns);

/* The unsettled batches; the list keeps them alive, but not their place in a queue. */
PyObject *el_queues_pending(PyObject *accumulator, PyObject *unused);

/* The closed batches of a queue, from the first on, that are written together. */
PyObject *el_queue_take(PyObject *queue, PyObject *most_bytes);

/* ---- seal.c ---------------------------------------------------------------------------------- */

/* Writes the 61 bytes before the batch's records, which are in place, and the row at position 0.
 * `sequence`: of the first record. */
void el_header_write(uint8_t *head, const el_producer_batch *batch, int64_t size,
                     int64_t base_offset, int codec, int32_t sequence, el_batch *row);

/* ---- settle.c -------------------------------------------------------------------------------- */

/* Settles the batch: releases its memory, unlinks it from its queue, wakes waiters, enqueues
 * callbacks. Cannot fail, runs no callback. */
void el_batch_settle(el_producer_batch *batch, enum el_batch_state state);

/* The same for a failure. `tally`, if given, counts its records, except those with callbacks of the
 * user. */
void el_batch_fail(el_producer_batch *batch, PyObject *error, PyObject *tally);

/* ---- callbacks.c ----------------------------------------------------------------------------- */

/* Stores a callback with its batch: 0, or -1 with an exception set and the batch unchanged. */
int el_callback_add(el_producer_batch *batch, el_future *future, PyObject *callable, int quiet);

/* Enqueues the callbacks of the batch. Cannot fail. */
void el_callbacks_enqueue(el_producer_batch *batch);

/* Runs the queue of callbacks, each once. An exception does not stop the others; the first one is
 * raised at the end. */
PyObject *el_callbacks_run(PyObject *accumulator, PyObject *unused);

/* How many of the batch's `count` records have a callback of the user; marks them as observed. */
int64_t el_callbacks_observe(el_producer_batch *batch, int64_t count);

/* Marks the failure as observed: its records leave the tally. */
void el_future_observe(el_future *future);

void el_callbacks_drop(el_producer_batch *batch);
int el_callbacks_visit(el_producer_batch *batch, visitproc visit, void *arg);

/* ---- future.c -------------------------------------------------------------------------------- */

/* A future without a batch, or NULL with an exception set. May run any code, as it may start a
 * garbage collection. */
el_future *el_future_new(int64_t timestamp_ms);

/* Makes it the future of a record, or of the whole batch. Cannot fail. */
void el_future_join(el_future *future, el_producer_batch *batch, int32_t index);

#endif
