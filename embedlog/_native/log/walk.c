/* A walk over the batch headers of a log file, with one small read per batch.
 *
 * CWALK-1  bodies are not read, so the result is not covered by a checksum; el_scan checks checksums
 * CWALK-2  sizes and offsets must form a chain; otherwise the walk returns an error and no batches */
#include "codec/batch.h"
#include "system/system.h"

static int fits(const el_batch *batch, int64_t segment_base, int64_t next_offset, int64_t left) {
    return batch->size >= EL_HEADER_SIZE && batch->size <= left && batch->magic == MAGIC && batch->base_offset >= next_offset &&
           offsets_fit(batch->base_offset, batch->last_offset_delta, segment_base);
}

int64_t el_walk_headers(int32_t fd, int64_t segment_base, int64_t position, int64_t size, el_batch *batches, int64_t capacity,
                        int64_t *end) {
    uint8_t head[EL_HEADER_SIZE];
    int64_t count = 0, next_offset = 0;
    while (count < capacity && position < size) {
        int64_t got = el_pread(fd, head, EL_HEADER_SIZE, position);
        if (got < 0)
            return got;
        el_batch *batch = &batches[count];
        batch->position = position;
        int64_t whole = got == EL_HEADER_SIZE ? (int64_t)(int32_t)load_be32(head + SIZE_AT) + AFTER_SIZE : 0;
        batch->size = (int32_t)(whole > INT32_MAX ? 0 : whole);
        load_header(head, batch);
        if (!fits(batch, segment_base, next_offset, size - position))
            return EL_ECORRUPT;
        next_offset = batch->base_offset + batch->last_offset_delta + 1;
        position += batch->size;
        count++;
    }
    *end = position;
    return count;
}
