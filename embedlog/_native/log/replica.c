/* The high watermark of a partition with several directories: which appends a leader accepts, and
 * what it commits.
 *
 * - The role, the epoch and the ISR are those of the page, read under its append lock; memory of
 *   the process decides nothing.
 * - The high watermark is the smallest log end of the maximal ISR, each read while the leader's
 *   lock is held (REPLICA-10).
 * - Nothing is committed without a log end of each member. A page that is replaced, unreadable or
 *   in another epoch has none, nor has a log that is being cut.
 * - The last stable offset passes a transaction when the high watermark has passed its marker
 *   (REPLICA-21). The page has the first and the last marker above the high watermark: the last
 *   stable offset may be late. */
#include "log/append.h"
#include "testing/mutants.h"

static int bits_of(uint64_t set) { return __builtin_popcountll(set); }

uint64_t el_isr_bit(int32_t slot) { return slot >= 0 && slot < 64 ? UINT64_C(1) << slot : 0; }

int32_t el_replica_accepts(const el_writer *writer, const el_tuple *tuple,
                           const el_replica *replica) {
    if (!writer->replicated) {
        return replica->role == EL_ROLE_NONE ? EL_OK : EL_NOT_LEADER;
    }
    if ((replica->role != EL_ROLE_LEADER || tuple->epoch != writer->leader_epoch) &&
        !el_is_mutant(EL_ANY_EPOCH_LEADS)) {
        return EL_NOT_LEADER;
    }
    int32_t needed =
        writer->all_in_sync > replica->min_in_sync ? writer->all_in_sync : replica->min_in_sync;
    return writer->all_in_sync && bits_of(replica->decided_isr) < needed ? EL_TOO_FEW : EL_OK;
}

void el_raise_high_watermark(el_tuple *tuple, el_replica *replica, int64_t end) {
    int counts =
        replica->role != EL_ROLE_LEADER || bits_of(replica->decided_isr) >= replica->min_in_sync;
    if (counts && end > tuple->high_watermark) {
        tuple->high_watermark = end;
    }
    while (replica->stable_at >= 0 && tuple->high_watermark >= replica->stable_at) {
        tuple->first_unstable = replica->stable_next;
        replica->stable_at = replica->later_at;
        replica->stable_next = replica->later_next;
        replica->later_at = replica->later_next = -1;
    }
}

void el_note_marker(el_replica *replica, int64_t end, int64_t first_unstable) {
    if (replica->stable_at < 0) {
        replica->stable_at = end;
        replica->stable_next = first_unstable;
    } else {
        replica->later_at = end;
        replica->later_next = first_unstable;
    }
}

void el_note_transaction(el_tuple *tuple, el_replica *replica, int64_t start) {
    if (tuple->first_unstable < 0) {
        tuple->first_unstable = start;
    }
    if (replica->stable_at >= 0 && replica->stable_next < 0) {
        replica->stable_next = start;
    }
    if (replica->later_at >= 0 && replica->later_next < 0) {
        replica->later_next = start;
    }
}

int64_t el_committed_end(const el_writer *writer, const el_run *run) {
    const el_tuple *tuple = &run->tuple;
    if (run->source) {
        return run->source->high_watermark < tuple->log_end ? run->source->high_watermark
                                                            : tuple->log_end;
    }
    if (run->replica.role == EL_ROLE_LEADER &&
        run->replica.maximal_isr != el_isr_bit(writer->node_slot)) {
        return tuple->high_watermark;
    }
    return tuple->log_end;
}

/* The log end of a member, -1 if it has none that counts. */
static int64_t end_of(const el_member *member, int32_t epoch) {
    el_file_facts named;
    el_tuple tuple;
    el_replica replica;
    if (el_facts_of(member->path, &named) < 0 || named.device != member->device ||
        named.inode != member->inode) {
        return -1;
    }
    if (!el_page_alive(member->page) || el_page_read_replica(member->page, &tuple, &replica) < 0) {
        return -1;
    }
    if (el_page_word(member->page, EL_WORD_CUT_INTENT)) {
        return -1;
    }
    return replica.role == EL_ROLE_FOLLOWER && tuple.epoch == epoch ? tuple.log_end : -1;
}

int32_t el_commit(el_writer *leader, int32_t node_slot, int32_t epoch, const el_member *members,
                  int64_t count, int64_t *high_watermark) {
    el_tuple tuple;
    el_replica replica;
    if (el_page_read_replica(leader->page, &tuple, &replica) < 0) {
        return EL_MUST_REMAP;
    }
    if (replica.role != EL_ROLE_LEADER || tuple.epoch != epoch) {
        return EL_NOT_LEADER;
    }
    uint64_t missing = replica.maximal_isr & ~el_isr_bit(node_slot);
    int64_t end = tuple.log_end;
    int64_t before = tuple.high_watermark;
    for (int64_t at = 0; at < count && missing; at++) {
        uint64_t bit = el_isr_bit(members[at].node_slot);
        int64_t found = missing & bit ? end_of(&members[at], tuple.epoch) : -1;
        if (found < 0) {
            continue;
        }
        missing &= ~bit;
        end = found < end ? found : end;
    }
    if (!missing) {
        el_raise_high_watermark(&tuple, &replica, end);
    }
    *high_watermark = tuple.high_watermark;
    return tuple.high_watermark == before
               ? EL_OK
               : el_page_publish_replica(leader->page, &tuple, &replica, leader->directory);
}
