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

from embedlog._metrics import Metrics, milliseconds
from embedlog.replicas.decisions.proposals import Decided, Proposal
from embedlog.replicas.observation.decision_words import main_change, name_of
from embedlog.replicas.rules.events import AlterIsr, Elect
from embedlog.replicas.rules.records import LOG, NO_LEADER, Partition

if TYPE_CHECKING:
    from embedlog.log_directory import LogDirectory

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
        if not isinstance(proposal.outcome, Decided):
            failed = sum(isinstance(event, AlterIsr) for event in proposal.events)
            if failed:
                self._metrics.note({"failed_updates": failed})
            return
        for record in proposal.outcome.records:
            old = (
                proposal.before.partitions.get((record.topic_id, record.number))
                if isinstance(record, Partition)
                else None
            )
            if isinstance(record, Partition) and old is not None:
                self._changed(proposal, old, record)

    def _changed(self, proposal: Proposal, old: Partition, new: Partition) -> None:
        text = main_change(old, new)
        if not text or not isinstance(proposal.outcome, Decided):
            return
        reason = f": {proposal.reason}" if proposal.reason else ""
        elected = new.leader_epoch != old.leader_epoch and new.leader != NO_LEADER
        unclean = elected and new.recovering and not old.recovering
        name = name_of(proposal.outcome.state, new)
        level = logging.WARNING if unclean else logging.INFO
        loss = _loss(proposal, old, new) if unclean else ""
        logger.log(
            level, "%s: %s (partition epoch %d)%s%s", name, text, new.partition_epoch, reason, loss
        )
        counts = {
            "shrinks": bool(set(old.isr) - set(new.isr)),
            "expansions": bool(set(new.isr) - set(old.isr)),
            "elections": elected,
            "unclean_elections": unclean,
        }
        spent = {"elections_s": proposal.spent_s} if elected else {}
        self._metrics.note({name: 1 for name, counted in counts.items() if counted} | spent, spent)

    # ---- values ----------------------------------------------------------------------------------

    def report(self) -> dict[str, Meter | Timer]:
        """Kafka's meters."""
        found: dict[str, Meter | Timer] = {name: self._meter(own) for name, own in _METERS.items()}
        mean = self._metrics.mean("elections_s", "elections", None)
        peak = self._metrics.peak("elections_s", None)
        elections = self._meter("elections")
        return found | {
            "LeaderElectionRateAndTimeMs": Timer(
                **elections, Mean=milliseconds(mean), Max=milliseconds(peak)
            )
        }

    def _meter(self, name: str) -> Meter:
        return Meter(Count=int(self._metrics.total(name)), OneMinuteRate=self._metrics.rate(name))


def _loss(proposal: Proposal, old: Partition, new: Partition) -> str:
    """What an unclean election may lose."""
    others = sorted({*old.isr, *old.elr, *old.foreign} - {new.leader})
    seen = [
        event.seen[new.leader]
        for event in proposal.events
        if isinstance(event, Elect) and new.leader in event.seen
    ]
    end = f" (its log ends at {seen[0].log_end})" if len(seen) == 1 else ""
    kept = f", also if {others} have them" if others else ""
    return f"; acknowledged records are lost that node {new.leader}{end} does not have{kept}"


class _CopiedBytes:
    """The source of the bytes that this process copied. Threads: REQUIRES the lock of the
    metrics.
    """

    def __init__(self, directories: Callable[[], Sequence[LogDirectory]]) -> None:
        self._directories = directories
        self._known: dict[LogDirectory, int] = {}

    def counters(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """The totals; nothing has a maximum."""
        for directory in self._directories():
            self._known[directory] = _copied_in(directory)
        total = sum(self._known.values())
        return {"bytes_in": total, "bytes_out": total}, {}

    def rotate_window(self) -> None:
        """No maximum is kept."""


def _copied_in(directory: LogDirectory) -> int:
    used = dict(directory.partitions)
    dropped = dict(directory.context.copied_bytes)
    places = [place for place in {*used, *dropped} if place[0] != LOG]
    return sum(
        used[place].replica.copied_bytes if place in used else dropped[place] for place in places
    )
