/* The walk over headers in a file: it accepts the batches of the scan, with the same rows, and never returns a broken chain. */
#include "fuzz.h"

#include "system/system.h"

enum { BATCHES = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    uint8_t flags = take_byte(&in);
    int64_t base = flags & 1 ? take_number(&in) : -1, capacity = 1 + take_byte(&in) % BATCHES, consumed, need, end = -1, next = 0;
    int64_t other = flags & 4 ? take_number(&in) : -1, promised = flags & 4 ? other : (int64_t)in.size;
    uint8_t *data = take_rest(&in);
    if (flags & 2) mend(data, in.size);
    int fd = file_of(data, in.size);
    el_batch walked[BATCHES], scanned[BATCHES];
    el_problem problem;
    el_chain chain = {.next_offset = -1, .segment_base = base, .epoch = -1, .gaps_allowed = 1};
    int64_t good = el_scan(data, (int64_t)in.size, &chain, scanned, capacity, &consumed, &need, &problem);
    int64_t count = el_walk_headers(fd, base, 0, promised, walked, capacity, &end);
    DEMAND(count <= capacity && (count >= 0 || count == EL_ECORRUPT));
    for (int64_t i = 0; i < count; i++) {
        DEMAND(walked[i].base_offset >= next && offsets_fit(walked[i].base_offset, walked[i].last_offset_delta, base));
        next = walked[i].base_offset + walked[i].last_offset_delta + 1;
        if (i < good) DEMAND(memcmp(&walked[i], &scanned[i], sizeof *walked) == 0);
    }
    if (promised == (int64_t)in.size && (consumed == promised || good == capacity)) DEMAND(count == good && end == consumed);
    free(data);
    return 0;
}
