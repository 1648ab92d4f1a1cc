/* Variable-length integers (format.md 1.2) and columns of byte strings, for the record encoder and
 * decoder. */
#ifndef EMBEDLOG_VARINT_H
#define EMBEDLOG_VARINT_H

#include "api/native.h"

#define VARINT_SIZE_MAX 5
#define VARLONG_SIZE_MAX 10
#define COPY_SHORT 512

#define INLINE static inline __attribute__((always_inline))

INLINE uint64_t zigzag(int64_t x) { return ((uint64_t)x << 1) ^ (uint64_t)(x >> 63); }
INLINE int64_t unzigzag(uint64_t x) { return (int64_t)((x >> 1) ^ (0 - (x & 1))); }

/* Size of the base-128 form of an unsigned number: one byte for every 7 bits. (9 b + 73) / 64 is
 * that for bits 0 .. 63. */
INLINE int uvarint_size(uint64_t x) {
    if (x < 1u << 14) {
        return 1 + (x >= 1u << 7);
    }
    return ((63 - __builtin_clzll(x)) * 9 + 73) >> 6;
}

INLINE int varint_size(int64_t x) { return uvarint_size(zigzag(x)); }

/* Numbers are written and read by predictable branches, so that the position of the next field
 * waits for no arithmetic. `typical` is the size of most of them: its code is the straight path. */
INLINE uint8_t *put_uvarint(uint8_t *to, uint64_t x, const int typical) {
    if (__builtin_expect(x < 1u << 7, typical == 1)) {
        to[0] = (uint8_t)x;
        return to + 1;
    }
    if (EL_LIKELY(x < 1u << 14)) {
        to[0] = (uint8_t)(x | 0x80);
        to[1] = (uint8_t)(x >> 7);
        return to + 2;
    }
    while (x >= 0x80) {
        *to++ = (uint8_t)(x | 0x80);
        x >>= 7;
    }
    *to++ = (uint8_t)x;
    return to;
}

/* For numbers that are mostly small, and for lengths and offsets. */
INLINE uint8_t *put_small(uint8_t *to, int64_t x) { return put_uvarint(to, zigzag(x), 1); }
INLINE uint8_t *put_length(uint8_t *to, int64_t x) { return put_uvarint(to, zigzag(x), 2); }

/* Reads one number of at most `bytes_max` bytes before end; NULL if it is cut off or longer. */
static inline const uint8_t *get_uvarint(const uint8_t *at, const uint8_t *end, int bytes_max,
                                         uint64_t *out) {
    uint64_t x = 0;
    for (int i = 0; i < bytes_max; i++) {
        if (at + i >= end) {
            return NULL;
        }
        x |= (uint64_t)(at[i] & 0x7f) << (7 * i);
        if (at[i] < 0x80) {
            *out = x;
            return at + i + 1;
        }
    }
    return NULL;
}

static inline const uint8_t *get_varint(const uint8_t *at, const uint8_t *end, int32_t *out) {
    uint64_t x;
    at = get_uvarint(at, end, VARINT_SIZE_MAX, &x);
    if (at) {
        *out = (int32_t)unzigzag((uint32_t)x);
    }
    return at;
}

static inline const uint8_t *get_varlong(const uint8_t *at, const uint8_t *end, int64_t *out) {
    uint64_t x;
    at = get_uvarint(at, end, VARLONG_SIZE_MAX, &x);
    if (at) {
        *out = unzigzag(x);
    }
    return at;
}

/* Reads a number of one to three bytes into `out` and advances `at`; a longer one jumps to
 * `otherwise`. All three bytes must be readable. The result is still in zigzag form. A macro: the
 * predictable branches remain separate, and nothing is tested twice. */
#define GET_SHORT(at, out, typical, otherwise)                                                     \
    do {                                                                                           \
        (out) = (at)[0];                                                                           \
        if (__builtin_expect((out) < 0x80, (typical) == 1)) {                                      \
            (at) += 1;                                                                             \
        } else if (EL_LIKELY((at)[1] < 0x80)) {                                                    \
            (out) = ((out) & 0x7f) | (uint32_t)(at)[1] << 7;                                       \
            (at) += 2;                                                                             \
        } else if ((at)[2] < 0x80) {                                                               \
            (out) = ((out) & 0x7f) | ((at)[1] & 0x7fu) << 7 | (uint32_t)(at)[2] << 14;             \
            (at) += 3;                                                                             \
        } else {                                                                                   \
            goto otherwise;                                                                        \
        }                                                                                          \
    } while (0)

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Most values are short, and a call of memcpy costs as much as the copy. So 64 bytes are copied per
 * step, overrunning by up to 63 where both sides have enough bytes. `to` may be before `from` in
 * one buffer, at least 64 bytes away: bytes are read before they are overwritten. */
INLINE void copy_bytes(uint8_t *to, const uint8_t *to_end, const uint8_t *from,
                       const uint8_t *from_end, int64_t size) {
    int64_t rounded = (size + 63) & ~(int64_t)63;
    if (EL_LIKELY(size <= COPY_SHORT && rounded <= from_end - from && rounded <= to_end - to)) {
        for (const uint8_t *end = from + rounded; from < end; from += 64, to += 64) {
            memcpy(to, from, 64);
        }
    } else {
        memmove(to, from, (size_t)size);
    }
}

/* ---- Columns --------------------------------------------------------------------------------- */

/* Offset `row` of a column; `width` is 4 or 8. */
INLINE int64_t offset_at(const void *offsets, int64_t row, int width) {
    return width == 8 ? load_i64((const char *)offsets + 8 * row)
                      : load_i32((const char *)offsets + 4 * row);
}

static inline int64_t bytes_offset(const el_bytes *column, int64_t row) {
    return offset_at(column->offsets, row, column->offset_width);
}

static inline int bytes_is_null(const el_bytes *column, int64_t row) {
    if (!column->validity) {
        return 0;
    }
    int64_t bit = column->validity_offset + row;
    return !(column->validity[bit >> 3] >> (bit & 7) & 1);
}

#endif
