/* The compaction half of the codec: the latest offset of every key, and batches without replaced
 * records. No preprocessor directive in here: cffi and the C compiler read the same text. The rules
 * of codec.h apply. */

enum el_map_layout { EL_MAP_SLOT_BYTES = 24 };

/* Latest offset by key: a table of slots in the caller's memory. Keys are seeded 128-bit hashes
 * (SipHash-2-4). */
typedef struct {
    uint8_t *slots;   /* capacity * EL_MAP_SLOT_BYTES, initially zero */
    int64_t capacity; /* a power of two */
    int64_t limit;    /* upper bound of the keys, below capacity */
    int64_t count;    /* keys in the table */
    int64_t latest;   /* highest offset in the table, -1 none */
    uint64_t seed[2];
} el_offset_map;

/* Adds the records of one batch (body: its uncompressed records section) from `start_offset` on.
 * EL_ESPACE: the limit is reached, and map->latest is the last added offset. EL_ECORRUPT: *problem
 * as in el_decode. */
int el_map_add(el_offset_map *map, const el_batch *batch, const uint8_t *body, int64_t body_size,
               int64_t start_offset, el_problem *problem);
/* The same for uncompressed batches; batch i starts at data + batches[i].position - base. *done is
 * the count of batches that were added completely. EL_EINVALID: batch *done is compressed, of an
 * old format, or outside the data. */
int el_map_add_run(el_offset_map *map, const uint8_t *data, int64_t size, int64_t base,
                   const el_batch *batches, int64_t batch_count, int64_t start_offset,
                   int64_t *done, el_problem *problem);
/* The latest offset of a key, or -1. */
int64_t el_map_find(const el_offset_map *map, const uint8_t *key, int64_t size);

/* Orders for one batch; without an order each record is decided separately (format.md 7.5). */
enum el_order {
    EL_ORDER_DISCARD = 1,   /* remove every record */
    EL_ORDER_WHOLE = 2,     /* keep every record, for example of a control batch */
    EL_ORDER_HORIZON = 4,   /* set the delete horizon if there is none, even without a tombstone */
    EL_ORDER_KEEP_EMPTY = 8 /* keep a batch without records as an empty batch */
};

typedef struct {
    const el_offset_map *map;
    int64_t now_ms;
    int64_t horizon_ms; /* value of a new delete horizon: now + delete.retention.ms */
} el_cleaner;

/* Writes the kept part of uncompressed batches into out, headers sealed; batch i starts at data +
 * batches[i].position - base. cleaned[i] describes the result (position in out; size and records 0:
 * removed). Stops before a batch that might not fit; *done is the count of processed batches.
 * Returns the written bytes; EL_ECORRUPT: *problem describes batch *done. */
int64_t el_clean_run(const el_cleaner *cleaner, const uint8_t *data, int64_t size, int64_t base,
                     const el_batch *batches, const uint8_t *orders, int64_t batch_count,
                     uint8_t *out, int64_t capacity, el_batch *cleaned, int64_t *done,
                     el_problem *problem);
