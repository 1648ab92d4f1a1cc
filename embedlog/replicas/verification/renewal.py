"""This module begins a replica again that cannot be loaded or repaired, or whose directory is
missing.

- The leader's records are read with all checks first: without a good source nothing is changed.
- The replica leaves the ISR and the ELR by a settled decision before its files are set aside
  (REPLICA-5).
- A replica that another process has loaded meanwhile stays: under its append lock its page shows
  that.
- An interruption leaves a replica outside the ISR that is damaged, missing or empty. The next round
  begins again.
- The files that are set aside are those of a retired partition, and are removed after
  `file.delete.delay.ms`.
- A loaded replica whose append lock cannot be taken, because the repair of an interrupted append
  finds damage, loses its role first. Its log begins again by a cut, which other processes with this
  page follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog.errors import (
    CorruptRecordError,
    EmbedlogError,
    LeaderNotAvailableError,
)
from embedlog.partition.replication.replica_log import Fenced, NotLeader
from embedlog.replicas.members.open_directories import LOAD_ERRORS
from embedlog.replicas.partition.leader import LeaderChanged
from embedlog.replicas.verification.comparison import SourceDamagedError, check

if TYPE_CHECKING:
    from embedlog.replicas.partition.partition_replicas import PartitionReplicas

logger = logging.getLogger("embedlog")


def load_problem(
    replicas: PartitionReplicas, node: int, deadline: Callable[[], int]
) -> EmbedlogError | None:
    """The damage for which a replica cannot be loaded or repaired; None without one. Raises other
    errors of the directory.

    A damaged leader-epoch-checkpoint is made again.
    """
    try:
        partition = replicas.members.find_replica(node, damaged=True)
        if partition is not None:
            with partition.replica.exclusive(deadline()) as locked:
                locked.epochs()
    except LOAD_ERRORS as problem:
        return problem
    return None


def renew(
    replicas: PartitionReplicas, node: int, problem: EmbedlogError, deadline: Callable[[], int]
) -> None:
    """Begin a replica again, empty, outside the ISR. Raises EligibleLeadersNotAvailableError,
    CorruptRecordError if the leader is damaged as well, LeaderNotAvailableError,
    NotEnoughDirectoriesError.
    """
    until = deadline()
    cause: BaseException | None = None
    while True:
        leader = replicas.leaders.find_leader(until)
        try:
            if leader.node == node:
                replicas.leaders.hand_over(leader, until, "its replica is damaged")
            else:
                check(leader.partition, leader.read_tuple().log_start)
                replicas.in_sync.remove_from_isr(
                    leader, node, until, f"node {node}: {problem}", lost=True
                )
                if replicas.in_sync.begin_again(leader, node, until):
                    logger.warning(
                        "%s: node %d is copied again from node %d: %s",
                        replicas.name,
                        node,
                        leader.node,
                        problem,
                    )
                return
        except SourceDamagedError as damage:
            text = f"{replicas.name} is damaged also in its leader, node {leader.node}"
            raise CorruptRecordError(text, path=damage.difference.path, found=damage) from damage
        except (LeaderChanged, Fenced, NotLeader) as changed:
            cause = changed.__cause__ or changed
        if system.boot_ns() >= until:
            raise LeaderNotAvailableError(
                f"the leader of {replicas.name} changed until the deadline of a repair"
            ) from cause
