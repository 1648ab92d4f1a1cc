"""Makes a consistent copy of a log directory while other processes append, roll segments and delete
old ones.

- The high watermarks of all partitions are read once, at the beginning; each partition is copied up
  to there. No transaction is decided meanwhile, so the copy contains each transaction as a whole, or
  it can be aborted there. If a leader of `__transaction_state` changed meanwhile, all are read
  again.
- Every batch is checked during the copy: damage is an error and is never copied.
- Bytes are read and written, never shared: a copy that shares blocks with the original would not
  survive their damage.
- Indexes and digests are rebuilt during the copy; snapshots and `.txnindex` are checked, or rebuilt
  too.
- Until the copy is complete, a mark prevents that it is opened; the clean mark is written last,
  after all syncs.
- A failed backup removes its own files, and no others.
- A partition whose files were replaced during the copy is copied once more, from files that were all
  opened before it (`pinned_segments`).
- In a set each partition is copied from its leader, and from the next one if that fails, up to the
  same offset. Only a topic that is deleted meanwhile is left out; any other missing partition is an
  error.

What is appended to the copy belongs to a new leader epoch of each partition: the original may have
given the same offsets to other records, and a reader of those notices that by their epoch.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
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
from embedlog.partition.pinned_segments import Pin, pin_files, pin_of
from embedlog.storage import checkpoints, file_names, files, identity, location
from embedlog.storage.manifest import CLOSED, SEALED, Manifest, SegmentInfo, Start
from embedlog.topic import Topic, TopicRegistry, is_internal

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from embedlog.engine.engine import Engine
    from embedlog.partition.partition import Partition

Progress = Callable[[int, int], object]  # bytes copied so far, total bytes


class _FilesReplacedError(Exception):
    """The files of a partition were replaced during the copy."""


@dataclass
class _PartitionCopy:
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
    target = _Target(location.check_path(destination), engine.config.file_mode)
    for directory in engine.directory_paths():
        _check_destination(directory, target.root)
    for name in engine.topic_names():
        _pin_all(engine, name)  # open and repair partitions before others must wait
    pinned = engine.transactions.while_undecided(lambda: _pin_topics(engine))
    target.open()
    try:
        copier = _Copier(engine, target, progress or (lambda done, total: None))
        copier.total = sum(info.size for _, pins in pinned for pin in pins for info in pin.segments)
        copied_topics = []
        for pinned_topic, pins in pinned:
            copied_topic = copier.copy_topic(pinned_topic, pins)
            if copied_topic is not None:
                copied_topics.append(copied_topic)
        copier.finish(copied_topics)
    except BaseException:
        target.take_back()
        raise


def _check_destination(source: Path, root: Path) -> None:
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
        raise ForeignDirectoryError(
            "the destination of a backup is not empty",
            path=root,
            expected="no names",
            found=f"{len(names)} names, such as {names[0]}",
        )


def _pin_topics(engine: Engine) -> list[tuple[Topic, list[Pin]]]:
    """All topics. Internal ones first: no committed offset may be after the copied records."""
    names = sorted(engine.topic_names(), key=lambda name: not is_internal(name))
    pinned = [_pin_all(engine, name) for name in names]
    return [topic_and_pins for topic_and_pins in pinned if topic_and_pins is not None]


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
        self._created: list[Path] = []
        self._own_root = False

    def open(self) -> None:
        """Create the directory with the mark of a backup; of two concurrent backups only one
        succeeds.
        """
        self._own_root = files.mkdir(self.root, files.directory_mode(self.mode), exist_ok=True)
        try:
            with files.opened(self.root / file_names.UNFINISHED, files.EXCLUSIVE, self.mode) as fd:
                self._created.append(self.root / file_names.UNFINISHED)
                files.sync(fd, self.root / file_names.UNFINISHED)
            files.sync_directory(self.root)
            files.sync_directory(self.root.parent)
        except EmbedlogError:
            self.take_back()
            raise

    def make_directory(self, name: str) -> Path:
        path = self.root / name
        self._created.append(path)
        files.mkdir(path, files.directory_mode(self.mode))
        return path

    def put(self, path: Path, data: Buffer) -> None:
        """Write a whole small file."""
        self._created.append(path)
        with files.opened(path, files.EXCLUSIVE, self.mode) as fd:
            files.write_all(fd, data, 0, path)
            files.sync(fd, path)

    def register_file(self, path: Path) -> Path:
        """Register a file that the caller is about to write."""
        self._created.append(path)
        return path

    def clear(self, directory: Path) -> None:
        """Remove the files of a directory."""
        for name in files.listing(directory):
            files.unlink(directory / name, missing_ok=True)

    def close(self) -> None:
        """Complete the copy: remove the mark of the backup, then write the clean mark."""
        files.sync_directory(self.root)
        files.unlink(self.root / file_names.UNFINISHED)
        self.register_file(self.root / file_names.CLEAN_MARK)
        identity.write_clean_mark(self.root, mode=self.mode, incarnation=os.urandom(16))

    def take_back(self) -> None:
        """Remove all created files, the mark last, so that an incomplete removal is never opened as
        a log.
        """
        for path in reversed(self._created):
            with contextlib.suppress(StorageError):
                if files.is_directory(path):
                    files.rmdir(path)
                else:
                    files.unlink(path, missing_ok=True)
        if self._own_root:
            with contextlib.suppress(StorageError):
                files.rmdir(self.root)


# ---- the copy ------------------------------------------------------------------------------------


def _pin_replica(partition: Partition, end: int) -> Pin:
    """Pin another replica up to the end of the first one. Raises LeaderNotAvailableError if it has
    less.
    """
    pin = pin_of(partition, end=end)
    if pin.published.log_end < end:
        name = f"{partition.topic}-{partition.number}"
        expected = f"records up to offset {end}"
        raise LeaderNotAvailableError(
            f"no other replica of {name} is complete",
            expected=expected,
            found=pin.published.log_end,
        )
    return pin


class _Copier:
    """Copies topics one after the other. Threads: one."""

    def __init__(self, engine: Engine, target: _Target, progress: Progress) -> None:
        self._engine = engine
        self._target = target
        self._progress = progress
        self._copies: dict[tuple[str, int], _PartitionCopy] = {}
        # before the copies from each directory
        self._cleaned: dict[Path, Mapping[tuple[str, int], int]] = {}
        self._copied_bytes = 0
        self.total = 0

    def copy_topic(self, pinned: Topic, pins: list[Pin]) -> Topic | None:
        """Copy all partitions of one topic; None if it was deleted before the end."""
        directories: list[Path] = []
        name = pinned.name
        if not _exists(self._engine, pinned):
            return None
        try:
            topic = self._engine.topic(name)  # with its current settings
            for pin in pins:
                partition_name = file_names.partition_name(name, pin.partition.number)
                directory = self._target.make_directory(partition_name)
                directories.append(directory)
                self._copy_partition(pin, directory, topic)
        except UnknownTopicOrPartitionError:
            if _exists(self._engine, pinned):
                raise
            for directory in directories:
                self._target.clear(directory)
                files.rmdir(directory)
            self._copies = {key: copy for key, copy in self._copies.items() if key[0] != name}
            return None
        if not pins:
            return None
        numbers = tuple(pin.partition.number for pin in pins)
        only = () if numbers == tuple(range(len(numbers))) else numbers
        return topic._replace(partitions=max(numbers) + 1, only=only, growing=0)

    def _copy_partition(self, pin: Pin, directory: Path, topic: Topic) -> None:
        def copy_replica(partition: Partition) -> _PartitionCopy:
            if partition is pin.partition:
                return self._copy_replica(pin, directory)
            return self._copy_replica(_pin_replica(partition, pin.end), directory)

        copy = self._engine.at_files(topic, pin.partition.number, copy_replica)
        self._target.register_file(directory / file_names.PARTITION_METADATA)
        identity.write_topic_id(directory, topic.topic_id, self._target.mode)
        self._copies[pin.partition.topic, pin.partition.number] = copy

    def _copy_replica(self, pin: Pin, directory: Path) -> _PartitionCopy:
        """Copy the files of one replica, instead of those of an earlier try."""
        self._target.clear(directory)
        root = pin.partition.path.parent
        if root not in self._cleaned:
            self._cleaned[root] = checkpoints.read_offsets(root / file_names.CLEANER)
        try:
            copy, state = self._copy_segments(pin, directory)
        except _FilesReplacedError:
            self._target.clear(directory)
            with pin_files(pin.partition, pin.end) as opened:
                copy, state = self._copy_segments(opened, directory)
        copy.cleaned = self._cleaned[root].get((pin.partition.topic, pin.partition.number), 0)
        self._write_beside(pin, directory, copy, state)
        return copy

    def _copy_segments(self, pin: Pin, directory: Path) -> tuple[_PartitionCopy, ProducerState]:
        """Copy the segments up to the pinned end; those that retention deletes meanwhile are
        omitted. Raises _FilesReplacedError.
        """
        partition = pin.partition
        copy = _PartitionCopy(pin.published.log_start, pin.end)
        state = pin.producers()
        for info in pin.segments:
            last = info is pin.segments[-1]
            try:
                copy.segments.append(_SegmentCopier(self, pin, info, directory, state).copy(last))
            except StorageError as problem:
                source = file_names.segment_path(partition.path, info.base)
                if problem.errno != errno.ENOENT or problem.path != str(source):
                    raise
                copy.start = max(copy.start, partition.published().log_start)
                if copy.start < info.next_offset:
                    raise _FilesReplacedError from problem
                self._target.clear(directory)
                copy.segments.clear()
            except CorruptRecordError as problem:
                if (
                    pin.descriptors is not None
                    or partition.published().generation == pin.published.generation
                ):
                    raise
                raise _FilesReplacedError from problem
        if (pin.has_moved() and pin.descriptors is None) or not copy.segments:
            raise _FilesReplacedError
        copy.start = max(copy.start, copy.segments[0].base)
        state.offset = copy.end
        return copy, state

    def _write_beside(
        self, pin: Pin, directory: Path, copy: _PartitionCopy, state: ProducerState
    ) -> None:
        """Write the files beside the segments: snapshots, epochs, the manifest."""
        target = self._target
        partition = pin.partition
        for info in copy.segments:
            base = info.base
            if not copy.start < base < copy.end:
                continue
            source = file_names.segment_path(partition.path, base, file_names.SNAPSHOT)
            # needed only if the last snapshot is lost
            with contextlib.suppress(CorruptRecordError):
                data = files.read_bytes(source)
                if data is not None:
                    ProducerState.decode(data, base, source)
                    target.put(directory / source.name, data)
        if copy.end > copy.start:
            target.put(
                file_names.segment_path(directory, copy.end, file_names.SNAPSHOT), state.encode()
            )
        epochs = checkpoints.EpochCache(
            entry for entry in pin.epochs().entries if entry[1] <= copy.end
        )
        epochs.truncate_from_start(copy.start)
        if epochs.entries and copy.end > 0:
            # what is appended to the copy is not what the original got
            epochs.assign(epochs.latest_epoch + 1, copy.end)
        checkpoints.write_epochs(
            target.register_file(directory / file_names.EPOCHS), epochs, target.mode
        )
        manifest = Manifest(directory, partition.topic_id_bytes, target.mode)
        target.register_file(manifest.path)
        last = copy.segments[-1]
        manifest.rewrite(copy.segments, Start(copy.start, -1 if last.gapless else last.base))

    def count_copied(self, size: int) -> None:
        self._copied_bytes += size
        self.total = max(self.total, self._copied_bytes)
        self._progress(self._copied_bytes, self.total)

    def put(self, path: Path, data: Buffer) -> None:
        self._target.put(path, data)

    def create(self, path: Path) -> contextlib.AbstractContextManager[int]:
        return files.opened(self._target.register_file(path), files.EXCLUSIVE, self._target.mode)

    # ---- the directory's own files -----------------------------------------------------------------

    def finish(self, topics: list[Topic]) -> None:
        """Write checkpoints, topics and identity of the directory, then the clean mark."""
        target = self._target
        ends = {key: copy.end for key, copy in self._copies.items()}
        starts = {
            key: copy.start
            for key, copy in self._copies.items()
            if copy.start > copy.segments[0].base
        }
        dirty = {
            key: min(copy.cleaned, copy.end) for key, copy in self._copies.items() if copy.cleaned
        }
        for name, offsets in (
            (file_names.RECOVERY_POINTS, ends),
            (file_names.LOG_STARTS, starts),
            (file_names.HIGH_WATERMARKS, ends),
        ):
            checkpoints.write_offsets(
                target.register_file(target.root / name), offsets, target.mode
            )
        if dirty:
            checkpoints.write_offsets(
                target.register_file(target.root / file_names.CLEANER), dirty, target.mode
            )
        registry = TopicRegistry(target.root, target.mode)
        target.register_file(registry.path)
        registry.change(topics, ())
        meta = identity.read_meta(self._engine.home.path)
        target.register_file(target.root / file_names.META_PROPERTIES)
        if meta is not None:
            identity.write_meta(
                target.root, meta._replace(directory_id=identity.new_id()), target.mode
            )
        else:
            identity.ensure_meta(target.root, target.mode)
        target.close()


class _SegmentCopy(NamedTuple):
    """The copied part of a segment."""

    size: int
    next_offset: int
    digest: int


class _SegmentCopier:
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
        self._copied = _SegmentCopy(0, info.base, 0)

    def copy(self, last: bool) -> SegmentInfo:
        """Copy log, indexes and aborted transactions.

        Raises CorruptRecordError; StorageError with ENOENT if the segment was deleted.
        """
        info = self._info
        directory = self._directory
        chain = Chain(info.base, gaps_allowed=not info.gapless)
        builder = index.Builder(info.base, self._pin.partition.config.index_interval_bytes)
        with self._pin.open_log(info.base) as fd:
            target = file_names.segment_path(directory, info.base)
            with self._copier.create(target) as out:
                walk = self._copy_batches(fd, out, target, chain, builder)
                files.sync(out, target)
        self._check_segment(walk, chain)
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
            size=self._copied.size,
            next_offset=min(info.next_offset, self._pin.end),
            digest=self._copied.digest if info.digested else info.digest,
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
        of all.
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
                self._copied = _SegmentCopy(first + size, chain.next_offset, chain.digest)
            elif count:
                last = batches[count - 1]
                cut = int(batches["position"][count])
                self._copied = _SegmentCopy(
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
            self._copier.count_copied(size)
        return walk

    def _check_segment(self, walk: segment.Walk, chain: Chain) -> None:
        """Check that all bytes were valid, and are the ones that were written."""
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
        for offset, expected_offset in (
            (chain.next_offset, info.next_offset),
            (self._copied.next_offset, min(info.next_offset, self._pin.end)),
        ):
            if offset != expected_offset if info.gapless else offset > expected_offset:
                raise CorruptRecordError(
                    "last offset of the segment",
                    path=self._source,
                    expected=expected_offset - 1,
                    found=offset - 1,
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
        entries = self._pin.aborted_in(self._info)
        if entries:
            self._copier.put(
                file_names.segment_path(
                    self._directory, self._info.base, file_names.TRANSACTION_INDEX
                ),
                entries,
            )
        return entries
