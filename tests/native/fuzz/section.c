/* A records section below any header: decoder, offset map and cleaner accept the same ones; cleaned batches can be read. */
#include "fuzz.h"

#include "codec/record.h"

enum { SLOTS = 64, GROWTH = 11 };

static void read_back(const uint8_t *data, int64_t size, int64_t kept) {
    el_chain chain = {.next_offset = -1, .segment_base = -1, .epoch = -1, .gaps_allowed = 1};
    el_batch batch;
    el_problem problem;
    int64_t consumed, need, bad;
    destination made;
    if (size == 0) return;
    DEMAND(el_scan(data, size, &chain, &batch, 1, &consumed, &need, &problem) == 1 && consumed == size && batch.records == kept);
    el_window window = {INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX};
    destination_make(&made, 255, kept, size);
    DEMAND(el_decode_run(data, size, 0, &batch, 1, &window, &made.columns, &bad, &problem) == EL_OK && made.columns.count == kept);
    free(made.memory);
}

static int64_t clean(const el_offset_map *map, const uint8_t *whole, int64_t size, const el_batch *batch, uint8_t order, input *in) {
    el_cleaner cleaner = {.map = map, .now_ms = take_number(in), .horizon_ms = take_number(in)};
    int64_t most = size + (size - EL_HEADER_SIZE) / EL_RECORD_SIZE_MIN * GROWTH, done;
    uint8_t *out = malloc((size_t)most);
    el_batch cleaned;
    el_problem problem;
    int64_t written = el_clean_run(&cleaner, whole, size, 0, batch, &order, 1, out, most, &cleaned, &done, &problem);
    DEMAND(written >= 0 || written == EL_ECORRUPT);
    DEMAND(written < 0 || (done == 1 && cleaned.size == written && written <= most));
    if (written > 0) read_back(out, written, cleaned.records);
    free(out);
    return written;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    uint8_t flags = take_byte(&in), order = take_byte(&in) & 15;
    el_offset_map map = {.capacity = SLOTS, .limit = SLOTS - 1, .latest = -1, .seed = {take_byte(&in), 2}};
    int64_t start = flags & 1 ? take_number(&in) : INT64_MIN, when[4] = {0};
    for (int i = 0; i < 4; i++) when[i] = take_byte(&in) ? take_number(&in) : 0;
    if (in.size < EL_HEADER_SIZE) return 0;
    uint8_t *whole = take_rest(&in);
    if (flags & 2) mend(whole, in.size);
    el_batch batch;
    load_header(whole, &batch);
    batch.position = 0;
    batch.size = (int32_t)in.size;
    batch.magic = MAGIC;
    batch.attributes &= (int16_t)~CODEC_MASK;
    if (batch.leader_epoch < 0) batch.leader_epoch = 0;
    el_header_seal(whole, &batch);
    const uint8_t *body = whole + EL_HEADER_SIZE;
    int64_t body_size = batch.size - EL_HEADER_SIZE, bad;
    el_problem problem;
    el_window window = {INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX};
    destination made;
    int64_t records = body_size / EL_RECORD_SIZE_MIN;
    destination_make(&made, 255, records, body_size);
    int decoded = el_decode(&batch, &body, &body_size, 1, &window, &made.columns, &bad, &problem);
    DEMAND(decoded == EL_OK || decoded == EL_ECORRUPT);
    map.slots = calloc(SLOTS + 1, EL_MAP_SLOT_BYTES);
    DEMAND(map.slots);
    map.slots += 1; /* nothing says that it is aligned */
    int mapped = el_map_add(&map, &batch, body, body_size, start, &problem);
    DEMAND(mapped == EL_ESPACE || (mapped == EL_OK) == (decoded == EL_OK));
    input numbers = {(const uint8_t *)when, sizeof when};
    int64_t written = clean(&map, whole, batch.size, &batch, order, &numbers);
    DEMAND((written >= 0) == (decoded == EL_OK));
    free(map.slots - 1);
    free(made.memory);
    free(whole);
    return 0;
}
