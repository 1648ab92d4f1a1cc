/* Search of a byte string: memmem over whole buffers, and the rows of a column that an occurrence
 * is in.
 *
 * - Without regard to case, a piece of the data is copied in lower case to the stack: the caller's
 *   bytes are not changed.
 * - An occurrence that crosses the end of a row is none: the search continues one byte after its
 *   start. */
#include "api/native.h"

enum { FOLDED_SIZE = 4096 };

static uint8_t lower(uint8_t c) { return (uint8_t)(c - 'A') < 26 ? (uint8_t)(c | 0x20) : c; }

static int64_t find_exact(const uint8_t *data, size_t size, const uint8_t *needle,
                          size_t needle_size) {
    const uint8_t *at = memmem(data, size, needle, needle_size);
    return at == NULL ? -1 : (int64_t)(at - data);
}

/* Whether the needle is at this place, in any case. */
static int is_folded_at(const uint8_t *data, const uint8_t *needle, size_t needle_size) {
    for (size_t i = 0; i < needle_size; i++) {
        if (lower(data[i]) != needle[i]) {
            return 0;
        }
    }
    return 1;
}

/* A needle of any size: pieces are searched for its first bytes, and the rest is compared in
 * place. */
static int64_t find_folded(const uint8_t *data, size_t size, const uint8_t *needle,
                           size_t needle_size) {
    uint8_t piece[FOLDED_SIZE];
    size_t head = needle_size < 64 ? needle_size : 64;
    size_t start = 0;
    while (size - start >= needle_size) {
        size_t taken = size - start < FOLDED_SIZE ? size - start : FOLDED_SIZE;
        size_t from = 0;
        for (size_t i = 0; i < taken; i++) {
            piece[i] = lower(data[start + i]);
        }
        while (taken - from >= head) {
            int64_t at = find_exact(piece + from, taken - from, needle, head);
            if (at < 0) {
                break;
            }
            size_t place = start + from + (size_t)at;
            if (size - place < needle_size) {
                return -1;
            }
            if (is_folded_at(data + place + head, needle + head, needle_size - head)) {
                return (int64_t)place;
            }
            from += (size_t)at + 1;
        }
        if (taken < FOLDED_SIZE) {
            return -1;
        }
        start += taken - (head - 1);
    }
    return -1;
}

int64_t el_find(const uint8_t *data, size_t size, const uint8_t *needle, size_t needle_size,
                int fold) {
    if (size < needle_size) {
        return -1;
    }
    return fold ? find_folded(data, size, needle, needle_size)
                : find_exact(data, size, needle, needle_size);
}

static int is_column(const int32_t *offsets, int64_t count, size_t size) {
    int32_t before = load_i32(offsets);
    if (before < 0) {
        return 0;
    }
    for (int64_t row = 1; row <= count; row++) {
        int32_t next = load_i32(offsets + row);
        if (next < before) {
            return 0;
        }
        before = next;
    }
    return (size_t)before <= size;
}

int64_t el_find_rows(const uint8_t *data, size_t size, const int32_t *offsets, int64_t count,
                     const uint8_t *needle, size_t needle_size, int fold, uint8_t *found) {
    if (count < 0 || needle_size == 0 || !is_column(offsets, count, size)) {
        return EL_EINVALID;
    }
    int64_t place = offsets[0];
    int64_t end = offsets[count];
    int64_t row = 0;
    int64_t rows = 0;
    while (place < end) {
        int64_t at = el_find(data + place, (size_t)(end - place), needle, needle_size, fold);
        if (at < 0) {
            break;
        }
        place += at;
        while (offsets[row + 1] <= place) {
            row++;
        }
        if (place + (int64_t)needle_size <= offsets[row + 1]) {
            found[row] = 1;
            rows++;
            place = offsets[row + 1];
        } else {
            place++;
        }
    }
    return rows;
}
