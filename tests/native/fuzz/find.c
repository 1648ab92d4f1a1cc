/* The search of bytes in any buffer and any column, with and without regard to case. It finds the first occurrence and the rows that a
 * comparison of each place finds. */
#include "fuzz.h"

enum { NEEDLE_MAX = 100, ROWS_MAX = 8, COPIES = 4 };

static uint8_t small(uint8_t c) { return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c; }

static int64_t expected(const uint8_t *data, int64_t size, const uint8_t *needle, int64_t needle_size, int fold) {
    for (int64_t at = 0; at + needle_size <= size; at++) {
        int64_t same = 0;
        while (same < needle_size && (fold ? small(data[at + same]) : data[at + same]) == needle[same]) same++;
        if (same == needle_size) return at;
    }
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    int fold = take_byte(&in) & 1;
    size_t needle_size = 1 + take_byte(&in) % NEEDLE_MAX, from = take_raw(&in, 2);
    int32_t offsets[ROWS_MAX + 1];
    uint8_t found[ROWS_MAX] = {0};
    int64_t count = take_byte(&in) % ROWS_MAX;
    for (int64_t at = 0; at <= count; at++) offsets[at] = (int32_t)take_raw(&in, 2);
    size_t copies = in.size > 1000 ? COPIES : 1, total = in.size * copies; /* more than a piece that is searched in lower case */
    uint8_t *data = malloc(total + !total), *needle = malloc(needle_size);
    DEMAND(data && needle);
    for (size_t at = 0; at < total; at++) data[at] = in.data[at % in.size];
    for (size_t at = 0; at < needle_size; at++) needle[at] = total ? data[(from + at) % total] : (uint8_t)at;
    for (size_t at = 0; fold && at < needle_size; at++) needle[at] = small(needle[at]);
    DEMAND(el_find(data, total, needle, needle_size, fold) == expected(data, (int64_t)total, needle, (int64_t)needle_size, fold));
    int rising = 1;
    for (int64_t at = 0; at < count; at++) rising &= offsets[at] <= offsets[at + 1];
    int64_t rows = el_find_rows(data, total, offsets, count, needle, needle_size, fold, found);
    DEMAND((rows >= 0) == (rising && (size_t)offsets[count] <= total));
    for (int64_t at = 0; rows >= 0 && at < count; at++)
        DEMAND(found[at] == (expected(data + offsets[at], offsets[at + 1] - offsets[at], needle, (int64_t)needle_size, fold) >= 0));
    free(needle);
    free(data);
    return 0;
}
