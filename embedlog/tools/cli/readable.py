"""Reads the members of a list one by one: topics, groups.

What is damaged, or has no leader, is a line on standard error and makes the status 1; the others
are printed.
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
from embedlog.tools.cli.option_words import text_in_options
from embedlog.tools.cli.terminal import tell

Description = TypeVar("Description")


class ReadableMembers:
    """The readable members, and whether all were."""

    def __init__(self) -> None:
        self.is_whole = True

    def describe_each(
        self, names: Iterable[str], describe: Callable[[str], Description]
    ) -> Iterator[Description]:
        """Describe each name; what cannot be read is left out."""
        for name in names:
            try:
                yield describe(name)
            except (CorruptRecordError, LeaderNotAvailableError, StorageError) as problem:
                self.report_problem(problem)

    def describe_topics(self, log: Log, names: Iterable[str]) -> Iterator[TopicDescription]:
        """Describe each topic; of one with a partition without a leader the other partitions."""

        def describe(name: str) -> TopicDescription:
            try:
                return log.describe_topic(name)
            except LeaderNotAvailableError as problem:
                self.report_problem(problem)
                return log.describe_topic(name, available_only=True)

        return self.describe_each(names, describe)

    def report_problem(self, problem: Exception) -> None:
        """Print why a member cannot be read."""
        self.is_whole = False
        tell(f"embedlog: {text_in_options(problem)}")

    def status(self, has_row: bool) -> int:
        """The exit status of a list: 0 if it has a row and is whole."""
        return 0 if has_row and self.is_whole else 1


def numbers_of(log: Log, topic: str, selected: Collection[int] | None) -> list[int]:
    """The numbers of the selected partitions, or of all. Raises LeaderNotAvailableError if one of
    them has no leader.
    """
    try:
        description = log.describe_topic(topic)
    except LeaderNotAvailableError:
        description = log.describe_topic(topic, available_only=True)
        if selected is None or not {
            partition.partition for partition in description.partitions
        }.issuperset(selected):
            raise
    return [
        partition.partition
        for partition in description.partitions
        if selected is None or partition.partition in selected
    ]
