/* Compaction of batches: removes the records that a later one replaced (format.md 7.4 to 7.6).
 *
 * - A batch that loses no record is copied byte for byte. Otherwise base offset, last offset delta
 *   and producer fields are kept, and the remaining records keep their bytes.
 * - Only a new delete horizon changes records: it becomes the base timestamp, and every delta is
 *   relative to it.
 * - `out` is never written beyond its capacity: a batch grows at most by what a new delete horizon
 *   can add to each of its records.
 * - Records are copied during the walk that selects them, neighbours in one copy; only a new delete
 *   horizon needs a second walk. */
#include "codec/offset_map.h"

#define HORIZON_BIT 0x40
#define GROWTH_OF_RECORD 11 /* the longest timestamp delta, and its effect on the length field */

typedef struct {
    int32_t kept, tombstones;
    int64_t newest; /* largest timestamp of the kept records */
} el_selected;

/* Upper bound of the new size. The walk rejects a batch that declares more records than it can
 * hold. */
static int64_t size_most(const el_batch *batch) {
    int64_t records = (batch->size - EL_HEADER_SIZE) / EL_RECORD_SIZE_MIN;
    if (batch->records < records) {
        records = batch->records > 0 ? batch->records : 0;
    }
    return batch->size + records * GROWTH_OF_RECORD;
}

INLINE int64_t horizon_of(const el_batch *batch) {
    return batch->attributes & HORIZON_BIT ? batch->base_timestamp : -1;
}

INLINE int stays(const el_cleaner *cleaner, const el_batch *batch, const el_keyed *keyed,
                 uint8_t order) {
    const el_wire_record *record = &keyed->record;
    if (order & EL_ORDER_DISCARD) {
        return 0;
    }
    if (order & EL_ORDER_WHOLE) {
        return 1;
    }
    int64_t offset = batch->base_offset + record->offset_delta;
    if (offset > cleaner->map->latest) {
        return 1;
    }
    if (record->key_size < 0) {
        return 0;
    }
    if (offset < el_map_latest(cleaner->map, keyed->hash)) {
        return 0;
    }
    return record->value_size >= 0 || horizon_of(batch) < 0 || cleaner->now_ms < horizon_of(batch);
}

INLINE int64_t timestamp_in(const el_batch *batch, const el_wire_record *record) {
    if (batch->attributes & LOG_APPEND_TIME) {
        return batch->max_timestamp;
    }
    return (int64_t)((uint64_t)batch->base_timestamp + (uint64_t)record->timestamp_delta);
}

/* Writes a record with its timestamp relative to another base; the rest of the record is
 * unchanged. */
static uint8_t *put_moved(uint8_t *to, const uint8_t *at, const el_wire_record *record,
                          int64_t delta) {
    int32_t size;
    int64_t old;
    const uint8_t *attributes = get_varint(at, record->end, &size);
    const uint8_t *after = get_varlong(attributes + 1, record->end, &old);
    int64_t rest = record->end - after;
    to = put_length(to, 1 + varint_size(delta) + rest);
    *to++ = *attributes;
    to = put_small(to, delta);
    memcpy(to, after, (size_t)rest);
    return to + rest;
}

/* Kept records that lie one after the other, and are not copied yet. */
typedef struct {
    const uint8_t *from, *end;
} el_kept_run;

INLINE uint8_t *put_kept(uint8_t *to, const el_kept_run *run) {
    size_t size = (size_t)(run->end - run->from);
    memcpy(to, run->from, size);
    return to + size;
}

/* Walks the records and writes the kept ones to `*to`, relative to new_base if it differs from the
 * batch's own. */
static int keep_records(const el_cleaner *cleaner, const el_batch *batch, uint8_t order,
                        const uint8_t *body, int64_t body_size, int64_t new_base, uint8_t **to,
                        el_selected *verdict, el_problem *problem) {
    el_walk walk;
    el_block block;
    el_kept_run run = {body, body};
    *verdict = (el_selected){.newest = -1};
    int32_t what = walk_begin(&walk, batch, body, body_size);
    if (what) {
        return walk_fail(problem, walk, what);
    }
    while (walk.taken < walk.records) {
        what = el_block_take(&block, cleaner->map, &walk);
        if (what) {
            return walk_fail(problem, walk, what);
        }
        for (int32_t i = 0; i < block.count; i++) {
            const el_keyed *keyed = &block.records[i];
            if (!stays(cleaner, batch, keyed, order)) {
                continue;
            }
            int64_t timestamp = timestamp_in(batch, &keyed->record);
            verdict->kept++;
            verdict->tombstones += keyed->record.value_size < 0;
            if (timestamp > verdict->newest) {
                verdict->newest = timestamp;
            }
            if (new_base != batch->base_timestamp) {
                *to = put_moved(*to, keyed->at, &keyed->record,
                                (int64_t)((uint64_t)timestamp - (uint64_t)new_base));
            } else if (keyed->at == run.end) {
                run.end = keyed->record.end;
            } else {
                *to = put_kept(*to, &run);
                run = (el_kept_run){keyed->at, keyed->record.end};
            }
        }
    }
    *to = put_kept(*to, &run);
    what = walk_end(&walk);
    return what ? walk_fail(problem, walk, what) : EL_OK;
}

static void seal_as(uint8_t *out, el_batch *batch, int64_t size) {
    batch->size = (int32_t)size;
    el_header_seal(out, batch);
    batch->crc = load_be32(out + CRC_AT);
}

static void seal_empty(uint8_t *out, el_batch *batch) {
    batch->base_timestamp = -1;
    batch->attributes &= (int16_t)~(HORIZON_BIT | CODEC_MASK);
    seal_as(out, batch, EL_HEADER_SIZE);
}

/* Compacts one batch; returns its new size, 0 if it is removed. REQUIRES: memory for its growth in
 * out. */
static int64_t clean_batch(const el_cleaner *cleaner, const uint8_t *at, uint8_t order,
                           uint8_t *out, el_batch *batch, el_problem *problem) {
    const uint8_t *body = at + EL_HEADER_SIZE;
    int64_t body_size = batch->size - EL_HEADER_SIZE;
    uint8_t *to = out + EL_HEADER_SIZE;
    el_selected verdict;
    if (keep_records(cleaner, batch, order, body, body_size, batch->base_timestamp, &to, &verdict,
                     problem)) {
        return EL_ECORRUPT;
    }
    if (verdict.kept == 0) {
        batch->records = 0;
        if (!(order & EL_ORDER_KEEP_EMPTY)) {
            return 0;
        }
        seal_empty(out, batch);
        return EL_HEADER_SIZE;
    }
    int sets = horizon_of(batch) < 0 && (verdict.tombstones > 0 || (order & EL_ORDER_HORIZON)) &&
               cleaner->horizon_ms >= 0 && size_most(batch) <= INT32_MAX;
    if (verdict.kept == batch->records && !sets) {
        memcpy(out, at, EL_HEADER_SIZE); /* its records are there */
        return batch->size;
    }
    if (sets) {
        to = out + EL_HEADER_SIZE;
        if (keep_records(cleaner, batch, order, body, body_size, cleaner->horizon_ms, &to, &verdict,
                         problem)) {
            return EL_ECORRUPT;
        }
        batch->base_timestamp = cleaner->horizon_ms;
        batch->attributes |= HORIZON_BIT;
    }
    if (!(batch->attributes & LOG_APPEND_TIME)) {
        batch->max_timestamp = verdict.newest;
    }
    batch->records = verdict.kept;
    seal_as(out, batch, to - out);
    return to - out;
}

int64_t el_clean_run(const el_cleaner *cleaner, const uint8_t *data, int64_t size, int64_t base,
                     const el_batch *batches, const uint8_t *orders, int64_t batch_count,
                     uint8_t *out, int64_t capacity, el_batch *cleaned, int64_t *done,
                     el_problem *problem) {
    int64_t written = 0;
    if (!el_map_usable(cleaner->map)) {
        return EL_EINVALID;
    }
    for (*done = 0; *done < batch_count; ++*done) {
        const el_batch *batch = &batches[*done];
        const uint8_t *at = el_plain_batch(batch, data, size, base);
        if (!at) {
            return EL_EINVALID;
        }
        int64_t most = size_most(batch);
        if (most > capacity - written) {
            return written > 0 ? written : EL_ESPACE;
        }
        cleaned[*done] = *batch;
        int64_t now =
            clean_batch(cleaner, at, orders[*done], out + written, &cleaned[*done], problem);
        if (now < 0) {
            return now;
        }
        cleaned[*done].position = written;
        cleaned[*done].size = (int32_t)now;
        written += now;
    }
    return written;
}
