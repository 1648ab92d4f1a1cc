/* The bytes of one record: variable-length integers, sizes, writing. */
#ifndef EL_ROWS_ITEM_H
#define EL_ROWS_ITEM_H

#include "rows.h"

static inline uint64_t el_zigzag(int64_t number) { return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63); }

/* Bytes of a varint or varlong: 1 to 10. */
static inline int el_varint_size(int64_t number) {
    uint64_t bits = el_zigzag(number) | 1;
    return (70 - __builtin_clzll(bits)) / 7;
}

static inline uint8_t *el_varint_write(uint8_t *out, int64_t number) {
    uint64_t rest = el_zigzag(number);
    for (; rest >= 0x80; rest >>= 7) *out++ = (uint8_t)(rest | 0x80);
    *out++ = (uint8_t)rest;
    return out;
}

/* Size of the record behind its length field. */
int64_t el_item_size(const el_item *item, int64_t timestamp_delta, int32_t offset_delta);

/* Writes length field and record; returns the byte behind it. REQUIRES: room, and size = el_item_size(...). */
uint8_t *el_item_write(const el_item *item, int64_t size, int64_t timestamp_delta, int32_t offset_delta, uint8_t *out);

#endif
