"""Reads and writes Kafka's checkpoints: offsets of a log directory and leader epochs of a
partition.

A checkpoint contains a version, a count, and one entry per line.

- A broker must be able to read what this module writes: every line is checked first, because one
  malformed line takes a whole directory offline.
- The reader accepts exactly what Kafka's reader accepts and could write again; an error names file
  and line.
- A file changes by `files.write_atomically`; the writer holds a lock that covers it
  (`docs/protocol.md`).
- A damaged file that only saves work (`file_names.CACHES`) counts as absent, with a warning; the
  next writer replaces it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError, ForeignDirectoryError, UnsupportedFormatError
from embedlog.storage import file_names, files
from embedlog.storage.file_names import INT_MAX, NAME_LENGTH_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger("embedlog")


LONG_MAX = 2**63 - 1
WAY_OUT = "restore the file, or let `embedlog repair --execute` mend it"
NO_EPOCH = -1  # of a batch, and of every message of magic 0 and 1

_LINE_END = re.compile(r"\r\n|\n|\r")  # Java's readLine; str.splitlines() splits at more characters
_BLANKS = re.compile(r"[ \t\n\x0b\f\r]+")  # Java's \s+
_NUMBER = re.compile(r"[+-]?[0-9]+")
_NAME = re.compile(r"[a-zA-Z0-9._-]+")

OTHER_EPOCH = "a batch carries another leader epoch than its offset belongs to"

Offsets = dict[tuple[str, int], int]


# ---- checkpoints of a log directory --------------------------------------------------------------


def read_offsets(path: str | os.PathLike[str]) -> Offsets:
    """{(topic, partition): offset}; empty if the file is absent, or damaged and only a cache.

    Raises ForeignDirectoryError if any other file is malformed, CorruptRecordError if it is too
    large, UnsupportedFormatError for another version of it.
    """
    return _read_offsets(path) or {}


def read_offsets_exactly(path: str | os.PathLike[str]) -> Offsets:
    """As `read_offsets`, but a damaged cache is an error, too."""
    offsets: Offsets = {}
    for line, (topic, partition_text, offset_text) in _read_entries(path, 3):
        if not _is_topic_name(topic):
            raise malformed_line_error(path, line, "the name of a topic", repr(topic[:300]))
        partition = number_of(path, line, partition_text, INT_MAX)
        offsets[topic, partition] = number_of(path, line, offset_text, LONG_MAX)
    return offsets


def _read_offsets(path: str | os.PathLike[str]) -> Offsets | None:
    """As `read_offsets`, but None for a damaged cache."""
    try:
        return read_offsets_exactly(path)
    except (ForeignDirectoryError, CorruptRecordError) as problem:
        # another version is of a newer program, and no damage
        if os.path.basename(os.fspath(path)) not in file_names.CACHES:
            raise
        logger.warning("damaged checkpoint ignored; it is a cache and will be rebuilt: %s", problem)
        return None


def _is_topic_name(topic: str) -> bool:
    return len(topic) <= NAME_LENGTH_MAX and _NAME.fullmatch(topic) is not None


def write_offsets(
    path: str | os.PathLike[str], offsets: Mapping[tuple[str, int], int], mode: int = 0o666
) -> None:
    """Replace the checkpoint. Raises ValueError, before anything is written, for an entry that a
    broker could not read.
    """
    lines = []
    for (topic, partition), offset in sorted(offsets.items()):
        if (
            not _is_topic_name(topic)
            or not 0 <= partition <= INT_MAX
            or not 0 <= offset <= LONG_MAX
        ):
            raise ValueError(f"not an entry of a checkpoint: {topic!r} {partition} {offset}")
        lines.append(f"{topic} {partition} {offset}")
    files.write_atomically(path, _encode(lines), mode)


def update(
    path: str | os.PathLike[str], changes: Mapping[tuple[str, int], int | None], mode: int = 0o666
) -> None:
    """Read, change (None removes an entry), write; nothing is written if nothing changes.

    Raises ForeignDirectoryError if the current file is malformed: overwriting it would lose the
    entries of other partitions. A damaged cache is rebuilt. **Threads and processes**: the caller
    holds the directory lock.
    """
    before = _read_offsets(path)
    after = dict(before or {})
    for tp, offset in changes.items():
        if offset is None:
            after.pop(tp, None)
        else:
            after[tp] = offset
    if after != before:
        write_offsets(path, after, mode)


def _encode(lines: list[str]) -> bytes:
    version = "0"
    return "".join(f"{line}\n" for line in (version, str(len(lines)), *lines)).encode()


def _read_entries(
    path: str | os.PathLike[str], width: int, *, whole: bool = False
) -> list[tuple[int, list[str]]]:
    """(line number, fields) of every entry. As in Kafka, an absent or empty file or a bare version
    has no entries.

    `whole`: the last line must have its end.
    """
    data = files.read_bytes(path) or b""
    lines = lines_of(path, data)
    if not lines:
        return []
    if whole and len(lines) > 2 and data[-1:] not in b"\r\n":
        raise malformed_line_error(path, len(lines), "the end of a line", "the end of the file")
    version = number_of(path, 1, lines[0], INT_MAX)
    if version != 0:
        raise UnsupportedFormatError(
            "version of the checkpoint", path=path, expected=0, found=version
        )
    if len(lines) == 1:
        return []
    declared = number_of(path, 2, lines[1], INT_MAX)
    entries = []
    for number, line in enumerate(lines[2:], 3):
        fields = _BLANKS.split(line)
        # Java drops empty fields at the end, not at the beginning
        if fields[-1] == "" and len(fields) > 1:
            fields.pop()
        if len(fields) != width:
            raise malformed_line_error(path, number, f"{width} fields", repr(line))
        entries.append((number, fields))
    if len(entries) != declared:
        raise malformed_line_error(path, 2, f"{declared} entries", len(entries))
    return entries


def lines_of(path: str | os.PathLike[str], data: bytes) -> list[str]:
    """The lines of a small text file, split where Java splits. Raises ForeignDirectoryError if the
    data is not UTF-8.
    """
    try:
        lines = _LINE_END.split(data.decode())
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        undecodable = repr(data[problem.start : problem.end])
        raise malformed_line_error(path, line, "UTF-8", undecodable) from None
    if lines[-1] == "":
        lines.pop()
    return lines


def number_of(path: str | os.PathLike[str], line: int, text: str, largest: int) -> int:
    """A number from 0 to `largest`. Raises ForeignDirectoryError with file and line."""
    if not _NUMBER.fullmatch(text) or len(text) > 20 or not 0 <= int(text) <= largest:
        raise malformed_line_error(path, line, f"an integer from 0 to {largest}", repr(text))
    return int(text)


def malformed_line_error(
    path: str | os.PathLike[str], line: int, expected: object, found: object
) -> ForeignDirectoryError:
    """The error for a malformed line."""
    return ForeignDirectoryError(
        f"malformed line {line}; {WAY_OUT}", path=path, expected=expected, found=found
    )


# ---- leader epochs of a partition ----------------------------------------------------------------


class EpochCache:
    """The start offset of each leader epoch: pairs (epoch, start offset), both strictly rising.

    The class is pure: it knows no file and no lock. Each method that changes it returns whether it
    changed, so that the caller writes the file. Of entries that do not rise, the later ones count.
    """

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries: list[tuple[int, int]] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @classmethod
    def from_rising(cls, entries: Iterable[tuple[int, int]]) -> EpochCache:
        """A cache of these entries. REQUIRES: they are some of another cache, in its order."""
        cache = cls()
        cache.entries = list(entries)
        return cache

    @property
    def latest(self) -> tuple[int, int] | None:
        """The last (epoch, start offset), or None."""
        return self.entries[-1] if self.entries else None

    @property
    def latest_epoch(self) -> int:
        """The last epoch, -1 without any."""
        return self.entries[-1][0] if self.entries else -1

    def assign(self, epoch: int, start: int) -> bool:
        """Start an epoch at `start` and remove entries that contradict it. No change if that epoch
        is already the latest and starts there or earlier.
        """
        if epoch < 0 or start < 0:
            raise ValueError(f"not a leader epoch: {epoch} from {start}")
        if self.entries and self.entries[-1][0] == epoch and self.entries[-1][1] <= start:
            return False
        while self.entries and (self.entries[-1][0] >= epoch or self.entries[-1][1] >= start):
            self.entries.pop()
        self.entries.append((epoch, start))
        return True

    def truncate_from_end(self, end: int) -> bool:
        """The log now ends at `end`: epochs that began there or later are removed."""
        return self._replace([(epoch, first) for epoch, first in self.entries if first < end])

    def truncate_from_start(self, start: int) -> bool:
        """The log now starts at `start`: the epoch of that offset now begins there."""
        later = [(epoch, first) for epoch, first in self.entries if first > start]
        epoch_at_start = self.epoch_for(start)
        if epoch_at_start == -1:
            return self._replace(later)
        return self._replace([(epoch_at_start, start), *later])

    def epoch_for(self, offset: int) -> int:
        """The epoch in which `offset` was (or will be) written; -1 if it is before the first known
        epoch.
        """
        return next((epoch for epoch, start in reversed(self.entries) if start <= offset), -1)

    def find_disagreement(
        self, bases: NDArray[np.int64], epochs: NDArray[np.int32]
    ) -> tuple[int, int] | None:
        """The first batch whose epoch differs from the epoch of its base offset, as (row,
        expected).

        A batch without an epoch agrees with any: messages of magic 0 and 1 have no such field.
        REQUIRES at least one batch.
        """
        if not self.entries:
            return None
        latest, latest_start = self.entries[-1]
        if latest_start <= bases[0]:
            # the usual case: all batches have the newest epoch; one of them is compared without an
            # array
            if len(epochs) == 1:
                agrees = epochs[0] == latest
            else:
                agrees = (epochs == latest).all()
            if agrees:
                return None
        starts = np.array([start for _, start in self.entries], np.int64)
        epochs_of_starts = np.array([epoch for epoch, _ in self.entries], np.int64)
        slots = np.searchsorted(starts, bases, side="right") - 1
        expected = epochs_of_starts[slots]
        is_wrong = (slots >= 0) & (epochs != NO_EPOCH) & (expected != epochs)
        row = int(is_wrong.argmax())
        if not is_wrong[row]:
            return None
        return row, int(expected[row])

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(largest known epoch <= `epoch`, the offset at which it ended); (-1, -1) if unknown. An
        epoch below the first known one is returned itself, and ends where that begins.

        The end is the start of the next higher epoch, or `log_end` for the latest one. A reader
        whose position is after the end has read records that were truncated.
        """
        if epoch < 0 or not self.entries or epoch > self.latest_epoch:
            return -1, -1
        if epoch == self.latest_epoch:
            return epoch, log_end
        end = next(start for higher, start in self.entries if higher > epoch)
        floor = next((lower for lower, _ in reversed(self.entries) if lower <= epoch), epoch)
        return floor, end

    def _replace(self, entries: list[tuple[int, int]]) -> bool:
        changed = entries != self.entries
        self.entries = entries
        return changed


def read_epochs(path: str | os.PathLike[str]) -> EpochCache:
    """The epochs in a leader-epoch-checkpoint; none if the file is absent. Raises
    ForeignDirectoryError for a malformed one.

    A last line without its end is malformed, unlike in Kafka: the rest of a start offset would be
    another offset. Entries that do not rise are no error: see `EpochCache`.
    """
    return EpochCache(
        (number_of(path, line, epoch, INT_MAX), number_of(path, line, start, LONG_MAX))
        for line, (epoch, start) in _read_entries(path, 2, whole=True)
    )


class StagedEpochs(NamedTuple):
    """A leader-epoch-checkpoint that is on disk, but not in its place."""

    entries: list[tuple[int, int]]
    temporary: str


def stage_epochs(
    path: str | os.PathLike[str], epochs: EpochCache, mode: int = 0o666
) -> tuple[StagedEpochs, int]:
    """Write a leader-epoch-checkpoint as a temporary of `files.stage`; with its descriptor."""
    temporary, fd = files.stage(path, _encode_epochs(epochs), mode)
    return StagedEpochs(list(epochs.entries), temporary), fd


def _encode_epochs(epochs: EpochCache) -> bytes:
    return _encode([f"{epoch} {start}" for epoch, start in epochs.entries])


def write_epochs(path: str | os.PathLike[str], epochs: EpochCache, mode: int = 0o666) -> None:
    """Replace the leader-epoch-checkpoint; file and name are on disk when this returns."""
    files.write_atomically(path, _encode_epochs(epochs), mode)
