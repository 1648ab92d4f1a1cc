"""This module lets readers of a set use the short paths of the leader's partition while nothing in
the set changes.

A short path reads one file and one control page. It shows neither that a decision has another
leader, nor that a directory was removed or opened again. So each of its results counts only if,
after the read, the topics word of every directory and the directories themselves are those of the
last look for the leader. Otherwise the reader fetches from its
unchanged offset, which finds the current leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedlog._native._rows import Record
    from embedlog._native.system import TopicsWords
    from embedlog.partition.interfaces import TailedLog
    from embedlog.replicas.members.open_directories import OpenDirectories
    from embedlog.replicas.partition.leader import Leader


class LeaderWatch:
    """A leader, and what the set showed when it was looked for. Threads: any."""

    __slots__ = ("_changes", "_directories", "_words", "leader")

    def __init__(
        self, leader: Leader, directories: OpenDirectories, changes: int, words: TopicsWords
    ) -> None:
        self.leader = leader
        self._directories = directories
        self._changes = changes
        self._words = words

    def is_unchanged(self) -> bool:
        """Whether no decision was made and no directory has failed or returned since."""
        return self._directories.changes == self._changes and self._words.are_current()


class LeaderTail:
    """As `Tail`, of a leader that is watched. Threads: one at a time."""

    __slots__ = ("_tail", "_watch", "end", "epoch", "offset", "size_bytes")

    def __init__(self, tail: TailedLog, watch: LeaderWatch) -> None:
        self._tail = tail
        self._watch = watch
        self.offset = tail.offset
        self.end = tail.end
        self.epoch = tail.epoch
        self.size_bytes = tail.size_bytes

    def records(self) -> list[Record] | None:
        """As `Tail.records`. None also after a change in the set; then `offset` is unchanged."""
        tail = self._tail
        records = tail.records()
        if records is None or not self._watch.is_unchanged():
            return None
        self.offset = tail.offset
        self.end = tail.end
        self.size_bytes = tail.size_bytes
        return records
