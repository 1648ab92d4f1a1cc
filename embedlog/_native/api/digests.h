/* Digests by index interval: what Kafka's CRC leaves out, one record for each entry of a segment's offset index.
 * No preprocessor directive in here: this text is read by cffi and by the C compiler. */

/* The records of one segment: of the file, `count` of them are published. A record that is missing or damaged is passed over. */
typedef struct {
    int64_t base;
    int64_t count;
    int32_t fd;
    int32_t pad;
} el_digests;

typedef struct {
    int64_t position; /* in and out: of the segment's byte behind the last batch that was compared */
    int64_t agreed;   /* in and out: of the last record that the chain agreed with, or where it began */
    uint64_t digest;  /* in and out: the chain at `position` */
} el_compared;

/* Fills 16 bytes: record `number` of a segment, for the batch at `position` and the chain digest of all before it. */
int32_t el_digest_record(uint8_t *record, int64_t base, int64_t number, int64_t position, uint64_t digest);

/* The digest in record `number`: 1, or 0 if there is none that holds and is about `position`; or a system error. */
int64_t el_digest_at(const el_digests *file, int64_t number, int64_t position, uint64_t *digest);

/* Where a read from `position` ends best, so that all of it can be compared: at the last record up to `limit`, else at the next
 * one, or at the segment's `end` if that is nearer; 0 if no record helps. `from` is the number of a record at or before the next one. */
int64_t el_digests_reach(const el_digests *file, int64_t from, int64_t position, int64_t limit, int64_t end);

/* Compares the chain over batches that lie one behind the other in data with the records from number `from` on: the number of the
 * next record, or EL_ECORRUPT with *problem (EL_BAD_DIGEST), EL_EINVALID if the sizes do not fit, or a system error. */
int64_t el_digests_compare(const el_digests *file, int64_t from, const uint8_t *data, int64_t size, const el_batch *batches,
                           int64_t count, el_compared *state, el_problem *problem);

/* The chain digest before each batch, for new records; `digest` is the one before the first. Bytes gone through, or EL_EINVALID. */
int64_t el_digests_before(const uint8_t *data, int64_t size, const el_batch *batches, int64_t count, uint64_t digest, uint64_t *out);
