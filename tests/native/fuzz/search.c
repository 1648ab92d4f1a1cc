/* Both indexes, sorted or not, in memory and in a file: any entry that is found is there, and the two ways agree. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    uint8_t flags = take_byte(&in), entry[EL_TIME_ENTRY_SIZE];
    int64_t target = take_number(&in);
    uint8_t *data = take_rest(&in);
    int64_t count = (int64_t)in.size / (flags & 1 ? EL_INDEX_ENTRY_SIZE : EL_TIME_ENTRY_SIZE);
    int fd = file_of(data, in.size);
    int64_t promised = flags & 2 ? count + take_byte(&in) : count;
    if (flags & 1) {
        int64_t found = el_index_floor(data, count, (int32_t)target);
        DEMAND(found >= -1 && found < count && (found < 0 || (int32_t)load_be32(data + found * EL_INDEX_ENTRY_SIZE) <= (int32_t)target));
        int64_t there = el_index_floor_file(fd, promised, (int32_t)target, entry);
        DEMAND(there >= -1 ? there < count || promised > count : there == EL_EMORE && promised > count);
        if (there >= 0) DEMAND(memcmp(entry, data + there * EL_INDEX_ENTRY_SIZE, EL_INDEX_ENTRY_SIZE) == 0);
    } else {
        int64_t found = el_time_floor(data, count, target);
        DEMAND(found >= -1 && found < count && (found < 0 || (int64_t)load_be64(data + found * EL_TIME_ENTRY_SIZE) <= target));
        int64_t there = el_time_floor_file(fd, promised, target, entry);
        DEMAND(there >= -1 ? there < count || promised > count : there == EL_EMORE && promised > count);
        if (there >= 0) DEMAND(memcmp(entry, data + there * EL_TIME_ENTRY_SIZE, EL_TIME_ENTRY_SIZE) == 0);
    }
    free(data);
    return 0;
}
