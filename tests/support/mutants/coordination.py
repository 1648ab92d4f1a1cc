"""Mutants of the directory, the internal topics, transactions and groups."""

from __future__ import annotations

from dataclasses import replace

from embedlog import transaction
from embedlog._native import system
from embedlog.coordination.transactions import transaction_checks
from tests.support.mutants.registry import replaces

STATE_TOPIC = "__transaction_state"

# ---- the directory -----------------------------------------------------------------------------------


@replaces("no_stat_again", "embedlog.coordination.directory:Directory._is_current")
def _ours_without_a_look(original, self, fd, path, after_delay):
    return True


@replaces("no_settle", "embedlog.coordination.directory:Directory._is_current")
def _looked_at_without_a_delay(original, self, fd, path, after_delay):
    return original(self, fd, path, False)


@replaces("keep_mark", "embedlog.storage.identity:remove_clean_mark")
def _the_mark_stays(original, directory):
    return False


@replaces("no_deleted_flag", "embedlog.coordination.topic_changes:_set_deleted_locked")
def _no_flag(original, path, directory_page, locked, epoch):
    return None


# ---- internal topics ---------------------------------------------------------------------------------


@replaces("trust_old_look", "embedlog.coordination.internal_topic:_catch_up")
def _caught_up_without_the_purged_records(original, keeper, state, now, limit_bytes=None):
    return original(keeper, state, now._replace(purged_to=0), limit_bytes)


# ---- transactions ------------------------------------------------------------------------------------


@replaces(
    "register_apart",
    "embedlog.coordination.transactions.transactional_id_owner:TransactionalIdOwner.begin_in",
)
def _begun_in_nothing(original, self, runs, deadline_ns=None):
    return None


@replaces(
    "register_apart",
    "embedlog.coordination.transactions.transactional_id_owner:TransactionalIdOwner._append_first",
)
def _written_after_the_lock(original, self, partition, run, tp, deadline_ns, progress):
    stamp = self.stamp
    self._registration_tried = True
    with self._lock_for_decision(deadline_ns) as decision:
        problem = self._register(decision, stamp, (tp,))
    if problem is not None:
        raise problem
    return self._write_first(partition, run, progress, deadline_ns=deadline_ns)


@replaces(
    "data_unsynced",
    "embedlog.coordination.transactions.transactional_id_owner:TransactionalIdOwner._sync_data",
)
def _data_may_be_lost(original, self, deadline_ns):
    return None


SYNC = "embedlog.coordination.transactions.transaction_coordinator:Transactions.sync_data"


@replaces("prepare_unsynced", SYNC)
def _prepare_may_be_lost(original, self, partitions, deadline_ns):
    original(self, [each for each in partitions if each.topic != STATE_TOPIC], deadline_ns)


@replaces("markers_unsynced", SYNC)
def _markers_may_be_lost(original, self, partitions, deadline_ns):
    original(self, [each for each in partitions if each.topic == STATE_TOPIC], deadline_ns)


@replaces(
    "offsets_unsynced", "embedlog.coordination.transactions.transaction_checks:select_durable"
)
def _offsets_may_be_lost(original, partitions):
    return [each for each in partitions if each.config.durable]


@replaces(
    "no_sweep",
    "embedlog.coordination.transactions.transaction_coordinator:Transactions.recover_if_due",
)
def _no_sweep(original, self, deadline_ns):
    return None


@replaces(
    "lift_settled_only",
    "embedlog.coordination.transactions.transaction_coordinator:Transactions._raise_epoch",
)
def _lifted_before_the_decision_is_carried_out(
    original, self, name, producer_id, epoch, deadline_ns
):
    lift = lambda old: (  # noqa: E731
        old
        and transaction.raise_epoch(old, producer_id, epoch, transaction_checks.current_moment())
    )
    self.decide(name, lift, deadline_ns)


# ---- groups ------------------------------------------------------------------------------------------


@replaces("boot_clock", "embedlog.coordination.groups.member_watch:Watch.__init__")
def _counted_on_the_boot_clock(original, self, liveness, clock=None):
    original(self, liveness, system.boot_ns)


@replaces("look_always", "embedlog.coordination.groups.member_watch:Watch.begin_check_if_due")
def _always_due(original, self, now_ns=None):
    original(self, now_ns)
    return True


@replaces("no_second_look", "embedlog.coordination.groups.member_watch:Watch.confirm")
def _confirmed_without_a_look(original, self, group, verdicts):
    return dict(verdicts)


@replaces("static_member_dies", "embedlog.coordination.groups.member_watch:Watch._judge")
def _judged_like_a_dynamic_member(original, self, member, now_ns):
    return original(self, replace(member, instance_id=None), now_ns)


@replaces(
    "commit_to_deleted", "embedlog.coordination.groups.offset_commits:Offsets.has_all_topics_locked"
)
def _there_without_a_look(original, self, tps, topics):
    return True


@replaces(
    "commit_by_name", "embedlog.coordination.groups.offset_commits:Offsets._check_topics_exist"
)
def _whatever_its_id(original, self, tps, topics):
    return original(self, tps, {})
