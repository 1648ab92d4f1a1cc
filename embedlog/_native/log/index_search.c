/* Floor search in the two index files, in memory and on a descriptor. */
#include "api/native.h"

_Static_assert(EL_INDEX_ENTRY_SIZE == 8, "i32 relative offset, i32 position");
_Static_assert(EL_TIME_ENTRY_SIZE == 12, "i64 timestamp, i32 relative offset");

/* ---- In memory ------------------------------------------------------------------------------- */

int64_t el_index_floor(const uint8_t *entries, int64_t count, int32_t target) {
    int64_t low = -1;
    int64_t high = count; /* entry low is <= target, entry high is greater */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if ((int32_t)load_be32(entries + middle * EL_INDEX_ENTRY_SIZE) <= target) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

int64_t el_time_floor(const uint8_t *entries, int64_t count, int64_t timestamp) {
    int64_t low = -1;
    int64_t high = count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if ((int64_t)load_be64(entries + middle * EL_TIME_ENTRY_SIZE) <= timestamp) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- On a descriptor ------------------------------------------------------------------------- */

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
    return search->entry_size == EL_INDEX_ENTRY_SIZE ? (int32_t)load_be32(entry)
                                                     : (int64_t)load_be64(entry);
}

static int64_t floor_in_memory(const el_search *search, const uint8_t *entries, int64_t count) {
    return search->entry_size == EL_INDEX_ENTRY_SIZE
               ? el_index_floor(entries, count, (int32_t)search->key)
               : el_time_floor(entries, count, search->key);
}

static int64_t read_key(int fd, const el_search *search, int64_t number, int64_t *key) {
    uint8_t entry[EL_TIME_ENTRY_SIZE];
    int64_t failure = read_all(fd, entry, search->entry_size, number * search->entry_size);
    *key = failure < 0 ? 0 : key_of(search, entry);
    return failure;
}

/* Keys rise evenly in most indexes: the number of the entry that the first and the last key
 * suggest. */
static int64_t suggested(int fd, int64_t count, const el_search *search, int64_t *number) {
    int64_t first = 0;
    int64_t last; /* offsets begin at 0 */
    int64_t failure = read_key(fd, search, count - 1, &last);
    if (failure == EL_OK && search->entry_size == EL_TIME_ENTRY_SIZE) {
        failure = read_key(fd, search, 0, &first);
    }
    if (failure < 0) {
        return failure;
    }
    if (search->key <= first || last <= first) {
        *number = 0;
    } else if (search->key >= last) {
        *number = count;
    } else {
        *number = (int64_t)(((double)search->key - (double)first) / ((double)last - (double)first) *
                            (double)count);
    }
    return EL_OK;
}

static int64_t floor_in_file(int fd, int64_t count, const el_search *search, uint8_t *entry) {
    uint8_t window[WINDOW_SIZE];
    const int64_t width = WINDOW_SIZE / search->entry_size;
    int64_t low = -1;
    int64_t high = count;
    int64_t first = 0;
    int64_t found;
    int64_t failure; /* entry `low` is <= the key, entry `high` is greater */
    if (count > 4 * width) {
        failure = suggested(fd, count, search, &first);
        if (failure < 0) {
            return failure;
        }
        first = first < width / 2           ? 0
                : first > count - width / 2 ? count - width
                                            : first - width / 2;
        failure = read_all(fd, window, width * search->entry_size, first * search->entry_size);
        if (failure < 0) {
            return failure;
        }
        found = floor_in_memory(search, window, width);
        if (found >= 0) {
            low = first + found;
        }
        if (found < width - 1) {
            high = first + found + 1;
        }
    }
    /* entry `low` is read again with the rest: its bytes may be the answer */
    while (high - (low < 0 ? 0 : low) > width) {
        int64_t key;
        int64_t middle = low + (high - low) / 2;
        failure = read_key(fd, search, middle, &key);
        if (failure < 0) {
            return failure;
        }
        if (key <= search->key) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (count > 4 * width && high - low == 1 && low >= first && low < first + width) {
        memcpy(entry, window + (low - first) * search->entry_size, (size_t)search->entry_size);
        return low;
    }
    first = low < 0 ? 0 : low;
    int64_t wanted = high - first;
    failure = read_all(fd, window, wanted * search->entry_size, first * search->entry_size);
    if (failure < 0) {
        return failure;
    }
    found = floor_in_memory(search, window, wanted);
    if (found < 0) {
        return -1;
    }
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
