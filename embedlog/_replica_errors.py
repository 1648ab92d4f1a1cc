"""Defines the errors of replicated logs; `errors` exports them (ERROR-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embedlog._error_base import EmbedlogError, PlacedError


class NotEnoughReplicasError(PlacedError):
    """`min.insync.replicas` is above the number of directories in sync; nothing was written.

    `isr` has the nodes in sync, `required` the setting, `away` the reason for each missing node. It
    is retriable only in a set: with one directory the number never rises. Lower the setting with
    `alter_topic`, or send with `acks=1`.
    """

    __module__ = "embedlog.errors"
    _FACTS = (*PlacedError._FACTS, "isr", "required", "away", "retriable")

    def __init__(
        self,
        message: str,
        *,
        isr: Sequence[int] = (),
        required: int = 0,
        away: Mapping[int, str] | None = None,
        retriable: bool = False,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.isr = list(isr)
        self.required = required
        self.away = dict(away or {})
        self.retriable = retriable


class NotEnoughReplicasAfterAppendError(NotEnoughReplicasError):
    """The record is in the log at `offset`, but not in enough directories: it may be committed
    later, or be lost.
    """

    __module__ = "embedlog.errors"


class LeaderNotAvailableError(PlacedError):
    """The partition has no leader. `waits_for` has the reason for each node that an election waits
    for.
    """

    __module__ = "embedlog.errors"
    _FACTS = (*PlacedError._FACTS, "waits_for")
    retriable = True

    def __init__(
        self, message: str, *, waits_for: Mapping[int, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.waits_for = dict(waits_for or {})


class NotEnoughDirectoriesError(EmbedlogError):
    """A decision needs a majority of the voting directories, and fewer were reached.

    `reached` and `voters` are nodes, `away` has the reason for each path. `undecided`: records were
    written, and may still count later; read the state before a repetition.
    """

    __module__ = "embedlog.errors"
    _FACTS = ("reached", "voters", "away", "undecided")
    retriable = True

    def __init__(
        self,
        message: str,
        *,
        reached: Sequence[int] = (),
        voters: Sequence[int] = (),
        away: Mapping[str, str] | None = None,
        undecided: bool = False,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.reached = list(reached)
        self.voters = list(voters)
        self.away = dict(away or {})
        self.undecided = undecided

    def _text(self) -> str:
        return "; ".join(
            [self.message, *(f"{path}: {reason}" for path, reason in self.away.items())]
        )


class ReplicaSetError(EmbedlogError):
    """The directories do not form a set: one is given twice, is a clone, belongs elsewhere, or was
    opened alone.

    `paths` has the directories that it concerns. Nothing was changed.
    """

    __module__ = "embedlog.errors"
    _FACTS = ("paths",)

    def __init__(self, message: str, *, paths: Sequence[str] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.paths = list(paths)

    def _text(self) -> str:
        return f"{self.message} ({', '.join(self.paths)})" if self.paths else self.message


class ElectionNotNeededError(EmbedlogError):
    """The wanted replica leads already."""

    __module__ = "embedlog.errors"


class PreferredLeaderNotAvailableError(EmbedlogError):
    """The first replica of the assignment is not in sync, or its directory is away."""

    __module__ = "embedlog.errors"
    retriable = True


class EligibleLeadersNotAvailableError(EmbedlogError):
    """No replica that may lead is available: bring a directory back, or allow an unclean
    election.
    """

    __module__ = "embedlog.errors"
    retriable = True


class NoReassignmentInProgressError(EmbedlogError):
    """The partition has no reassignment that could be cancelled."""

    __module__ = "embedlog.errors"
