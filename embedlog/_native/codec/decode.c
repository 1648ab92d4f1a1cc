/* Decodes record batches to columns.
 *
 * - Records are read only by the walk of record.h: a rejected record is in no column.
 * - Memory for all that a batch can contain is checked before its first record is written.
 * - A clear validity bit means null; bitmaps are set to ones beforehand, since nulls are rare. */
#include "codec/record.h"

/* ---- One record into the columns ------------------------------------------------------------- */

/* REQUIRES: memory in data for all bytes from `from` to `end`, the end of the section. */
INLINE void put_bytes(int32_t *offsets, uint8_t *data, uint8_t *validity, int64_t row,
                      const uint8_t *from, int32_t size, const uint8_t *end, int64_t *total,
                      int64_t *nulls) {
    if (EL_UNLIKELY(size < 0)) {
        validity[row >> 3] &= (uint8_t)~(1u << (row & 7));
        ++*nulls;
    } else {
        copy_bytes(data + *total, data + *total + (end - from), from, end, size);
        *total += size;
    }
    offsets[row + 1] = (int32_t)*total;
}

INLINE void put_record(el_columns *out, const el_wire_record *record, int64_t offset,
                       int64_t timestamp, const uint8_t *end) {
    int64_t row = out->count++;
    if (out->offsets) {
        out->offsets[row] = offset;
    }
    if (out->timestamps) {
        out->timestamps[row] = timestamp;
    }
    if (out->key_offsets) {
        put_bytes(out->key_offsets, out->key_data, out->key_validity, row, record->key,
                  record->key_size, end, &out->key_size, &out->key_nulls);
    }
    if (out->value_offsets) {
        put_bytes(out->value_offsets, out->value_data, out->value_validity, row, record->value,
                  record->value_size, end, &out->value_size, &out->value_nulls);
    }
}

/* ---- One batch ------------------------------------------------------------------------------- */

/* Properties of the batch, and whether one of its records can be outside the window. */
typedef struct {
    int64_t base_offset;
    int64_t base_timestamp; /* LogAppendTime: the timestamp of every record */
    uint64_t delta_mask;    /* 0 under LogAppendTime: deltas are ignored */
    int filtered;
} el_rules;

/* REQUIRES: walk_begin has accepted the batch's offsets. */
static el_rules rules_of(const el_batch *batch, const el_window *window) {
    el_rules rules = {.base_offset = batch->base_offset};
    int append_time = (batch->attributes & LOG_APPEND_TIME) != 0;
    rules.base_timestamp = append_time ? batch->max_timestamp : batch->base_timestamp;
    rules.delta_mask = append_time ? 0 : UINT64_MAX;
    rules.filtered = batch->base_offset < window->start_offset ||
                     window->end_offset <= batch->base_offset + batch->last_offset_delta ||
                     window->start_ms != INT64_MIN || window->end_ms != INT64_MAX;
    return rules;
}

INLINE int64_t timestamp_of(const el_rules *rules, const el_wire_record *record) {
    return (int64_t)((uint64_t)rules->base_timestamp +
                     ((uint64_t)record->timestamp_delta & rules->delta_mask));
}

static void fill_constants(el_columns *out, const el_batch *batch, int64_t from) {
    if (out->timestamp_types) {
        memset(out->timestamp_types + from, (batch->attributes & LOG_APPEND_TIME) != 0,
               (size_t)(out->count - from));
    }
    if (out->leader_epochs) {
        for (int64_t row = from; row < out->count; row++) {
            out->leader_epochs[row] = batch->leader_epoch;
        }
    }
}

/* Checks for memory for the whole batch, so that no record needs a check. */
static int check_room(const el_batch *batch, int64_t body_size, const el_columns *out) {
    if (batch->records > out->record_capacity - out->count) {
        return EL_ESPACE;
    }
    if (out->key_offsets && body_size > out->key_capacity - out->key_size) {
        return EL_ESPACE;
    }
    if (out->value_offsets && body_size > out->value_capacity - out->value_size) {
        return EL_ESPACE;
    }
    return EL_OK;
}

static __attribute__((noinline)) void count_headers(el_columns *out, el_wire_record record) {
    out->header_count += record.header_count;
    out->header_key_size += record.header_key_size;
    out->header_value_size += record.header_value_size;
}

/* `columns` is read and written through a local copy, so that the loop keeps it in registers. A
 * store of bytes could change anything visible through another pointer. Only the header counts go
 * to the original at once. */
static int decode_batch(const el_batch *batch, const uint8_t *body, int64_t body_size,
                        const el_window *window, el_columns *columns, el_problem *problem) {
    el_walk walk;
    int32_t what = walk_begin(&walk, batch, body, body_size);
    if (what) {
        return walk_fail(problem, walk, what);
    }
    const el_rules rules = rules_of(batch, window);
    el_columns out = *columns;
    int result = check_room(batch, body_size, columns);
    if (result < 0) {
        return result;
    }
    while (walk.taken < walk.records) {
        el_wire_record record;
        what = walk_next(&walk, &record, EL_MEASURED);
        if (EL_UNLIKELY(what)) {
            return walk_fail(problem, walk, what);
        }
        int64_t offset = rules.base_offset + record.offset_delta;
        int64_t timestamp = timestamp_of(&rules, &record);
        if (rules.filtered && !in_window(window, offset, timestamp)) {
            continue;
        }
        put_record(&out, &record, offset, timestamp, walk.end);
        if (EL_UNLIKELY(record.header_count > 0)) {
            count_headers(columns, record);
        }
        if (out.header_starts) {
            out.header_starts[out.count] = (int32_t)columns->header_count;
        }
    }
    what = walk_end(&walk);
    if (what) {
        return walk_fail(problem, walk, what);
    }
    fill_constants(&out, batch, columns->count);
    out.header_count = columns->header_count;
    out.header_key_size = columns->header_key_size;
    out.header_value_size = columns->header_value_size;
    *columns = out;
    return EL_OK;
}

/* ---- Runs of batches ------------------------------------------------------------------------- */

static int prepare(el_columns *out) {
    size_t bitmap = (size_t)((out->record_capacity + 7) / 8);
    if (out->key_capacity > INT32_MAX || out->value_capacity > INT32_MAX ||
        out->record_capacity > INT32_MAX) {
        return EL_EINVALID;
    }
    if (out->count > 0) {
        return EL_OK;
    }
    if (out->key_offsets) {
        out->key_offsets[0] = 0;
        memset(out->key_validity, 0xff, bitmap);
    }
    if (out->value_offsets) {
        out->value_offsets[0] = 0;
        memset(out->value_validity, 0xff, bitmap);
    }
    if (out->header_starts) {
        out->header_starts[0] = 0;
    }
    return EL_OK;
}

int el_decode(const el_batch *batches, const uint8_t *const *bodies, const int64_t *body_sizes,
              int64_t batch_count, const el_window *window, el_columns *out, int64_t *bad,
              el_problem *problem) {
    int result = prepare(out);
    for (*bad = 0; result == EL_OK && *bad < batch_count; ++*bad) {
        result = decode_batch(&batches[*bad], bodies[*bad], body_sizes[*bad], window, out, problem);
        if (result < 0) {
            break;
        }
    }
    return result;
}

int el_decode_run(const uint8_t *data, int64_t size, int64_t base, const el_batch *batches,
                  int64_t batch_count, const el_window *window, el_columns *out, int64_t *bad,
                  el_problem *problem) {
    int result = prepare(out);
    for (*bad = 0; result == EL_OK && *bad < batch_count; ++*bad) {
        const el_batch *batch = &batches[*bad];
        int64_t position = batch->position - base;
        if (batch->size < EL_HEADER_SIZE || position < 0 || position > size - batch->size) {
            return EL_EINVALID;
        }
        const uint8_t *body = data + position + EL_HEADER_SIZE;
        result = decode_batch(batch, body, batch->size - EL_HEADER_SIZE, window, out, problem);
        if (result < 0) {
            break;
        }
    }
    return result;
}

/* ---- Headers: a second pass, as most records have none and the first pass only counts them --- */

static int put_header(el_headers *out, const uint8_t *key, int32_t key_size, const uint8_t *value,
                      int32_t value_size) {
    int64_t row = out->count;
    int64_t filled = value_size > 0 ? value_size : 0;
    if (row >= out->header_capacity || key_size > out->key_capacity - out->key_size ||
        filled > out->value_capacity - out->value_size) {
        return EL_ESPACE;
    }
    if (key_size > 0) {
        memcpy(out->key_data + out->key_size, key, (size_t)key_size);
    }
    if (filled > 0) {
        memcpy(out->value_data + out->value_size, value, (size_t)filled);
    }
    out->key_size += key_size;
    out->value_size += filled;
    out->key_offsets[row + 1] = (int32_t)out->key_size;
    out->value_offsets[row + 1] = (int32_t)out->value_size;
    if (value_size < 0) {
        out->value_validity[row >> 3] &= (uint8_t)~(1u << (row & 7));
    }
    out->count = row + 1;
    return EL_OK;
}

static int put_headers_of(const el_wire_record *record, el_headers *out) {
    const uint8_t *at = record->headers;
    for (int32_t i = 0; i < record->header_count; i++) {
        const uint8_t *key, *value;
        int32_t key_size, value_size, what;
        at = get_header(at, record->end, &key, &key_size, &value, &value_size, &what);
        if (!at) {
            return EL_ECORRUPT;
        }
        if (put_header(out, key, key_size, value, value_size)) {
            return EL_ESPACE;
        }
    }
    return at == record->end ? EL_OK : EL_ECORRUPT;
}

int el_decode_headers(const el_batch *batch, const uint8_t *body, int64_t body_size,
                      const el_window *window, el_headers *out) {
    el_walk walk;
    int append_time = (batch->attributes & LOG_APPEND_TIME) != 0;
    if (out->count == 0) {
        out->key_offsets[0] = out->value_offsets[0] = 0;
        memset(out->value_validity, 0xff, (size_t)((out->header_capacity + 7) / 8));
    }
    if (walk_begin(&walk, batch, body, body_size)) {
        return EL_ECORRUPT;
    }
    while (walk.taken < walk.records) {
        el_wire_record record;
        if (walk_next(&walk, &record, EL_LEFT)) {
            return EL_ECORRUPT;
        }
        if (record.header_count == 0) {
            continue;
        }
        int64_t timestamp =
            append_time
                ? batch->max_timestamp
                : (int64_t)((uint64_t)batch->base_timestamp + (uint64_t)record.timestamp_delta);
        if (!in_window(window, batch->base_offset + record.offset_delta, timestamp)) {
            continue;
        }
        int result = put_headers_of(&record, out);
        if (result < 0) {
            return result;
        }
    }
    return walk_end(&walk) ? EL_ECORRUPT : EL_OK;
}
