"""Reads the members of a list one by one: topics, groups.

READABLE-1  what is damaged, or has no leader, is a line on standard error and makes the status 1;
    the others are printed
READABLE-2  of a topic with a partition without a leader the other partitions are printed
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from embedlog import (
    CorruptRecordError,
    LeaderNotAvailableError,
    Log,
    StorageError,
    TopicDescription,
)
from embedlog.cli.option_words import in_options
from embedlog.cli.terminal import tell

Description = TypeVar("Description")


class Readable:
    """The readable members, and whether all were."""

    def __init__(self) -> None:
        self.whole = True

    def each(
        self, names: Iterable[str], describe: Callable[[str], Description]
    ) -> Iterator[Description]:
        """Describe each name; what cannot be read is left out."""
        for name in names:
            try:
                yield describe(name)
            except (CorruptRecordError, LeaderNotAvailableError, StorageError) as problem:
                self.note(problem)

    def topics(self, log: Log, names: Iterable[str]) -> Iterator[TopicDescription]:
        """Describe each topic, with the partitions that can be read (READABLE-2)."""

        def describe(name: str) -> TopicDescription:
            try:
                return log.describe_topic(name)
            except LeaderNotAvailableError as problem:
                self.note(problem)
                return log.describe_topic(name, available_only=True)

        return self.each(names, describe)

    def note(self, problem: Exception) -> None:
        """Print why a member cannot be read."""
        self.whole = False
        tell(f"embedlog: {in_options(problem)}")

    def status(self, found: bool) -> int:
        """The exit status of a list: 0 if it has a row and is whole."""
        return 0 if found and self.whole else 1


def numbers_of(log: Log, topic: str, wanted: Collection[int] | None) -> list[int]:
    """The numbers of the wanted partitions, or of all. Raises LeaderNotAvailableError if one of
    them has no leader.
    """
    try:
        found = log.describe_topic(topic)
    except LeaderNotAvailableError:
        found = log.describe_topic(topic, available_only=True)
        if wanted is None or not {each.partition for each in found.partitions}.issuperset(wanted):
            raise
    return [
        each.partition for each in found.partitions if wanted is None or each.partition in wanted
    ]
