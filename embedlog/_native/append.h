/* An append under way, as the files that do it share it. */
#ifndef EL_APPEND_H
#define EL_APPEND_H

#include "batch.h"
#include "system.h"

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
