/* Any bytes through the scan, and the accepted ones through the survey, the decoder and its second pass. */
#include "fuzz.h"

enum { BATCHES = 6, RECORDS_MOST = 1 << 16, ALL = 255 };

static void decode_headers(const el_batch *batches, int64_t count, const uint8_t *data, const el_window *window, const el_columns *counted) {
    int64_t n = counted->header_count;
    el_headers out = {.header_capacity = n, .key_capacity = counted->header_key_size, .value_capacity = counted->header_value_size};
    out.key_offsets = malloc(4 * (size_t)(n + 1));
    out.value_offsets = malloc(4 * (size_t)(n + 1));
    out.value_validity = malloc((size_t)(n + 7) / 8 + 1);
    out.key_data = malloc((size_t)out.key_capacity + 1);
    out.value_data = malloc((size_t)out.value_capacity + 1);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *body = data + batches[i].position + EL_HEADER_SIZE;
        DEMAND(el_decode_headers(&batches[i], body, batches[i].size - EL_HEADER_SIZE, window, &out) == EL_OK);
    }
    DEMAND(out.count == n && out.key_size == out.key_capacity && out.value_size == out.value_capacity);
    free(out.key_offsets);
    free(out.value_offsets);
    free(out.value_validity);
    free(out.key_data);
    free(out.value_data);
}

/* Values in separate memory, or moved to the front of their own data: the results are equal. */
static void decode(const uint8_t *data, int64_t size, const el_batch *batches, int64_t count, int32_t wanted, const el_window *window) {
    el_survey survey;
    el_problem problem;
    int64_t bad;
    destination made, moved;
    el_survey_batches(batches, count, &survey);
    DEMAND(survey.bad < 0 && survey.records >= 0);
    if ((survey.kinds & EL_HAS_COMPRESSED) || survey.records > RECORDS_MOST) return;
    int32_t values = wanted & EL_WANT_VALUE ? EL_WANT_VALUE_DATA : 0;
    destination_make(&made, wanted | values, survey.records, survey.body_size);
    int rc = el_decode_run(data, size, 0, batches, count, window, &made.columns, &bad, &problem);
    DEMAND(rc == EL_OK || (rc == EL_ECORRUPT && bad < count && problem.what != EL_FINE));
    DEMAND(made.columns.count <= survey.records);
    if (rc == EL_OK && made.columns.header_count) decode_headers(batches, count, data, window, &made.columns);
    if (values && !made.columns.header_count) {
        uint8_t *own = malloc((size_t)size);
        memcpy(own, data, (size_t)size);
        destination_make(&moved, wanted & ~EL_WANT_VALUE_DATA, survey.records, survey.body_size);
        moved.columns.value_data = own;
        moved.columns.value_capacity = size;
        DEMAND(el_decode_run(own, size, 0, batches, count, window, &moved.columns, &bad, &problem) == rc);
        int64_t bytes = made.columns.value_size;
        DEMAND(moved.columns.value_size == bytes && memcmp(moved.columns.value_data, made.columns.value_data, (size_t)bytes) == 0);
        free(moved.memory);
        free(own);
    }
    free(made.memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    uint8_t flags = take_byte(&in);
    int32_t wanted = flags & 1 ? ALL : take_byte(&in);
    el_window window = {INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX};
    if (flags & 2) window = (el_window){take_number(&in), take_number(&in), take_number(&in), take_number(&in)};
    el_chain chain = {.next_offset = -1, .segment_base = -1, .epoch = -1, .gaps_allowed = flags & 4};
    if (flags & 8) chain.segment_base = take_number(&in);
    if (flags & 16) chain.next_offset = take_number(&in);
    uint8_t *data = take_rest(&in);
    if (!(flags & 32)) mend(data, in.size);
    el_batch *batches = malloc(sizeof(el_batch) * BATCHES);
    int64_t consumed, need, at = 0;
    el_problem problem;
    int64_t count = el_scan(data, (int64_t)in.size, &chain, batches, BATCHES, &consumed, &need, &problem);
    DEMAND(count >= 0 && count <= BATCHES && consumed >= 0 && consumed <= (int64_t)in.size && need >= 0);
    for (int64_t i = 0; i < count; i++) {
        DEMAND(batches[i].position == at && offsets_fit(batches[i].base_offset, batches[i].last_offset_delta, chain.segment_base));
        at += batches[i].size;
    }
    DEMAND(at == consumed);
    if (count) decode(data, (int64_t)in.size, batches, count, wanted, &window);
    free(batches);
    free(data);
    return 0;
}
