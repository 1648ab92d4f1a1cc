/* The cleaner's half of the contract: the latest offset of every key, and batches without what a later record replaced.
 * Read by cffi and by the C compiler alike, so there is no directive in it; the rules of api_codec.h hold. */

enum el_map_layout { EL_MAP_SLOT_BYTES = 24 };

/* Latest offset by key: a table of slots in memory of the caller's, keys as seeded 128-bit hashes (SipHash-2-4). */
typedef struct {
    uint8_t *slots;          /* capacity * EL_MAP_SLOT_BYTES, zeroed at first */
    int64_t capacity;        /* a power of two */
    int64_t limit;           /* at most so many keys, below capacity */
    int64_t count;           /* keys that are in */
    int64_t latest;          /* highest offset that was taken in, -1 none */
    uint64_t seed[2];
} el_offset_map;

/* Takes in the records of one batch (body: its records section, uncompressed) from `start_offset` on. EL_ESPACE if the limit was reached:
 * map->latest is then the last offset that is in. EL_ECORRUPT with *problem as el_decode gives it. */
int el_map_add(el_offset_map *map, const el_batch *batch, const uint8_t *body, int64_t body_size, int64_t start_offset, el_problem *problem);
/* The latest offset of a key, or -1. */
int64_t el_map_find(const el_offset_map *map, const uint8_t *key, int64_t size);

/* What is ordered for a batch; without any of these its records are asked one by one (format.md 7.5). */
enum el_order {
    EL_ORDER_DISCARD = 1,    /* no record stays */
    EL_ORDER_WHOLE = 2,      /* every record stays, as of a control batch */
    EL_ORDER_HORIZON = 4,    /* set the delete horizon if there is none, even without a tombstone */
    EL_ORDER_KEEP_EMPTY = 8  /* a batch without records stays as an empty one */
};

typedef struct {
    const el_offset_map *map;
    int64_t now_ms;
    int64_t horizon_ms;      /* what a new delete horizon is: now + delete.retention.ms */
} el_cleaner;

/* Writes what stays of uncompressed batches into out, headers sealed: batch i lies at data + batches[i].position - base. cleaned[i] gets the
 * batch as it is now (position in out; size and records 0: it is gone). Stops where the next batch might not fit: *done is the number of
 * batches that were dealt with. Returns the bytes written, or EL_ECORRUPT with *problem for batch *done. */
int64_t el_clean_run(const el_cleaner *cleaner, const uint8_t *data, int64_t size, int64_t base, const el_batch *batches, const uint8_t *orders,
                     int64_t batch_count, uint8_t *out, int64_t capacity, el_batch *cleaned, int64_t *done, el_problem *problem);
