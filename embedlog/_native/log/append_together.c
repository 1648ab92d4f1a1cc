/* An append to a leader together with its followers: what the thread does that makes it for its
 * caller (`append_worker.c`).
 *
 * - The leader's end is published before a follower takes the run, so no follower has a batch that
 *   the leader can lose.
 * - The leader's lock is kept until the commit. A follower's lock is tried, and released before the
 *   next one (REPLICA-15).
 * - A follower takes the run by the code of a copy (el_follow): epoch, position and segment are
 *   compared under its lock.
 * - What a follower does not take in a moment is left to the caller, which copies it without the
 *   leader's lock.
 * - The thread uses writers of its own, which are copies of those of the caller. Before it enters
 *   the next directory it says so in one word (`place`). A caller that has given up has changed
 * this word before: then the thread leaves the directory in which it is, and enters none. The
 * leader's lock belongs to the caller then, unless the thread is in the leader. */
#include "log/append.h"

#include <errno.h>
#include <sched.h>

#define TURN_NS 200000LL /* for a lock of a follower, and for runs that are before one's own */

typedef struct { /* a run that the leader has taken */
    const el_given *given;
    const el_appended *out;
    int32_t partition_epoch;
    int32_t epoch;
    int64_t high_watermark; /* of the leader, as it took the run */
} el_taken;

/* Whether leader and followers are the maximal ISR. */
static int is_maximal_isr(const el_together *together, const el_replica *replica) {
    uint64_t given = el_isr_bit(together->leader->node_slot);
    for (int32_t at = 0; at < together->count; at++) {
        given |= el_isr_bit(together->followers[at]->node_slot);
    }
    return replica->maximal_isr == given;
}

/* Whether the page of a follower shows the records below `end`. Its paths were compared when it
 * took the run. */
static int shows_run(const el_writer *follower, int32_t epoch, int64_t end) {
    el_tuple tuple;
    el_replica replica;
    if (!el_page_alive(follower->page) ||
        el_page_read_replica(follower->page, &tuple, &replica) < 0) {
        return 0;
    }
    if (el_page_word(follower->page, EL_WORD_CUT_INTENT)) {
        return 0;
    }
    return replica.role == EL_ROLE_FOLLOWER && tuple.epoch == epoch && tuple.log_end >= end;
}

/* EL_OK if the follower takes the run, EL_SYSTEM_ERROR(ETIMEDOUT) if its lock is not free, or
 * another code. */
static int32_t give_run(el_writer *follower, const el_leading *leading, const el_taken *taken) {
    el_leading source = *leading;
    el_appended own;
    int32_t rc = el_follow_begin(follower, el_boot_ns(), taken->partition_epoch);
    if (rc != EL_OK) {
        return rc;
    }
    source.data_epoch = follower->data_epoch;
    rc = el_follow(follower, &source, taken->given->data, taken->out->consumed, taken->given->rows,
                   taken->given->row_count, NULL, &own);
    el_append_end(follower, rc == EL_MUST_REPAIR);
    return rc == EL_APPENDED && own.next_offset == taken->out->next_offset ? EL_OK : EL_NOT_NEXT;
}

/* Whether the follower has the run, or takes it. A run of another process that is before this one
 * is waited for a moment. */
static int takes_run(el_writer *follower, const el_leading *leading, const el_taken *taken) {
    if (give_run(follower, leading, taken) ==
        EL_OK) { /* most often: el_follow compares the position, too */
        return 1;
    }
    int64_t until_ns = el_boot_ns() + TURN_NS;
    for (;;) {
        if (shows_run(follower, taken->epoch, taken->out->next_offset)) {
            return 1;
        }
        int is_next = shows_run(follower, taken->epoch, taken->out->base_offset);
        int32_t rc = is_next ? give_run(follower, leading, taken) : EL_SYSTEM_ERROR(ETIMEDOUT);
        if (rc != EL_SYSTEM_ERROR(ETIMEDOUT) || el_boot_ns() >= until_ns) {
            return rc == EL_OK;
        }
        sched_yield();
    }
}

/* EL_APPENDED or EL_UNCOMMITTED. The followers are measured under the leader's lock: one that took
 * the run may have been cut since. REQUIRES: el_append_begin on the leader. */
static int32_t commit_locked(el_together *together, const el_taken *taken) {
    el_tuple tuple;
    el_replica replica;
    int64_t end = taken->out->next_offset;
    if (el_page_read_replica(together->leader->page, &tuple, &replica) < 0) {
        return EL_UNCOMMITTED;
    }
    if (el_replica_accepts(together->leader, &tuple, &replica) != EL_OK ||
        !is_maximal_isr(together, &replica)) {
        /* also if others committed the run with an ISR that is too small for this process */
        return EL_UNCOMMITTED;
    }
    if (tuple.high_watermark >= end) {
        return EL_APPENDED; /* another process has committed the run */
    }
    for (int32_t at = 0; at < together->count; at++) {
        if (!shows_run(together->followers[at], taken->epoch, end)) {
            return EL_UNCOMMITTED;
        }
    }
    el_raise_high_watermark(&tuple, &replica, end);
    if (tuple.high_watermark < end) {
        return EL_UNCOMMITTED;
    }
    int32_t rc = el_page_publish_replica(together->leader->page, &tuple, &replica,
                                         together->leader->directory);
    return rc < 0 ? EL_UNCOMMITTED : EL_APPENDED;
}

/* Appends to the leader. EL_APPENDED: *taken describes the run. REQUIRES: el_append_begin. */
static int32_t append_locked(el_job *job, el_taken *taken) {
    el_together *together = &job->together;
    el_writer *leader = together->leader;
    const el_given *given = &job->given;
    el_known *known = job->has_known ? &job->known : NULL;
    el_tuple tuple;
    el_replica replica;
    if (el_page_read_replica(leader->page, &tuple, &replica) < 0) {
        return EL_MUST_REMAP;
    }
    if (!el_settings_are_present(leader)) {
        return EL_OTHER_SETTINGS;
    }
    if (together->all_in_sync && replica.role == EL_ROLE_LEADER &&
        !is_maximal_isr(together, &replica)) {
        return EL_OTHER_ISR;
    }
    if (known && el_must_catch_up(leader, given->data, given->size, known)) {
        return EL_MUST_CATCH_UP;
    }
    int32_t rc =
        el_append_held(leader, given->data, given->size, given->rows, given->row_count, &job->out);
    if (rc != EL_APPENDED) {
        return rc;
    }
    if (known) {
        el_known_advance(known, given->data, &job->out);
    }
    if (el_page_read_replica(leader->page, &tuple, &replica) < 0) {
        return EL_UNCOMMITTED;
    }
    *taken =
        (el_taken){given, &job->out, replica.partition_epoch, tuple.epoch, tuple.high_watermark};
    return EL_APPENDED;
}

/* ---- the places of the thread ---------------------------------------------------------------- */

/* Whether the thread may enter the next place: the caller has not given up. */
static int moves(el_job *job, uint32_t place) {
    uint32_t before = atomic_load(&job->place);
    return !(before & EL_JOB_LEFT) && atomic_compare_exchange_strong(&job->place, &before, place);
}

/* Copies to the followers and commits. EL_IN_DOUBT: the caller has given up, and has the leader's
 * lock, unless the thread was in the leader. REQUIRES: el_append_begin on the leader, which took
 * the run. */
static int32_t copy_and_commit(el_job *job, const el_taken *taken) {
    el_together *together = &job->together;
    const el_leading leading = {.high_watermark = taken->high_watermark,
                                .epoch = taken->epoch,
                                .fresh = 1,
                                .base_offset = taken->out->base_offset,
                                .append_time_ms = taken->out->append_time_ms};
    int has = !job->is_apart;
    for (int32_t at = 0; at < together->count && has; at++) {
        if (!moves(job, (uint32_t)at + 1)) {
            if (at == 0) {
                el_append_end(together->leader, 0);
            }
            return EL_IN_DOUBT;
        }
        el_point("joint-follower");
        has = takes_run(together->followers[at], &leading, taken);
    }
    if (has) {
        together->answered_ns = el_boot_ns();
    }
    if (!job->is_apart && !moves(job, EL_JOB_COMMITS)) {
        return EL_IN_DOUBT;
    }
    el_point("joint-commit");
    int32_t rc = has ? commit_locked(together, taken) : EL_UNCOMMITTED;
    el_append_end(together->leader, 0);
    return rc;
}

static int32_t append_to_all(el_job *job) {
    el_together *together = &job->together;
    el_taken taken;
    int32_t rc = el_append_begin(together->leader, job->given.deadline_ns);
    if (rc != EL_OK) {
        return rc;
    }
    rc = append_locked(job, &taken);
    int is_committed = rc == EL_APPENDED && taken.high_watermark >= taken.out->next_offset;
    if (rc == EL_APPENDED && !is_committed && together->all_in_sync) {
        return copy_and_commit(job, &taken);
    }
    /* not taken; or a leader without followers commits with its own publication */
    el_append_end(together->leader, rc == EL_MUST_REPAIR);
    return rc;
}

int el_job_run(el_job *job) {
    int32_t rc = append_to_all(job);
    if (rc != EL_IN_DOUBT) {
        job->code = rc;
        if (moves(job, EL_JOB_ENDED)) {
            return 1;
        }
    }
    el_writer *left = job->lent[el_job_directory(job)];
    __atomic_store_n(&left->is_left, 0, __ATOMIC_SEQ_CST);
    el_futex_wake((_Atomic uint32_t *)&left->is_left, INT32_MAX);
    return 0;
}
