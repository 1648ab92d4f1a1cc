/* Complete appends, from the locking to the unlocking: to one directory, and to a leader together
 * with its followers.
 *
 * - No lock is held while another directory's disk is waited for: the leader's lock is given back
 *   before the first follower takes the run, and taken again for the commit. A follower's lock is
 *   tried, and released before the next one (REPLICA-15).
 * - The leader's end is published before a follower takes the run, so no follower has a batch that
 *   the leader can lose.
 * - A follower takes the run by the code of a copy (el_follow): epoch, position and segment are
 *   compared under its lock.
 * - What a follower does not take in a moment is left to the caller, which copies it without the
 *   leader's lock.
 * - A run is left to the caller, before anything is written, unless all disks have answered a
 *   moment ago, or answer now: a call that meets a disk that hangs waits with it. The caller copies
 *   by threads of the directories, which it does not wait for. After a slow write of a follower it
 *   does so for a while.
 *
 * Records were judged by settings of their topic that were read at one value of the directory's
 * topics word. It is compared under the lock, which needs no system call: another value means that
 * a topic has changed, and nothing is written. */
#include "log/append.h"
#include "testing/mutants.h"

#include <errno.h>
#include <sched.h>

enum { SLOW_NS = 250000000 }; /* a write of a follower that lasts longer */
#define APART_NS 10000000000LL
#define TURN_NS 200000LL    /* for the runs of other processes that are before one's own */
#define COMMIT_NS 2000000LL /* for the leader's lock, before the commit is left to the caller */

int32_t el_settings_are_present(el_writer *writer) {
    return !writer->directory || el_topics(writer->directory) == writer->topics ||
           el_is_mutant(EL_ANY_SETTINGS);
}

int32_t el_append(el_writer *writer, const uint8_t *data, int64_t size, const el_batch *rows,
                  int64_t row_count, el_known *known, int64_t deadline_ns, el_appended *out) {
    int32_t rc = el_append_begin(writer, deadline_ns);
    if (rc != EL_OK) {
        return rc;
    }
    if (!el_settings_are_present(writer)) {
        rc = EL_OTHER_SETTINGS;
    } else if (known && el_must_catch_up(writer, data, size, known)) {
        rc = EL_MUST_CATCH_UP;
    } else {
        rc = el_append_held(writer, data, size, rows, row_count, out);
    }
    if (known && rc == EL_APPENDED) {
        el_known_advance(known, data, out);
    }
    el_append_end(writer, rc == EL_MUST_REPAIR);
    return rc;
}

_Static_assert(_Generic(&el_append, el_append_call: 1, default: 0),
               "the other extension calls it by this type");

/* ---- a leader with its followers ------------------------------------------------------------- */

typedef struct { /* a run that the leader has taken */
    const uint8_t *data;
    const el_batch *rows;
    int64_t row_count;
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
    rc = el_follow(follower, &source, taken->data, taken->out->consumed, taken->rows,
                   taken->row_count, NULL, &own);
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

/* As takes_run. After a slow write the next runs are left to the caller for a while. */
static int has_run(el_together *together, int32_t at, const el_leading *leading,
                   const el_taken *taken) {
    int64_t began_ns = el_boot_ns();
    int has = takes_run(together->followers[at], leading, taken);
    int64_t now_ns = el_boot_ns();
    if (now_ns - began_ns > SLOW_NS) {
        together->apart_until_ns = began_ns + APART_NS;
    }
    if (has) {
        together->answered_ns = now_ns;
    }
    return has;
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

/* EL_APPENDED or EL_UNCOMMITTED, after the leader took the run and gave its lock back. */
static int32_t commit_together(el_together *together, const el_taken *taken) {
    const el_leading leading = {.high_watermark = taken->high_watermark,
                                .epoch = taken->epoch,
                                .fresh = 1,
                                .base_offset = taken->out->base_offset,
                                .append_time_ms = taken->out->append_time_ms};
    if (taken->high_watermark >= taken->out->next_offset) {
        return EL_APPENDED; /* a leader without followers commits with its own publication */
    }
    for (int32_t at = 0; at < together->count; at++) {
        if (!has_run(together, at, &leading, taken)) {
            return EL_UNCOMMITTED;
        }
    }
    if (el_append_again(together->leader, el_boot_ns() + COMMIT_NS) != EL_OK) {
        return EL_UNCOMMITTED;
    }
    int32_t rc = commit_locked(together, taken);
    el_append_end(together->leader, 0);
    return rc;
}

/* Whether all disks answer now. An error is an answer: the append finds it itself, or, without a
 * descriptor or a thread, needs none. */
static int probe_disks(const el_together *together) {
    int32_t codes[EL_PROBES_MAX];
    if (!together->probe_count ||
        el_probe_ask(together->probes, together->probe_count, EL_PROBE_NS, codes) != EL_OK) {
        return 0;
    }
    for (int32_t at = 0; at < together->probe_count; at++) {
        if (codes[at] == EL_SYSTEM_ERROR(ETIMEDOUT)) {
            return 0;
        }
    }
    return 1;
}

/* Whether the followers may be written here: all disks have answered a moment ago, or answer
 * now. */
static int answer(el_together *together) {
    int64_t now_ns = el_boot_ns();
    if (!together->count) {
        return 1;
    }
    if (now_ns < together->apart_until_ns) {
        return 0;
    }
    if (now_ns - together->answered_ns < together->recent_ns) {
        return 1;
    }
    if (!probe_disks(together)) {
        return 0;
    }
    together->answered_ns = now_ns;
    return 1;
}

/* Appends to the leader. EL_APPENDED: *taken describes the run. REQUIRES: el_append_begin. */
static int32_t append_locked(el_together *together, const uint8_t *data, int64_t size,
                             const el_batch *rows, int64_t row_count, el_known *known,
                             el_appended *out, el_taken *taken) {
    el_writer *leader = together->leader;
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
    if (known && el_must_catch_up(leader, data, size, known)) {
        return EL_MUST_CATCH_UP;
    }
    int32_t rc = el_append_held(leader, data, size, rows, row_count, out);
    if (rc != EL_APPENDED) {
        return rc;
    }
    if (known) {
        el_known_advance(known, data, out);
    }
    if (el_page_read_replica(leader->page, &tuple, &replica) < 0) {
        return EL_UNCOMMITTED;
    }
    *taken = (el_taken){
        data, rows, row_count, out, replica.partition_epoch, tuple.epoch, tuple.high_watermark};
    return EL_APPENDED;
}

int32_t el_append_together(el_together *together, const uint8_t *data, int64_t size,
                           const el_batch *rows, int64_t row_count, el_known *known,
                           int64_t deadline_ns, el_appended *out) {
    el_writer *leader = together->leader;
    el_taken taken;
    if (together->all_in_sync && !answer(together)) {
        return EL_APART;
    }
    leader->leader_epoch = together->epoch;
    leader->all_in_sync = together->all_in_sync;
    int32_t rc = el_append_begin(leader, deadline_ns);
    if (rc != EL_OK) {
        return rc;
    }
    rc = append_locked(together, data, size, rows, row_count, known, out, &taken);
    el_append_end(leader, rc == EL_MUST_REPAIR);
    return rc == EL_APPENDED && together->all_in_sync ? commit_together(together, &taken) : rc;
}

_Static_assert(_Generic(&el_append_together, el_together_call: 1, default: 0),
               "the other extension calls it by this type");
