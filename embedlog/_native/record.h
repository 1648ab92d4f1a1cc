/* One record of a records section, taken apart and checked. */
#ifndef EMBEDLOG_RECORD_H
#define EMBEDLOG_RECORD_H

#include "bytes.h"

typedef struct {
    int64_t timestamp_delta;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers; /* behind their count */
    const uint8_t *end;
    int32_t offset_delta;
    int32_t key_size;   /* -1: null */
    int32_t value_size; /* -1: null */
    int32_t header_count;
} el_record;

/* A length and as many bytes before end. Returns the byte behind them, or NULL with *what set. */
static inline const uint8_t *get_sized(const uint8_t *at, const uint8_t *end, const uint8_t **data, int32_t *size, int32_t *what) {
    *what = EL_BAD_VARINT;
    at = get_varint(at, end, size);
    if (EL_UNLIKELY(!at)) return NULL;
    *what = EL_BAD_LENGTH;
    if (EL_UNLIKELY(*size > end - at || *size < -1)) return NULL;
    *data = at;
    return at + (*size > 0 ? *size : 0);
}

/* Takes apart the record at `at` with every check, one by one; end is the end of the section. Returns EL_FINE, or what is wrong.
 * Headers are counted, not read. */
static inline int32_t get_any_record(const uint8_t *at, const uint8_t *end, el_record *record) {
    int32_t size, what;
    at = get_varint(at, end, &size);
    if (!at) return EL_BAD_VARINT;
    if (size < EL_RECORD_SIZE_MIN - 1 || size > end - at) return EL_BAD_RECORD_SIZE;
    record->end = end = at + size;
    at = get_varlong(at + 1, end, &record->timestamp_delta); /* one byte of attributes, unused */
    if (!at) return EL_BAD_VARINT;
    at = get_varint(at, end, &record->offset_delta);
    if (!at) return EL_BAD_VARINT;
    at = get_sized(at, end, &record->key, &record->key_size, &what);
    if (!at) return what;
    at = get_sized(at, end, &record->value, &record->value_size, &what);
    if (!at) return what;
    at = get_varint(at, end, &record->header_count);
    if (!at) return EL_BAD_VARINT;
    if (record->header_count < 0 || record->header_count > (end - at) / 2) return EL_BAD_HEADER_COUNT;
    record->headers = at;
    return record->header_count == 0 && at != end ? EL_BAD_RECORD_SIZE : EL_FINE;
}

/* Bytes that the fast path may read in front of the key, and behind a record's end, without looking: its numbers are short. */
#define FAST_ROOM 32
#define FAST_ROOM_BEHIND 3

/* The same for what nearly every record is: short numbers, no headers, not at the section's very end. 0: look again, closely. */
INLINE int get_plain_record(const uint8_t *at, const uint8_t *end, el_record *record) {
    uint32_t size, timestamp, offset, key, value;
    if (EL_UNLIKELY(end - at < FAST_ROOM)) return 0;
    GET_SHORT(at, size, 2, unusual);
    const uint8_t *behind = at + (size >> 1);
    if (EL_UNLIKELY(behind > end - FAST_ROOM_BEHIND)) return 0;
    at++; /* attributes: unused */
    GET_SHORT(at, timestamp, 1, unusual);
    GET_SHORT(at, offset, 2, unusual);
    record->key = NULL;
    record->key_size = -1;
    if (EL_LIKELY(*at == 1)) {
        at++;
    } else {
        GET_SHORT(at, key, 1, unusual);
        if (EL_UNLIKELY(key & 1)) return 0;
        record->key = at;
        record->key_size = (int32_t)(key >> 1);
        at += key >> 1;
        if (EL_UNLIKELY(at > behind)) return 0;
    }
    GET_SHORT(at, value, 2, unusual);
    record->value = at;
    at += value >> 1;
    /* No headers, nothing behind their count, and no negative number: a null value is rare enough. */
    if (EL_UNLIKELY(at + 1 != behind || *at != 0 || ((size | offset | value) & 1))) return 0;
    record->value_size = (int32_t)(value >> 1);
    record->end = behind;
    record->timestamp_delta = unzigzag(timestamp);
    record->offset_delta = (int32_t)(offset >> 1);
    record->header_count = 0;
    return 1;
unusual:
    return 0;
}

/* An end of INT64_MAX is no end: a timestamp may be as large. */
INLINE int in_window(const el_window *window, int64_t offset, int64_t timestamp) {
    if (offset < window->start_offset || offset >= window->end_offset || timestamp < window->start_ms) return 0;
    return timestamp < window->end_ms || window->end_ms == INT64_MAX;
}

#endif
