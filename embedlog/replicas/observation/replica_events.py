"""Logs and counts the changes of leaders and ISRs that this process decides, and the bytes that it
copies.

- The process that decides a change of a leader, an ISR or an assignment logs one INFO line. It has
  old and new values and the reason. A new partition, an installation, and a decision whose result
  is not known have none.
- A shrink and an expansion are counted by the decided ISR, an election by its new leader epoch. A
  refused change of the ISR is a failed update.
- The counters are those of this process; rates cover the last minute.
- The C core counts copied bytes in each writer. A directory that is opened again keeps its earlier
  count.
- The line of an unclean election is a WARNING, with the replicas whose records may be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypedDict

from embedlog.replicas.decisions.proposals import Decision, Proposal
from embedlog.replicas.observation.decision_words import main_change, name_of
from embedlog.replicas.rules.events import AlterIsr, Elect
from embedlog.replicas.rules.records import LOG, NO_LEADER, DecidedPartition
from embedlog.telemetry.metrics import Metrics, milliseconds

if TYPE_CHECKING:
    from embedlog.engine.log_directory import LogDirectory

logger = logging.getLogger("embedlog")


_METERS: Final = {
    "IsrShrinksPerSec": "shrinks",
    "IsrExpandsPerSec": "expansions",
    "FailedIsrUpdatesPerSec": "failed_updates",
    "UncleanLeaderElectionsPerSec": "unclean_elections",
    "ReplicationBytesInPerSec": "bytes_in",
    "ReplicationBytesOutPerSec": "bytes_out",
}


class Meter(TypedDict):
    """The attributes of Kafka's meters."""

    Count: int
    OneMinuteRate: float


class Timer(Meter):
    """The attributes of Kafka's timers; times are in ms, None without an event in the last
    minute.
    """

    Mean: float | None
    Max: float | None


class ReplicaEvents:
    """The events of one open set. Threads: any."""

    def __init__(self, directories: Callable[[], Sequence[LogDirectory]] = tuple) -> None:
        """`directories` are those that are open now."""
        self._metrics = Metrics()
        self._metrics.source = _CopiedBytes(directories)

    # ---- decisions -------------------------------------------------------------------------------

    def observe(self, proposal: Proposal) -> None:
        """The observer of a decision log."""
        if not isinstance(proposal.outcome, Decision):
            failure_count = sum(isinstance(event, AlterIsr) for event in proposal.events)
            if failure_count:
                self._metrics.add({"failed_updates": failure_count})
            return
        for record in proposal.outcome.records:
            if not isinstance(record, DecidedPartition):
                continue
            old = proposal.before.partitions.get((record.topic_uuid, record.number))
            if old is not None:
                self._note_change(proposal, old, record)

    def _note_change(
        self, proposal: Proposal, old: DecidedPartition, new: DecidedPartition
    ) -> None:
        text = main_change(old, new)
        if not text or not isinstance(proposal.outcome, Decision):
            return
        reason = f": {proposal.reason}" if proposal.reason else ""
        is_election = new.leader_epoch != old.leader_epoch and new.leader != NO_LEADER
        is_unclean = is_election and new.recovering and not old.recovering
        name = name_of(proposal.outcome.state, new)
        level = logging.INFO
        loss = ""
        if is_unclean:
            level = logging.WARNING
            loss = _describe_loss(proposal, old, new)
        logger.log(
            level, "%s: %s (partition epoch %d)%s%s", name, text, new.partition_epoch, reason, loss
        )
        events = {
            "shrinks": bool(set(old.isr) - set(new.isr)),
            "expansions": bool(set(new.isr) - set(old.isr)),
            "elections": is_election,
            "unclean_elections": is_unclean,
        }
        counts = {event: 1 for event, has_happened in events.items() if has_happened}
        times = {"elections_s": proposal.spent_s} if is_election else {}
        self._metrics.add(counts | times, times)

    # ---- values ----------------------------------------------------------------------------------

    def report(self) -> dict[str, Meter | Timer]:
        """Kafka's meters."""
        meters: dict[str, Meter | Timer] = {
            name: self._meter(event) for name, event in _METERS.items()
        }
        mean = self._metrics.mean("elections_s", "elections", None)
        peak = self._metrics.peak("elections_s", None)
        elections = self._meter("elections")
        meters["LeaderElectionRateAndTimeMs"] = Timer(
            **elections, Mean=milliseconds(mean), Max=milliseconds(peak)
        )
        return meters

    def _meter(self, name: str) -> Meter:
        return Meter(Count=int(self._metrics.total(name)), OneMinuteRate=self._metrics.rate(name))


def _describe_loss(proposal: Proposal, old: DecidedPartition, new: DecidedPartition) -> str:
    """What an unclean election may lose."""
    others = sorted({*old.isr, *old.elr, *old.strangers} - {new.leader})
    observations = [
        event.seen[new.leader]
        for event in proposal.events
        if isinstance(event, Elect) and new.leader in event.seen
    ]
    text = f"; acknowledged records are lost that node {new.leader}"
    if len(observations) == 1:
        text += f" (its log ends at {observations[0].log_end})"
    text += " does not have"
    if others:
        text += f", also if {others} have them"
    return text


class _CopiedBytes:
    """The source of the bytes that this process copied. Threads: REQUIRES the lock of the
    metrics.
    """

    def __init__(self, directories: Callable[[], Sequence[LogDirectory]]) -> None:
        self._directories = directories
        self._sizes: dict[LogDirectory, int] = {}

    def counters(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """The totals; nothing has a maximum."""
        for directory in self._directories():
            self._sizes[directory] = _copied_bytes_of(directory)
        total = sum(self._sizes.values())
        return {"bytes_in": total, "bytes_out": total}, {}

    def rotate_window(self) -> None:
        """No maximum is kept."""


def _copied_bytes_of(directory: LogDirectory) -> int:
    partitions = dict(directory.partitions)
    sizes = dict(directory.context.copied_bytes)  # of partitions that are not open any more, too
    for partition_id, partition in partitions.items():
        sizes[partition_id] = partition.replica.copied_bytes
    return sum(size for (topic, _), size in sizes.items() if topic != LOG)
