/* Declarations shared by the files of the append. */
#ifndef EL_APPEND_H
#define EL_APPEND_H

#include "codec/batch.h"
#include "log/control_page.h"

/* Index entries of a running append, gathered for one system call per file. */
enum { EL_ENTRIES_MAX = 64 };
typedef struct {
    int count, time_count;
    uint32_t from, time_from; /* numbers of the first gathered entries */
    uint8_t offsets[EL_ENTRIES_MAX * EL_INDEX_ENTRY_SIZE];
    uint8_t times[EL_ENTRIES_MAX * EL_TIME_ENTRY_SIZE];
    uint8_t digests[EL_ENTRIES_MAX * EL_DIGEST_RECORD_SIZE];
} el_entries;
void el_entries_start(el_entries *entries, const el_tuple *tuple);
/* Adds an entry for the batch at the tuple's end, if one is due, and advances the tuple's
 * counters. */
void el_entries_gather(el_entries *entries, el_tuple *tuple, int64_t interval, int64_t last_offset);
int64_t el_entries_write(el_entries *entries, const el_writer *writer);
/* After a failed append: removes digests that were written and not published, as the next append
 * writes others. */
int32_t el_entries_undo(const el_entries *entries, const el_writer *writer, const el_tuple *before);

enum {
    STAMPED_BYTES = MAGIC_AT, /* base offset, size, leader epoch */
    MAX_PIECES = 128,         /* batches gathered for one system call */
    CONTROL_INSIDE = -900
};

typedef struct { /* a running append: none of it is published yet */
    el_tuple tuple;
    el_replica replica;
    /* NULL: the run is new here; else the batches are those of a leader */
    const el_leading *source;
    int stamped;     /* the batches have their offsets and epochs */
    int append_time; /* they get the append time */
    int64_t now_ms;
    int pieces;
    int64_t piece_position; /* file position of the gathered pieces */
    struct iovec gathered[2 * MAX_PIECES];
    uint8_t heads[MAX_PIECES][EL_HEADER_SIZE];
    el_entries entries;
    uint64_t touched[EL_PRODUCER_SLOTS / 64]; /* slots of the producers in the run */
    int produced;                             /* whether the run has producers */
    int is_marker;                            /* the run is a control batch */
    const el_batch *row, *row_end; /* rows of the next batches, with what their encoder knows */
    int32_t next_sequence;
} el_run;

/* As el_append_begin without a wait, for a follower of a leader in this partition epoch: its paths
 * may be known from a comparison a moment ago. */
int32_t el_follow_begin(el_writer *follower, int64_t now_ns, int32_t partition_epoch);

/* Waits until no thread that was left behind is inside the writer: EL_OK, or
 * EL_SYSTEM_ERROR(ETIMEDOUT). */
int32_t el_wait_for_left(el_writer *writer, int64_t deadline_ns);

/* The bit of a directory in an ISR; 0 for none. */
uint64_t el_isr_bit(int32_t slot);
/* Whether the page accepts a new run of this writer: EL_OK, EL_NOT_LEADER or EL_TOO_FEW. */
int32_t el_replica_accepts(const el_writer *writer, const el_tuple *tuple,
                           const el_replica *replica);
/* Raises the high watermark to `end`, and to nothing while the decided ISR is too small. In one
 * directory: to the log end. */
void el_raise_high_watermark(el_tuple *tuple, el_replica *replica, int64_t end);
/* Notes a marker that ends at `end`, and the first unstable offset after it; the start of a
 * transaction. */
void el_note_marker(el_replica *replica, int64_t end, int64_t first_unstable);
void el_note_transaction(el_tuple *tuple, el_replica *replica, int64_t start);
/* The end to which the publication of this run commits: of a follower the leader's mark, of a
 * leader with followers the present one. */
int64_t el_committed_end(const el_writer *writer, const el_run *run);

/* Notes a batch with a producer for readers and other appenders: it may open a transaction, and it
 * changes a producer slot. */
void el_note_producer(el_run *run, const uint8_t *head);
/* Changes the producer slots of the run, before the publication: after a kill between them no
 * cached state passes as current. Returns the number of the publication. */
int64_t el_touch_producers(el_page *page, const el_run *run);
/* Writes the end of a transaction after its marker and before the publication (APPEND-6). EL_OK or
 * an error. */
int64_t el_write_ending(el_run *run, const el_ending *ending);
/* Whether the log must be read first: the run does not continue the cached state, or the producer's
 * slot has changed. */
int el_must_catch_up(const el_writer *writer, const uint8_t *data, int64_t size,
                     const el_known *known);
/* Advances the cached state over the appended run. */
void el_known_advance(el_known *known, const uint8_t *data, const el_appended *out);

/* ---- an append that a thread makes for its caller -------------------------------------------- */

enum { EL_FOLLOWERS_MAX = 63 };

enum el_place { /* where the thread is: 0 the leader, 1 the first follower, ... */
                EL_JOB_COMMITS = EL_FOLLOWERS_MAX + 1, /* in the leader again */
                EL_JOB_ENDED,                          /* the results count */
                EL_JOB_LEFT = 1
                    << 8 /* with a place: the caller has given up, and the thread is there */
};

typedef struct { /* what is appended */
    const uint8_t *data;
    int64_t size;
    const el_batch *rows;
    int64_t row_count;
    int64_t deadline_ns; /* for the leader's lock */
} el_given;

typedef struct { /* the words at which both look have a line of the cache of their own */
    _Alignas(64) _Atomic uint32_t place;     /* the caller sleeps on it */
    _Atomic int32_t is_awaited;              /* the caller sleeps, or is about to */
    _Alignas(64) el_together together;       /* of the writers below */
    el_writer writers[EL_FOLLOWERS_MAX + 1]; /* copies: the leader's first */
    el_writer *followers[EL_FOLLOWERS_MAX];
    el_writer *lent[EL_FOLLOWERS_MAX + 1]; /* those of the caller */
    el_given given;
    el_known known;
    int32_t has_known;
    int32_t is_apart; /* the followers are left to the caller */
    int32_t code;
    el_appended out;
} el_job;

/* Makes the append; whether the caller has waited for the end. */
int el_job_run(el_job *job);

/* The number of the directory in which the thread is: 0 the leader. */
static inline int32_t el_job_directory(el_job *job) {
    int32_t place = (int32_t)(atomic_load(&job->place) & ~(uint32_t)EL_JOB_LEFT);
    return place <= EL_FOLLOWERS_MAX ? place : 0;
}

#endif
