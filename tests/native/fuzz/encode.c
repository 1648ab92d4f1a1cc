/* Columns with any offsets, at any address, through the encoder; sealed batches are read back and compared with the columns. */
#include "fuzz.h"

enum { ROWS_MOST = 12, ROOM_MOST = 1024, BATCHES = 8 };

typedef struct {
    uint8_t *memory;
    el_bytes column;
} owned;

/* A column over `data` whose offsets are mostly sound; odd: at an odd address. */
static owned column_of(input *in, const uint8_t *data, int64_t data_size, int64_t rows) {
    uint8_t flags = take_byte(in);
    int width = flags & 1 ? 8 : 4, odd = flags >> 1 & 1;
    owned made = {malloc((size_t)(rows + 1) * (size_t)width + 1 + (size_t)(rows + 7) / 8 + 1), {0}};
    uint8_t *offsets = made.memory + odd;
    int64_t at = 0;
    for (int64_t row = 0; row <= rows; row++) {
        if (row) at += take_byte(in);
        if (at > data_size && !(flags & 4)) at = data_size;
        int64_t wide = flags & 8 && row == rows / 2 ? take_number(in) : at;
        int32_t narrow = (int32_t)wide;
        memcpy(offsets + row * width, width == 8 ? (const void *)&wide : (const void *)&narrow, (size_t)width);
    }
    uint8_t *bits = made.memory + (rows + 1) * width + 1;
    for (int64_t i = 0; i <= (rows + 7) / 8; i++) if (flags & 16) bits[i] = take_byte(in);
    made.column = (el_bytes){data, flags & 32 ? NULL : offsets, flags & 16 ? bits : NULL, data_size, 0, rows, width, 0};
    return made;
}

static void read_back(const uint8_t *out, int64_t size, const el_batch *batches, int64_t count, int64_t rows) {
    el_chain chain = {.next_offset = 0, .segment_base = 0, .epoch = -1};
    el_batch found[BATCHES];
    el_problem problem;
    int64_t consumed, need, bad;
    destination made;
    DEMAND(el_scan(out, size, &chain, found, BATCHES, &consumed, &need, &problem) == count && consumed == size);
    DEMAND(chain.next_offset == rows);
    for (int64_t i = 0; i < count; i++) DEMAND(found[i].position == batches[i].position && found[i].crc == batches[i].crc);
    el_window window = {INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX};
    destination_make(&made, 255, rows, size);
    DEMAND(el_decode_run(out, size, 0, found, count, &window, &made.columns, &bad, &problem) == EL_OK && made.columns.count == rows);
    free(made.memory);
}

static void partitions(const el_bytes *keys) {
    int32_t numbers[ROWS_MOST] = {0};
    int64_t rows[ROWS_MOST], starts[8];
    if (!keys->offsets || el_partitions(keys, 7, numbers) != EL_OK) return;
    int64_t placed = el_group_rows(numbers, keys->count, 7, rows, starts);
    DEMAND(placed >= 0 && placed <= keys->count && starts[7] == placed);
    numbers[0] = 7;
    if (keys->count) DEMAND(el_group_rows(numbers, keys->count, 7, rows, starts) == EL_EINVALID);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    uint8_t flags = take_byte(&in);
    int64_t rows = take_byte(&in) % ROWS_MOST, header_rows = flags & 1 ? take_byte(&in) % ROWS_MOST : 0;
    int64_t capacity = EL_HEADER_SIZE + (int64_t)take_raw(&in, 2) % ROOM_MOST;
    el_encoder encoder = {.rows = rows, .count = rows, .timestamp = take_number(&in), .batch_bytes = (int64_t)take_raw(&in, 2) % ROOM_MOST};
    int32_t starts[ROWS_MOST + 1];
    int64_t selection[ROWS_MOST + 1], timestamps[ROWS_MOST + 1];
    for (int64_t i = 0; i < rows; i++) selection[i] = flags & 2 ? take_byte(&in) % (rows + 1) : i;
    for (int64_t i = 0; i < rows; i++) timestamps[i] = flags & 4 ? take_number(&in) : i;
    for (int64_t i = 0, at = 0; i <= rows; i++) starts[i] = (int32_t)(flags & 1 ? at += take_byte(&in) % 3 : 0);
    input data = {bytes, in.size};
    uint8_t *own = take_rest(&data);
    owned values = column_of(&in, own, (int64_t)data.size, rows), keys = column_of(&in, own, (int64_t)data.size, rows);
    owned names = column_of(&in, own, (int64_t)data.size, header_rows), contents = column_of(&in, own, (int64_t)data.size, header_rows);
    encoder.values = values.column;
    encoder.keys = keys.column;
    encoder.header_keys = names.column;
    encoder.header_values = contents.column;
    encoder.header_starts = flags & 1 ? starts : NULL;
    encoder.selection = flags & 2 ? selection : NULL;
    encoder.timestamps = flags & 4 ? timestamps : NULL;
    uint8_t *out = malloc((size_t)capacity);
    el_batch batches[BATCHES];
    while (encoder.next < encoder.count) {
        int64_t count, first = encoder.next;
        int64_t written = el_encode(&encoder, out, capacity, batches, BATCHES, &count);
        DEMAND(written <= capacity && (written > 0 || written == EL_ESPACE || written == EL_EINVALID));
        if (written < 0) break;
        DEMAND(encoder.next > first && count > 0);
        read_back(out, written, batches, count, encoder.next - first);
    }
    partitions(&keys.column);
    free(out);
    free(own);
    owned all[] = {values, keys, names, contents};
    for (int i = 0; i < 4; i++) free(all[i].memory);
    return 0;
}
