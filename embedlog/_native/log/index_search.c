/* Floor search in the two index files, in memory and on a descriptor. */
#include "api/native.h"

_Static_assert(EL_INDEX_ENTRY_SIZE == 8, "i32 relative offset, i32 position");
_Static_assert(EL_TIME_ENTRY_SIZE == 12, "i64 timestamp, i32 relative offset");

/* ---- In memory ----------------------------------------------------------------------------------------------- */

int64_t el_index_floor(const uint8_t *entries, int64_t count, int32_t target) {
    int64_t low = -1, high = count; /* entry low is <= target, entry high is greater */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if ((int32_t)load_be32(entries + middle * EL_INDEX_ENTRY_SIZE) <= target) low = middle;
        else high = middle;
    }
    return low;
}

int64_t el_time_floor(const uint8_t *entries, int64_t count, int64_t timestamp) {
    int64_t low = -1, high = count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if ((int64_t)load_be64(entries + middle * EL_TIME_ENTRY_SIZE) <= timestamp) low = middle;
        else high = middle;
    }
    return low;
}

/* ---- On a descriptor ----------------------------------------------------------------------------------------- */

/* At least 340 entries of either kind: the last steps of the search need no further system call. */
#define WINDOW_SIZE 4080
_Static_assert(WINDOW_SIZE % 24 == 0, "whole entries of both kinds");

static int64_t read_all(int fd, uint8_t *to, int64_t size, int64_t position) {
    int64_t got = el_pread(fd, to, size, position);
    return got < 0 ? got : got < size ? EL_EMORE : EL_OK;
}

typedef struct {
    int64_t key;
    int entry_size;
} el_search;

static int64_t key_of(const el_search *search, const uint8_t *entry) {
    return search->entry_size == EL_INDEX_ENTRY_SIZE ? (int32_t)load_be32(entry) : (int64_t)load_be64(entry);
}

static int64_t floor_in_memory(const el_search *search, const uint8_t *entries, int64_t count) {
    return search->entry_size == EL_INDEX_ENTRY_SIZE ? el_index_floor(entries, count, (int32_t)search->key)
                                                     : el_time_floor(entries, count, search->key);
}

static int64_t floor_in_file(int fd, int64_t count, const el_search *search, uint8_t *entry) {
    uint8_t window[WINDOW_SIZE];
    int64_t low = -1, high = count, failure;
    while (high - low - 1 > WINDOW_SIZE / search->entry_size) {
        int64_t middle = low + (high - low) / 2;
        failure = read_all(fd, window, search->entry_size, middle * search->entry_size);
        if (failure < 0) return failure;
        if (key_of(search, window) <= search->key) low = middle;
        else high = middle;
    }
    /* The window includes entry `low`, so that its bytes can be returned. */
    int64_t first = low < 0 ? 0 : low;
    if (high - first > WINDOW_SIZE / search->entry_size) high--;
    int64_t wanted = high - first;
    failure = read_all(fd, window, wanted * search->entry_size, first * search->entry_size);
    if (failure < 0) return failure;
    int64_t found = floor_in_memory(search, window, wanted);
    if (found < 0) return -1;
    memcpy(entry, window + found * search->entry_size, (size_t)search->entry_size);
    return first + found;
}

int64_t el_index_floor_file(int fd, int64_t count, int32_t target, uint8_t *entry) {
    const el_search search = {target, EL_INDEX_ENTRY_SIZE};
    return count <= 0 ? -1 : floor_in_file(fd, count, &search, entry);
}

int64_t el_time_floor_file(int fd, int64_t count, int64_t timestamp, uint8_t *entry) {
    const el_search search = {timestamp, EL_TIME_ENTRY_SIZE};
    return count <= 0 ? -1 : floor_in_file(fd, count, &search, entry);
}
