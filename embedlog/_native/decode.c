/* Record batches to columns.
 *
 * D1  a length is compared with the bytes that are there before anything is read or written by it
 * D2  a batch's records must take its section exactly, as Kafka demands: a surplus is as bad as a cut
 * D3  a clear validity bit means null; bitmaps are set to ones beforehand, since nulls are few */
#include "batch.h"
#include "record.h"

/* ---- Errors -------------------------------------------------------------------------------------------------- */

static int fail(el_problem *problem, int32_t what, int64_t position, int64_t expected, int64_t found, int32_t record) {
    problem->what = what;
    problem->position = position;
    problem->expected = expected;
    problem->found = found;
    problem->record = record;
    return EL_ECORRUPT;
}

/* ---- One record into the columns ------------------------------------------------------------------------------ */

/* REQUIRES: room in data for all bytes from `from` to `end`, the end of the section. */
INLINE void put_bytes(int32_t *offsets, uint8_t *data, uint8_t *validity, int64_t row, const uint8_t *from, int32_t size,
                      const uint8_t *end, int64_t *total, int64_t *nulls) {
    if (EL_UNLIKELY(size < 0)) {
        validity[row >> 3] &= (uint8_t)~(1u << (row & 7));
        ++*nulls;
    } else {
        copy_bytes(data + *total, data + *total + (end - from), from, end, size);
        *total += size;
    }
    offsets[row + 1] = (int32_t)*total;
}

/* Walks a record's headers; adds up what they take. */
static int measure_headers(const el_record *record, int64_t *keys, int64_t *values, el_problem *problem) {
    const uint8_t *at = record->headers, *data;
    for (int32_t i = 0; i < record->header_count; i++) {
        int32_t size, what;
        at = get_sized(at, record->end, &data, &size, &what);
        if (!at || size < 0) return fail(problem, at ? EL_BAD_LENGTH : what, 0, 0, 0, 0);
        *keys += size;
        at = get_sized(at, record->end, &data, &size, &what);
        if (!at) return fail(problem, what, 0, 0, 0, 0);
        *values += size > 0 ? size : 0;
    }
    return at == record->end ? EL_OK : fail(problem, EL_BAD_RECORD_SIZE, 0, 0, 0, 0);
}

INLINE void put_record(el_columns *out, const el_record *record, int64_t offset, int64_t timestamp, const uint8_t *end) {
    int64_t row = out->count++;
    if (out->offsets) out->offsets[row] = offset;
    if (out->timestamps) out->timestamps[row] = timestamp;
    if (out->key_offsets) {
        put_bytes(out->key_offsets, out->key_data, out->key_validity, row, record->key, record->key_size, end, &out->key_size,
                  &out->key_nulls);
    }
    if (out->value_offsets) {
        put_bytes(out->value_offsets, out->value_data, out->value_validity, row, record->value, record->value_size, end,
                  &out->value_size, &out->value_nulls);
    }
}

/* ---- One batch ----------------------------------------------------------------------------------------------- */

/* What depends on the batch alone, and which of its records can lie outside the window. */
typedef struct {
    int64_t base_offset;
    int64_t base_timestamp; /* LogAppendTime: every record's */
    uint64_t delta_mask;    /* and the deltas do not count */
    int32_t records;
    int32_t last_offset_delta;
    int filtered;
} el_rules;

static el_rules rules_of(const el_batch *batch, const el_window *window) {
    el_rules rules = {.base_offset = batch->base_offset, .records = batch->records, .last_offset_delta = batch->last_offset_delta};
    int append_time = (batch->attributes & LOG_APPEND_TIME) != 0;
    rules.base_timestamp = append_time ? batch->max_timestamp : batch->base_timestamp;
    rules.delta_mask = append_time ? 0 : UINT64_MAX;
    rules.filtered = batch->base_offset < window->start_offset || window->end_offset <= batch->base_offset + batch->last_offset_delta
                  || window->start_ms != INT64_MIN || window->end_ms != INT64_MAX;
    return rules;
}

INLINE int64_t timestamp_of(const el_rules *rules, const el_record *record) {
    return (int64_t)((uint64_t)rules->base_timestamp + ((uint64_t)record->timestamp_delta & rules->delta_mask));
}

static void fill_constants(el_columns *out, const el_batch *batch, int64_t from) {
    if (out->timestamp_types) {
        memset(out->timestamp_types + from, (batch->attributes & LOG_APPEND_TIME) != 0, (size_t)(out->count - from));
    }
    if (out->leader_epochs) {
        for (int64_t row = from; row < out->count; row++) out->leader_epochs[row] = batch->leader_epoch;
    }
}

/* Room for whatever the batch holds, so that no record need ask again. */
static int check_room(const el_batch *batch, int64_t body_size, const el_columns *out, el_problem *problem) {
    int64_t most = body_size / EL_RECORD_SIZE_MIN;
    if (batch->records < 0 || batch->records > most) return fail(problem, EL_BAD_COUNT, 0, most, batch->records, -1);
    if (batch->records > out->record_capacity - out->count) return EL_ESPACE;
    if (out->key_offsets && body_size > out->key_capacity - out->key_size) return EL_ESPACE;
    if (out->value_offsets && body_size > out->value_capacity - out->value_size) return EL_ESPACE;
    return EL_OK;
}

/* The slow way for one record: every check, and its headers counted if it lies in the window. */
static __attribute__((noinline)) int take_apart(const uint8_t *at, const uint8_t *end, const el_rules *rules, const el_window *window,
                                                el_record *record, el_columns *out, el_problem *problem) {
    int64_t keys = 0, values = 0;
    int32_t what = get_any_record(at, end, record);
    if (what) return fail(problem, what, 0, 0, 0, 0);
    if (record->header_count == 0) return EL_OK;
    if (measure_headers(record, &keys, &values, problem)) return EL_ECORRUPT;
    if (in_window(window, rules->base_offset + record->offset_delta, timestamp_of(rules, record))) {
        out->header_count += record->header_count;
        out->header_key_size += keys;
        out->header_value_size += values;
    }
    return EL_OK;
}

/* `columns` is read and written through a copy of its own, so that the loop keeps it in registers: a store of bytes might change
 * anything that another pointer sees. Only the counts of headers go to the original at once. */
static int decode_batch(const el_batch *batch, const uint8_t *body, int64_t body_size, const el_window *window, el_columns *columns,
                        el_problem *problem) {
    const uint8_t *at = body, *end = body + body_size;
    const el_rules rules = rules_of(batch, window);
    el_columns out = *columns;
    int64_t previous = -1;
    int result = check_room(batch, body_size, columns, problem);
    if (result < 0) return result;
    for (int32_t i = 0; i < rules.records; i++) {
        el_record record;
        if (EL_UNLIKELY(!get_plain_record(at, end, &record))) {
            el_record closely;
            if (take_apart(at, end, &rules, window, &closely, columns, problem)) {
                return fail(problem, problem->what, at - body, 0, 0, i);
            }
            record = closely;
        }
        if (EL_UNLIKELY(record.offset_delta <= previous || record.offset_delta > rules.last_offset_delta)) {
            return fail(problem, EL_BAD_DELTA, at - body, rules.last_offset_delta, record.offset_delta, i);
        }
        previous = record.offset_delta;
        at = record.end;
        int64_t offset = rules.base_offset + record.offset_delta, timestamp = timestamp_of(&rules, &record);
        if (rules.filtered && !in_window(window, offset, timestamp)) continue;
        put_record(&out, &record, offset, timestamp, end);
        if (out.header_starts) out.header_starts[out.count] = (int32_t)columns->header_count;
    }
    if (rules.records > 0 && at != end) return fail(problem, EL_SURPLUS, at - body, 0, end - at, -1);
    fill_constants(&out, batch, columns->count);
    out.header_count = columns->header_count;
    out.header_key_size = columns->header_key_size;
    out.header_value_size = columns->header_value_size;
    *columns = out;
    return EL_OK;
}

/* ---- Runs of batches ------------------------------------------------------------------------------------------ */

static int prepare(el_columns *out) {
    size_t bitmap = (size_t)((out->record_capacity + 7) / 8);
    if (out->key_capacity > INT32_MAX || out->value_capacity > INT32_MAX || out->record_capacity > INT32_MAX) return EL_EINVALID;
    if (out->count > 0) return EL_OK;
    if (out->key_offsets) {
        out->key_offsets[0] = 0;
        memset(out->key_validity, 0xff, bitmap);
    }
    if (out->value_offsets) {
        out->value_offsets[0] = 0;
        memset(out->value_validity, 0xff, bitmap);
    }
    if (out->header_starts) out->header_starts[0] = 0;
    return EL_OK;
}

int el_decode(const el_batch *batches, const uint8_t *const *bodies, const int64_t *body_sizes, int64_t batch_count,
              const el_window *window, el_columns *out, int64_t *bad, el_problem *problem) {
    int result = prepare(out);
    for (*bad = 0; result == EL_OK && *bad < batch_count; ++*bad) {
        result = decode_batch(&batches[*bad], bodies[*bad], body_sizes[*bad], window, out, problem);
        if (result < 0) break;
    }
    return result;
}

int el_decode_run(const uint8_t *data, int64_t size, int64_t base, const el_batch *batches, int64_t batch_count,
                  const el_window *window, el_columns *out, int64_t *bad, el_problem *problem) {
    int result = prepare(out);
    for (*bad = 0; result == EL_OK && *bad < batch_count; ++*bad) {
        const el_batch *batch = &batches[*bad];
        int64_t position = batch->position - base;
        if (batch->size < EL_HEADER_SIZE || position < 0 || position > size - batch->size) return EL_EINVALID;
        const uint8_t *body = data + position + EL_HEADER_SIZE;
        result = decode_batch(batch, body, batch->size - EL_HEADER_SIZE, window, out, problem);
        if (result < 0) break;
    }
    return result;
}
