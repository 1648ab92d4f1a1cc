"""Tells whether topics are as they were described, at a cost that hardly depends on the number of
partitions.

A description looks at each partition, and for a reader at its files. A process that changes one of
them also changes one of these: the page of the partition, the notice word of its directory when the
partition gets a page, the topics word, or what a reader sees of the directory (whether a process
writes there, the clean mark, the incarnation). One call of C compares all pages.

A partition follows its directory at intervals. A description is not kept if the directory has
changed less than `QUIET_S` before it, and none is kept longer than `KEPT_S`: then a page whose
file was replaced, or a process of a version without the notice, is found.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from embedlog._native import waits
from embedlog.errors import EmbedlogError

if TYPE_CHECKING:
    from embedlog.descriptions.topics import PartitionDescription, TopicDescription
    from embedlog.engine.engine import Engine
    from embedlog.engine.log_directory import LogDirectory
    from embedlog.partition.interfaces import LogPartition

QUIET_S: Final = 0.2  # twice the interval at which a reader's partition looks at its directory
KEPT_S: Final = 10.0
LIVE_CHECK_S: Final = 0.1  # between two looks at a directory in which a process writes

Facts = tuple[Any, ...]


class TopicWatch:
    """The watch over the topics of one open log. Threads: one at a time."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        # states of directories, and when they were read
        self._states: dict[LogDirectory, tuple[object, object, float]] = {}
        self._looks: waits.Looks | None = None
        self._kept_until = -float("inf")
        self._changed_s = -float("inf")
        # nothing is open yet: what is opened later is at least as new
        self._facts = self._read_facts()
        self._is_quiet = False

    def begin(self) -> None:
        """Before topics are described."""
        self._looks = None
        self._take_facts(self._read_facts())
        self._is_quiet = self._clock() - self._changed_s >= QUIET_S

    def keep(self, descriptions: Iterable[TopicDescription]) -> None:
        """Watch these topics, which were described since `begin`."""
        if not self._is_quiet:
            return
        # a topic is gone, or a disk: the next look says so
        with contextlib.suppress(EmbedlogError):
            self._looks = self._look_at(descriptions)
            self._kept_until = self._clock() + KEPT_S

    def _look_at(self, descriptions: Iterable[TopicDescription]) -> waits.Looks | None:
        """The pages of these topics; None if one has published since it was described."""
        pages = []
        described: list[tuple[LogPartition, PartitionDescription]] = []
        for topic in descriptions:
            for description in topic.partitions:
                partition = self._engine.partition(topic.name, description.partition)
                page = partition.mapped_page
                if page is not None:
                    pages.append(page)
                    described.append((partition, description))
        looks = waits.Looks(pages)
        has_published = any(
            partition.bounds() != _bounds(description) for partition, description in described
        )
        return None if has_published else looks

    def is_unchanged(self) -> bool:
        """Whether the kept descriptions are those that a new look would return, but for sizes that
        no append changed.
        """
        if self._looks is None or self._clock() >= self._kept_until:
            return False
        facts = self._read_facts()
        if facts != self._facts or not self._looks.are_current():
            self._take_facts(facts)
            self._looks = None
            return False
        return True

    def _take_facts(self, facts: Facts) -> None:
        if facts != self._facts:
            self._facts = facts
            self._changed_s = self._clock()

    def _read_facts(self) -> Facts:
        topics = self._engine.topics_version()
        states = tuple(self._state_of(directory) for directory in self._engine.directories)
        if topics & 1 and any(state[0] is True for state in states):
            return topics, states, object()  # no page reports changes: equal to nothing
        return topics, states

    def _state_of(self, directory: LogDirectory) -> tuple[object, ...]:
        """Whether a process writes in a directory, what a reader sees of it, and its notice
        word.
        """
        context = directory.context
        is_live: object = True
        reader_state: object = None
        if context.refresh is not None:
            now_s = self._clock()
            is_live, reader_state, read_s = self._states.get(directory, (False, None, 0.0))
            if is_live is not True or now_s - read_s >= LIVE_CHECK_S:
                try:
                    is_live = context.refresh()
                    reader_state = context.directory_change
                except EmbedlogError as problem:
                    # a disk that is lost: the look raises it, or other directories answer
                    is_live = False
                    reader_state = str(problem)
                self._states[directory] = is_live, reader_state, now_s
        page = context.directory_page
        return is_live, reader_state, -1 if page is None else page.notice()


def _bounds(partition: PartitionDescription) -> tuple[int, ...]:
    return (
        partition.log_start_offset,
        partition.log_end_offset,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.leader_epoch,
    )
