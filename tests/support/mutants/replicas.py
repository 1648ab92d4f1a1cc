"""Mutants of sets of directories: their members, and the decision log."""

from __future__ import annotations

from tests.support.mutants.registry import replaces


@replaces("clones_are_members", "embedlog.replicas.members.membership:_check_clones")
def _no_clone_is_found(original, directories):
    return None


@replaces(
    "minority_decides",
    "embedlog.replicas.decisions.decision_session:DecisionSession._require_majority",
)
def _any_number_is_enough(original, self, nodes, states, undecided=False):
    return None


@replaces("no_promise", "embedlog.replicas.decisions.copies:LockedCopy._write_promise")
def _promised_in_memory_only(original, self, new):
    self.promise = new


@replaces("longest_copy_leads", "embedlog.replicas.decisions.copies:advancement_of")
def _length_alone(original, copy):
    return (0, copy.end)


@replaces(
    "found_record_counts",
    "embedlog.replicas.decisions.decision_session:DecisionSession._is_settled",
)
def _settled_as_it_is(original, self, best, view):
    return True


@replaces("decision_unsynced", "embedlog.replicas.decisions.copies:LockedCopy.sync")
def _not_synced(original, self, deadline_ns):
    return None


@replaces(
    "old_voters_alone",
    "embedlog.replicas.decisions.decision_session:DecisionSession._require_majority",
)
def _a_majority_of_the_old_ones(original, self, nodes, states, undecided=False):
    original(self, nodes, states[:1], undecided)


@replaces(
    "acknowledged_by_the_leader",
    "embedlog.replicas.partition.in_sync_replicas:InSyncReplicas.commit",
)
def _committed_at_once(original, self, leader, end, deadline_ns, *, wait=True):
    return end


@replaces("tail_is_kept", "embedlog.partition.replication.replica_log:ReplicaLog.follow")
def _nothing_is_cut(
    original, self, leader, epoch, epoch_end, deadline_ns=None, *, limit=None, start=None
):
    return original(
        self, leader, epoch, lambda known: (known, 1 << 62), deadline_ns, limit=limit, start=start
    )
