/* Interval digests: chain digests of what Kafka's CRC does not cover, one record for each entry of
 * a segment's offset index. No preprocessor directive in here: cffi and the C compiler read the
 * same text. */

/* The digest records of one segment; the first `count` records of the file are published. Missing
 * or damaged records are skipped. */
typedef struct {
    int64_t base;
    int64_t count;
    int32_t fd;
    int32_t pad;
} el_digests;

typedef struct {
    int64_t position; /* in and out: byte of the segment after the last compared batch */
    /* in and out: position of the last record that matched the chain, or the start of the chain */
    int64_t agreed;
    uint64_t digest; /* in and out: the chain at `position` */
} el_compared;

/* Fills 16 bytes: record `number` of a segment, for the batch at `position` and the chain digest of
 * all earlier batches. */
int32_t el_digest_record(uint8_t *record, int64_t base, int64_t number, int64_t position,
                         uint64_t digest);

/* The digest in record `number`: 1; 0 if the record is missing, damaged or belongs to another
 * position; or a system error. */
int64_t el_digest_at(const el_digests *file, int64_t number, int64_t position, uint64_t *digest);

/* The best end of a read from `position`, so that all of it can be compared. It is the last record
 * up to `limit`, else the next record, or the segment's `end` if that is nearer. 0 if no record
 * helps. `from` is the number of a record at or before the next one. */
int64_t el_digests_reach(const el_digests *file, int64_t from, int64_t position, int64_t limit,
                         int64_t end);

/* Compares the chain over consecutive batches in data with the records from number `from` on.
 * Returns the number of the next record; EL_ECORRUPT with *problem (EL_BAD_DIGEST), EL_EINVALID if
 * the sizes do not fit, or a system error. */
int64_t el_digests_compare(const el_digests *file, int64_t from, const uint8_t *data, int64_t size,
                           const el_batch *batches, int64_t count, el_compared *state,
                           el_problem *problem);

/* The chain digest before each batch, for new records; `digest` is the one before the first.
 * Returns the processed bytes, or EL_EINVALID. */
int64_t el_digests_before(const uint8_t *data, int64_t size, const el_batch *batches, int64_t count,
                          uint64_t digest, uint64_t *out);
