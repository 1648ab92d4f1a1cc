/* Parses and checks the records of a batch: the only walk over a records section.
 *
 * - A length is compared with the available bytes before it is used.
 * - Offset deltas increase within a batch, and the records fill their section exactly, as Kafka
 *   requires: surplus bytes are as wrong as missing ones.
 * - Every walk uses the functions below from its start to its end, so that all walks reject the
 *   same bytes. */
#ifndef EMBEDLOG_RECORD_H
#define EMBEDLOG_RECORD_H

#include "codec/batch.h"
#include "codec/varint.h"

typedef struct {
    int64_t timestamp_delta;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers; /* after their count */
    const uint8_t *end;
    int32_t offset_delta;
    int32_t key_size;   /* -1: null */
    int32_t value_size; /* -1: null */
    int32_t header_count;
    int64_t header_key_size; /* of all headers; set only if there are any */
    int64_t header_value_size;
} el_wire_record;

/* Reads a length and as many bytes before end. Returns the byte after them, or NULL with *what
 * set. */
static inline const uint8_t *get_sized(const uint8_t *at, const uint8_t *end, const uint8_t **data,
                                       int32_t *size, int32_t *what) {
    *what = EL_BAD_VARINT;
    at = get_varint(at, end, size);
    if (EL_UNLIKELY(!at)) {
        return NULL;
    }
    *what = EL_BAD_LENGTH;
    if (EL_UNLIKELY(*size > end - at || *size < -1)) {
        return NULL;
    }
    *data = at;
    return at + (*size > 0 ? *size : 0);
}

/* Parses the record at `at` without its headers; end is the end of the section. Returns EL_FINE, or
 * the error. */
static inline int32_t get_any_record(const uint8_t *at, const uint8_t *end,
                                     el_wire_record *record) {
    int32_t size, what;
    at = get_varint(at, end, &size);
    if (!at) {
        return EL_BAD_VARINT;
    }
    if (size < EL_RECORD_SIZE_MIN - 1 || size > end - at) {
        return EL_BAD_RECORD_SIZE;
    }
    record->end = end = at + size;
    at = get_varlong(at + 1, end, &record->timestamp_delta); /* one byte of attributes, unused */
    if (!at) {
        return EL_BAD_VARINT;
    }
    at = get_varint(at, end, &record->offset_delta);
    if (!at) {
        return EL_BAD_VARINT;
    }
    at = get_sized(at, end, &record->key, &record->key_size, &what);
    if (!at) {
        return what;
    }
    at = get_sized(at, end, &record->value, &record->value_size, &what);
    if (!at) {
        return what;
    }
    at = get_varint(at, end, &record->header_count);
    if (!at) {
        return EL_BAD_VARINT;
    }
    if (record->header_count < 0 || record->header_count > (end - at) / 2) {
        return EL_BAD_HEADER_COUNT;
    }
    record->headers = at;
    return record->header_count == 0 && at != end ? EL_BAD_RECORD_SIZE : EL_FINE;
}

/* Reads one header of a record: its key is never null. Returns the byte after it, or NULL with
 * *what set. */
static inline const uint8_t *get_header(const uint8_t *at, const uint8_t *end, const uint8_t **name,
                                        int32_t *name_size, const uint8_t **value,
                                        int32_t *value_size, int32_t *what) {
    at = get_sized(at, end, name, name_size, what);
    if (!at) {
        return NULL;
    }
    *what = EL_BAD_LENGTH;
    return *name_size < 0 ? NULL : get_sized(at, end, value, value_size, what);
}

/* Walks the headers of a record and adds up their sizes. Returns EL_FINE, or the error. */
static inline int32_t measure_headers(el_wire_record *record) {
    const uint8_t *at = record->headers;
    const uint8_t *name;
    const uint8_t *value;
    record->header_key_size = record->header_value_size = 0;
    for (int32_t i = 0; i < record->header_count; i++) {
        int32_t name_size, value_size, what;
        at = get_header(at, record->end, &name, &name_size, &value, &value_size, &what);
        if (!at) {
            return what;
        }
        record->header_key_size += name_size;
        record->header_value_size += value_size > 0 ? value_size : 0;
    }
    return at == record->end ? EL_FINE : EL_BAD_RECORD_SIZE;
}

static __attribute__((noinline, unused)) int32_t get_closely(const uint8_t *at, const uint8_t *end,
                                                             el_wire_record *record, int measured) {
    int32_t what = get_any_record(at, end, record);
    return what || !measured || record->header_count == 0 ? what : measure_headers(record);
}

/* Bytes that the fast path may read before the key, and after the end of a record, without a check:
 * its numbers are short. */
#define FAST_ROOM 32
#define FAST_ROOM_BEHIND 3

/* The same for nearly every record: short numbers, no headers, not at the end of the section. 0:
 * use the complete parser. */
INLINE int get_plain_record(const uint8_t *at, const uint8_t *end, el_wire_record *record) {
    uint32_t size, timestamp, offset, key, value;
    if (EL_UNLIKELY(end - at < FAST_ROOM)) {
        return 0;
    }
    GET_SHORT(at, size, 2, unusual);
    if (EL_UNLIKELY((int64_t)(size >> 1) > end - at - FAST_ROOM_BEHIND)) {
        return 0;
    }
    const uint8_t *record_end = at + (size >> 1);
    at++; /* attributes: unused */
    GET_SHORT(at, timestamp, 1, unusual);
    GET_SHORT(at, offset, 2, unusual);
    record->key = NULL;
    record->key_size = -1;
    if (EL_LIKELY(*at == 1)) {
        at++;
    } else {
        GET_SHORT(at, key, 1, unusual);
        if (EL_UNLIKELY(key & 1)) {
            return 0;
        }
        record->key = at;
        record->key_size = (int32_t)(key >> 1);
        if (EL_UNLIKELY((int64_t)(key >> 1) > record_end - at)) {
            return 0;
        }
        at += key >> 1;
    }
    GET_SHORT(at, value, 2, unusual);
    record->value = at;
    /* No headers, no bytes after their count, and no negative number: null values are rare. */
    if (EL_UNLIKELY((int64_t)(value >> 1) != record_end - at - 1 || record_end[-1] != 0 ||
                    ((size | offset | value) & 1))) {
        return 0;
    }
    record->value_size = (int32_t)(value >> 1);
    record->end = record_end;
    record->timestamp_delta = unzigzag(timestamp);
    record->offset_delta = (int32_t)(offset >> 1);
    record->header_count = 0;
    return 1;
unusual:
    return 0;
}

/* ---- The walk -------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *body, *at, *end;
    int32_t records;  /* declared in the batch header */
    int32_t taken;    /* number of parsed records */
    int32_t previous; /* offset delta of the previous record, -1 */
    int32_t last_delta;
    int32_t bad_delta; /* the delta of EL_BAD_DELTA */
} el_walk;

/* Returns EL_FINE, or the contradiction between header and section. */
static inline int32_t walk_begin(el_walk *walk, const el_batch *batch, const uint8_t *body,
                                 int64_t body_size) {
    *walk =
        (el_walk){body, body, body + body_size, batch->records, 0, -1, batch->last_offset_delta, 0};
    if (!offsets_fit(batch->base_offset, batch->last_offset_delta, -1)) {
        return EL_BAD_RANGE;
    }
    return batch->records < 0 || batch->records > body_size / EL_RECORD_SIZE_MIN ? EL_BAD_COUNT
                                                                                 : EL_FINE;
}

/* headers of a record: checked and measured here, or read one by one by the caller */
enum { EL_MEASURED = 1, EL_LEFT = 0 };

/* The next record, or its error: then the walk stays before it. REQUIRES: taken < records. Only
 * inlined functions get the walk, so that a loop keeps it in registers. */
INLINE int32_t walk_next(el_walk *walk, el_wire_record *record, const int headers) {
    if (EL_UNLIKELY(!get_plain_record(walk->at, walk->end, record))) {
        el_wire_record closely;
        int32_t what = get_closely(walk->at, walk->end, &closely, headers);
        if (what) {
            return what;
        }
        *record = closely;
    }
    if (EL_UNLIKELY(record->offset_delta <= walk->previous ||
                    record->offset_delta > walk->last_delta)) {
        walk->bad_delta = record->offset_delta;
        return EL_BAD_DELTA;
    }
    walk->previous = record->offset_delta;
    walk->at = record->end;
    walk->taken++;
    return EL_FINE;
}

/* After the last record. A batch that compaction emptied may contain any bytes: Kafka does not
 * check them. */
INLINE int32_t walk_end(const el_walk *walk) {
    return walk->records > 0 && walk->at != walk->end ? EL_SURPLUS : EL_FINE;
}

/* The error of a walk, for a message. By value, so that the caller's walk may stay in registers. */
static inline int walk_fail(el_problem *problem, el_walk walk, int32_t what) {
    *problem = (el_problem){.position = walk.at - walk.body, .what = what, .record = walk.taken};
    if (what == EL_BAD_COUNT || what == EL_BAD_RANGE || what == EL_SURPLUS) {
        problem->record = -1;
    }
    if (what == EL_BAD_COUNT) {
        problem->expected = (walk.end - walk.body) / EL_RECORD_SIZE_MIN,
        problem->found = walk.records;
    }
    if (what == EL_SURPLUS) {
        problem->found = walk.end - walk.at;
    }
    if (what == EL_BAD_DELTA) {
        problem->expected = walk.last_delta, problem->found = walk.bad_delta;
    }
    return EL_ECORRUPT;
}

/* An end of INT64_MAX is unlimited: a timestamp may be as large. */
INLINE int in_window(const el_window *window, int64_t offset, int64_t timestamp) {
    if (offset < window->start_offset || offset >= window->end_offset ||
        timestamp < window->start_ms) {
        return 0;
    }
    return timestamp < window->end_ms || window->end_ms == INT64_MAX;
}

#endif
