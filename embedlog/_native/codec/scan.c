/* The header scan: finds the whole, undamaged, consecutive batches.
 *
 * - No byte beyond the given size is read, and no field is used before it is checked.
 * - A batch that the buffer cuts off is not damage: the caller gets its size.
 * - The chain advances only over a batch that passed every check. */
#include "codec/batch.h"
#include "testing/mutants.h"

static int problem_found(el_problem *problem, int what, int64_t expected, int64_t found) {
    problem->what = what;
    problem->expected = expected;
    problem->found = found;
    return what;
}

/* Contradictions between the counts. Compaction leaves fewer records than offsets, never more. */
static int check_counts(const el_batch *batch, el_problem *problem) {
    if (batch->last_offset_delta < 0) {
        return problem_found(problem, EL_BAD_COUNT, 0, batch->last_offset_delta);
    }
    if (batch->records < 0 || batch->records > (int64_t)batch->last_offset_delta + 1) {
        return problem_found(problem, EL_BAD_COUNT, (int64_t)batch->last_offset_delta + 1,
                             batch->records);
    }
    int64_t most = ((int64_t)batch->size - EL_HEADER_SIZE) / EL_RECORD_SIZE_MIN;
    if ((batch->attributes & CODEC_MASK) == 0 && batch->records > most) {
        return problem_found(problem, EL_BAD_COUNT, most, batch->records);
    }
    return EL_FINE;
}

static int check_chain(const el_batch *batch, const el_chain *chain, el_problem *problem) {
    int64_t next = chain->next_offset;
    int64_t base = chain->segment_base;
    if (!offsets_fit(batch->base_offset, batch->last_offset_delta, base)) {
        int64_t bound = batch->base_offset < base             ? base
                        : base >= 0 && base <= LOG_OFFSET_MAX ? base + INT32_MAX
                                                              : LOG_OFFSET_MAX;
        return problem_found(problem, EL_BAD_RANGE, bound, batch->base_offset);
    }
    if (next >= 0 &&
        (batch->base_offset < next || (batch->base_offset > next && !chain->gaps_allowed))) {
        return problem_found(problem, EL_BAD_OFFSET, next, batch->base_offset);
    }
    if (batch->leader_epoch < chain->epoch && batch->leader_epoch != NO_EPOCH) {
        return problem_found(problem, EL_BAD_EPOCH, chain->epoch, batch->leader_epoch);
    }
    return EL_FINE;
}

/* EL_FINE and *whole set, or the error. *whole 0: the size field is cut off. */
static int check_frame(const uint8_t *at, int64_t left, int64_t *whole, el_problem *problem) {
    *whole = 0;
    if (left < MAGIC_AT + 1) {
        return EL_FINE;
    }
    int64_t size = (int64_t)(int32_t)load_be32(at + SIZE_AT) + AFTER_SIZE;
    int magic = (int8_t)at[MAGIC_AT];
    if (magic == 0 || magic == 1) {
        if (size < CRC_FROM) {
            return problem_found(problem, EL_BAD_SIZE, CRC_FROM, size);
        }
        return problem_found(problem, EL_LEGACY, MAGIC, magic);
    }
    if (magic != MAGIC) {
        return problem_found(problem, EL_BAD_MAGIC, MAGIC, magic);
    }
    if (size < EL_HEADER_SIZE || size > INT32_MAX) {
        return problem_found(problem, EL_BAD_SIZE, EL_HEADER_SIZE, size);
    }
    *whole = size;
    return EL_FINE;
}

static int check_batch(const uint8_t *at, const el_chain *chain, el_batch *batch,
                       el_problem *problem) {
    uint32_t crc = el_crc32c(0, at + CRC_FROM, (size_t)batch->size - CRC_FROM);
    load_header(at, batch);
    if (crc != batch->crc && !el_is_mutant(EL_NO_CRC_ON_READ)) {
        return problem_found(problem, EL_BAD_CRC, batch->crc, crc);
    }
    if (check_counts(batch, problem)) {
        return problem->what;
    }
    return check_chain(batch, chain, problem);
}

int64_t el_scan(const uint8_t *data, int64_t size, el_chain *chain, el_batch *batches,
                int64_t capacity, int64_t *consumed, int64_t *need, el_problem *problem) {
    int64_t count = 0;
    int64_t position = 0;
    int64_t whole = 0;
    memset(problem, 0, sizeof *problem);
    problem->record = -1;
    *need = 0;
    while (count < capacity && position < size) {
        const uint8_t *at = data + position;
        if (check_frame(at, size - position, &whole, problem)) {
            break;
        }
        if (whole == 0 || whole > size - position) {
            *need = whole;
            break;
        }
        el_batch *batch = &batches[count];
        batch->position = position;
        batch->size = (int32_t)whole;
        if (check_batch(at, chain, batch, problem)) {
            break;
        }
        chain->digest = el_chain_digest(at, chain->digest);
        chain->next_offset = batch->base_offset + batch->last_offset_delta + 1;
        if (batch->leader_epoch != NO_EPOCH) {
            chain->epoch = batch->leader_epoch;
        }
        position += whole;
        count++;
    }
    problem->position = position;
    *consumed = position;
    return count;
}
