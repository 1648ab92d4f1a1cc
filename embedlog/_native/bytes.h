/* Variable-length integers (format: zigzag, base 128) and columns of byte strings, for the record encoder and decoder. */
#ifndef EMBEDLOG_BYTES_H
#define EMBEDLOG_BYTES_H

#include "native.h"

#define VARINT_SIZE_MAX 5
#define VARLONG_SIZE_MAX 10

static inline uint64_t zigzag(int64_t x) { return ((uint64_t)x << 1) ^ (uint64_t)(x >> 63); }
static inline int64_t unzigzag(uint64_t x) { return (int64_t)((x >> 1) ^ (0 - (x & 1))); }

/* Bytes that the base-128 form of an unsigned number takes. */
static inline int uvarint_size(uint64_t x) {
    return (63 - __builtin_clzll(x | 1)) / 7 + 1;
}

static inline int varint_size(int64_t x) { return uvarint_size(zigzag(x)); }

static inline uint8_t *put_uvarint(uint8_t *to, uint64_t x) {
    while (x >= 0x80) {
        *to++ = (uint8_t)(x | 0x80);
        x >>= 7;
    }
    *to++ = (uint8_t)x;
    return to;
}

static inline uint8_t *put_varint(uint8_t *to, int64_t x) { return put_uvarint(to, zigzag(x)); }

/* Reads one number of at most `bytes_max` bytes before end; NULL if it is cut off or longer. */
static inline const uint8_t *get_uvarint(const uint8_t *at, const uint8_t *end, int bytes_max, uint64_t *out) {
    uint64_t x = 0;
    for (int i = 0; i < bytes_max; i++) {
        if (at + i >= end) return NULL;
        x |= (uint64_t)(at[i] & 0x7f) << (7 * i);
        if (at[i] < 0x80) {
            *out = x;
            return at + i + 1;
        }
    }
    return NULL;
}

/* A 32-bit zigzag number; most are one byte long. */
static inline const uint8_t *get_varint(const uint8_t *at, const uint8_t *end, int32_t *out) {
    uint64_t x;
    if (EL_LIKELY(at < end && *at < 0x80)) {
        *out = (int32_t)unzigzag(*at);
        return at + 1;
    }
    at = get_uvarint(at, end, VARINT_SIZE_MAX, &x);
    if (at) *out = (int32_t)unzigzag((uint32_t)x);
    return at;
}

static inline const uint8_t *get_varlong(const uint8_t *at, const uint8_t *end, int64_t *out) {
    uint64_t x;
    if (EL_LIKELY(at < end && *at < 0x80)) {
        *out = unzigzag(*at);
        return at + 1;
    }
    at = get_uvarint(at, end, VARLONG_SIZE_MAX, &x);
    if (at) *out = unzigzag(x);
    return at;
}

/* ---- Columns ------------------------------------------------------------------------------------------------- */

static inline int64_t bytes_offset(const el_bytes *column, int64_t row) {
    return column->offset_width == 8 ? ((const int64_t *)column->offsets)[row] : ((const int32_t *)column->offsets)[row];
}

static inline int bytes_is_null(const el_bytes *column, int64_t row) {
    if (!column->validity) return 0;
    int64_t bit = column->validity_offset + row;
    return !(column->validity[bit >> 3] >> (bit & 7) & 1);
}

#endif
