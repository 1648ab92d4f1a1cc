/* Complete appends, from the locking to the unlocking: to one directory, and to a leader together with its followers.
 *
 * CTOGETHER-1  the leader's lock is held until the commit; a follower's lock is tried, and released before the next one (REPLICA-15)
 * CTOGETHER-2  the leader's end is published before a follower takes the run, so no follower has a batch that the leader can lose
 * CTOGETHER-3  a follower takes the run by the code of a copy (el_follow): epoch, position and segment are compared under its lock
 * CTOGETHER-4  what a follower does not take at once is left to the caller, which copies it without the leader's lock
 * CTOGETHER-5  after a slow write of a follower all runs are left to the caller for a while. Other processes must not wait for the
 *              leader's lock because a follower's disk is slow
 *
 * Records were judged by settings of their topic that were read at one value of the directory's topics word. It is compared under the
 * lock, which needs no system call: another value means that a topic has changed, and nothing is written. */
#include "log/append.h"
#include "testing/mutants.h"

enum { SLOW_NS = 250000000 };             /* a write of a follower that lasts longer */
#define APART_NS 10000000000LL

int32_t el_settings_are_present(el_writer *writer) {
    return !writer->directory || el_topics(writer->directory) == writer->topics || el_is_mutant(EL_ANY_SETTINGS);
}

int32_t el_append(el_writer *writer, const uint8_t *data, int64_t size, const el_batch *rows, int64_t row_count, el_known *known,
                  int64_t deadline_ns, el_appended *out) {
    int32_t rc = el_append_begin(writer, deadline_ns);
    if (rc != EL_OK)
        return rc;
    if (!el_settings_are_present(writer))
        rc = EL_OTHER_SETTINGS;
    else if (known && el_must_catch_up(writer, data, size, known))
        rc = EL_MUST_CATCH_UP;
    else
        rc = el_append_held(writer, data, size, rows, row_count, out);
    if (known && rc == EL_APPENDED)
        el_known_advance(known, data, out);
    el_append_end(writer, rc == EL_MUST_REPAIR);
    return rc;
}

_Static_assert(_Generic(&el_append, el_append_call: 1, default: 0), "the other extension calls it by this type");

/* ---- a leader with its followers ---------------------------------------------------------------- */

typedef struct {                          /* a run that the leader has taken */
    const uint8_t *data;
    const el_batch *rows;
    int64_t row_count;
    const el_appended *out;
    int32_t partition_epoch;
} el_taken;

/* Whether leader and followers are the maximal ISR. */
static int is_maximal_isr(const el_together *together, const el_replica *replica) {
    uint64_t given = el_isr_bit(together->leader->node_slot);
    for (int32_t at = 0; at < together->count; at++)
        given |= el_isr_bit(together->followers[at]->node_slot);
    return replica->maximal_isr == given;
}

static int takes_run(el_writer *follower, const el_leading *leading, const el_taken *taken, int64_t now_ns) {
    el_leading source = *leading;
    el_appended own;
    if (el_follow_begin(follower, now_ns, taken->partition_epoch) != EL_OK)
        return 0;
    source.data_epoch = follower->data_epoch;
    int32_t rc = el_follow(follower, &source, taken->data, taken->out->consumed, taken->rows, taken->row_count, NULL, &own);
    el_append_end(follower, rc == EL_MUST_REPAIR);
    return rc == EL_APPENDED && own.next_offset == taken->out->next_offset;
}

/* As takes_run, and CTOGETHER-5. */
static int has_run(el_together *together, int32_t at, const el_leading *leading, const el_taken *taken) {
    int64_t began_ns = el_boot_ns();
    if (began_ns < together->apart_until_ns)
        return 0;
    int has = takes_run(together->followers[at], leading, taken, began_ns);
    if (el_boot_ns() - began_ns > SLOW_NS)
        together->apart_until_ns = began_ns + APART_NS;
    return has;
}

/* EL_APPENDED or EL_UNCOMMITTED. REQUIRES: el_append_begin on the leader. */
static int32_t commit_together(el_together *together, const el_taken *taken) {
    el_tuple tuple;
    el_replica replica;
    int64_t end = taken->out->next_offset;
    if (el_page_read_replica(together->leader->page, &tuple, &replica) < 0)
        return EL_UNCOMMITTED;
    const el_leading leading = {.high_watermark = tuple.high_watermark, .epoch = tuple.epoch, .fresh = 1,
                                .base_offset = taken->out->base_offset, .append_time_ms = taken->out->append_time_ms};
    for (int32_t at = 0; at < together->count; at++)
        if (!has_run(together, at, &leading, taken))
            return EL_UNCOMMITTED;
    int64_t before = tuple.high_watermark;
    el_raise_high_watermark(&tuple, &replica, end);
    if (tuple.high_watermark < end)
        return EL_UNCOMMITTED;
    if (tuple.high_watermark == before)   /* a leader without followers commits with its own publication */
        return EL_APPENDED;
    int32_t rc = el_page_publish_replica(together->leader->page, &tuple, &replica, together->leader->directory);
    return rc < 0 ? EL_UNCOMMITTED : EL_APPENDED;
}

static int32_t append_locked(el_together *together, const uint8_t *data, int64_t size, const el_batch *rows, int64_t row_count,
                             el_known *known, el_appended *out) {
    el_writer *leader = together->leader;
    el_tuple tuple;
    el_replica replica;
    if (el_page_read_replica(leader->page, &tuple, &replica) < 0)
        return EL_MUST_REMAP;
    if (!el_settings_are_present(leader))
        return EL_OTHER_SETTINGS;
    if (together->all_in_sync && replica.role == EL_ROLE_LEADER && !is_maximal_isr(together, &replica))
        return EL_OTHER_ISR;
    if (known && el_must_catch_up(leader, data, size, known))
        return EL_MUST_CATCH_UP;
    int32_t rc = el_append_held(leader, data, size, rows, row_count, out);
    if (rc != EL_APPENDED)
        return rc;
    if (known)
        el_known_advance(known, data, out);
    return together->all_in_sync ? commit_together(together, &(el_taken){data, rows, row_count, out, replica.partition_epoch}) : EL_APPENDED;
}

int32_t el_append_together(el_together *together, const uint8_t *data, int64_t size, const el_batch *rows, int64_t row_count,
                           el_known *known, int64_t deadline_ns, el_appended *out) {
    el_writer *leader = together->leader;
    leader->leader_epoch = together->epoch;
    leader->all_in_sync = together->all_in_sync;
    int32_t rc = el_append_begin(leader, deadline_ns);
    if (rc != EL_OK)
        return rc;
    rc = append_locked(together, data, size, rows, row_count, known, out);
    el_append_end(leader, rc == EL_MUST_REPAIR);
    return rc;
}

_Static_assert(_Generic(&el_append_together, el_together_call: 1, default: 0), "the other extension calls it by this type");
