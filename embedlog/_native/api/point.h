/* Single visible batches at given offsets. No preprocessor directive in here: cffi and the C
 * compiler read the same text.
 *
 * Threads: every function may be called without the interpreter's lock. */

/* a segment of which single batches are read; shared by all readers, not changed */
typedef struct {
    /* as it was published. Of the active segment, `size`, `index_entries` and `digest` are
     * ignored */
    el_short_read segment;
    const uint8_t *page; /* NULL: no process has the log open, and `fixed` is its state */
    const el_tuple *fixed;
    int64_t end; /* next offset of a closed segment; -1: the active one */
    /* of the time index, and the lateness (-1: unknown); ignored for the active segment */
    int64_t time_entries;
    int64_t lateness_ms;
    uint32_t generation;
    uint32_t flags; /* el_tuple_flags of the segment */
} el_place;

typedef struct {
    int64_t log_start; /* offsets, as published now */
    int64_t visible_end;
    int32_t epoch;
    int32_t reserved;
    el_short_read found;
    el_batch batch;       /* with its position in the bytes that were read */
    int64_t first_offset; /* of all batches that were read */
    int64_t next_offset;  /* at which a search by time continues, or -1 */
} el_placed;

/* Whether `offset` is a visible offset of the segment: 1, with the published offsets in `out`; 0
 * for every unusual case. */
int32_t el_place_begin(const el_place *place, int64_t offset, int32_t committed, el_placed *out);
/* As el_read_short, for the published state now, and compares the generation again. Returns 1, with
 * the batch in `out`, 0 for every unusual case, or EL_ESPACE: `out->found.need` is larger than the
 * buffer. The batch is the first one with records that has `timestamp` or a later one; INT64_MIN:
 * the one that holds `offset`. If no batch that was read is as new, 0 is returned, and
 * `out->next_offset` is set. Control batches are unusual without a timestamp, and so are
 * transactional ones if `committed`. */
int32_t el_place_read(const el_place *place, int64_t offset, int64_t timestamp, int32_t committed,
                      uint8_t *buffer, int64_t capacity, el_placed *out);
/* Chooses where a search for the first record with `timestamp` or a later one begins in the
 * segment: no earlier visible record is as new. Returns 1, with `out->next_offset`, or 0 for every
 * unusual case: the offset may be after all visible ones. */
int32_t el_place_since(const el_place *place, int64_t timestamp, int32_t committed, int32_t time_fd,
                       el_placed *out);
