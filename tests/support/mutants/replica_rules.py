"""Mutants of the rules of replicas: for each rule REPLICA-n one that switches it off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embedlog._native.replication import ROLE_LEADER
from embedlog.partition.replication import replica_log
from embedlog.replicas.rules.events import Condition, Refusal
from tests.support.mutants.registry import replaces


@replaces("no_fence", "embedlog.partition.replication.locked_replica:LockedReplica.take")
def _taken_in_any_epoch(
    original: Any, self: Any, data: Any, rows: Any, leading: Any, at: int | None = None
) -> Any:
    return original(
        self, data, rows, leading._replace(epoch=max(leading.epoch, self.published.epoch)), at
    )


@replaces("all_agreed", "embedlog.partition.replication.replica_log:agreed_end")
def _nothing_diverges(original: Any, epochs: Any, log_end: int, epoch_end: Any) -> int:
    return log_end


@replaces("leaders_end_counts", "embedlog.partition.replication.replica_log:ReplicaLog.commit")
def _committed_without_members(
    original: Any, self: Any, followers: Any, epoch: int, deadline_ns: int | None = None
) -> int:
    with self.exclusive(deadline_ns) as held:
        held.publish(held.published._replace(high_watermark=held.published.log_end), held.replica)
        return int(held.published.high_watermark)


@replaces("any_size_commits", "embedlog.partition.replication.replica_log:ReplicaLog.lead")
def _no_required_size(
    original: Any, self: Any, decision: Any, deadline_ns: int | None = None
) -> Any:
    return original(self, decision._replace(min_in_sync=1), deadline_ns)


@replaces("absent_member_left", "embedlog.partition.replication.replica_log:ReplicaLog.commit")
def _only_given_members(
    original: Any, self: Any, followers: Any, epoch: int, deadline_ns: int | None = None
) -> Any:
    own = 1 << self._state.context.node_slot
    given = own | sum(1 << slot for slot, _ in followers)
    with self.exclusive(deadline_ns) as held:
        held.publish(
            held.published, held.replica._replace(maximal_isr=held.replica.maximal_isr & given)
        )
    return original(self, followers, epoch, deadline_ns)


@replaces(
    "absent_member_left", "embedlog.replicas.partition.in_sync_replicas:InSyncReplicas._evict"
)
def _not_evicted(
    original: Any, self: Any, leader: Any, node: int, end: int, deadline_ns: int
) -> None:
    return None


@replaces("anybody_joins", "embedlog.partition.replication.replica_log:ReplicaLog._has_all")
def _has_everything(original: Any, self: Any, leader: Any, needed: int, *, durable: bool) -> bool:
    return True


@replaces("any_change_is_new", "embedlog.replicas.rules.elections:at_partition_epoch")
def _of_any_change(original: Any, state: Any, partition_id: Any, partition_epoch: int) -> Any:
    return state.partitions.get(partition_id) or Refusal.UNKNOWN_TOPIC_OR_PARTITION


@replaces("older_decision_counts", "embedlog.partition.replication.replica_log:ReplicaLog.lead")
def _installed_over_any(
    original: Any, self: Any, decision: Any, deadline_ns: int | None = None
) -> bool:
    with self.exclusive(deadline_ns) as held:
        changed = held.replica._replace(
            role=ROLE_LEADER, partition_epoch=decision.partition_epoch, decided_isr=decision.isr
        )
        held.publish(
            held.published._replace(epoch=decision.epoch),
            changed._replace(maximal_isr=decision.isr),
        )
    return True


@replaces("shown_at_once", "embedlog.replicas.partition.leader_calls:LeaderCalls.find_committed")
def _shown_before_the_start(original: Any, self: Any, deadline_ns: int) -> Any:
    return self.find(deadline_ns)


@replaces("always_complete", "embedlog.replicas.partition.leaders:Leaders._observe_replica")
def _seen_complete(original: Any, self: Any, member: Any) -> Any:
    return replace(original(self, member), condition=Condition.COMPLETE)


@replaces("strangers_continue", "embedlog.replicas.members.registration:strangeness")
def _none_is_a_stranger(original: Any, entered: Any, state: Any) -> str:
    return ""


@replaces("no_member_is_awaited", "embedlog.replicas.rules.elections:_crashed_candidates")
def _crashed_leads_at_once(original: Any, state: Any, old: Any, seen: Any) -> Any:
    return [
        node
        for node, each in seen.items()
        if each.condition is Condition.CRASHED and node in (*old.isr, *old.elr)
    ]


@replaces("leader_syncs_alone", "embedlog.replicas.partition.parallel_sync:sync_all")
def _first_alone(original: Any, in_sync: Any, end: int, deadline_ns: int) -> Any:
    return original(in_sync[:1], end, deadline_ns)


@replaces(
    "everything_survived", "embedlog.replicas.partition.replicated_partition:reduce_to_survivors"
)
def _taken_for_present(original: Any, progress: Any, leader: Any, stamp: Any) -> None:
    return None


@replaces("recovery_begins_an_epoch", "embedlog.partition.recovery.loader:_Loader._needs_epoch")
def _needed_in_a_set(original: Any, self: Any, end: int, first_base: int) -> bool:
    return True


@replaces(
    "errors_are_raised",
    "embedlog.replicas.partition.partition_directories:PartitionDirectories.blame",
)
def _nothing_is_blamed(
    original: Any, self: Any, problem: Any, deadline_ns: int | None = None
) -> int:
    raise problem


@replaces("one_opens_alone", "embedlog.replicas.members.set_up:enter_alone")
def _not_checked(
    original: Any, directory: Any, *, alone: bool, deadline_ns: int, mode: int = 0o666
) -> bool:
    return True


@replaces("nothing_is_lacking", "embedlog.replicas.partition.copying:lacks_deleted")
def _no_deleted_record_is_lacking(original: Any, follower: Any, leader: Any) -> bool:
    return False


@replaces(
    "decisions_count_at_once",
    "embedlog.replicas.partition.replicated_partition:ReplicatedPartition.confirm",
)
def _not_confirmed(original: Any, self: Any, end: int, epoch: int) -> bool:
    return True


@replaces("deleted_topics_stay", "embedlog.admin.deleted_topics:DeletedTopics.tend")
def _not_deleted_later(original: Any, self: Any) -> None:
    return None


@replaces("added_again_is_removed", "embedlog.coordination.topic_changes:mark_deleted")
def _marked_in_any_epoch(
    original: Any,
    path: Any,
    directory_page: Any,
    deadline_ns: int,
    mode: int = 0o666,
    locked: bool = False,
    epoch: int | None = None,
) -> Any:
    return original(path, directory_page, deadline_ns, mode, locked, None)


@replaces("no_late_copies", "embedlog.admin.replica_housekeeper:ReplicaHousekeeper.tend")
def _not_tended(
    original: Any, self: Any, step_s: float | None = None, *, used_only: bool = False
) -> None:
    return None


@replaces("no_late_copies", "embedlog.admin.replica_housekeeper:ReplicaHousekeeper._note_late")
def _not_noted(original: Any, self: Any, partition_id: Any, topic: str) -> None:
    return None


@replaces(
    "damage_is_raised",
    "embedlog.replicas.partition.partition_directories:PartitionDirectories._note_damage",
)
def _damage_is_an_error(original: Any, self: Any, node: int, problem: Any) -> None:
    raise problem


@replaces(
    "near_at_any_offset", "embedlog.replicas.partition.nearby_partition:NearbyPartition._find_near"
)
def _follower_of_any_epoch(original: Any, self: Any, offset: int) -> Any:
    self._epoch, self._nodes = self._replicas.members.find_in_rack(self._rack)
    for node in self._nodes:
        if (found := self._replicas.members.find_replica(node)) is not None:
            self._node = node
            return found
    return None


@replaces("members_last", "embedlog.replicas.members.adoption:begin")
def _no_file_of_members(original: Any, path: Any, *, deadline_ns: int, mode: int = 0o666) -> None:
    return None


@replaces(
    "committed_without_the_lock", "embedlog.partition.replication.replica_log:ReplicaLog.commit"
)
def _committed_beside_appends(
    original: Any, self: Any, followers: Any, epoch: int, deadline_ns: int | None = None
) -> int:
    members = replica_log.Members(
        [replica_log._member(slot, follower) for slot, follower in followers]
    )
    code, mark = members.commit(self._lock.writer.native(), self._state.context.node_slot, epoch)
    return int(mark) if code >= 0 else int(original(self, followers, epoch, deadline_ns))
