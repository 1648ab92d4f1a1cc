"""Checks the files of one partition: segments, manifest, leader epochs, snapshots, durable record,
and what is left over.

PARTITIONCHECK-1  an open partition is checked below its published end, with the segments that it
    has. Without a page the manifest lists the segments, and the files show how long they are
PARTITIONCHECK-2  a torn tail that no process has read is a note if the log was not closed in order
PARTITIONCHECK-3  nothing is changed, and no lock is held
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from embedlog.errors import EmbedlogError
from embedlog.format.producer_state import ProducerState
from embedlog.index import INDEX_BYTES_MAX
from embedlog.integrity.report import Finding
from embedlog.integrity.segment_check import Segment, SegmentCheck
from embedlog.segment import CompactionSigns
from embedlog.storage import checkpoints, file_names, files, identity
from embedlog.storage.control_page import DurableRecord
from embedlog.storage.manifest import HEAD_BYTES, Manifest, SegmentInfo

REST_BYTES: Final = 1 << 20  # of bytes after the published end are looked at


@dataclass(frozen=True)
class Known:
    """What is known of a partition from elsewhere. `segments` and `log_end`: as published, None if
    it is not open.
    """

    directory: Path
    topic: str
    number: int
    topic_id: str | None = None
    gaps_allowed: bool = False  # the topic is compacted, or a broker wrote here
    clean: bool = True  # the directory was closed in order, or is open
    foreign: bool = False  # a broker wrote here last: the manifest may be older than the files
    log_start: int = 0
    compacted: bool = False  # the settings of the topic, or the cleaner's checkpoint, say so
    # a file has named the topic's id: before Kafka 2.8 a partition had no partition.metadata
    identified: bool = True
    segments: Sequence[SegmentInfo] | None = None
    log_end: int | None = None

    def durable_offset(self) -> int:
        """The end of the records that were on stable storage, 0 if it is not known."""
        if self.topic_id is None:
            return 0
        found = DurableRecord(self.directory, identity.id_bytes(self.topic_id)).read()
        return 0 if found is None else found.offset


@dataclass
class Checked:
    """The result for one partition."""

    findings: list[Finding] = field(default_factory=list)
    segments: list[SegmentCheck] = field(default_factory=list)
    manifest: Manifest | None = None
    end: int | None = None  # the log end
    epochs: checkpoints.EpochCache | None = None  # of the checkpoint; None if it cannot be read


class PartitionCheck:
    """The check of one partition. Threads: one."""

    def __init__(self, known: Known, note: Callable[[int], object]) -> None:
        self._known = known
        self._note = note
        self._directory = known.directory
        self._checked = Checked()
        self._epochs: checkpoints.EpochCache | None = None
        self._signs = CompactionSigns()

    def run(self) -> Checked:
        """Read everything. Raises StorageError."""
        known = self._known
        names = files.listing(self._directory)
        self._check_identity()
        self._read_epochs()
        self._check_names(names)
        manifest = (
            None
            if known.topic_id is None
            else self._read_manifest(names, identity.id_bytes(known.topic_id))
        )
        infos = self._infos(manifest)
        bases = file_names.bases(names)
        if known.segments is not None:
            bases = [info.base for info in known.segments if info.base in set(bases) or info.size]
        self._check_segments(bases, infos)
        self._check_small_files(names)
        self._checked.end = self._end()
        found = [
            *self._checked.findings,
            *(each for one in self._checked.segments for each in one.findings),
        ]
        self._checked.findings = [
            each._replace(topic=known.topic, partition=known.number) for each in found
        ]
        return self._checked

    def _add(
        self, kind: str, name: str, message: str, *facts: object, first: int = -1, end: int = -1
    ) -> None:
        position, expected, found = (*facts, None, None, None)[:3]
        at = position if isinstance(position, int) else None
        path = str(self._directory / name)
        self._checked.findings.append(
            Finding(kind, path, message, at, expected, found, first_offset=first, end_offset=end)
        )

    def _add_error(self, kind: str, name: str, problem: EmbedlogError) -> None:
        self._add(kind, name, problem.message, problem.position, problem.expected, problem.found)

    # ---- small files -----------------------------------------------------------------------------

    def _check_identity(self) -> None:
        known = self._known
        try:
            found = identity.read_topic_id(self._directory)
        except EmbedlogError as problem:
            self._add_error("identity", file_names.PARTITION_METADATA, problem)
            return
        if found is None and not known.identified:
            return
        if known.topic_id is not None and found != known.topic_id:
            message = "the topic has another id" if found else "the file is missing"
            self._add(
                "identity", file_names.PARTITION_METADATA, message, None, known.topic_id, found
            )

    def _read_epochs(self) -> None:
        try:
            self._epochs = self._checked.epochs = checkpoints.read_epochs(
                self._directory / file_names.EPOCHS
            )
        except EmbedlogError as problem:
            self._add_error("epochs", file_names.EPOCHS, problem)

    def _check_names(self, names: list[str]) -> None:
        for name in names:
            if name.startswith(file_names.POISON):
                self._add(
                    "failed-sync",
                    name,
                    f"a sync of segment {name.removeprefix(file_names.POISON)} has failed",
                )
            elif name.startswith(file_names.CUT):
                facts = files.facts_of(self._directory / name)
                self._add("kept", name, f"{0 if facts is None else facts.size} bytes")
            elif not file_names.is_of_partition(name):
                self._add("unknown-file", name, "no file of a log has this name")

    def _check_small_files(self, names: list[str]) -> None:
        end = self._end()
        for base in file_names.bases(names, file_names.SNAPSHOT):
            name = file_names.file_name(base, file_names.SNAPSHOT)
            data = files.read_bytes(self._directory / name, INDEX_BYTES_MAX)
            try:
                if data is not None:
                    ProducerState.decode(data, base)
            except EmbedlogError as problem:
                self._add_error("snapshot", name, problem)
                continue
            if end is not None and base > end:
                self._add(
                    "snapshot",
                    name,
                    "the snapshot is after the end of the log",
                    None,
                    f"at most offset {end}",
                    base,
                )
        if file_names.DURABLE in names and self._known.topic_id is not None:
            self._check_durable(end)
        self._check_epochs(names, end)

    def _check_durable(self, end: int | None) -> None:
        assert self._known.topic_id is not None
        record = DurableRecord(self._directory, identity.id_bytes(self._known.topic_id))
        for at in record.invalid_slots():
            self._add("durable", file_names.DURABLE, "the checksum of a record is wrong", at)
        found = record.read()
        if found is not None and end is not None and found.offset > end and not self._damaged():
            message = "records that were on stable storage are missing"
            self._add(
                "missing-records",
                file_names.DURABLE,
                message,
                None,
                f"a log end of at least {found.offset}",
                end,
                first=end,
                end=found.offset,
            )

    def _check_epochs(self, names: list[str], end: int | None) -> None:
        entries = [] if self._epochs is None else self._epochs.entries
        has_batches = any(each.has_epochs for each in self._checked.segments)
        if file_names.EPOCHS not in names and has_batches:
            self._add("missing-epochs", file_names.EPOCHS, "the file is missing")
        elif self._epochs is not None and not entries and has_batches:
            self._add(
                "missing-epochs",
                file_names.EPOCHS,
                "the file has no epoch",
                None,
                "the epochs of the batches",
                "none",
            )
        elif end is not None and entries and entries[-1][1] > end:
            message = "an epoch starts after the end of the log"
            self._add(
                "epochs",
                file_names.EPOCHS,
                message,
                None,
                f"a start of at most {end}",
                entries[-1][1],
            )

    def _damaged(self) -> bool:
        return any(
            each.severity == "damage" for one in self._checked.segments for each in one.findings
        )

    def _end(self) -> int | None:
        """The log end: as published, or after the last good batch."""
        if self._known.log_end is not None:
            return self._known.log_end
        last = self._checked.segments[-1] if self._checked.segments else None
        return None if last is None else max(last.end, last.segment.base)

    # ---- manifest --------------------------------------------------------------------------------

    def _read_manifest(self, names: list[str], topic_id: bytes) -> Manifest | None:
        """The manifest; None if there is none, or if it is older than the files."""
        if file_names.MANIFEST not in names:
            if not self._known.foreign and file_names.DURABLE in names:
                self._add("manifest", file_names.MANIFEST, "the file is missing")
            return None
        manifest = Manifest(self._directory, topic_id)
        try:
            manifest.refresh()
        except EmbedlogError as problem:
            self._add_error("manifest", file_names.MANIFEST, problem)
            return None
        raw = files.read_bytes(manifest.path) or b""
        if not manifest.whole or (
            len(raw) >= HEAD_BYTES and manifest.start is None and not manifest.segments
        ):
            self._add(
                "manifest",
                file_names.MANIFEST,
                "a record is torn, or its checksum is wrong",
                manifest.understood_bytes,
            )
        self._checked.manifest = manifest
        return None if self._known.foreign else manifest

    def _infos(self, manifest: Manifest | None) -> dict[int, SegmentInfo]:
        """What is known of each segment, as published, or by the manifest."""
        if self._known.segments is not None:
            return {info.base: info for info in self._known.segments}
        if manifest is None:
            return {}
        found = dict(manifest.segments)
        if manifest.closed is not None and self._known.clean:
            found[manifest.closed.base] = manifest.closed
        return found

    # ---- segments --------------------------------------------------------------------------------

    def _check_segments(self, bases: list[int], infos: dict[int, SegmentInfo]) -> None:
        end = self._start()
        epoch = -1
        if bases and bases[0] > end and not self._known.foreign:
            self._add_missing(bases[0], end, bases[0])
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else -1
            info = infos.get(base)
            if number:
                self._check_gap(base, end, infos.get(bases[number - 1]))
            # the log can start inside of the first segment
            end = max(end, base) if number else base
            segment = Segment(
                self._directory,
                base,
                self._size(base, info, last=following < 0),
                end,
                epoch,
                info,
                following,
                self._gaps_allowed,
            )
            check = SegmentCheck(segment, self._epochs, self._signs, self._note)
            if not files.exists(check.path):
                end = base if info is None else info.next_offset
                self._add_missing(base, base, end)
                continue
            self._checked.segments.append(check)
            check.run()
            if following < 0:
                self._forgive_torn_tail(check)
            end = max(check.end, base)
            epoch = check.epoch
        self._check_gaps()
        last = max(infos, default=-1)
        if self._known.clean and last > max(bases, default=-1) and infos[last].next_offset > end:
            self._add_missing(last, end, infos[last].next_offset)

    def _start(self) -> int:
        """The first offset that the log must have."""
        manifest = self._checked.manifest
        known = self._known
        noted = (
            None
            if manifest is None or known.foreign or known.segments is not None
            else manifest.start
        )
        return known.log_start if noted is None else max(known.log_start, noted.offset)

    @property
    def _gaps_allowed(self) -> bool:
        """Whether offsets may be missing in a segment that is not described."""
        known = self._known
        manifest = self._checked.manifest
        return known.gaps_allowed or known.foreign or manifest is None or manifest.start is None

    def _add_missing(self, base: int, first: int, end: int) -> None:
        """Records before a segment are missing, or a segment itself."""
        manifest = self._checked.manifest
        known = {} if manifest is None else manifest.segments
        lost = first if first in known and first != base else base
        message = (
            "the segment is missing" if lost == first else "records before this segment are missing"
        )
        name = file_names.file_name(lost, file_names.LOG)
        self._add(
            "missing-records",
            name,
            message,
            None,
            f"offsets {first} to {end - 1}",
            "none",
            first=first,
            end=end,
        )

    def _size(self, base: int, info: SegmentInfo | None, *, last: bool) -> int:
        """The bytes to check: those that are known, or those of the file. Others are a finding."""
        name = file_names.file_name(base, file_names.LOG)
        facts = files.facts_of(self._directory / name)
        size = 0 if facts is None else facts.size
        if info is None or size <= info.size:
            return size  # the check of the segment names missing records
        if last and self._known.segments is not None:
            self._note_rest(name, info.size, size)
        elif self._known.clean:
            self._add(
                "records",
                name,
                "bytes after the end of the segment",
                info.size,
                f"{info.size} bytes",
                size,
            )
        else:
            return size
        return info.size

    def _note_rest(self, name: str, start: int, size: int) -> None:
        """Bytes after the published end: reserved zeros, or an append that was interrupted or is
        being made.
        """
        path = self._directory / name
        with files.opened(path) as fd:
            for first, end in files.data_ranges(fd, start, size, path):
                if files.pread(fd, min(end - first, REST_BYTES), first, path).strip(b"\0"):
                    self._add(
                        "unfinished",
                        name,
                        "bytes after the published end",
                        start,
                        f"{start} bytes",
                        size,
                    )
                    return

    def _forgive_torn_tail(self, check: SegmentCheck) -> None:
        """PARTITIONCHECK-2."""
        known = self._known
        last = check.spans[-1] if check.spans else None
        if known.clean or known.segments is not None or last is None or last.problem is None:
            return
        if last.unproven or last.header:  # a whole batch
            return
        if (
            last.end < check.segment.size
            or not last.problem.torn
            or last.first_offset < self._known.durable_offset()
        ):
            return
        check.findings[:] = [
            each
            for each in check.findings
            if each.first_offset != last.first_offset or each.kind != "records"
        ]
        self._add("unfinished", check.path.name, last.problem.message, last.start)

    def _check_gaps(self) -> None:
        """Missing offsets that nothing explains, by the rule of a load (EVIDENCE-4, EVIDENCE-7)."""
        manifest = self._checked.manifest
        known = self._known
        described = not known.foreign and manifest is not None and manifest.start is not None
        if described or known.compacted or self._signs.found or self._damaged():
            return
        checks = self._checked.segments
        for number, check in enumerate(checks):
            between = (
                [(check.end, checks[number + 1].segment.base)] if number + 1 < len(checks) else []
            )
            for end, following in [*check.gaps, *between]:
                if end < following:
                    message = "offsets are missing, and there is no sign of a compaction"
                    name = file_names.file_name(check.segment.base, file_names.LOG)
                    self._add(
                        "gap",
                        name,
                        message,
                        None,
                        f"offsets {end} to {following - 1}",
                        "none",
                        first=end,
                        end=following,
                    )

    def _check_gap(self, base: int, end: int, info: SegmentInfo | None) -> None:
        """The offsets between two segments must have been removed by compaction or by a broker."""
        before = self._checked.segments[-1] if self._checked.segments else None
        if before is not None and any(span.problem is not None for span in before.spans):
            return  # its damage goes up to this segment
        end = end if info is None else info.next_offset
        if end > base:
            name = file_names.file_name(base, file_names.LOG)
            self._add(
                "records",
                name,
                "the segment overlaps the one before",
                0,
                f"a base offset of at least {end}",
                base,
            )
        elif end < base and (info is not None or not self._gaps_allowed):
            self._add_missing(base, end, base)
