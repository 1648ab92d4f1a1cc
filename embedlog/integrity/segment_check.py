"""Checks one segment: its batches, and each entry of its indexes and digests.

- An entry of an index must name the last offset and the first byte of one batch (`index`). Entries that
  point into damaged bytes are not judged.
- Entries after the known number do not count: they belong to an append that is not published.
- Each entry of the transaction index has its abort marker. A marker of a transaction without
  records has no entry, so missing entries show only by their known number and digest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog import index
from embedlog._native.lazy_numpy import np
from embedlog.errors import EmbedlogError
from embedlog.format import aborted_transactions, record_batch
from embedlog.format.record_batch import Batches, Problem
from embedlog.format.record_columns import RELATIVE_MAX
from embedlog.integrity.report import Finding
from embedlog.integrity.spans import ExpectedSegment, SegmentReader, SegmentSpan
from embedlog.partition.leftovers import Plan
from embedlog.segment import LEAPT, CompactionSigns, Leap
from embedlog.storage import checkpoints, file_names, files, interval_digests
from embedlog.storage.manifest import SegmentInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Fields of an entry, as numpy takes them, by the index.
_ENTRIES: Final = {
    file_names.INDEX: [("offset", ">i4"), ("position", ">i4")],
    file_names.TIME_INDEX: [("timestamp", ">i8"), ("offset", ">i4")],
}

GAPS_MAX: Final = 3  # of a segment that are named: a compacted one has many

Advance = Callable[[int], object]  # gets the bytes that were read


class IndexEntries(NamedTuple):
    """The entries of an index that were read, as absolute offsets; `wrong` are the numbers of wrong
    ones.
    """

    offsets: NDArray[np.int64]
    others: NDArray[np.int64]  # positions, or timestamps
    judged: NDArray[np.bool_]
    wrong: NDArray[np.bool_]


class CheckedSegment(NamedTuple):
    """What is known of a segment before the check. `info`: as manifest or page describe it, None
    without one.
    """

    directory: Path
    base: int
    size: int
    next_offset: int  # of the segment before
    epoch: int
    info: SegmentInfo | None = None
    following: int = -1  # base of the next segment, -1 for the last one
    gaps_allowed: bool = False
    plan: Plan | None = None  # of a closed log: the names that its files will have
    # the next opening reads it whole, and makes missing indexes: a cut was interrupted, or the power
    # loss took their names
    is_read_again: bool = False

    def current_path(self, suffix: str) -> Path | None:
        """The path of a file of the segment, None if it has none, or if the next opening for
        writing removes it.
        """
        name = file_names.file_name(self.base, suffix)
        if self.plan is not None:
            if name not in self.plan.names:
                return None
            name = self.plan.current_name(name)
        return self.directory / name

    @property
    def is_new(self) -> bool:
        """Whether the segment is about to replace others: the next opening makes its missing
        caches.
        """
        return self.plan is not None and self.base in self.plan.replaced_bases()


class SegmentCheck:
    """The check of one segment. `findings`, `spans` and `end` are its result."""

    def __init__(
        self,
        segment: CheckedSegment,
        epochs: checkpoints.EpochCache | None,
        signs: CompactionSigns,
        advance: Advance,
    ) -> None:
        self.segment = segment
        self._epochs = epochs
        self._signs = signs
        self._advance = advance
        log_path = segment.current_path(file_names.LOG)
        self.path = log_path or file_names.segment_path(segment.directory, segment.base)
        self.findings: list[Finding] = []
        self.spans: list[SegmentSpan] = []
        self.batches = 0
        self.epochs = checkpoints.EpochCache()  # of its good batches
        # whether a batch carries a leader epoch: messages of magic 0 and 1 have none
        self.has_epochs = False
        # inside: the first offset that is missing, and the first one after it
        self.gaps: list[tuple[int, int]] = []
        self.end = segment.next_offset
        self.epoch = segment.epoch
        self.digest = 0
        no_numbers = np.empty(0, np.int64)
        self._offset_entries = self._unjudged(no_numbers, no_numbers)
        self._time_entries = self._unjudged(no_numbers, no_numbers)
        self._newest_ms = -1
        self._last_end = segment.base
        self._leap: Leap | None = None  # to the last batch
        self._aborts: dict[int, int] = {}  # by the offset of the marker: its producer
        self._other_epoch: tuple[int, int, int] | None = None  # position, expected, found

    def run(self) -> None:
        """Read the segment. Raises StorageError."""
        segment = self.segment
        info = self.segment.info
        self._read_indexes()
        self._signs.begin(segment.base)
        self._last_end = segment.base
        ceiling = segment.following
        if ceiling < 0 and info is not None:
            ceiling = info.next_offset
        is_bounded = info is not None and info.next_offset - segment.base <= RELATIVE_MAX + 1
        expected = ExpectedSegment(
            base=segment.base,
            size=segment.size,
            next_offset=segment.next_offset,
            ceiling=ceiling,
            gaps_allowed=segment.gaps_allowed if info is None else not info.gapless,
            epoch=segment.epoch,
            bounded=is_bounded,
        )
        is_digested = info is not None and info.digested
        with (
            files.opened(self.path) as fd,
            interval_digests.open_records(
                segment.directory, segment.base, usable=is_digested
            ) as records,
        ):
            reader = SegmentReader(
                fd, self.path, expected, lambda batches: self._check_batches(fd, batches)
            )
            for span in reader.read_spans(records):
                self.spans.append(span)
                if span.problem is not None:
                    self._add_damage(span)
        self.batches = reader.batches
        self.end = reader.chain.next_offset
        self.epoch = reader.chain.epoch
        self.digest = reader.chain.digest
        self._check_end(reader)
        if not is_bounded:
            self._check_leap()
        if self.end - segment.base > RELATIVE_MAX + 1:
            self._add(
                "overflow",
                "offsets exceed the base of the segment by more than an index can hold",
                expected=f"at most offset {segment.base + RELATIVE_MAX}",
                found=self.end - 1,
            )
        self._check_indexes()
        self._check_digests()
        self._check_transactions()
        if self._other_epoch is not None and reader.proven:
            position, expected_epoch, epoch = self._other_epoch
            self._add(
                "epochs",
                f"the batch at byte {position} of {self.path.name} has another epoch",
                expected=expected_epoch,
                found=epoch,
                name=file_names.EPOCHS,
            )

    def epoch_at(self, offset: int, header: bytes) -> int:
        """The leader epoch of an offset by the checkpoint; without one that in the header of its
        batch.
        """
        epoch = -1
        if self._epochs is not None:
            epoch = self._epochs.epoch_for(offset)
        if epoch < 0:
            epoch = int.from_bytes(header[12:16], "big", signed=True)
        return epoch

    def _add(
        self,
        kind: str,
        message: str,
        position: int | None = None,
        expected: object = None,
        found: object = None,
        name: str | None = None,
        first: int = -1,
        end: int = -1,
    ) -> None:
        path = self.path if name is None else self.segment.directory / name
        self.findings.append(
            Finding(
                kind,
                str(path),
                message,
                position=position,
                expected=expected,
                found=found,
                first_offset=first,
                end_offset=end,
            )
        )

    def _name_of(self, suffix: str) -> str:
        """The current name of a file of the segment, or the one that a missing file would have."""
        path = self.segment.current_path(suffix)
        return file_names.file_name(self.segment.base, suffix) if path is None else path.name

    # ---- the log ---------------------------------------------------------------------------------

    def _add_damage(self, span: SegmentSpan) -> None:
        problem = span.problem
        assert problem is not None
        if span.unproven or span.header:
            kind = "headers"
        elif span.end > span.start:
            kind = "records"
        else:
            kind = "missing-records"
        self._add(
            kind,
            problem.message,
            position=span.start if span.unproven else problem.position,
            expected=problem.expected,
            found=problem.found,
            first=span.first_offset,
            end=span.end_offset,
        )

    def _check_leap(self) -> None:
        """Name the damaged base offset of the last batch by the rule of a load; the
        offset before it is known.
        """
        leap = self._leap
        good_numbers = [number for number, span in enumerate(self.spans) if span.problem is None]
        if leap is None or not good_numbers or not leap.is_damage(self.segment.base):
            return
        number = good_numbers[-1]
        good = self.spans[number]
        self.end = leap.expected + leap.end - leap.found
        problem = Problem(leap.position, LEAPT, leap.expected, leap.found)
        batch = SegmentSpan(leap.position, good.end, leap.expected, self.end, problem, header=True)
        self.spans[number] = batch
        if leap.position > good.start:
            good_before = good._replace(end=leap.position, end_offset=leap.expected)
            self.spans.insert(number, good_before)
        self.gaps = [gap for gap in self.gaps if gap != (leap.expected, leap.found)]
        self._add_damage(batch)

    def _check_end(self, reader: SegmentReader) -> None:
        """Compare the end with what is known of it."""
        info = self.segment.info
        end = reader.chain.next_offset
        if info is None or not reader.proven:
            return
        if end > info.next_offset or (info.gapless and end < info.next_offset):
            self._add(
                "missing-records",
                "the segment ends at another offset",
                position=info.size,
                expected=info.next_offset,
                found=end,
                first=min(end, info.next_offset),
                end=max(end, info.next_offset),
            )
        elif info.digested and self.digest != info.digest:
            self._add(
                "headers",
                interval_digests.OTHERS,
                position=self.spans[-1].start if self.spans else 0,
                expected=f"digest {info.digest:016x}",
                found=f"{self.digest:016x}",
                first=self.segment.base,
                end=end,
            )

    def _check_batches(self, fd: int, batches: Batches) -> None:
        self._advance(int(batches["size"].sum()))
        self._judge_offsets(self._offset_entries, batches)
        self._judge_times(batches)
        self._signs.add(batches)
        self._note_gaps(batches)
        self._note_epochs(batches)
        for row in np.flatnonzero((batches["attributes"] & record_batch.CONTROL) != 0):
            self._note_marker(fd, batches[row : row + 1])
        if self._epochs is not None and self._other_epoch is None:
            disagreement = self._epochs.find_disagreement(
                batches["base_offset"], batches["leader_epoch"]
            )
            if disagreement is not None:
                number, expected = disagreement
                batch = batches[number]
                self._other_epoch = (int(batch["position"]), expected, int(batch["leader_epoch"]))

    def _note_epochs(self, batches: Batches) -> None:
        """Remember where epochs begin: they never fall within a log."""
        epochs = batches["leader_epoch"]
        self.has_epochs = self.has_epochs or bool((epochs != checkpoints.NO_EPOCH).any())
        is_change = np.concatenate(([True], epochs[1:] != epochs[:-1]))
        for row in np.flatnonzero(is_change).tolist():
            if epochs[row] > self.epochs.latest_epoch:
                self.epochs.assign(int(epochs[row]), int(batches["base_offset"][row]))

    def _note_gaps(self, batches: Batches) -> None:
        """Remember the first gaps between batches."""
        ends = batches["base_offset"] + batches["last_offset_delta"] + 1
        expected_offsets = np.concatenate(([self._last_end], ends[:-1]))
        rows = np.flatnonzero(batches["base_offset"] > expected_offsets)
        for row in rows[: GAPS_MAX - len(self.gaps)]:
            self.gaps.append((int(expected_offsets[row]), int(batches["base_offset"][row])))
        self._last_end = int(ends[-1])
        self._leap = Leap(
            int(batches["position"][-1]),
            int(expected_offsets[-1]),
            int(batches["base_offset"][-1]),
            self._last_end,
        )

    def _note_marker(self, fd: int, batch: Batches) -> None:
        """Remember an abort marker."""
        position = int(batch["position"][0])
        size = int(batch["size"][0])
        data = memoryview(files.pread(fd, size, position, self.path))
        rows = batch.copy()
        rows["position"] = 0
        try:
            is_abort = record_batch.aborts(data, rows)
        except EmbedlogError as problem:
            self._add("records", str(problem), position)
            return
        if bool(np.asarray(is_abort).any()):
            offset = int(batch["base_offset"][0] + batch["last_offset_delta"][0])
            self._aborts[offset] = int(batch["producer_id"][0])

    # ---- offset index and time index -------------------------------------------------------------

    def _read_indexes(self) -> None:
        info = self.segment.info
        base = self.segment.base
        rows = self._read_index(file_names.INDEX, None if info is None else info.index_entries)
        positions = rows["position"].astype(np.int64)
        self._offset_entries = self._unjudged(rows["offset"].astype(np.int64) + base, positions)
        rows = self._read_index(file_names.TIME_INDEX, None if info is None else info.time_entries)
        self._time_entries = self._unjudged(
            rows["offset"].astype(np.int64) + base, rows["timestamp"].astype(np.int64)
        )

    @staticmethod
    def _unjudged(offsets: NDArray[np.int64], others: NDArray[np.int64]) -> IndexEntries:
        return IndexEntries(
            offsets, others, np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.bool_)
        )

    def _read_index(self, suffix: str, count: int | None) -> NDArray[np.void]:
        """The entries of an index that are published; `count` is their number, None if it is not
        known.
        """
        layout = np.dtype(_ENTRIES[suffix])
        path = self.segment.current_path(suffix)
        name = self._name_of(suffix)
        raw = None if path is None else files.read_bytes(path, index.INDEX_BYTES_MAX)
        if raw is None:
            is_needed = self.segment.size or count
            if is_needed and not self.segment.is_new and not self.segment.is_read_again:
                self._add("index", "the file is missing", name=name)
            return np.empty(0, layout)
        whole_count = len(raw) // layout.itemsize
        if count is not None and whole_count < count:
            self._add(
                "index",
                "entries are missing",
                position=len(raw),
                expected=f"{count} entries",
                found=whole_count,
                name=name,
            )
        elif count is None and len(raw) % layout.itemsize:
            self._add(
                "index",
                "the file ends inside an entry",
                position=len(raw),
                expected=f"a multiple of {layout.itemsize} bytes",
                found=len(raw),
                name=name,
            )
        rows = np.frombuffer(raw, layout, whole_count if count is None else min(count, whole_count))
        if count is None and self.segment.following < 0:  # a preallocated file ends with zeros
            used = np.flatnonzero(rows["offset"])
            used_count = int(used[-1]) + 1 if len(used) else 0
            rows = rows[:used_count]
        return rows

    def _judge_offsets(self, entries: IndexEntries, batches: Batches) -> None:
        """Compare the offset entries whose positions are in these batches."""
        positions = batches["position"].astype(np.int64)
        end = int(positions[-1] + batches["size"][-1])
        rows = np.flatnonzero((entries.others >= positions[0]) & (entries.others < end))
        if not len(rows):
            return
        numbers = np.searchsorted(positions, entries.others[rows], "right") - 1
        lasts = batches["base_offset"].astype(np.int64) + batches["last_offset_delta"]
        is_other_position = positions[numbers] != entries.others[rows]
        is_other_offset = lasts[numbers] != entries.offsets[rows]
        entries.judged[rows] = True
        entries.wrong[rows] = is_other_position | is_other_offset

    def _judge_times(self, batches: Batches) -> None:
        """Compare the time entries whose offsets are in these batches."""
        entries = self._time_entries
        bases = batches["base_offset"].astype(np.int64)
        lasts = bases + batches["last_offset_delta"]
        newest = np.maximum.accumulate(
            np.concatenate(([self._newest_ms], index.newest_timestamps(batches)))
        )
        self._newest_ms = int(newest[-1])
        rows = np.flatnonzero((entries.offsets >= bases[0]) & (entries.offsets <= lasts[-1]))
        if not len(rows):
            return
        numbers = np.searchsorted(bases, entries.offsets[rows], "right") - 1
        is_after_batch = entries.offsets[rows] > lasts[numbers]
        is_other_time = batches["max_timestamp"][numbers] != entries.others[rows]
        entries.judged[rows] = True
        entries.wrong[rows] = is_after_batch | is_other_time
        # written by embedlog, which names the first such batch
        if self.segment.info is not None and self.segment.info.digested:
            is_other_offset = entries.offsets[rows] != lasts[numbers]
            is_not_newest = newest[numbers] >= entries.others[rows]
            entries.wrong[rows] |= is_other_offset | is_not_newest

    def _check_indexes(self) -> None:
        is_undamaged = all(span.problem is None for span in self.spans)
        for suffix, entries in (
            (file_names.INDEX, self._offset_entries),
            (file_names.TIME_INDEX, self._time_entries),
        ):
            is_wrong = entries.wrong.copy()
            if is_undamaged:
                is_wrong |= ~entries.judged
            is_wrong[1:] |= (np.diff(entries.offsets) <= 0) | (np.diff(entries.others) <= 0)
            rows = np.flatnonzero(is_wrong)
            if len(rows):
                first = int(rows[0])
                self._add(
                    "index",
                    f"{len(rows)} of {len(entries.offsets)} entries name no batch",
                    position=first * np.dtype(_ENTRIES[suffix]).itemsize,
                    expected="the last offset of a batch, in rising order",
                    found=f"offset {entries.offsets[first]}, {entries.others[first]}",
                    name=self._name_of(suffix),
                )

    # ---- digests ---------------------------------------------------------------------------------

    def _check_digests(self) -> None:
        info = self.segment.info
        base = self.segment.base
        if info is None or not info.digested or not info.index_entries:
            return
        name = file_names.file_name(base, file_names.DIGESTS)
        path = self.segment.directory / name
        if not files.exists(path):
            self._add("digests", "the file is missing", name=name)
            return
        with files.opened(path) as fd:
            records = interval_digests.Records(fd, base, info.index_entries)
            for number, position in enumerate(self._offset_entries.others.tolist()):
                if (
                    self._offset_entries.wrong[number]
                    or records.state_at(number, position) is not None
                ):
                    continue
                message = "a record is missing, or its checksum is wrong"
                self._add("digests", message, number * interval_digests.RECORD_BYTES, name=name)
                return

    # ---- transactions ----------------------------------------------------------------------------

    def _check_transactions(self) -> None:
        """Each entry of the transaction index has its abort marker. A marker of a transaction
        without records has no entry, so missing entries show only by their known number and digest.
        """
        info = self.segment.info
        base = self.segment.base
        path = self.segment.current_path(file_names.TRANSACTION_INDEX)
        name = self._name_of(file_names.TRANSACTION_INDEX)
        raw = b""
        if path is not None:
            raw = files.read_bytes(path, index.INDEX_BYTES_MAX) or b""
        count = None if info is None else info.transaction_entries
        size = aborted_transactions.ENTRY_SIZE
        if count is not None and len(raw) < count * size:
            self._add(
                "transaction-index",
                "entries are missing",
                position=len(raw),
                expected=f"{count} entries",
                found=len(raw) // size,
                name=name,
            )
            return
        published = raw if count is None else raw[: count * size]
        try:
            entries = aborted_transactions.decode(published, base)
        except EmbedlogError as problem:
            self._add(
                "transaction-index",
                problem.message,
                position=problem.position,
                expected=problem.expected,
                found=problem.found,
                name=name,
            )
            return
        digest = 0 if info is None else info.transaction_digest
        if digest and aborted_transactions.digest(published) != digest:
            self._add(
                "transaction-index", "the entries are not those that were written", 0, name=name
            )
            return
        if any(span.problem is not None for span in self.spans):
            return
        for row, (_, producer_id, _, marker_offset, _) in enumerate(entries.tolist()):
            marker_producer = self._aborts.get(marker_offset)
            if marker_producer != producer_id:
                self._add(
                    "transaction-index",
                    "an entry has no abort marker",
                    position=row * size,
                    expected=f"a marker of producer {producer_id} at offset {marker_offset}",
                    found=marker_producer,
                    name=name,
                )
                return
