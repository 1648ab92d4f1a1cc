"""The leader of one partition, and what its page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from embedlog._native import replication
from embedlog.partition.replication.replica_log import LeaderDecision, NotLeader
from embedlog.replicas.rules.records import DecidedPartition

if TYPE_CHECKING:
    from embedlog._native.replication import Replica
    from embedlog._native.system import Published
    from embedlog.partition.partition import Partition
    from embedlog.replicas.rules.state import State


class Leader(NamedTuple):
    """A replica whose page led in this epoch at the last look."""

    node: int
    partition: Partition
    epoch: int

    def read_tuple(self) -> Published:
        """The tuple of its page. Raises NotLeader unless the page leads in this epoch now."""
        return self.read_page()[0]

    def read_page(self) -> tuple[Published, Replica]:
        """What its page shows. Raises NotLeader unless it leads in this epoch now.

        A page that was made again from files may show another log start, and records that are not
        committed.
        """
        now, replica = self.partition.replica.published()
        if replica.role != replication.ROLE_LEADER or now.epoch != self.epoch:
            raise NotLeader
        return now, replica


def slot_of(state: State, node: int) -> int | None:
    """The bit of a node in the ISR of control pages; None for a directory that has left the set."""
    registered = state.nodes.get(node)
    return None if registered is None else registered.slot


def decision_of(decided: DecidedPartition, state: State) -> LeaderDecision:
    """A decision of this state, as the leader's page contains it. The state has the slots of all
    nodes of the ISR.
    """
    isr = sum(1 << state.nodes[node].slot for node in decided.isr)
    return LeaderDecision(
        decided.leader,
        decided.leader_epoch,
        decided.partition_epoch,
        isr,
        state.required_size(decided),
    )


class LeaderChanged(Exception):
    """The leader failed or was replaced during the work. Never leaves the package."""
