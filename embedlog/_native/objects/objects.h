/* Rows of Python objects: what the files of `_rows` share.
 *
 * R1  the GIL is the lock of everything here: no structure is touched without it, and it is given up only to sleep and to join and
 *     checksum sealed parcels, which nobody changes any more
 * R2  a parcel is one Kafka batch from its first record to its fate; a future is a pointer to its parcel and a number in it,
 *     so that the fate of a thousand futures is one store
 * R3  a lane is the queue of one partition's parcels in the order of their records; a parcel leaves it when its fate is known,
 *     and only who has the lane's turn takes any
 * R4  fast functions return None for everything unusual and leave the case to Python, which can explain itself
 */
#ifndef EL_OBJECTS_H
#define EL_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "api/native.h"

#define EL_OBJECT(x) ((PyObject *)(x))

/* Puts a new reference to `object` in the place of what is there. */
static inline void el_replace(PyObject **place, PyObject *object) {
    PyObject *old = *place;
    *place = Py_NewRef(object);
    Py_XDECREF(old);
}

/* ---- columns of byte strings ------------------------------------------------------------------------------------ */

/* A column that was given from Python as None or as (data, offsets, validity, validity_offset); holds their buffers. */
typedef struct {
    Py_buffer data, offsets, validity;
    const uint8_t *bits;     /* validity, or NULL: no nulls */
    int64_t bits_offset;     /* in bits */
    Py_ssize_t count;        /* rows */
    int width;               /* of an offset: 4 or 8; 0: there is no such column */
} el_column;

/* 0, or -1 with an exception set and nothing held. */
int el_column_take(PyObject *given, el_column *column);
void el_column_release(el_column *column);

/* Row `row` as bytes, or None for a null: a new reference. NULL with an exception set if the offsets leave the data.
 * REQUIRES: 0 <= row < count. */
PyObject *el_column_item(const el_column *column, Py_ssize_t row);

/* Finds the bytes of a row: 1, 0 for a null, or -1 with an exception set. */
int el_column_find(const el_column *column, Py_ssize_t row, const uint8_t **data, Py_ssize_t *size);

/* ---- records ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *topic, *key, *value, *headers;
    int64_t offset, timestamp_ms;
    int32_t partition, leader_epoch;
    int8_t timestamp_type;
    int8_t shared;           /* it may hold objects of the user's: the collector looks at it, and freeing it may free others */
} el_record;

extern PyTypeObject *el_record_type;
extern PyObject *el_no_headers; /* the empty tuple, shared by all */

/* A record with all its objects NULL, or NULL with an exception set. For bytes, None and headers of our own: they are in no cycle. */
el_record *el_record_alloc(void);

/* ---- futures, parcels, lanes ------------------------------------------------------------------------------------ */

typedef struct el_parcel el_parcel;
typedef struct el_lane el_lane;
typedef struct el_accumulator el_accumulator;
typedef struct el_future el_future;

/* A thread that sleeps until a parcel's fate is known; lives on that thread's stack. */
typedef struct el_waiter {
    struct el_waiter *next;
    PyThread_type_lock lock;
} el_waiter;

/* What runs when the fate of a record is known. */
typedef struct {
    el_future *future;           /* owned */
    PyObject *callable;          /* owned */
    int quiet;                   /* it belongs to the producer: the user has not heard of a failure by it */
} el_callback;

/* How many records failed of one reason in one place, and were not asked about. */
typedef struct {
    PyObject_HEAD
    int64_t unheard;
} el_tally;

enum el_fate { EL_OPEN, EL_SEALED, EL_TAKEN, EL_DELIVERED, EL_FAILED };

struct el_parcel {
    PyObject_HEAD
    el_accumulator *accumulator; /* owned */
    el_lane *lane;               /* owned until the fate is known; NULL for a promise */
    el_parcel *next;             /* after it in the lane, or in the queue of callbacks; owned */
    PyObject *topic;             /* NULL for a promise */
    uint8_t *data;               /* EL_HEADER_SIZE bytes of room, then records */
    int64_t size, capacity;
    int64_t base_timestamp, max_timestamp, min_timestamp;
    int64_t opened_ns;           /* monotonic */
    int64_t base_offset, append_time_ms;
    PyObject *run;               /* what send_batch encoded, instead of data */
    PyObject *result;            /* of a promise */
    PyObject *error;             /* exception instance when failed */
    el_tally *tally;             /* of a failed one: where its records are counted; owned, or NULL */
    el_callback *callbacks;      /* those from callback_first on have not run, in the order of their records */
    int32_t callback_first, callback_end, callback_capacity;
    el_waiter *waiters;
    int32_t partition, count;
    int8_t fate;                 /* enum el_fate */
    int8_t early;                /* failed inside send(): callbacks run in the caller's thread */
    int8_t pinned;               /* read without the GIL: the data must stay, whatever the fate */
    int8_t hurried;              /* somebody waits for it: it does not sit out its linger */
    int8_t late;                 /* it is in the queue of callbacks */
};

typedef struct {
    int64_t batches, records, bytes, bytes_most, latency_ns, latency_most_ns, queue_ns, queue_most_ns;
} el_figures;

struct el_lane {
    PyObject_HEAD
    el_accumulator *accumulator; /* owned */
    PyObject *topic;
    el_parcel *first, *last;     /* owned queue; the last one may be open */
    el_parcel *unacknowledged;   /* shared by the futures of acks=0, or NULL */
    el_lane *next_active;
    int64_t limit;               /* bytes of a parcel, header included */
    int64_t capacity_hint;
    int64_t queued_bytes;
    int32_t partition;
    int32_t parcel_count;        /* whose fate is not known */
    int8_t active;
    int8_t used;                 /* it has had a parcel */
    int8_t busy;                 /* somebody has the turn */
    int8_t look;                 /* the thread is to look after it, even if it is empty */
    int64_t not_before_ns;       /* the last attempt failed: the next one comes no earlier */
    int64_t producer_id;         /* what its batches are stamped with, -1: nothing */
    int32_t next_sequence;
    int16_t producer_epoch;
    int64_t seen;                /* what the producer's slot in the page holds if nobody else touched it; without a producer -1 */
    el_figures figures;          /* of what callers wrote since somebody asked */
    int64_t looked_ns;           /* when the thread last wrote or looked */
    int64_t flush_ns;            /* unsynced for longer: the thread must see to it */
    int64_t batch_bytes_max;     /* what is larger the thread refuses */
    PyObject *target, *mutex, *writer, *config; /* partition and what it has, for the way past the thread; NULL if that is shut */
    el_append_call append;       /* of the other extension: its address comes from Python, with that of the writer it is for */
    el_writer *raw;
};

struct el_accumulator {
    PyObject_HEAD
    int64_t memory_limit, memory_used;
    int64_t linger_ns;
    int64_t waiting;             /* threads that wait for memory */
    int64_t record_count;        /* ever accepted */
    el_lane *first_active, *last_active; /* lanes with parcels, owned */
    el_parcel *late_first, *late_last; /* parcels whose callbacks are to run, in the order of their fates; owned queue */
    int64_t calling;             /* callbacks that are running */
    PyObject *metadata, *run_callback, *await_future, *raised_of, *deadline_error, *forked_error, *state_error;
    PyThread_type_lock bell;     /* held, except between a ring and the wait it ends */
    unsigned long thread;        /* the one that sends, once it has waited; 0 before */
    uint32_t direct_count, direct_seen; /* parcels that callers wrote, and how many of them the thread has noticed */
    int8_t napping;              /* the thread looks by itself within a millisecond: nobody needs to ring */
    long pid;
    int8_t rung, idle, unacknowledged, closed;
    int8_t ended;                /* the thread has ended, or never began: nothing takes a parcel or runs a callback any more */
    int8_t shut;                 /* no transaction is open: records are refused until one is */
};

struct el_future {
    PyObject_HEAD
    el_parcel *parcel;           /* owned */
    int64_t timestamp_ms;
    int32_t index;               /* of the record in its parcel, or one of the two below */
    int8_t heard;                /* its failure was asked for */
};

enum { EL_WHOLE = -1, EL_NOT_AWAITED = -2 };

extern PyTypeObject *el_accumulator_type, *el_lane_type, *el_parcel_type, *el_future_type, *el_route_type, *el_tally_type;

static inline int el_fate_known(const el_parcel *parcel) { return parcel->fate >= EL_DELIVERED; }

int64_t el_now_ns(void);
int64_t el_now_ms(void);

/* Ends the sleep of the accumulator's thread, now or when it begins. */
void el_ring(el_accumulator *accumulator);

/* A parcel of no lane, or NULL with an exception set. May run any code: a collection of garbage does. */
el_parcel *el_parcel_new(el_accumulator *accumulator);

/* Puts the parcel at the lane's end, which takes over the reference. Cannot fail. REQUIRES: the lane's last one is closed. */
void el_lane_link(el_lane *lane, el_parcel *parcel);

/* Drops what the queue holds, one by one: a chain would be freed by a recursion of its length. */
void el_parcels_drop(el_parcel **first);

/* Closes the lane's open parcel, if there is one, and rings. */
void el_lane_seal(el_lane *lane);

/* A future of no parcel yet, or NULL with an exception set. May run any code: a collection of garbage does. */
el_future *el_future_new(int64_t timestamp_ms);

/* Makes it the future of a record, or of the whole parcel. Cannot fail. */
void el_future_join(el_future *future, el_parcel *parcel, int32_t index);

/* The parcel's fate: memory comes back, it leaves its lane, waiters wake, callbacks are handed on. Cannot fail, and runs no callback. */
void el_parcel_settle(el_parcel *parcel, enum el_fate fate);

/* The same for a failure; its records are counted by `tally`, if there is one, unless they have callbacks of the user's. */
void el_parcel_fail(el_parcel *parcel, PyObject *error, PyObject *tally);

/* Stores a callback with its parcel: 0, or -1 with an exception set and the parcel as it was. */
int el_callback_add(el_parcel *parcel, el_future *future, PyObject *callable, int quiet);

/* Hands the parcel's callbacks on to whoever runs the queue next. Cannot fail. */
void el_late_push(el_parcel *parcel);

/* Runs the queue of callbacks: each once, and none is kept from running by what another raises, the first of which is raised in the end. */
PyObject *el_late_run(PyObject *accumulator, PyObject *unused);

/* The failure was asked for: its records are no longer counted as unheard. */
void el_future_hear(el_future *future);

/* How many of the parcel's `count` records have a callback of the user's, which are marked as heard. */
int64_t el_callbacks_hear(el_parcel *parcel, int64_t count);

void el_callbacks_drop(el_parcel *parcel);
int el_callbacks_visit(el_parcel *parcel, visitproc visit, void *arg);

/* The 61 bytes before the parcel's records, which are in place, and the same as a row, at position 0; `sequence` of its first record. */
void el_header_write(uint8_t *batch, const el_parcel *parcel, int64_t size, int64_t base_offset, int codec, int32_t sequence, el_batch *row);

/* Takes the lane's turn: 1, or 0 if somebody has it. */
int el_lane_enter(el_lane *lane);
void el_lane_leave(el_lane *lane);

/* Writes all up to this parcel in the caller's thread: 1 if its fate is known now, 0 if that is the thread's to do. Never raises. */
int el_direct_write(el_parcel *parcel, int64_t limit_ns);
PyObject *el_open_direct(PyObject *lane, PyObject *args);
PyObject *el_harvest_direct(PyObject *lane, PyObject *unused);
PyObject *el_shut_direct(PyObject *lane, PyObject *unused);

/* Sends the parcel on its way and sleeps until its fate is known: 1, 0 after the timeout (negative: none), -1 with an exception. */
int el_parcel_wait(el_parcel *parcel, double timeout_s);

/* ---- one record on its way into a lane -------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *key, *value;
    Py_ssize_t key_size, value_size; /* -1: null */
    PyObject *headers;               /* list or tuple of (str, bytes or None), or NULL */
    int64_t header_bytes;            /* encoded, the count included */
    int64_t timestamp_ms;
} el_item;

/* 1 if the objects are of the exact types that can be taken as they are (then the item is filled), else 0. Never raises. */
int el_item_take(el_item *item, PyObject *value, PyObject *key, PyObject *headers);

/* Upper bound of a batch that holds only this record, as Kafka estimates it. */
int64_t el_item_bound(const el_item *item);

/* 1 if the lane's open parcel has room for the item. */
int el_lane_fits(const el_lane *lane, const el_item *item);

/* Encodes the item at the lane's end and returns its future; None, or NULL with an exception set, with the lane as it was: None if the
 * producer takes no records now. */
PyObject *el_lane_put(el_lane *lane, const el_item *item);

/* ---- the module's parts ----------------------------------------------------------------------------------------- */

int el_record_ready(PyObject *module);
int el_accumulator_ready(PyObject *module);
int el_lane_ready(PyObject *module);
int el_parcel_ready(PyObject *module);
int el_future_ready(PyObject *module);
int el_tally_ready(PyObject *module);
int el_direct_ready(PyObject *module);
int el_route_ready(PyObject *module);
int el_arrow_import_ready(PyObject *module);

/* Makes a type from its spec and puts it into the module: a borrowed reference that lives as long as the module, or NULL. */
PyTypeObject *el_type_ready(PyObject *module, PyType_Spec *spec);

extern PyMethodDef el_record_methods[], el_column_methods[], el_view_methods[], el_run_methods[], el_parcel_functions[], el_arrow_import_methods[],
    el_settling_functions[], el_batch_functions[];

#define EL_RETURN_TRUTH(x) return PyBool_FromLong(x)

#endif
