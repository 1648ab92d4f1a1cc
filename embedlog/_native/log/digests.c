/* Interval digests: one record for each entry of the offset index, in a file beside the segment.
 *
 * - A record contains the chain digest of all batches before the batch of its entry, and a
 *   checksum.
 * - A record is at number x size: a missing or damaged record is skipped, its neighbours remain
 *   valid.
 * - A reader with a known chain compares it at every later record; a difference is damage. */
#include "system/system.h"

#include <string.h>

enum { EL_WINDOW_RECORDS = 255, CHECK_AT = 4, DIGEST_AT = 8 };

_Static_assert(EL_DIGEST_RECORD_SIZE == 16, "u32 position, u32 check, u64 digest");

typedef struct {
    int64_t position;
    uint64_t digest;
} el_record_found;

/* The checksum covers the identity of the record too: its segment and its number. */
static uint32_t check_of(int64_t base, int64_t number, int64_t position, uint64_t digest) {
    uint8_t all[28];
    store_be64(all, (uint64_t)base);
    store_be64(all + 8, (uint64_t)number);
    store_be32(all + 16, (uint32_t)position);
    store_be64(all + 20, digest);
    return el_crc32c(0, all, sizeof all);
}

int32_t el_digest_record(uint8_t *record, int64_t base, int64_t number, int64_t position,
                         uint64_t digest) {
    store_be32(record, (uint32_t)position);
    store_be32(record + CHECK_AT, check_of(base, number, position, digest));
    store_be64(record + DIGEST_AT, digest);
    return EL_OK;
}

static int load(const uint8_t *record, int64_t base, int64_t number, el_record_found *out) {
    out->position = (int64_t)load_be32(record);
    out->digest = load_be64(record + DIGEST_AT);
    return load_be32(record + CHECK_AT) == check_of(base, number, out->position, out->digest);
}

/* ---- iteration over the records -------------------------------------------------------------- */

typedef struct {
    const el_digests *file;
    /* number of the record in `found`; number of the first record in the window */
    int64_t number, from;
    int64_t held;
    int64_t failure;
    el_record_found found;
    uint8_t window[EL_WINDOW_RECORDS * EL_DIGEST_RECORD_SIZE];
} el_walker;

static int fill(el_walker *walker) {
    const el_digests *file = walker->file;
    int64_t left = file->count - walker->number;
    int64_t want = left < EL_WINDOW_RECORDS ? left : EL_WINDOW_RECORDS;
    int64_t got = el_pread(file->fd, walker->window, want * EL_DIGEST_RECORD_SIZE,
                           walker->number * EL_DIGEST_RECORD_SIZE);
    walker->failure = got < 0 ? got : 0;
    walker->from = walker->number;
    walker->held = got < 0 ? 0 : got / EL_DIGEST_RECORD_SIZE;
    return walker->held > 0; /* 0: the file is shorter than its count */
}

/* Moves to the first valid record from `number` on; 0 if there is none. */
static int walk_to(el_walker *walker, int64_t number) {
    const el_digests *file = walker->file;
    for (walker->number = number; walker->number < file->count; walker->number++) {
        if (walker->number >= walker->from + walker->held && !fill(walker)) {
            break;
        }
        const uint8_t *record =
            walker->window + (walker->number - walker->from) * EL_DIGEST_RECORD_SIZE;
        if (load(record, file->base, walker->number, &walker->found)) {
            return 1;
        }
    }
    walker->number = file->count;
    return 0;
}

static int walk_from(el_walker *walker, const el_digests *file, int64_t number) {
    walker->file = file;
    walker->from = walker->held = walker->failure = 0;
    return walk_to(walker, number);
}

int64_t el_digest_at(const el_digests *file, int64_t number, int64_t position, uint64_t *digest) {
    uint8_t record[EL_DIGEST_RECORD_SIZE];
    el_record_found found;
    if (number < 0 || number >= file->count) {
        return 0;
    }
    int64_t got = el_pread(file->fd, record, sizeof record, number * EL_DIGEST_RECORD_SIZE);
    if (got < 0) {
        return got;
    }
    if (got < (int64_t)sizeof record || !load(record, file->base, number, &found) ||
        found.position != position) {
        return 0;
    }
    *digest = found.digest;
    return 1;
}

int64_t el_digests_reach(const el_digests *file, int64_t from, int64_t position, int64_t limit,
                         int64_t end) {
    el_walker walker;
    int64_t best = 0;
    for (int more = walk_from(&walker, file, from); more;
         more = walk_to(&walker, walker.number + 1)) {
        int64_t place = walker.found.position;
        if (place > limit && place <= end && (best || place > position)) {
            return best ? best : place;
        }
        if (place > position && place <= end) {
            best = place;
        }
    }
    if (walker.failure < 0) {
        return walker.failure;
    }
    return end <= limit ? end : best;
}

static int64_t differs(el_problem *problem, int64_t position, uint64_t expected, uint64_t found) {
    problem->what = EL_BAD_DIGEST;
    problem->position = position;
    problem->expected = (int64_t)expected;
    problem->found = (int64_t)found;
    return EL_ECORRUPT;
}

int64_t el_digests_compare(const el_digests *file, int64_t from, const uint8_t *data, int64_t size,
                           const el_batch *batches, int64_t count, el_compared *state,
                           el_problem *problem) {
    el_walker walker;
    int64_t at = 0;
    memset(problem, 0, sizeof *problem);
    int more = walk_from(&walker, file, from);
    for (int64_t row = 0;; row++) {
        for (; more && walker.found.position <= state->position;
             more = walk_to(&walker, walker.number + 1)) {
            int64_t place = walker.found.position;
            if (place < state->position &&
                place > state->agreed) { /* no batch starts at the position of a record */
                return differs(problem, place, walker.found.digest, 0);
            }
            if (place == state->position && walker.found.digest != state->digest) {
                return differs(problem, place, walker.found.digest, state->digest);
            }
            if (place == state->position) {
                state->agreed = place;
            }
        }
        if (row == count) {
            return walker.failure < 0 ? walker.failure : walker.number;
        }
        if (size - at < EL_DIGEST_SIZE || batches[row].size < EL_DIGEST_SIZE) {
            return EL_EINVALID;
        }
        state->digest = el_chain_digest(data + at, state->digest);
        state->position += batches[row].size;
        at += batches[row].size;
    }
}

int64_t el_digests_before(const uint8_t *data, int64_t size, const el_batch *batches, int64_t count,
                          uint64_t digest, uint64_t *out) {
    int64_t at = 0;
    for (int64_t row = 0; row < count; row++) {
        if (size - at < EL_DIGEST_SIZE || batches[row].size < EL_DIGEST_SIZE) {
            return EL_EINVALID;
        }
        out[row] = digest;
        digest = el_chain_digest(data + at, digest);
        at += batches[row].size;
    }
    return at;
}
