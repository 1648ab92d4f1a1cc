"""Caches the producers of one partition, and reads missing ones from the log.

- The control page has a slot for each producer, which every append or marker of the producer
  changes. If the slot is unchanged, the cached producer state is current, and nothing is read.
- In doubt the log decides, never memory (`idempotent_append`).
- State that another process may have invalidated (a cut, a repair, another page) is forgotten, not
  corrected.
- Data that this process appends to a transaction is taken from memory, so its marker reads nothing.

All methods except `seen_plain` REQUIRE the mutex of the partition; those whose names end in
`_locked` also the append lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedlog._native import system
from embedlog._native.lazy_numpy import np
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, DuplicateSequenceError, StorageError, in_file
from embedlog.format import sequence_rules
from embedlog.format.producer_state import Marker, ProducerState, add_sequence
from embedlog.format.record_batch import Chain
from embedlog.format.record_columns import Batches, EncodedRun, Stamp, batch_dtype
from embedlog.partition.recovery import producer_history
from embedlog.segment import Walk
from embedlog.storage import file_names, files
from embedlog.storage.manifest import SegmentInfo

if TYPE_CHECKING:
    from embedlog.partition.segment_list import SegmentList
    from embedlog.partition.state import PartitionState

CACHED_MAX = 1024  # known producers of this process; for a forgotten one the log is read
ROWS_AT_ONCE = 1024
FEW_RECORDS = 1024  # so many are read within a millisecond, also if each is a batch
# before the lock; without processor time for this process the reads may not get shorter
READS_MAX = 8


class ProducerSequences:
    """The cached state of the producers of one partition."""

    def __init__(self, state: PartitionState, segments: SegmentList) -> None:
        self._partition = state
        self._segments = segments
        self._cached: dict[int, Any] = {}  # el_known by producer id
        self._state: ProducerState | None = None
        self._generation = 0
        # segment base and position of the batch at the state's offset; -1: unknown
        self._next_batch = (-1, -1)

    @property
    def is_loaded(self) -> bool:
        """Whether any state is cached."""
        return self._state is not None

    def forget(self) -> None:
        for producer in self._cached.values():
            producer.seen = -1  # an append in progress may refer to it
        self._state = None

    # ---- the usual path --------------------------------------------------------------------------

    def cached_state(self, stamp: Stamp) -> Any:
        """The cached state of a producer for the writer, which reads nothing more if it is
        current.
        """
        producer = self._cached.get(stamp.producer_id)
        if producer is None:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            producer = system.make_known(stamp.producer_id)
            self._cached[stamp.producer_id] = producer
        if producer.epoch != stamp.epoch:
            producer.seen = -1
        producer.may_open = stamp.opens
        return producer

    def update(self, stamp: Stamp, next_sequence: int, seen: int) -> None:
        """Take over the state after an append or a marker of this process."""
        producer = self.cached_state(stamp)
        producer.epoch = stamp.epoch
        producer.next_sequence = next_sequence
        producer.open = stamp.transactional
        producer.seen = seen

    def take_appended(self, run: EncodedRun, start: int, writer: system.Writer) -> None:
        """Take over data of a transaction that was appended from byte `start` of the run."""
        rows = run.batches
        out = writer.out
        if out.consumed < len(run.buffer):
            first, end = np.searchsorted(rows["position"], (start, start + out.consumed))
            rows = rows[first:end]
        self._follow(writer, lambda state: state.follow(rows, out.base_offset, out.append_time_ms))

    def take_marker(
        self, producer_id: int, epoch: int, marker: Marker, timestamp: int, writer: system.Writer
    ) -> None:
        """Take over a marker that was appended."""
        out = writer.out
        self.update(Stamp(producer_id, epoch), 0, out.seen)
        if out.append_time_ms >= 0:
            timestamp = out.append_time_ms
        self._follow(
            writer,
            lambda state: state.follow_marker(
                producer_id, epoch, marker, out.base_offset, timestamp
            ),
        )

    def take_copied(
        self, rows: Batches, marker_of: Callable[[int], Marker | None], writer: system.Writer
    ) -> None:
        """Take over batches of a leader that were appended."""
        self._follow(writer, lambda state: _replay(state, rows, marker_of))

    def _follow(self, writer: system.Writer, take: Callable[[ProducerState], None]) -> None:
        state = self._state
        out = writer.out
        if state is None or state.offset != out.base_offset:
            return
        self._state = None  # an interrupt leaves no partial state
        state.noted_ms = _now_ms()
        take(state)
        self._next_batch = (writer.segment_base, out.position + out.consumed)
        self._state = state

    def seen_plain(self, stamp: Stamp) -> int:
        """The number in the slot of a producer after its last append outside of transactions, -1 if it
        is not known.
        """
        producer = self._cached.get(stamp.producer_id)
        if producer is None or producer.epoch != stamp.epoch or producer.open:
            return -1
        return int(producer.seen)

    def following_sequence_locked(self, stamp: Stamp, published: Published) -> int:
        """The next sequence of this producer. Raises the error of `sequence_rules.admit`."""
        state = self.state_locked(published)
        problem = sequence_rules.admit(state, stamp)
        if problem is not None:
            raise problem
        producer = state.producers.get(stamp.producer_id)
        if producer is None or producer.epoch != stamp.epoch:
            return 0
        return add_sequence(producer.last_sequence, 1)

    # ---- in doubt --------------------------------------------------------------------------------

    def find_batches(self, stamp: Stamp, rows: Batches) -> dict[int, tuple[int, int, int]]:
        """Base offset, next offset and timestamp of batches that are in the log, by first sequence.

        Raises DuplicateSequenceError if they were deleted: a producer must not append them with
        another epoch.
        """
        producer = None
        if self._state is not None:
            producer = self._state.producers.get(stamp.producer_id)
        batches_by_sequence = {}
        if producer is not None:
            for batch in producer.batches:
                base = batch.last_offset - batch.offset_delta
                following = batch.last_offset + 1
                batches_by_sequence[batch.first_sequence] = (base, following, batch.timestamp)
        sequences = set(rows["base_sequence"].tolist())
        if sequences <= batches_by_sequence.keys():
            return batches_by_sequence
        partition = self._partition
        published = partition.published()
        # a run that was appended in part is mostly at the end
        for info in reversed(self._segments.all(published)):
            for batches, _ in self._headers(info, 0):
                own = (batches["producer_id"] == stamp.producer_id) & (
                    batches["producer_epoch"] == stamp.epoch
                )
                for row in batches[own & np.isin(batches["base_sequence"], rows["base_sequence"])]:
                    base = int(row["base_offset"])
                    batches_by_sequence[int(row["base_sequence"])] = (
                        base,
                        base + int(row["last_offset_delta"]) + 1,
                        int(row["max_timestamp"]),
                    )
            if sequences <= batches_by_sequence.keys():
                return batches_by_sequence
        raise DuplicateSequenceError(
            f"producer {stamp.producer_id}: batches that were appended before are no longer in "
            "the log",
            path=partition.path,
        )

    def expire(self, expiration_ms: int) -> list[int]:
        """Forget producers that were idle for so long by the boot clock; their ids. Changes memory
        only.
        """
        self.catch_up()
        if self._state is None:
            return []
        return self._state.expire(_now_ms(), expiration_ms, noted=True)

    # ---- catching up -----------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Read new records without the append lock, so that few are left to read under it. Errors
        are left to that read.

        What other processes append during a long read is read next: under the lock it would make
        all of them wait. Each read is shorter than the one before it, because reading a header is
        faster than an append.
        """
        partition = self._partition
        try:
            for _ in range(READS_MAX):
                before = partition.published()
                if before.generation % 2 == 0:
                    self._advance(before)
                published = partition.published()
                if published.generation != before.generation:
                    self._state = None
                    return
                if published.log_end - before.log_end <= FEW_RECORDS:
                    return
        except (CorruptRecordError, StorageError):
            self._state = None

    def state_locked(self, published: Published) -> ProducerState:
        """The producers as of the log end."""
        return self._advance(published)

    @property
    def caught_up(self) -> ProducerState | None:
        """The state as of the last `catch_up`; None if it could not be read."""
        return self._state

    def _advance(self, published: Published) -> ProducerState:
        state = self._state
        self._state = None  # an interrupted walk leaves no partial state
        if self._generation != published.generation:
            # a replaced segment keeps its name
            self._partition.context.handles.forget(self._partition.directory)
        if (
            state is None
            or self._generation != published.generation
            or state.offset > published.log_end
        ):
            state = self._load(published)
            for producer in state.producers.values():
                producer.noted_ms = _now_ms()
        state.noted_ms = _now_ms()
        if state.offset < published.log_end:
            if self._partition.page.word(system.WORD_PRODUCED) > state.offset:
                self._walk(state, published)
            state.offset = published.log_end
            self._next_batch = (published.segment_base, published.segment_size)
        state.forget_decided(published.high_watermark)
        self._state = state
        self._generation = published.generation
        return state

    def _load(self, published: Published) -> ProducerState:
        """The newest certain state at or below the log end: a snapshot, or that there were no
        producers.
        """
        partition = self._partition
        self._next_batch = (-1, -1)
        page = partition.page
        newest = page.word(system.WORD_SNAPSHOT) - 1
        empty_at = page.word(system.WORD_NO_PRODUCERS) - 1
        snapshots = [newest] if empty_at <= newest <= published.log_end and newest >= 0 else []
        state = producer_history.read_newest(partition.path, snapshots)
        if state is None and 0 <= empty_at <= published.log_end:
            return ProducerState(empty_at)
        if state is None:
            snapshots = [
                offset
                for offset in producer_history.snapshot_offsets(partition.path)
                if offset <= published.log_end
            ]
            state = producer_history.read_newest(partition.path, snapshots)
        if state is None:
            state = ProducerState(self._segments.all(published)[0].base)
        return state

    def _walk(self, state: ProducerState, published: Published) -> None:
        for info in self._segments.since(state.offset, published):
            base, position = self._next_batch
            if base != info.base:
                position = 0
            with in_file(file_names.segment_name(self._partition.directory, info.base)):
                for batches, marker_of in self._headers(info, position):
                    state.replay(batches, marker_of)

    def _headers(
        self, info: SegmentInfo, position: int
    ) -> Iterator[tuple[Batches, Callable[[int], Marker | None]]]:
        """The batches of a segment from a position on, and a function that reads the markers among
        them.
        """
        partition = self._partition
        name = file_names.segment_name(partition.directory, info.base)
        with partition.context.handles.acquire(
            partition.directory, info.base, file_names.LOG
        ) as fd:
            while position < info.size:
                rows = np.empty(ROWS_AT_ONCE, batch_dtype())
                try:
                    count, position = system.walk_headers(fd, position, info.size, rows, info.base)
                except CorruptRecordError:
                    break
                yield rows[:count], partial(_read_marker, fd, name, rows)
            if position < info.size:  # old messages, or damage: a full walk shows which
                walk = Walk(
                    fd, Path(name), Chain(gaps_allowed=True), position, info.size, bounded=False
                )
                for data, batches in walk.chunks():
                    yield batches, producer_history.markers_in(data, batches)
                if walk.problem is not None or walk.end < info.size:
                    raise CorruptRecordError(
                        walk.problem.message if walk.problem else "the segment ends inside a batch",
                        path=name,
                        position=walk.end,
                    )


def _replay(state: ProducerState, rows: Batches, marker_of: Callable[[int], Marker | None]) -> None:
    state.replay(rows, marker_of)


def _read_marker(fd: int, path: str, rows: Batches, row: int) -> Marker | None:
    if not rows["records"][row]:
        return None
    position = int(rows["position"][row])
    with in_file(path):
        return producer_history.marker_in(
            files.pread(fd, int(rows["size"][row]), position, path), position
        )


def _now_ms() -> int:
    """The clock of idle producers: that of the boot, moved by tests."""
    return (system.boot_ns() + system.advanced_ns()) // 1_000_000
