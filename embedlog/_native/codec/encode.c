/* Encodes columns to record batches.
 *
 * - The size of a record is known before its first byte is written, so batches end exactly and
 *   nothing is moved.
 * - Columns come from anywhere, and other threads may write into them: an offset is read once and
 *   checked before it is used. Headers are read twice, for their size and for their bytes; a record
 *   that differs from its measured size rejects the run.
 * - Copies may overrun into later bytes of `out`, never beyond its capacity, and read no byte
 *   outside the column. */
#include "codec/batch.h"
#include "codec/varint.h"

#define AHEAD_BYTES 2048
#define RECORD_SIZE_MAX (INT32_MAX - EL_HEADER_SIZE - VARINT_SIZE_MAX)

typedef struct {
    const uint8_t *data;
    int64_t size;       /* -1: null */
    const uint8_t *end; /* of the whole column: upper bound of reads */
} el_cell;

typedef struct {
    el_cell key;
    el_cell value;
    int64_t header_first;
    int64_t header_count;
} el_row;

/* ---- One row --------------------------------------------------------------------------------- */

INLINE int load_cell(const el_bytes *column, int64_t row, int width, el_cell *cell) {
    int64_t start, end;
    cell->size = -1;
    if (!column->offsets || bytes_is_null(column, row)) {
        return EL_OK;
    }
    start = offset_at(column->offsets, row, width);
    end = offset_at(column->offsets, row + 1, width);
    /* As unsigned numbers, negative ones are larger than any size. */
    if (EL_UNLIKELY((uint64_t)start > (uint64_t)end ||
                    (uint64_t)end > (uint64_t)column->data_size)) {
        return EL_EINVALID;
    }
    cell->data = column->data + start;
    cell->size = end - start;
    cell->end = column->data + column->data_size;
    return EL_OK;
}

static int load_headers(const el_encoder *encoder, int64_t row, el_row *loaded) {
    int64_t first = offset_at(encoder->header_starts, row, 4);
    int64_t end = offset_at(encoder->header_starts, row + 1, 4);
    if (first < 0 || end < first || end > encoder->header_keys.count ||
        end > encoder->header_values.count) {
        return EL_EINVALID;
    }
    loaded->header_first = first;
    loaded->header_count = end - first;
    return EL_OK;
}

INLINE int64_t cell_size(const el_cell *cell) {
    return varint_size(cell->size) + (cell->size > 0 ? cell->size : 0);
}

static int load_header_cells(const el_encoder *encoder, int64_t place, el_cell *key,
                             el_cell *value) {
    if (load_cell(&encoder->header_keys, place, encoder->header_keys.offset_width, key) ||
        key->size < 0) {
        return EL_EINVALID;
    }
    return load_cell(&encoder->header_values, place, encoder->header_values.offset_width, value);
}

/* Size of all headers of a row with their length fields, or EL_EINVALID. */
static int64_t headers_size(const el_encoder *encoder, const el_row *row) {
    int64_t size = 0;
    for (int64_t i = row->header_first; i < row->header_first + row->header_count; i++) {
        el_cell key, value;
        if (load_header_cells(encoder, i, &key, &value)) {
            return EL_EINVALID;
        }
        size += cell_size(&key) + cell_size(&value);
        if (size > RECORD_SIZE_MAX) {
            return EL_EINVALID;
        }
    }
    return size;
}

/* ---- Writing --------------------------------------------------------------------------------- */

INLINE uint8_t *put_cell(uint8_t *to, const uint8_t *limit, const el_cell *cell) {
    to = put_length(to, cell->size);
    if (cell->size <= 0) {
        return to;
    }
    /* Columns come from main memory, and the processor's prefetcher stops at every page. A prefetch
     * beyond the end does not fault. */
    for (int64_t i = 0; i < cell->size; i += 64) {
        __builtin_prefetch((const void *)((uintptr_t)cell->data + (uintptr_t)i + AHEAD_BYTES));
    }
    copy_bytes(to, limit, cell->data, cell->end, cell->size);
    return to + cell->size;
}

/* Never passes `limit`, however the headers have changed since they were measured. NULL: they do
 * not fit or are invalid. */
static uint8_t *put_headers(uint8_t *to, const uint8_t *limit, const el_encoder *encoder,
                            const el_row *row) {
    for (int64_t i = row->header_first; i < row->header_first + row->header_count; i++) {
        el_cell key, value;
        if (load_header_cells(encoder, i, &key, &value)) {
            return NULL;
        }
        int64_t left = limit - to;
        if (key.size + value.size + 2 * VARINT_SIZE_MAX > left &&
            cell_size(&key) + cell_size(&value) > left) {
            return NULL;
        }
        to = put_cell(put_cell(to, limit, &key), limit, &value);
    }
    return to;
}

/* Selected rows are scattered, so the processor cannot predict them: prefetches the bytes of a
 * later row. A prefetch of a wrong address has no effect. */
INLINE void fetch_ahead(const el_encoder *encoder, int64_t next, int width) {
    enum { ROWS_AHEAD = 12, CACHE_LINE = 64 };
    if (next + ROWS_AHEAD >= encoder->count) {
        return;
    }
    int64_t row = offset_at(encoder->selection, next + ROWS_AHEAD, 8);
    if (row < 0 || row >= encoder->rows || !encoder->values.offsets) {
        return;
    }
    uintptr_t at =
        (uintptr_t)encoder->values.data + (uintptr_t)offset_at(encoder->values.offsets, row, width);
    __builtin_prefetch((const void *)at);
    __builtin_prefetch((const void *)(at + CACHE_LINE));
}

/* ---- One batch ------------------------------------------------------------------------------- */

/* Encodes rows after a header at `out` until they would pass `end`; sets records, timestamps and
 * size of batch. `limit` is the end of the whole output. plain: no selection, keys, headers or
 * nulls. Sets encoder->need if the first record does not fit. */
INLINE int encode_rows(el_encoder *encoder, uint8_t *out, const uint8_t *end, const uint8_t *limit,
                       el_batch *batch, const int plain, const int width) {
    uint8_t *at = out + EL_HEADER_SIZE;
    int64_t base = 0;
    int64_t newest = INT64_MIN;
    int64_t oldest = INT64_MAX;
    int64_t next = encoder->next;
    int32_t records = 0;
    int result = EL_OK;
    for (; next < encoder->count; next++, records++) {
        el_row row = {.header_count = 0};
        int64_t number =
            !plain && encoder->selection ? offset_at(encoder->selection, next, 8) : next;
        int64_t extra = 0;
        row.key.size = -1;
        if (!plain && encoder->selection) {
            fetch_ahead(encoder, next, width);
        }
        if (EL_UNLIKELY(number < 0 || number >= encoder->rows)) {
            result = EL_EINVALID;
            break;
        }
        if (EL_UNLIKELY(load_cell(&encoder->values, number, width, &row.value))) {
            result = EL_EINVALID;
            break;
        }
        if (!plain && load_cell(&encoder->keys, number, encoder->keys.offset_width, &row.key)) {
            result = EL_EINVALID;
            break;
        }
        if (!plain && encoder->header_starts) {
            if (load_headers(encoder, number, &row) || (extra = headers_size(encoder, &row)) < 0) {
                result = EL_EINVALID;
                break;
            }
        }
        int64_t timestamp =
            encoder->timestamps ? offset_at(encoder->timestamps, number, 8) : encoder->timestamp;
        if (records == 0) {
            base = timestamp;
        }
        int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)base);
        int64_t body = 1 + varint_size(delta) + varint_size(records) +
                       (plain ? 1 : cell_size(&row.key)) + cell_size(&row.value) +
                       varint_size(row.header_count) + extra;
        int64_t size = varint_size(body) + body;
        if (EL_UNLIKELY(size > end - at)) {
            encoder->need = EL_HEADER_SIZE + size;
            if (size > RECORD_SIZE_MAX) {
                result = EL_EINVALID;
            }
            break;
        }
        const uint8_t *record_end = at + size;
        at = put_length(at, body);
        *at++ = 0; /* attributes: unused */
        at = put_length(put_small(at, delta), records);
        if (plain) {
            *at++ = 1; /* null key */
        } else {
            at = put_cell(at, limit, &row.key);
        }
        at = put_small(put_cell(at, limit, &row.value), row.header_count);
        if (!plain && row.header_count) {
            at = put_headers(at, limit, encoder, &row);
        }
        if (EL_UNLIKELY(at != record_end)) {
            result = EL_ECHANGED;
            break;
        }
        if (timestamp > newest) {
            newest = timestamp;
        }
        if (timestamp < oldest) {
            oldest = timestamp;
        }
    }
    encoder->next = next;
    batch->records = records;
    batch->base_timestamp = base;
    batch->max_timestamp = newest;
    batch->min_timestamp = oldest < 0 ? -1 : oldest;
    batch->size = result < 0 ? 0 : (int32_t)(at - out);
    return result;
}

static int encode_any(el_encoder *encoder, uint8_t *out, const uint8_t *end, const uint8_t *limit,
                      el_batch *batch) {
    int plain = encoder->values.offsets && !encoder->values.validity && !encoder->keys.offsets &&
                !encoder->header_starts && !encoder->selection;
    if (encoder->values.offset_width == 8) {
        return plain ? encode_rows(encoder, out, end, limit, batch, 1, 8)
                     : encode_rows(encoder, out, end, limit, batch, 0, 8);
    }
    return plain ? encode_rows(encoder, out, end, limit, batch, 1, 4)
                 : encode_rows(encoder, out, end, limit, batch, 0, 4);
}

/* One batch within batch_bytes, or a single record within capacity. */
static int encode_batch(el_encoder *encoder, uint8_t *out, int64_t capacity, el_batch *batch) {
    int64_t within = encoder->batch_bytes < capacity ? encoder->batch_bytes : capacity;
    if (within < EL_HEADER_SIZE) {
        within = EL_HEADER_SIZE;
    }
    if (capacity > INT32_MAX) {
        capacity = INT32_MAX; /* upper bound of a batch */
    }
    const uint8_t *limit = out + capacity;
    int result = encode_any(encoder, out, out + within, limit, batch);
    if (result < 0) {
        return result;
    }
    if (batch->records == 0) {
        if (encoder->need > capacity) {
            return EL_ESPACE;
        }
        int64_t count = encoder->count;
        encoder->count = encoder->next + 1;
        result = encode_any(encoder, out, limit, limit, batch);
        encoder->count = count;
        /* its measured size fitted */
        if (result < 0 || batch->records == 0) {
            return result < 0 ? result : EL_ECHANGED;
        }
    }
    batch->last_offset_delta = batch->records - 1;
    batch->attributes = (int16_t)encoder->attributes;
    batch->leader_epoch = 0;
    batch->producer_id = -1;
    batch->producer_epoch = -1;
    batch->base_sequence = -1;
    batch->magic = MAGIC;
    memset(batch->pad, 0, sizeof batch->pad);
    return EL_OK;
}

int64_t el_encode(el_encoder *encoder, uint8_t *out, int64_t capacity, el_batch *batches,
                  int64_t batch_capacity, int64_t *batch_count) {
    int64_t written = 0;
    int64_t rows = 0;
    *batch_count = 0;
    encoder->need = 0;
    if (encoder->batch_bytes > INT32_MAX || encoder->next < 0 || capacity < EL_HEADER_SIZE) {
        return EL_EINVALID;
    }
    while (encoder->next < encoder->count && *batch_count < batch_capacity) {
        if (written > 0 && capacity - written < encoder->batch_bytes) {
            break;
        }
        el_batch *batch = &batches[*batch_count];
        int result = encode_batch(encoder, out + written, capacity - written, batch);
        if (result == EL_ESPACE && written > 0) {
            break;
        }
        if (result < 0) {
            return result;
        }
        batch->position = written;
        batch->base_offset = rows;
        el_header_seal(out + written, batch);
        batch->crc = load_be32(out + written + CRC_AT);
        rows += batch->records;
        written += batch->size;
        ++*batch_count;
    }
    return written;
}
