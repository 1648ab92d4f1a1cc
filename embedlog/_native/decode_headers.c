/* The second pass of decoding: headers into columns of their own. Most records have none, so the first pass only counts them. */
#include "record.h"

static int put_header(el_headers *out, const uint8_t *key, int32_t key_size, const uint8_t *value, int32_t value_size) {
    int64_t row = out->count;
    int64_t filled = value_size > 0 ? value_size : 0;
    if (row >= out->header_capacity || key_size > out->key_capacity - out->key_size || filled > out->value_capacity - out->value_size) {
        return EL_ESPACE;
    }
    if (key_size > 0) memcpy(out->key_data + out->key_size, key, (size_t)key_size);
    if (filled > 0) memcpy(out->value_data + out->value_size, value, (size_t)filled);
    out->key_size += key_size;
    out->value_size += filled;
    out->key_offsets[row + 1] = (int32_t)out->key_size;
    out->value_offsets[row + 1] = (int32_t)out->value_size;
    if (value_size < 0) out->value_validity[row >> 3] &= (uint8_t)~(1u << (row & 7));
    out->count = row + 1;
    return EL_OK;
}

static int put_headers_of(const el_wire_record *record, el_headers *out) {
    const uint8_t *at = record->headers;
    for (int32_t i = 0; i < record->header_count; i++) {
        const uint8_t *key, *value;
        int32_t key_size, value_size, what;
        at = get_header(at, record->end, &key, &key_size, &value, &value_size, &what);
        if (!at) return EL_ECORRUPT;
        if (put_header(out, key, key_size, value, value_size)) return EL_ESPACE;
    }
    return at == record->end ? EL_OK : EL_ECORRUPT;
}

int el_decode_headers(const el_batch *batch, const uint8_t *body, int64_t body_size, const el_window *window, el_headers *out) {
    el_walk walk;
    int append_time = (batch->attributes & LOG_APPEND_TIME) != 0;
    if (out->count == 0) {
        out->key_offsets[0] = out->value_offsets[0] = 0;
        memset(out->value_validity, 0xff, (size_t)((out->header_capacity + 7) / 8));
    }
    if (walk_begin(&walk, batch, body, body_size)) return EL_ECORRUPT;
    while (walk.taken < walk.records) {
        el_wire_record record;
        if (walk_next(&walk, &record, EL_LEFT)) return EL_ECORRUPT;
        if (record.header_count == 0) continue;
        int64_t timestamp = append_time ? batch->max_timestamp
                                        : (int64_t)((uint64_t)batch->base_timestamp + (uint64_t)record.timestamp_delta);
        if (!in_window(window, batch->base_offset + record.offset_delta, timestamp)) continue;
        int result = put_headers_of(&record, out);
        if (result < 0) return result;
    }
    return walk_end(&walk) ? EL_ECORRUPT : EL_OK;
}
