"""Mutants of the pure rules: sequences of producers, states of transactions, states of groups,
decisions about replicas.
"""

from __future__ import annotations

from dataclasses import replace

from embedlog.replicas.rules import elections
from embedlog.transaction import PREPARED, SETTLED, Status, Transaction
from tests.support.mutants.registry import replaces

# ---- sequences ---------------------------------------------------------------------------------------


@replaces("no_duplicate_check", "embedlog.format.sequence_rules:_count_duplicates")
def _no_batch_is_present(original, producer, stamp, table):
    return 0


@replaces("no_epoch_fence", "embedlog.format.sequence_rules:_check_epoch")
@replaces("no_sequence_check", "embedlog.format.sequence_rules:_check_order")
def _nothing_is_refused(original, producer, stamp, *first):
    return None


@replaces("no_open_check", "embedlog.format.sequence_rules:_check_transaction")
def _every_batch_opens(original, producer, stamp):
    return original(producer, stamp._replace(opens=True))


# ---- transactions ------------------------------------------------------------------------------------


@replaces("init_keeps_epoch", "embedlog.transaction:initialize")
def _initialized_in_the_old_epoch(
    original, old, process_slot, timeout_ms, new_id, now, claimed=None
):
    new = original(old, process_slot, timeout_ms, new_id, now, claimed)
    same_id = (
        isinstance(new, Transaction) and old is not None and new.producer_id == old.producer_id
    )
    return new._replace(epoch=old.epoch) if same_id else new


@replaces("forget_outcome", "embedlog.transaction:initialize")
def _initialized_without_outcome(
    original, old, process_slot, timeout_ms, new_id, now, claimed=None
):
    new = original(old, process_slot, timeout_ms, new_id, now, claimed)
    return new._replace(outcome=None) if isinstance(new, Transaction) else new


@replaces("register_unfenced", "embedlog.transaction:register")
def _registered_in_any_epoch(original, old, producer_id, epoch, partitions, now, process_slot=None):
    return original(
        old, producer_id, epoch if old is None else old.epoch, partitions, now, process_slot
    )


@replaces("register_while_prepared", "embedlog.transaction:register")
def _registered_over_a_decision(
    original, old, producer_id, epoch, partitions, now, process_slot=None
):
    if old is not None and old.status in PREPARED:
        old = old._replace(status=Status.EMPTY)
    return original(old, producer_id, epoch, partitions, now, process_slot)


@replaces("prepare_keeps_epoch", "embedlog.transaction:_prepare")
def _prepared_in_the_old_epoch(original, old, commit, next_id, now):
    return original(old, commit, next_id, now)._replace(epoch=old.epoch)


@replaces("complete_anything", "embedlog.transaction:complete")
def _completed_whatever_is_there(original, old, seen, now):
    return original(old, seen, now) or (None if old is None else original(seen, seen, now))


@replaces("sweep_by_partition_only", "embedlog.transaction:covers")
def _covered_in_any_epoch(original, state, partition, epoch):
    return state is not None and state.status not in SETTLED and partition in state.partitions


# ---- groups ------------------------------------------------------------------------------------------


@replaces("join_phase_ends_early", "embedlog.group:_advance")
def _advanced_without_waiting(original, group, now_ms, is_overdue=False):
    return original(group, now_ms, True)


@replaces("static_member_dies", "embedlog.group:_must_remove")
def _gone_like_a_dynamic_member(original, group, member, verdict):
    return original(group, replace(member, instance_id=None), verdict)


@replaces("commit_unfenced", "embedlog.group:commit_refusal")
def _any_commit(original, old, member_id, generation, instance_id, *, transactional=False):
    return None


@replaces("commit_of_any_generation", "embedlog.group:commit_refusal")
def _commit_of_any_generation(
    original, old, member_id, generation, instance_id, *, transactional=False
):
    present = generation if old is None or generation < 0 else old.generation
    return original(old, member_id, present, instance_id, transactional=transactional)


# ---- replicas ----------------------------------------------------------------------------------------


@replaces("decide_after_another_decision", "embedlog.replicas.rules.elections:at_partition_epoch")
def _decided_from_the_past(original, state, partition_id, partition_epoch):
    partition = state.partitions.get(partition_id)
    return original(state, partition_id, partition_epoch) if partition is None else partition


@replaces("elect_any_replica", "embedlog.replicas.rules.elections:_candidates")
def _any_complete_replica(original, state, old, seen):
    return elections.complete_nodes(state, old.replicas, seen)


@replaces("elect_without_waiting", "embedlog.replicas.rules.elections:_crashed_candidates")
def _the_crashed_that_are_there(original, state, old, seen):
    members = [node for node in (*old.isr, *old.elr) if node in seen]
    return [node for node in members if seen[node].condition.value == "crashed"]


@replaces("elect_first_log", "embedlog.replicas.rules.elections:best_candidate")
def _the_first_in_the_assignment(original, old, candidates, seen):
    return min(candidates, key=old.replicas.index)


@replaces("elect_in_same_epoch", "embedlog.replicas.rules.elections:change_partition")
def _changed_in_the_old_epoch(
    original,
    state,
    old,
    *,
    isr,
    eligible=(),
    replicas=None,
    leader=None,
    recovering=False,
    strangers=(),
):
    new = original(
        state,
        old,
        isr=isr,
        eligible=eligible,
        replicas=replicas,
        leader=leader,
        recovering=recovering,
        strangers=strangers,
    )
    return replace(new, leader_epoch=old.leader_epoch)


@replaces("newcomer_of_any_registration", "embedlog.replicas.rules.elections:_is_eligible")
def _eligible_in_any_registration(original, state, node, registration_id):
    return True


@replaces("observed_in_any_registration", "embedlog.replicas.rules.state:condition_of")
def _found_in_any_registration(original, state, seen, node):
    registered = state.nodes.get(node)
    same = {
        each: replace(replica, registration_id=registered.registration_id)
        for each, replica in seen.items()
        if registered and each == node
    }
    return original(state, same, node)


@replaces("elr_outlives_its_need", "embedlog.replicas.rules.topics:_with_needless_elr")
def _no_elr_ends(original, state):
    return []
