/* A walk over the batch headers of a log file. One read finds all headers of small batches that
 * follow each other within a block.
 *
 * - Bodies are not read, so the result is not covered by a checksum; el_scan checks checksums.
 * - Sizes and offsets must form a chain; otherwise the walk returns an error and no batches.
 * - After a batch larger than a quarter of a block, and for a single batch, only the header is
 *   read. */
#include "codec/batch.h"
#include "system/system.h"

static int fits(const el_batch *batch, int64_t segment_base, int64_t next_offset, int64_t left) {
    return batch->size >= EL_HEADER_SIZE && batch->size <= left && batch->magic == MAGIC &&
           batch->base_offset >= next_offset &&
           offsets_fit(batch->base_offset, batch->last_offset_delta, segment_base);
}

enum { BLOCK_BYTES = 16384 };

typedef struct {
    int64_t start, length;
    uint8_t bytes[BLOCK_BYTES];
} header_block;

/* The header at a position, which only rises: a pointer into the block, which is read again if it
 * does not contain it. NULL: the file ends inside the header, or *code < 0. */
static const uint8_t *header_at(header_block *block, int32_t fd, int64_t position, int64_t wanted,
                                int64_t *code) {
    if (position + EL_HEADER_SIZE > block->start + block->length) {
        *code = el_pread(fd, block->bytes, wanted, position);
        block->start = position;
        block->length = *code < 0 ? 0 : *code;
    }
    return block->length - (position - block->start) < EL_HEADER_SIZE
               ? NULL
               : block->bytes + (position - block->start);
}

int64_t el_walk_headers(int32_t fd, int64_t segment_base, int64_t position, int64_t size,
                        el_batch *batches, int64_t capacity, int64_t *end) {
    header_block block;
    block.start = block.length = 0;
    int64_t count = 0;
    int64_t next_offset = 0;
    int64_t before = 0;
    int64_t code = 0;
    while (count < capacity && position < size) {
        const uint8_t *head = header_at(
            &block, fd, position,
            capacity == 1 || before > BLOCK_BYTES / 4 ? EL_HEADER_SIZE : BLOCK_BYTES, &code);
        if (code < 0) {
            return code;
        }
        if (!head) {
            return EL_ECORRUPT;
        }
        el_batch *batch = &batches[count];
        batch->position = position;
        int64_t whole = (int64_t)(int32_t)load_be32(head + SIZE_AT) + AFTER_SIZE;
        batch->size = (int32_t)(whole > INT32_MAX ? 0 : whole);
        load_header(head, batch);
        if (!fits(batch, segment_base, next_offset, size - position)) {
            return EL_ECORRUPT;
        }
        next_offset = batch->base_offset + batch->last_offset_delta + 1;
        position += before = batch->size;
        count++;
    }
    *end = position;
    return count;
}
