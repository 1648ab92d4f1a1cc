/* Reads one visible batch: control page, index, file and checks in one call, for a reader at a given offset.
 *
 * CPOINT-1  every unusual case is left to the general reader; this file only recognises the usual case
 * CPOINT-2  nothing at or above the visible end is returned, and the generation is compared again after the read
 * CPOINT-3  a reader of committed records gets batches without a transaction only: no decision hides them */
#include "codec/batch.h"
#include "log/control_page.h"

enum { OTHERWISE = 0, FOUND = 1, POINT_BATCHES = 128 };

/* The published state, if the segment still is what the point describes. */
static int32_t usual(const el_place *place, int64_t offset, int32_t committed, el_tuple *now, el_placed *out) {
    if (!el_page_alive(place->page) || el_page_read(place->page, now) < 0) return OTHERWISE;
    if (now->generation != place->generation || now->generation & 1) return OTHERWISE;
    if (el_page_word(place->page, EL_WORD_FLAGS) & EL_FLAG_DELETED) return OTHERWISE;
    int held_back = committed && now->first_unstable >= 0 && now->first_unstable < now->high_watermark;
    out->log_start = now->log_start;
    out->visible_end = held_back ? now->first_unstable : now->high_watermark;
    out->epoch = now->epoch;
    if (offset < now->log_start || offset >= out->visible_end || offset < place->segment.base) return OTHERWISE;
    if (place->end >= 0) return offset < place->end ? FOUND : OTHERWISE;
    return now->segment_base == place->segment.base && now->flags == place->flags ? FOUND : OTHERWISE;
}

int32_t el_place_begin(const el_place *place, int64_t offset, int32_t committed, el_placed *out) {
    el_tuple now;
    return usual(place, offset, committed, &now, out);
}

int32_t el_place_read(const el_place *place, int64_t offset, int32_t committed, uint8_t *buffer, int64_t capacity, el_placed *out) {
    el_batch batches[POINT_BATCHES];
    el_tuple now;
    if (!usual(place, offset, committed, &now, out)) return OTHERWISE;
    out->found = place->segment;
    if (place->end < 0) {
        out->found.size = now.segment_size;
        out->found.index_entries = now.index_entries;
        out->found.digest = now.digest;
    }
    int64_t count = el_read_short(&out->found, offset, buffer, capacity, batches, POINT_BATCHES);
    if (count == EL_ESPACE) return EL_ESPACE;
    if (count <= 0 || out->found.row < 0 || out->found.row >= count) return OTHERWISE;
    out->batch = batches[out->found.row];
    out->first_offset = batches[0].base_offset;
    if (out->batch.base_offset >= out->visible_end || out->batch.attributes & CONTROL_BATCH) return OTHERWISE;
    if (committed && out->batch.attributes & TRANSACTIONAL_BATCH) return OTHERWISE;
    return el_page_read(place->page, &now) == EL_OK && now.generation == place->generation ? FOUND : OTHERWISE;
}
