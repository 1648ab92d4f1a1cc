/* Reads the batches around one offset: index, digests, file and checks in one call, for a reader of
 * few records.
 *
 * - Every unusual case is left to the general reader; this file only recognises the usual case.
 * - The read begins at an index entry whose chain digest is known, and ends where the digest is
 *   compared. A segment without digests is read from an entry to the next one.
 * - An entry only selects the place. The checksum, the chain and the digest prove what is there. */
#include "codec/batch.h"
#include "log/control_page.h"

enum { OTHERWISE = 0 };

typedef struct {
    int64_t number, position; /* number of an index entry; -1 and 0 at the start of the segment */
    int64_t last_offset;      /* -1 at the start */
} el_start;

/* Entry `number` of the offset index: 1, or 0 if it is not there. */
static int entry_at(const el_short_read *segment, int64_t number, el_start *out) {
    uint8_t raw[EL_INDEX_ENTRY_SIZE];
    if (number < 0 || number >= segment->index_entries) {
        return 0;
    }
    if (el_pread(segment->index_fd, raw, sizeof raw, number * EL_INDEX_ENTRY_SIZE) !=
        (int64_t)sizeof raw) {
        return 0;
    }
    *out = (el_start){number, (int64_t)load_be32(raw + 4), segment->base + (int32_t)load_be32(raw)};
    return out->position > 0 && out->position < segment->size;
}

/* Whether the header at an entry names a batch that holds `offset`. It is not checked here: an
 * entry only selects the place. */
static int holds(const el_short_read *segment, const el_start *start, int64_t offset,
                 int64_t *size) {
    uint8_t header[EL_HEADER_SIZE];
    el_batch batch;
    if (el_pread(segment->log_fd, header, sizeof header, start->position) !=
        (int64_t)sizeof header) {
        return 0;
    }
    load_header(header, &batch);
    *size = (int64_t)(int32_t)load_be32(header + SIZE_AT) + AFTER_SIZE;
    return batch.magic == MAGIC && batch.base_offset <= offset &&
           offsets_fit(batch.base_offset, batch.last_offset_delta, segment->base) &&
           batch.base_offset + batch.last_offset_delta == start->last_offset;
}

/* The chain digest at a start: 1, or 0 if it is not known. */
static int seed(const el_short_read *segment, const el_digests *file, const el_start *start,
                el_compared *chain) {
    *chain = (el_compared){.position = start->position, .agreed = start->position};
    return start->number < 0 || segment->digest_fd < 0 ||
           el_digest_at(file, start->number, start->position, &chain->digest) == 1;
}

/* Chooses where the read begins and ends: its size, or OTHERWISE. */
static int64_t place(const el_short_read *segment, const el_digests *file, int64_t offset,
                     el_start *start, el_compared *chain) {
    uint8_t entry[EL_INDEX_ENTRY_SIZE];
    int64_t size = 0;
    int64_t end;
    int64_t relative = offset - segment->base;
    el_start next;
    if (relative < 0 || relative > INT32_MAX) {
        return OTHERWISE;
    }
    int64_t number =
        el_index_floor_file(segment->index_fd, segment->index_entries, (int32_t)relative, entry);
    if (number < -1) {
        return OTHERWISE;
    }
    *start = (el_start){-1, 0, -1};
    if (number >= 0 && !entry_at(segment, number, start)) {
        return OTHERWISE;
    }
    int more = entry_at(segment, number + 1, &next);
    if (start->last_offset < offset && more && holds(segment, &next, offset, &size) &&
        seed(segment, file, &next, chain)) {
        *start = next;
    } else if (seed(segment, file, start, chain)) {
        size = more ? next.position - start->position : segment->size - start->position;
    } else {
        return OTHERWISE;
    }
    if (segment->digest_fd < 0) {
        return size;
    }
    end = el_digests_reach(file, start->number + 1, start->position, start->position + 1,
                           segment->size);
    /* after the last record the chain is compared with that of the publication */
    if (end == 0 && !more) {
        end = segment->size;
    }
    return end > start->position ? end - start->position : OTHERWISE;
}

/* Whether all batches are as their appenders wrote them, up to the end of the read. */
static int agree(el_short_read *segment, const el_digests *file, const uint8_t *data,
                 const el_batch *batches, int64_t count) {
    el_problem problem;
    int64_t last = batches[count - 1].position + batches[count - 1].size;
    if (segment->digest_fd < 0) {
        segment->chain.position += last;
        return 1;
    }
    segment->number = el_digests_compare(file, segment->number, data, last, batches, count,
                                         &segment->chain, &problem);
    if (segment->number < 0) {
        return 0;
    }
    return segment->chain.position == segment->size
               ? segment->chain.digest == segment->digest
               : segment->chain.agreed == segment->chain.position;
}

/* Finds the batch that holds the offset: 1, or 0 if there is none. */
static int select_row(el_short_read *segment, int64_t offset, const el_batch *batches,
                      int64_t count) {
    int64_t row = 0;
    while (row < count && batches[row].base_offset + batches[row].last_offset_delta < offset) {
        row++;
    }
    if (row == count) {
        return 0;
    }
    segment->row = row;
    segment->first_offset = batches[row].base_offset;
    segment->last_offset = batches[row].base_offset + batches[row].last_offset_delta;
    /* epochs do not fall */
    segment->epoch =
        batches[0].leader_epoch == batches[count - 1].leader_epoch ? batches[0].leader_epoch : -1;
    return 1;
}

int64_t el_read_short(el_short_read *segment, int64_t offset, uint8_t *buffer, int64_t capacity,
                      el_batch *batches, int64_t batch_capacity) {
    const el_digests file = {
        .base = segment->base, .count = segment->index_entries, .fd = segment->digest_fd};
    el_start start;
    el_problem problem;
    int64_t consumed;
    int64_t need;
    int64_t size = place(segment, &file, offset, &start, &segment->chain);
    segment->need = size;
    if (size <= 0 || size > segment->size - start.position) {
        return OTHERWISE;
    }
    if (size > capacity) {
        return EL_ESPACE;
    }
    if (el_pread(segment->log_fd, buffer, size, start.position) != size) {
        return OTHERWISE;
    }
    el_chain chain = {.next_offset = start.number < 0 && segment->gapless ? segment->base : -1,
                      .segment_base = segment->base,
                      .epoch = -1,
                      .gaps_allowed = !segment->gapless};
    int64_t count =
        el_scan(buffer, size, &chain, batches, batch_capacity, &consumed, &need, &problem);
    if (count == 0 || consumed != size) {
        return OTHERWISE;
    }
    if (start.number >= 0 &&
        batches[0].base_offset + batches[0].last_offset_delta != start.last_offset) {
        return OTHERWISE;
    }
    segment->position = start.position;
    segment->number = start.number + 1;
    return agree(segment, &file, buffer, batches, count) &&
                   select_row(segment, offset, batches, count)
               ? count
               : OTHERWISE;
}
