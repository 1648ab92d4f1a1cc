/* A file of digests with any bytes, beside batches with any heads. */
#include "fuzz.h"

enum { BATCHES = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    uint8_t flags = take_byte(&in);
    int64_t from = take_byte(&in), limit = take_number(&in), end = take_number(&in), position = take_number(&in), count = 0, at = 0;
    el_digests file = {.base = flags & 1 ? take_number(&in) : 0, .count = flags & 2 ? (int64_t)(uint32_t)take_raw(&in, 4) % 100000 : 0};
    size_t split = in.size ? take_raw(&in, 2) % (in.size + 1) : 0;
    if (split > in.size) split = in.size;
    input records = {in.data + split, in.size - split};
    in.size = split;
    uint8_t *data = take_rest(&in), *own = take_rest(&records);
    if (!(flags & 2)) file.count = (int64_t)records.size / EL_DIGEST_RECORD_SIZE;
    for (int64_t i = 0; flags & 4 && i < file.count && (size_t)(i + 1) * EL_DIGEST_RECORD_SIZE <= records.size; i++) {
        uint8_t *record = own + i * EL_DIGEST_RECORD_SIZE; /* one that holds */
        el_digest_record(record, file.base, i, load_be32(record) & 0xffff, load_be64(record + 8));
    }
    file.fd = file_of(own, records.size);
    el_batch batches[BATCHES];
    for (; count < BATCHES && at + EL_HEADER_SIZE <= (int64_t)in.size; count++) {
        batches[count] = (el_batch){.position = at, .size = flags & 8 ? (int32_t)load_be32(data + at + SIZE_AT) : EL_HEADER_SIZE};
        at += EL_HEADER_SIZE;
    }
    uint64_t digest, chained[BATCHES];
    el_problem problem;
    el_compared state = {.position = flags & 16 ? position & UINT32_MAX : 0, .agreed = flags & 32 ? limit : 0};
    int64_t found = el_digest_at(&file, flags & 64 ? position : from, position, &digest);
    DEMAND(found == 0 || found == 1);
    int64_t reach = el_digests_reach(&file, from, position, limit, end);
    DEMAND(reach >= 0 || reach == end);
    int64_t next = el_digests_compare(&file, from, data, (int64_t)in.size, batches, count, &state, &problem);
    DEMAND(next >= 0 || (next == EL_ECORRUPT && problem.what == EL_BAD_DIGEST) || next == EL_EINVALID);
    DEMAND(el_digests_before(data, (int64_t)in.size, batches, count, from, chained) >= EL_EINVALID);
    free(data);
    free(own);
    return 0;
}
