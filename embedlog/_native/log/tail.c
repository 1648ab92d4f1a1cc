/* Reads the tail of a log: control page, file and checks in one call, for a reader that waits at
 * the end.
 *
 * - Every unusual case is left to the general reader; this file only recognises the usual case.
 * - A reader of committed records gets bytes only while no transaction is open: then all
 *   transactions of these bytes are decided.
 * - Nothing above the published end is read, and the generation is compared again after the
 *   read. */
#include "log/control_page.h"

enum { EL_TAIL_BATCHES = 64 };

/* Scans the bytes that were read. Returns the size of the whole good batches, or -1 if one does not
 * continue the chain. */
static int64_t verify(el_tailing *tailing, const uint8_t *buffer, int64_t size) {
    el_batch batches[EL_TAIL_BATCHES];
    el_problem problem;
    el_chain chain = {.next_offset = tailing->offset,
                      .segment_base = tailing->segment_base,
                      .digest = tailing->digest,
                      .epoch = tailing->epoch,
                      .gaps_allowed = 0};
    int64_t taken = 0;
    for (;;) {
        int64_t consumed = 0;
        int64_t need = 0;
        int64_t count = el_scan(buffer + taken, size - taken, &chain, batches, EL_TAIL_BATCHES,
                                &consumed, &need, &problem);
        for (int64_t at = 0; at < count; at++) {
            if (batches[at].leader_epoch != tailing->epoch) {
                return -1;
            }
        }
        taken += consumed;
        if (count < EL_TAIL_BATCHES) {
            break;
        }
    }
    if (problem.what != EL_FINE || taken == 0) {
        return -1;
    }
    tailing->offset = chain.next_offset;
    tailing->digest = chain.digest;
    tailing->position += taken;
    return taken;
}

int32_t el_tail_read(el_tailing *tailing, uint8_t *buffer, int64_t capacity, int64_t *taken,
                     int64_t *end) {
    el_tuple now;
    *taken = 0;
    if (!el_page_alive(tailing->page) || el_page_read(tailing->page, &now) < 0) {
        return EL_TAIL_OTHERWISE;
    }
    int held_back = tailing->committed && now.first_unstable >= 0;
    *end = held_back ? now.first_unstable : now.high_watermark;
    if (now.segment_base != tailing->segment_base || now.generation != tailing->generation ||
        now.epoch != tailing->epoch || now.log_start > tailing->offset ||
        now.log_end < tailing->offset || now.high_watermark != now.log_end ||
        (el_page_word(tailing->page, EL_WORD_FLAGS) & EL_FLAG_DELETED)) {
        return EL_TAIL_OTHERWISE;
    }
    if (*end == tailing->offset) {
        return EL_TAIL_NOTHING;
    }
    if (held_back) {
        return EL_TAIL_OTHERWISE;
    }
    int64_t size = now.segment_size - tailing->position;
    if (size <= 0 || size > capacity ||
        el_pread(tailing->fd, buffer, size, tailing->position) != size) {
        return EL_TAIL_OTHERWISE;
    }
    el_tailing before = *tailing;
    *taken = verify(tailing, buffer, size);
    if (*taken < 0 || tailing->digest != now.digest || el_page_read(tailing->page, &now) < 0 ||
        now.generation != tailing->generation) {
        *tailing = before;
        return EL_TAIL_OTHERWISE;
    }
    return EL_TAIL_DATA;
}
