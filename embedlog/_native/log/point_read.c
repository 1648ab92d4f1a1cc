/* Reads one visible batch: control page, index, file and checks in one call, for a reader at a
 * given offset or time.
 *
 * - Every unusual case is left to the general reader; this file only recognises the usual case.
 * - Nothing at or above the visible end is returned, and the generation is compared again after the
 *   read.
 * - A reader of committed records gets batches without a transaction only: no decision hides them.
 *   A search by time returns an offset and no record, and finds aborted records too, as a broker
 *   does.
 * - An entry of the time index only selects the place. It is used if the batch that it names has
 *   its timestamp.
 * - Headers of batches that are only compared with the index are read without their checksums. So
 *   an earlier record can only be missed if the index and such a header have the same damage. The
 *   batches that are searched are verified. */
#include "codec/batch.h"
#include "log/control_page.h"

enum { OTHERWISE = 0, FOUND = 1, POINT_BATCHES = 128 };

typedef struct {
    /* the largest timestamp so far, and the last offset of the first batch that has it */
    int64_t timestamp, offset;
} el_newest;

/* The published state, if the segment still is what the point describes. */
static int32_t current(const el_place *place, int32_t committed, el_tuple *now, el_placed *out) {
    out->next_offset = -1;
    if (place->fixed) {
        *now = *place->fixed;
    } else if (!el_page_alive(place->page) || el_page_read(place->page, now) < 0) {
        return OTHERWISE;
    }
    if (now->generation != place->generation || now->generation & 1) {
        return OTHERWISE;
    }
    if (place->page && el_page_word(place->page, EL_WORD_FLAGS) & EL_FLAG_DELETED) {
        return OTHERWISE;
    }
    int held_back =
        committed && now->first_unstable >= 0 && now->first_unstable < now->high_watermark;
    out->log_start = now->log_start;
    out->visible_end = held_back ? now->first_unstable : now->high_watermark;
    out->epoch = now->epoch;
    return place->end >= 0 ||
                   (now->segment_base == place->segment.base && now->flags == place->flags)
               ? FOUND
               : OTHERWISE;
}

/* The same, if the segment has this offset and it is visible. */
static int32_t usual(const el_place *place, int64_t offset, int32_t committed, el_tuple *now,
                     el_placed *out) {
    if (!current(place, committed, now, out)) {
        return OTHERWISE;
    }
    if (offset < now->log_start || offset >= out->visible_end || offset < place->segment.base) {
        return OTHERWISE;
    }
    return place->end < 0 || offset < place->end ? FOUND : OTHERWISE;
}

/* Whether no file was replaced since. */
static int32_t settled(const el_place *place, el_tuple *now) {
    if (place->fixed) {
        return FOUND;
    }
    return el_page_read(place->page, now) == EL_OK && now->generation == place->generation
               ? FOUND
               : OTHERWISE;
}

/* The segment as it is published now. */
static el_short_read published(const el_place *place, const el_tuple *now) {
    el_short_read segment = place->segment;
    if (place->end < 0) {
        segment.size = now->segment_size;
        segment.index_entries = now->index_entries;
        segment.digest = now->digest;
    }
    return segment;
}

int32_t el_place_begin(const el_place *place, int64_t offset, int32_t committed, el_placed *out) {
    el_tuple now;
    return usual(place, offset, committed, &now, out);
}

int32_t el_place_read(const el_place *place, int64_t offset, int64_t timestamp, int32_t committed,
                      uint8_t *buffer, int64_t capacity, el_placed *out) {
    el_batch batches[POINT_BATCHES];
    el_tuple now;
    int by_time = timestamp != INT64_MIN;
    if (!usual(place, offset, committed, &now, out)) {
        return OTHERWISE;
    }
    out->found = published(place, &now);
    int64_t count = el_read_short(&out->found, offset, buffer, capacity, batches, POINT_BATCHES);
    if (count == EL_ESPACE) {
        return EL_ESPACE;
    }
    if (count <= 0 || out->found.row < 0 || out->found.row >= count) {
        return OTHERWISE;
    }
    int64_t row = out->found.row;
    while (by_time && row < count &&
           (batches[row].max_timestamp < timestamp || batches[row].attributes & CONTROL_BATCH)) {
        row++;
    }
    if (row == count) {
        if (settled(place, &now)) {
            out->next_offset =
                batches[count - 1].base_offset + batches[count - 1].last_offset_delta + 1;
        }
        return OTHERWISE;
    }
    out->batch = batches[row];
    out->first_offset = batches[0].base_offset;
    if (out->batch.base_offset >= out->visible_end || out->batch.attributes & CONTROL_BATCH) {
        return OTHERWISE;
    }
    if (committed && !by_time && out->batch.attributes & TRANSACTIONAL_BATCH) {
        return OTHERWISE;
    }
    return settled(place, &now);
}

/* ---- By time --------------------------------------------------------------------------------- */

/* The batch of the segment that holds an offset, and the one before it, by their headers. */
typedef struct {
    el_batch batch;
    /* the largest timestamp of the batch before; -1 at the start, INT64_MAX if it was not read */
    int64_t newest_before;
} el_named;

/* Finds the batch that a time index entry names: 1, or 0. `before`: the batch before it is wanted,
 * too. */
static int named(const el_short_read *segment, const el_newest *entry, int before, el_named *out) {
    uint8_t raw[EL_INDEX_ENTRY_SIZE];
    int64_t relative = entry->offset - segment->base;
    int64_t at = 0;
    if (relative < 0 || relative > INT32_MAX) {
        return 0;
    }
    int64_t number =
        el_index_floor_file(segment->index_fd, segment->index_entries, (int32_t)relative, raw);
    if (number < -1) {
        return 0;
    }
    if (number >= 0 && before && --number >= 0 &&
        el_pread(segment->index_fd, raw, sizeof raw, number * EL_INDEX_ENTRY_SIZE) !=
            (int64_t)sizeof raw) {
        return 0;
    }
    if (number >= 0) {
        at = (int64_t)load_be32(raw + 4);
    }
    out->newest_before = at ? INT64_MAX : -1;
    for (int walked = 0; walked < POINT_BATCHES; walked++) {
        if (el_walk_headers(segment->log_fd, segment->base, at, segment->size, &out->batch, 1,
                            &at) != 1) {
            return 0;
        }
        if (out->batch.base_offset + out->batch.last_offset_delta >= entry->offset) {
            return out->batch.base_offset <= entry->offset;
        }
        out->newest_before = out->batch.max_timestamp;
    }
    return 0;
}

static int time_entry(int fd, int64_t base, int64_t number, el_newest *out) {
    uint8_t raw[EL_TIME_ENTRY_SIZE];
    if (number < 0 ||
        el_pread(fd, raw, sizeof raw, number * EL_TIME_ENTRY_SIZE) != (int64_t)sizeof raw) {
        return 0;
    }
    *out = (el_newest){(int64_t)load_be64(raw), base + (int32_t)load_be32(raw + 8)};
    return 1;
}

/* The offset at which a search begins by the time index: no earlier record of the segment is as
 * new. -1: its start; -2: the index is wrong. `lateness_ms`: by how much a record may be older than
 * one in an earlier batch, -1 if unknown. */
static int64_t time_floor(const el_short_read *segment, int fd, int64_t count, int64_t timestamp,
                          int64_t lateness_ms) {
    uint8_t raw[EL_TIME_ENTRY_SIZE];
    el_newest entry, before;
    el_named found;
    int64_t number = el_time_floor_file(fd, count, timestamp, raw);
    if (number < 0) {
        return -1;
    }
    entry = (el_newest){(int64_t)load_be64(raw), segment->base + (int32_t)load_be32(raw + 8)};
    int is_proof =
        entry.timestamp >= 0 && lateness_ms >= 0 && lateness_ms < timestamp - entry.timestamp;
    if (!named(segment, &entry, !is_proof, &found) ||
        found.batch.max_timestamp != entry.timestamp) {
        return -2;
    }
    if (is_proof) {
        return entry.offset + 1;
    }
    /* The first batch as new as the entry: the one before proves that, as it is older by more than
     * the lateness. */
    const int64_t newest = found.newest_before;
    if (lateness_ms >= 0 && newest >= -1 && newest < timestamp &&
        lateness_ms < timestamp - newest) {
        return found.batch.base_offset;
    }
    if (!time_entry(fd, segment->base, number - 1, &before) ||
        before.timestamp >= entry.timestamp || before.offset >= entry.offset) {
        return -1;
    }
    return named(segment, &before, 0, &found) && found.batch.max_timestamp == before.timestamp
               ? before.offset + 1
               : -2;
}

int32_t el_place_since(const el_place *place, int64_t timestamp, int32_t committed, int32_t time_fd,
                       el_placed *out) {
    el_tuple now;
    if (timestamp < 0 || !current(place, committed, &now, out)) {
        return OTHERWISE;
    }
    const el_short_read segment = published(place, &now);
    int64_t lateness_ms = place->end >= 0         ? place->lateness_ms
                          : now.min_timestamp < 0 ? -1
                                                  : now.lateness_ms;
    int64_t count = place->end >= 0 ? place->time_entries : (int64_t)now.time_entries;
    int64_t least = segment.base > now.log_start ? segment.base : now.log_start;
    int64_t from = time_floor(&segment, time_fd, count, timestamp, lateness_ms);
    if (from == -2 || !settled(place, &now)) {
        return OTHERWISE;
    }
    out->next_offset = from > least ? from : least;
    return FOUND;
}
