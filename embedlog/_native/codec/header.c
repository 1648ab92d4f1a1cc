/* Writes and changes batch headers: sealing, stamping, and changed fields without reading the
 * records.
 *
 * - Offset and epoch are outside the CRC: stamping needs no checksum and may be repeated.
 * - A CRC is linear: the difference that a changed header makes depends only on the header and on
 *   the size. */
#include "codec/batch.h"

int el_header_seal(uint8_t *at, const el_batch *batch) {
    store_be64(at + BASE_OFFSET_AT, (uint64_t)batch->base_offset);
    store_be32(at + SIZE_AT, (uint32_t)(batch->size - AFTER_SIZE));
    store_be32(at + EPOCH_AT, (uint32_t)batch->leader_epoch);
    at[MAGIC_AT] = MAGIC;
    store_be16(at + ATTRIBUTES_AT, (uint16_t)batch->attributes);
    store_be32(at + LAST_DELTA_AT, (uint32_t)batch->last_offset_delta);
    store_be64(at + BASE_TIMESTAMP_AT, (uint64_t)batch->base_timestamp);
    store_be64(at + MAX_TIMESTAMP_AT, (uint64_t)batch->max_timestamp);
    store_be64(at + PRODUCER_ID_AT, (uint64_t)batch->producer_id);
    store_be16(at + PRODUCER_EPOCH_AT, (uint16_t)batch->producer_epoch);
    store_be32(at + BASE_SEQUENCE_AT, (uint32_t)batch->base_sequence);
    store_be32(at + RECORDS_AT, (uint32_t)batch->records);
    store_be32(at + CRC_AT, el_crc32c(0, at + CRC_FROM, (size_t)batch->size - CRC_FROM));
    return EL_OK;
}

int el_reseal(uint8_t *batch, int64_t body_size, int32_t codec) {
    int64_t size = EL_HEADER_SIZE + body_size;
    if (body_size < 0 || size > INT32_MAX || codec < 0 || codec > CODEC_MASK) {
        return EL_EINVALID;
    }
    uint16_t attributes = load_be16(batch + ATTRIBUTES_AT);
    store_be16(batch + ATTRIBUTES_AT, (uint16_t)((attributes & ~CODEC_MASK) | codec));
    store_be32(batch + SIZE_AT, (uint32_t)(size - AFTER_SIZE));
    store_be32(batch + CRC_AT, el_crc32c(0, batch + CRC_FROM, (size_t)size - CRC_FROM));
    return EL_OK;
}

int el_set_header_fields(uint8_t *batch, int64_t size, const el_batch *fields, int32_t mask) {
    if (size < EL_HEADER_SIZE) {
        return EL_EINVALID;
    }
    const size_t covered = EL_HEADER_SIZE - CRC_FROM;
    uint32_t before = el_crc32c(0, batch + CRC_FROM, covered);
    if (mask & EL_SET_ATTRIBUTES) {
        store_be16(batch + ATTRIBUTES_AT, (uint16_t)fields->attributes);
    }
    if (mask & EL_SET_MAX_TIMESTAMP) {
        store_be64(batch + MAX_TIMESTAMP_AT, (uint64_t)fields->max_timestamp);
    }
    if (mask & EL_SET_PRODUCER) {
        store_be64(batch + PRODUCER_ID_AT, (uint64_t)fields->producer_id);
        store_be16(batch + PRODUCER_EPOCH_AT, (uint16_t)fields->producer_epoch);
    }
    if (mask & EL_SET_SEQUENCE) {
        store_be32(batch + BASE_SEQUENCE_AT, (uint32_t)fields->base_sequence);
    }
    uint32_t difference = before ^ el_crc32c(0, batch + CRC_FROM, covered);
    uint32_t crc = load_be32(batch + CRC_AT) ^
                   el_crc32c_combine(difference, 0, (uint64_t)(size - EL_HEADER_SIZE));
    store_be32(batch + CRC_AT, crc);
    return EL_OK;
}

int64_t el_stamp(uint8_t *run, int64_t size, int64_t base_offset, int32_t leader_epoch,
                 uint64_t *digest) {
    uint64_t chained = *digest;
    for (int64_t position = 0; position < size;) {
        uint8_t *at = run + position;
        int64_t left = size - position;
        if (left < EL_HEADER_SIZE) {
            return EL_ECORRUPT;
        }
        int64_t whole = (int64_t)(int32_t)load_be32(at + SIZE_AT) + AFTER_SIZE;
        int32_t last_delta = (int32_t)load_be32(at + LAST_DELTA_AT);
        if (whole < EL_HEADER_SIZE || whole > left || last_delta < 0) {
            return EL_ECORRUPT;
        }
        store_be64(at + BASE_OFFSET_AT, (uint64_t)base_offset);
        store_be32(at + EPOCH_AT, (uint32_t)leader_epoch);
        chained = el_chain_digest(at, chained);
        base_offset += (int64_t)last_delta + 1;
        position += whole;
    }
    *digest = chained;
    return base_offset;
}

int64_t el_stamp_producer(uint8_t *run, int64_t size, el_batch *batches, int64_t count,
                          int64_t producer_id, int32_t epoch, int32_t sequence,
                          int32_t transactional) {
    for (int64_t row = 0; row < count; row++) {
        el_batch *batch = &batches[row];
        if (batch->size < EL_HEADER_SIZE || batch->position < 0 ||
            batch->position > size - batch->size || batch->last_offset_delta < 0) {
            return EL_ECORRUPT;
        }
        batch->producer_id = producer_id;
        batch->producer_epoch = (int16_t)epoch;
        batch->base_sequence = sequence;
        batch->attributes = (int16_t)(transactional ? batch->attributes | TRANSACTIONAL_BATCH
                                                    : batch->attributes & ~TRANSACTIONAL_BATCH);
        uint8_t *at = run + batch->position;
        el_set_header_fields(at, batch->size, batch,
                             EL_SET_ATTRIBUTES | EL_SET_PRODUCER | EL_SET_SEQUENCE);
        batch->crc = load_be32(at + CRC_AT);
        sequence = el_sequence_after(sequence, batch->last_offset_delta);
    }
    return sequence;
}
