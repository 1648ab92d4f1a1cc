"""Makes a consistent copy of a log directory while other processes append, roll segments and delete
old ones.

BACKUP-1  the high watermarks of all partitions are read once, at the beginning; each partition is
    copied up to there. No transaction is decided meanwhile, so the copy contains each transaction
    as a whole, or it can be aborted there. If a leader of `__transaction_state` changed meanwhile,
    all are read again
BACKUP-2  every batch is checked during the copy: damage is an error and is never copied
BACKUP-3  bytes are read and written, never shared: a copy that shares blocks with the original
    would not survive their damage
BACKUP-4  indexes and digests are rebuilt during the copy; snapshots and `.txnindex` are checked, or
    rebuilt too
BACKUP-5  until the copy is complete, a mark prevents that it is opened; the clean mark is written
    last, after all syncs
BACKUP-6  a failed backup removes its own files, and no others
BACKUP-7  a partition whose files were replaced during the copy is copied once more, from files that
    were all opened before it (`pinned_segments`)
BACKUP-8  in a set each partition is copied from its leader, and from the next one if that fails, up
    to the same offset. Only a topic that is deleted meanwhile is left out; any other missing
    partition is an error

What is appended to the copy belongs to a new leader epoch of each partition: the original may have
given the same offsets to other records, and a reader of those notices that by their epoch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from embedlog import index, segment
from embedlog.errors import (
    CorruptRecordError,
    EmbedlogError,
    ForeignDirectoryError,
    LeaderNotAvailableError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.format import aborted_transactions
from embedlog.format.producer_state import ProducerState
from embedlog.format.record_batch import Chain
from embedlog.partition.pinned_segments import Pin, held, pin_of
from embedlog.storage import checkpoints, file_names, files, identity, location
from embedlog.storage.manifest import CLOSED, SEALED, Manifest, SegmentInfo, Start
from embedlog.topic import Topic, TopicRegistry, is_internal

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from embedlog.engine import Engine
    from embedlog.partition.partition import Partition

Progress = Callable[[int, int], object]  # bytes copied so far, total bytes


class _Moved(Exception):
    """The files of a partition were replaced during the copy."""


@dataclass
class _Taken:
    """The copied part of a partition."""

    start: int
    end: int
    segments: list[SegmentInfo] = field(default_factory=list)
    cleaned: int = 0  # the offset below which the source was compacted


def backup(
    engine: Engine, destination: str | os.PathLike[str], progress: Progress | None = None
) -> None:
    """Copy the log to a directory that is absent or empty. Other processes may work with the log
    meanwhile.

    Raises ForeignDirectoryError for any other destination, CorruptRecordError for damage,
    StorageError.
    """
    target = _Target(location.checked(destination), engine.config.file_mode)
    for place in engine.places():
        _check_place(place, target.root)
    for name in engine.topic_names():
        _pin_all(engine, name)  # open and repair partitions before others must wait
    pinned = engine.transactions.while_undecided(lambda: _pinned(engine))
    target.open()
    try:
        copier = _Copier(engine, target, progress or (lambda done, total: None))
        copier.total = sum(info.size for _, pins in pinned for pin in pins for info in pin.segments)
        taken = [
            topic for found, pins in pinned if (topic := copier.topic(found, pins)) is not None
        ]
        copier.finish(taken)
    except BaseException:
        target.take_back()
        raise


def _check_place(source: Path, root: Path) -> None:
    """Check the destination: a broker does not start on a log directory with an unknown directory
    inside.
    """
    inner = files.real_path(root)
    outer = files.real_path(source)
    if os.path.commonpath([inner, outer]) == outer:
        raise ForeignDirectoryError(
            "the destination of a backup is inside the log directory", path=root
        )
    if files.exists(root) and not files.is_directory(root):
        raise ForeignDirectoryError("the destination of a backup is not a directory", path=root)
    names = files.listing(root) if files.exists(root) else []
    if names:
        found = f"{len(names)} names, such as {names[0]}"
        raise ForeignDirectoryError(
            "the destination of a backup is not empty", path=root, expected="no names", found=found
        )


def _pinned(engine: Engine) -> list[tuple[Topic, list[Pin]]]:
    """All topics. Internal ones first: no committed offset may be after the copied records."""
    names = sorted(engine.topic_names(), key=lambda name: not is_internal(name))
    return [found for name in names if (found := _pin_all(engine, name)) is not None]


def _pin_all(engine: Engine, name: str) -> tuple[Topic, list[Pin]] | None:
    """A topic with all of its partitions; None if it was deleted meanwhile."""
    try:
        topic: Topic = engine.topic(name)
    except UnknownTopicOrPartitionError:
        return None
    try:
        return topic, [
            engine.at_files(topic, number, pin_of)
            for number in topic.numbers
            if number < topic.partitions
        ]
    except UnknownTopicOrPartitionError:
        if _exists(engine, topic):
            raise
        return None


def _exists(engine: Engine, topic: Topic) -> bool:
    """Whether a topic was not deleted meanwhile."""
    try:
        return engine.topic(topic.name).topic_id == topic.topic_id
    except UnknownTopicOrPartitionError:
        return False


# ---- the destination -----------------------------------------------------------------------------


class _Target:
    """The destination directory: every file in it is new, synced, and removed again after a
    failure.
    """

    def __init__(self, root: Path, mode: int) -> None:
        self.root = root
        self.mode = mode
        self._made: list[Path] = []
        self._own_root = False

    def open(self) -> None:
        """Create the directory with the mark of a backup; of two concurrent backups only one
        succeeds.
        """
        self._own_root = files.mkdir(self.root, files.directory_mode(self.mode), exist_ok=True)
        try:
            with files.opened(self.root / file_names.UNFINISHED, files.EXCLUSIVE, self.mode) as fd:
                self._made.append(self.root / file_names.UNFINISHED)
                files.sync(fd, self.root / file_names.UNFINISHED)
            files.sync_directory(self.root)
            files.sync_directory(self.root.parent)
        except EmbedlogError:
            self.take_back()
            raise

    def directory(self, name: str) -> Path:
        path = self.root / name
        self._made.append(path)
        files.mkdir(path, files.directory_mode(self.mode))
        return path

    def put(self, path: Path, data: Buffer) -> None:
        """Write a whole small file."""
        self._made.append(path)
        with files.opened(path, files.EXCLUSIVE, self.mode) as fd:
            files.write_all(fd, data, 0, path)
            files.sync(fd, path)

    def note(self, path: Path) -> Path:
        """Register a file that the caller is about to write."""
        self._made.append(path)
        return path

    def remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            files.unlink(path, missing_ok=True)

    def close(self) -> None:
        """Complete the copy: remove the mark of the backup, then write the clean mark."""
        files.sync_directory(self.root)
        files.unlink(self.root / file_names.UNFINISHED)
        self.note(self.root / file_names.CLEAN_MARK)
        identity.write_clean_mark(self.root, mode=self.mode, incarnation=os.urandom(16))

    def take_back(self) -> None:
        """Remove all created files, the mark last, so that an incomplete removal is never opened as
        a log.
        """
        for path in reversed(self._made):
            with contextlib.suppress(StorageError):
                files.rmdir(path) if files.is_directory(path) else files.unlink(
                    path, missing_ok=True
                )
        if self._own_root:
            with contextlib.suppress(StorageError):
                files.rmdir(self.root)


# ---- the copy ------------------------------------------------------------------------------------


def _pinned_again(partition: Partition, end: int) -> Pin:
    """Pin another replica up to the end of the first one (BACKUP-8). Raises LeaderNotAvailableError
    if it has less.
    """
    pin = pin_of(partition, end=end)
    if pin.now.log_end < end:
        name = f"{partition.topic}-{partition.number}"
        expected = f"records up to offset {end}"
        raise LeaderNotAvailableError(
            f"no other replica of {name} is complete", expected=expected, found=pin.now.log_end
        )
    return pin


class _Copier:
    """Copies topics one after the other. Threads: one."""

    def __init__(self, engine: Engine, target: _Target, progress: Progress) -> None:
        self._engine = engine
        self._target = target
        self._progress = progress
        self._taken: dict[tuple[str, int], _Taken] = {}
        # before the copies from each directory
        self._cleaned: dict[Path, Mapping[tuple[str, int], int]] = {}
        self._done = 0
        self.total = 0

    def topic(self, pinned: Topic, pins: list[Pin]) -> Topic | None:
        """Copy all partitions of one topic; None if it was deleted before the end."""
        directories: list[Path] = []
        name = pinned.name
        if not _exists(self._engine, pinned):
            return None
        try:
            topic = self._engine.topic(name)  # with its present settings
            for pin in pins:
                directories.append(
                    self._target.directory(file_names.partition_name(name, pin.partition.number))
                )
                self._partition(pin, directories[-1], topic)
        except UnknownTopicOrPartitionError:
            if _exists(self._engine, pinned):
                raise
            for directory in directories:
                self._target.remove(directory / each for each in files.listing(directory))
                files.rmdir(directory)
            self._taken = {key: taken for key, taken in self._taken.items() if key[0] != name}
            return None
        numbers = tuple(pin.partition.number for pin in pins)
        only = () if numbers == tuple(range(len(numbers))) else numbers
        return (
            topic._replace(partitions=max(numbers, default=-1) + 1, only=only, growing=0)
            if pins
            else None
        )

    def _partition(self, pin: Pin, directory: Path, topic: Topic) -> None:
        def copied(partition: Partition) -> _Taken:
            return self._copied(
                pin if partition is pin.partition else _pinned_again(partition, pin.end), directory
            )

        taken = self._engine.at_files(topic, pin.partition.number, copied)
        self._target.note(directory / file_names.PARTITION_METADATA)
        identity.write_topic_id(directory, topic.topic_id, self._target.mode)
        self._taken[pin.partition.topic, pin.partition.number] = taken

    def _copied(self, pin: Pin, directory: Path) -> _Taken:
        """Copy the files of one replica, instead of those of an earlier try."""
        self._target.remove(directory / each for each in files.listing(directory))
        root = pin.partition.path.parent
        if root not in self._cleaned:
            self._cleaned[root] = checkpoints.read_offsets(root / file_names.CLEANER)
        try:
            taken, state = self._segments(pin, directory)
        except _Moved:
            self._target.remove(directory / each for each in files.listing(directory))
            with held(pin.partition, pin.end) as opened:
                taken, state = self._segments(opened, directory)
        taken.cleaned = self._cleaned[root].get((pin.partition.topic, pin.partition.number), 0)
        self._beside(pin, directory, taken, state)
        return taken

    def _segments(self, pin: Pin, directory: Path) -> tuple[_Taken, ProducerState]:
        """Copy the segments up to the pinned end; those that retention deletes meanwhile are
        omitted. Raises _Moved.
        """
        partition = pin.partition
        taken = _Taken(pin.now.log_start, pin.end)
        state = pin.producers()
        for info in pin.segments:
            last = info is pin.segments[-1]
            try:
                taken.segments.append(_Segment(self, pin, info, directory, state).copy(last))
            except StorageError as problem:
                if problem.errno != 2 or problem.path != str(
                    file_names.segment_path(partition.path, info.base)
                ):
                    raise
                taken.start = max(taken.start, partition.published().log_start)
                if taken.start < info.next_offset:
                    raise _Moved from problem
                self._target.remove(directory / each for each in files.listing(directory))
                taken.segments.clear()
            except CorruptRecordError as problem:
                if pin.held is not None or partition.published().generation == pin.now.generation:
                    raise
                raise _Moved from problem
        if (pin.moved() and pin.held is None) or not taken.segments:
            raise _Moved
        taken.start = max(taken.start, taken.segments[0].base)
        state.offset = taken.end
        return taken, state

    def _beside(self, pin: Pin, directory: Path, taken: _Taken, state: ProducerState) -> None:
        """Write the files beside the segments: snapshots, epochs, the manifest."""
        target = self._target
        partition = pin.partition
        for base in (info.base for info in taken.segments if taken.start < info.base < taken.end):
            source = file_names.segment_path(partition.path, base, file_names.SNAPSHOT)
            # needed only if the last snapshot is lost
            with contextlib.suppress(CorruptRecordError):
                data = files.read_bytes(source)
                if data is not None:
                    ProducerState.decode(data, base, source)
                    target.put(directory / source.name, data)
        if taken.end > taken.start:
            target.put(
                file_names.segment_path(directory, taken.end, file_names.SNAPSHOT), state.encode()
            )
        kept = checkpoints.EpochCache(
            entry for entry in pin.epochs().entries if entry[1] <= taken.end
        )
        kept.truncate_from_start(taken.start)
        if kept.entries and taken.end > 0:
            # what is appended to the copy is not what the original got
            kept.assign(kept.latest_epoch + 1, taken.end)
        checkpoints.write_epochs(target.note(directory / file_names.EPOCHS), kept, target.mode)
        manifest = Manifest(directory, partition.topic_id, target.mode)
        target.note(manifest.path)
        last = taken.segments[-1]
        manifest.rewrite(taken.segments, Start(taken.start, -1 if last.gapless else last.base))

    def copied(self, size: int) -> None:
        self._done += size
        self.total = max(self.total, self._done)
        self._progress(self._done, self.total)

    def put(self, path: Path, data: Buffer) -> None:
        self._target.put(path, data)

    def create(self, path: Path) -> contextlib.AbstractContextManager[int]:
        return files.opened(self._target.note(path), files.EXCLUSIVE, self._target.mode)

    # ---- the directory's own files -----------------------------------------------------------------

    def finish(self, topics: list[Topic]) -> None:
        """Write checkpoints, topics and identity of the directory, then the clean mark."""
        target = self._target
        ends = {key: taken.end for key, taken in self._taken.items()}
        starts = {
            key: taken.start
            for key, taken in self._taken.items()
            if taken.start > taken.segments[0].base
        }
        dirty = {
            key: min(taken.cleaned, taken.end)
            for key, taken in self._taken.items()
            if taken.cleaned
        }
        for name, offsets in (
            (file_names.RECOVERY_POINTS, ends),
            (file_names.LOG_STARTS, starts),
            (file_names.HIGH_WATERMARKS, ends),
        ):
            checkpoints.write_offsets(target.note(target.root / name), offsets, target.mode)
        if dirty:
            checkpoints.write_offsets(
                target.note(target.root / file_names.CLEANER), dirty, target.mode
            )
        registry = TopicRegistry(target.root, target.mode)
        target.note(registry.path)
        registry.change(topics, ())
        meta = identity.read_meta(self._engine.home.path)
        target.note(target.root / file_names.META_PROPERTIES)
        if meta is not None:
            identity.write_meta(
                target.root, meta._replace(directory_id=identity.new_id()), target.mode
            )
        else:
            identity.ensure_meta(target.root, target.mode)
        target.close()


class _Kept(NamedTuple):
    """The copied part of a segment."""

    size: int
    next_offset: int
    digest: int


class _Segment:
    """The copy of one segment."""

    def __init__(
        self, copier: _Copier, pin: Pin, info: SegmentInfo, directory: Path, state: ProducerState
    ) -> None:
        self._copier = copier
        self._pin = pin
        self._info = info
        self._directory = directory
        self._state = state
        self._source = file_names.segment_path(pin.partition.path, info.base)
        self._kept = _Kept(0, info.base, 0)

    def copy(self, last: bool) -> SegmentInfo:
        """Copy log, indexes and aborted transactions.

        Raises CorruptRecordError; StorageError with ENOENT if the segment was deleted.
        """
        info = self._info
        directory = self._directory
        chain = Chain(info.base, gaps_allowed=not info.gapless)
        builder = index.Builder(info.base, self._pin.partition.config.index_interval_bytes)
        with self._pin.opened(info.base) as fd:
            target = file_names.segment_path(directory, info.base)
            with self._copier.create(target) as out:
                walk = self._copy_batches(fd, out, target, chain, builder)
                files.sync(out, target)
        self._check(walk, chain)
        builder.add_time_entry()
        self._copier.put(
            file_names.segment_path(directory, info.base, file_names.INDEX), builder.offsets
        )
        self._copier.put(
            file_names.segment_path(directory, info.base, file_names.TIME_INDEX), builder.times
        )
        if info.digested:
            self._copier.put(
                file_names.segment_path(directory, info.base, file_names.DIGESTS), builder.records()
            )
        aborted = self._copy_aborted()
        files.sync_directory(directory)
        return info._replace(
            size=self._kept.size,
            next_offset=min(info.next_offset, self._pin.end),
            digest=self._kept.digest if info.digested else info.digest,
            transaction_entries=len(aborted) // aborted_transactions.ENTRY_SIZE,
            transaction_digest=aborted_transactions.digest(aborted),
            max_timestamp=builder.max_timestamp,
            max_timestamp_offset=builder.max_timestamp_offset,
            index_entries=builder.offset_entries,
            time_entries=builder.time_entries,
            kind=CLOSED if last else SEALED,
        )

    def _copy_batches(
        self, fd: int, out: int, target: Path, chain: Chain, builder: index.Builder
    ) -> segment.Walk:
        """Write the batches below the pinned end; the others are read too, since the digest is that
        of all (BACKUP-2).
        """
        walk = segment.Walk(fd, self._source, chain, 0, self._info.size)
        for data, batches in walk.chunks():
            self._pin.partition.check_epochs(self._source, batches)
            first = int(batches["position"][0])
            size = len(data)
            before = walk.before
            count = int(
                (batches["base_offset"] + batches["last_offset_delta"] < self._pin.end).sum()
            )
            if count == len(batches):
                self._kept = _Kept(first + size, chain.next_offset, chain.digest)
            elif count:
                last = batches[count - 1]
                cut = int(batches["position"][count])
                self._kept = _Kept(
                    cut,
                    int(last["base_offset"]) + int(last["last_offset_delta"]) + 1,
                    int(before[count]),
                )
                data = data[: cut - first]
                batches = batches[:count]
                before = before[:count]
            if count:
                files.write_all(out, data, first, target)
                builder.add(batches, before)
                self._pin.replay(self._state, data, batches)
            self._copier.copied(size)
        return walk

    def _check(self, walk: segment.Walk, chain: Chain) -> None:
        """Check that all bytes were valid, and are the ones that were written (BACKUP-2)."""
        info = self._info
        problem = walk.problem
        if problem is not None:
            raise CorruptRecordError(
                problem.message,
                path=self._source,
                position=problem.position,
                expected=problem.expected,
                found=problem.found,
            )
        if walk.end != info.size:
            raise CorruptRecordError(
                "the file ends inside a batch",
                path=self._source,
                position=walk.end,
                expected=f"{info.size} bytes",
            )
        for found, end in (
            (chain.next_offset, info.next_offset),
            (self._kept.next_offset, min(info.next_offset, self._pin.end)),
        ):
            if found != end if info.gapless else found > end:
                raise CorruptRecordError(
                    "last offset of the segment",
                    path=self._source,
                    expected=end - 1,
                    found=found - 1,
                )
        if info.digested and chain.digest != info.digest:
            raise CorruptRecordError(
                "the batch headers of this segment differ from those that were written",
                path=self._source,
                expected=f"digest {info.digest:016x}",
                found=f"{chain.digest:016x}",
            )

    def _copy_aborted(self) -> bytes:
        """Write the index of transactions aborted up to the pinned end, if there are any; returns
        its content.
        """
        kept = self._pin.aborted_in(self._info)
        if kept:
            self._copier.put(
                file_names.segment_path(
                    self._directory, self._info.base, file_names.TRANSACTION_INDEX
                ),
                kept,
            )
        return kept
