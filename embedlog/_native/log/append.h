/* An append under way, as the files that do it share it. */
#ifndef EL_APPEND_H
#define EL_APPEND_H

#include "codec/batch.h"
#include "log/control_page.h"

/* Entries of an append under way, gathered for one system call a file. */
enum { EL_ENTRIES_MAX = 64 };
typedef struct {
    int count, time_count;
    uint32_t from, time_from;             /* numbers of the first gathered ones */
    uint8_t offsets[EL_ENTRIES_MAX * EL_INDEX_ENTRY_SIZE];
    uint8_t times[EL_ENTRIES_MAX * EL_TIME_ENTRY_SIZE];
    uint8_t digests[EL_ENTRIES_MAX * EL_DIGEST_RECORD_SIZE];
} el_entries;
void el_entries_start(el_entries *entries, const el_tuple *tuple);
/* An entry for the batch that begins at the tuple's end, if one is due; moves the tuple's counters on. */
void el_entries_gather(el_entries *entries, el_tuple *tuple, int64_t interval, int64_t last_offset);
int64_t el_entries_write(el_entries *entries, const el_writer *writer);
/* Behind a failed append: what is not published is not true, and the next append writes others in its place. */
int32_t el_entries_take_back(const el_entries *entries, const el_writer *writer, const el_tuple *before);

enum {
    STAMPED_BYTES = MAGIC_AT,             /* base offset, size, leader epoch */
    MAX_PIECES = 128,                     /* batches that are gathered for one system call */
    CONTROL_INSIDE = -900
};

typedef struct {                          /* an append under way: nothing of it is published yet */
    el_tuple tuple;
    int64_t now_ms;
    int pieces;
    int64_t piece_position;               /* where the gathered pieces go */
    struct iovec gathered[2 * MAX_PIECES];
    uint8_t heads[MAX_PIECES][EL_HEADER_SIZE];
    el_entries entries;
    uint64_t touched[EL_PRODUCER_SLOTS / 64];   /* slots of the producers in it */
    int produced;                         /* whether there are any */
    int is_marker;                        /* a control batch is what this is */
    const el_batch *row, *row_end;        /* of the batches that come next: what their sealer knows of them */
    int32_t next_sequence;
} el_run;

/* What readers and other appenders have to know of a batch with a producer: it may open a transaction, and it moves a slot. */
void el_note_producer(el_run *run, const uint8_t *head);
/* Before the publication, so that a death in between leaves no memory that is taken for the truth. Returns its number. */
int64_t el_touch_producers(el_page *page, const el_run *run);
/* Rule 14: behind the marker, before the publication. EL_OK or an error. */
int64_t el_write_ending(el_run *run, const el_ending *ending);
/* Whether the log has to be asked: the run does not follow on what is known, or somebody touched its producer since. */
int el_in_doubt(const el_writer *writer, const uint8_t *data, int64_t size, const el_known *known);
/* Move on what is known over what was appended. */
void el_know(el_known *known, const uint8_t *data, const el_appended *out);

#endif
