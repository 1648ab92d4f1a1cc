/* The 61 bytes of a batch header (magic 2): the position of each field, and reading them. */
#ifndef EMBEDLOG_BATCH_H
#define EMBEDLOG_BATCH_H

#include "api/native.h"

enum el_position {
    BASE_OFFSET_AT = 0,
    SIZE_AT = 8,
    AFTER_SIZE = 12, /* the size field counts the bytes after it */
    EPOCH_AT = 12,
    MAGIC_AT = 16,
    CRC_AT = 17,
    CRC_FROM = 21, /* the CRC covers all bytes from here on */
    ATTRIBUTES_AT = 21,
    LAST_DELTA_AT = 23,
    BASE_TIMESTAMP_AT = 27,
    MAX_TIMESTAMP_AT = 35,
    PRODUCER_ID_AT = 43,
    PRODUCER_EPOCH_AT = 51,
    BASE_SEQUENCE_AT = 53,
    RECORDS_AT = 57
};

#define MAGIC 2
#define NO_EPOCH (-1)
#define CODEC_MASK 0x07
#define LOG_APPEND_TIME 0x08
#define TRANSACTIONAL_BATCH 0x10
#define CONTROL_BATCH 0x20

/* The largest offset of a log. In a segment with such a base, sums of a checked offset and a delta
 * do not overflow int64_t. */
#define LOG_OFFSET_MAX (INT64_MAX - INT32_MAX - 1)

_Static_assert(sizeof(el_batch) == 80, "record_columns.batch_dtype has the same 80 bytes");
_Static_assert((int)EL_DIGEST_SIZE == (int)CRC_FROM, "the digest covers what the CRC does not");
_Static_assert((int)EL_HEADER_SIZE == (int)RECORDS_AT + 4, "the records follow their count");

/* The sequence after a batch: 0 follows 2^31 - 1 (format.md 1.5). */
static inline int32_t el_sequence_after(int32_t first, int32_t last_delta) {
    return (int32_t)(((int64_t)first + last_delta + 1) & INT32_MAX);
}

/* Whether a batch with these offsets fits into the segment with base `segment_base` (-1: unknown):
 * index entries store relative offsets in 31 bits (format.md 2.2). */
static inline int offsets_fit(int64_t base_offset, int32_t last_delta, int64_t segment_base) {
    if (last_delta < 0 || base_offset < 0 || base_offset > LOG_OFFSET_MAX - last_delta) {
        return 0;
    }
    return segment_base < 0 ||
           (base_offset >= segment_base && base_offset - segment_base <= INT32_MAX - last_delta);
}

static inline void load_header(const uint8_t *at, el_batch *batch) {
    batch->base_offset = (int64_t)load_be64(at + BASE_OFFSET_AT);
    batch->leader_epoch = (int32_t)load_be32(at + EPOCH_AT);
    batch->magic = (int8_t)at[MAGIC_AT];
    batch->crc = load_be32(at + CRC_AT);
    batch->attributes = (int16_t)load_be16(at + ATTRIBUTES_AT);
    batch->last_offset_delta = (int32_t)load_be32(at + LAST_DELTA_AT);
    batch->base_timestamp = (int64_t)load_be64(at + BASE_TIMESTAMP_AT);
    batch->max_timestamp = (int64_t)load_be64(at + MAX_TIMESTAMP_AT);
    batch->producer_id = (int64_t)load_be64(at + PRODUCER_ID_AT);
    batch->producer_epoch = (int16_t)load_be16(at + PRODUCER_EPOCH_AT);
    batch->base_sequence = (int32_t)load_be32(at + BASE_SEQUENCE_AT);
    batch->records = (int32_t)load_be32(at + RECORDS_AT);
    int one_time = batch->records == 1 || batch->attributes & LOG_APPEND_TIME;
    batch->min_timestamp = one_time && batch->max_timestamp >= 0 ? batch->max_timestamp : -1;
    memset(batch->pad, 0, sizeof batch->pad);
}

#endif
