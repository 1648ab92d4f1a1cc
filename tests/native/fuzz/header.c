/* Sealed batches that are stamped and changed: the updated checksum is that of the bytes. */
#include "fuzz.h"

static int checksums_hold(const uint8_t *run, int64_t size) {
    for (int64_t at = 0, whole; at < size; at += whole) {
        whole = (int64_t)(int32_t)load_be32(run + at + SIZE_AT) + AFTER_SIZE;
        if (load_be32(run + at + CRC_AT) != el_crc32c(0, run + at + CRC_FROM, (size_t)whole - CRC_FROM)) return 0;
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    uint8_t flags = take_byte(&in), mask = take_byte(&in);
    int64_t base = take_number(&in), producer = take_number(&in);
    int32_t epoch = (int32_t)take_number(&in), sequence = (int32_t)take_number(&in);
    el_batch row = {.position = take_number(&in), .size = (int32_t)take_number(&in)};
    uint64_t digest = take_raw(&in, 8);
    uint8_t *run = take_rest(&in);
    if (!(flags & 1)) mend(run, in.size);
    uint64_t before = digest;
    int64_t next = el_stamp(run, (int64_t)in.size, flags & 2 ? 0 : base & INT32_MAX, epoch, &digest);
    DEMAND(next >= 0 || (next == EL_ECORRUPT && digest == before));
    if (next >= 0 && !(flags & 1)) DEMAND(checksums_hold(run, (int64_t)in.size));
    if (flags & 4) row = (el_batch){.position = 0, .size = (int32_t)in.size};
    row.last_offset_delta = sequence;
    int64_t following = el_stamp_producer(run, (int64_t)in.size, &row, 1, producer, epoch, sequence & INT32_MAX, flags & 8);
    DEMAND(following >= 0 || following == EL_ECORRUPT);
    if (in.size >= EL_HEADER_SIZE) {
        int64_t whole = (int64_t)in.size;
        uint8_t *one = run;
        DEMAND(el_reseal(one, whole - EL_HEADER_SIZE, flags >> 4 & 7) == EL_OK && checksums_hold(one, whole));
        DEMAND(el_set_header_fields(one, whole, &row, mask) == EL_OK && checksums_hold(one, whole));
    }
    DEMAND(el_set_header_fields(run, EL_HEADER_SIZE - 1, &row, mask) == EL_EINVALID);
    free(run);
    return 0;
}
