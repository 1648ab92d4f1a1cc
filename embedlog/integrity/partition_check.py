"""Checks the files of one partition: segments, manifest, leader epochs, snapshots, durable record,
and what is left over.

- An open partition is checked below its published end, with the segments that it has. Without a
  page the manifest lists the segments, and the files show how long they are.
- A closed partition is checked as the next opening for writing makes it (`leftovers`): `.swap`
  files are read in the place of the files that they replace.
- A torn tail that no process has read is a note if the log was not closed in order.
- Nothing is changed, and no lock is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from embedlog.errors import EmbedlogError
from embedlog.format.producer_state import ProducerState
from embedlog.index import INDEX_BYTES_MAX
from embedlog.integrity.report import Finding
from embedlog.integrity.segment_check import CheckedSegment, SegmentCheck
from embedlog.partition import leftovers
from embedlog.segment import CompactionSigns
from embedlog.storage import checkpoints, file_names, files, identity
from embedlog.storage.control_page import DurableRecord
from embedlog.storage.manifest import HEAD_BYTES, Manifest, SegmentInfo

TAIL_BYTES_MAX: Final = 1 << 20  # of bytes after the published end are looked at


@dataclass(frozen=True)
class PartitionFacts:
    """What is known of a partition from elsewhere. `segments` and `log_end`: as published, None if
    it is not open.
    """

    directory: Path
    topic: str
    number: int
    topic_id: str | None = None
    gaps_allowed: bool = False  # the topic is compacted, or a broker wrote here
    clean: bool = True  # the directory was closed in order, or is open
    broker_wrote: bool = False  # a broker wrote here last: the manifest may be older than the files
    log_start: int = 0
    compacted: bool = False  # the settings of the topic, or the cleaner's checkpoint, say so
    # a file has named the topic's id: before Kafka 2.8 a partition had no partition.metadata
    identified: bool = True
    segments: Sequence[SegmentInfo] | None = None
    log_end: int | None = None
    in_set: bool = False  # a replica notes the epochs of the batches that it is about to copy

    def sealed_without_gaps(self, manifest: Manifest | None) -> Mapping[int, SegmentInfo]:
        """The sealed segments by the manifest; none if offsets may be missing between segments."""
        if manifest is None or self.gaps_allowed or self.broker_wrote:
            return {}
        return manifest.segments

    def durable_offset(self) -> int:
        """The end of the records that were on stable storage, 0 if it is not known."""
        if self.topic_id is None:
            return 0
        durable = DurableRecord(self.directory, identity.id_bytes(self.topic_id)).read()
        return 0 if durable is None else durable.offset


@dataclass
class PartitionResult:
    """The result for one partition."""

    findings: list[Finding] = field(default_factory=list)
    segments: list[SegmentCheck] = field(default_factory=list)
    manifest: Manifest | None = None
    end: int | None = None  # the log end
    epochs: checkpoints.EpochCache | None = None  # of the checkpoint; None if it cannot be read
    # what the next opening does to the names of a closed partition
    plan: leftovers.Plan | None = None


class PartitionCheck:
    """The check of one partition. Threads: one."""

    def __init__(self, facts: PartitionFacts, advance: Callable[[int], object]) -> None:
        self._facts = facts
        self._advance = advance
        self._directory = facts.directory
        self._checked = PartitionResult()
        self._epochs: checkpoints.EpochCache | None = None
        self._signs = CompactionSigns()

    def run(self) -> PartitionResult:
        """Read everything. Raises StorageError."""
        facts = self._facts
        names = files.listing(self._directory)
        self._check_identity()
        self._read_epochs()
        self._check_names(names)
        manifest = None
        if facts.topic_id is not None:
            manifest = self._read_manifest(names, identity.id_bytes(facts.topic_id))
        infos = self._infos_by_base(manifest)
        if facts.segments is None:
            names = self._plan_names(names, manifest)
            bases = self._bases_above_start(file_names.bases(names))
        else:
            existing_bases = set(file_names.bases(names))
            bases = [
                info.base for info in facts.segments if info.base in existing_bases or info.size
            ]
        self._check_segments(bases, infos)
        self._check_small_files(names)
        self._checked.end = self._log_end()
        findings = list(self._checked.findings)
        for check in self._checked.segments:
            findings += check.findings
        self._checked.findings = [
            finding._replace(topic=facts.topic, partition=facts.number) for finding in findings
        ]
        return self._checked

    def _add(
        self,
        kind: str,
        name: str,
        message: str,
        position: int | None = None,
        expected: object = None,
        found: object = None,
        first: int = -1,
        end: int = -1,
    ) -> None:
        self._checked.findings.append(
            Finding(
                kind,
                str(self._directory / name),
                message,
                position=position,
                expected=expected,
                found=found,
                first_offset=first,
                end_offset=end,
            )
        )

    def _add_error(self, kind: str, name: str, problem: EmbedlogError) -> None:
        self._add(kind, name, problem.message, problem.position, problem.expected, problem.found)

    # ---- small files -----------------------------------------------------------------------------

    def _check_identity(self) -> None:
        facts = self._facts
        try:
            topic_id = identity.read_topic_id(self._directory)
        except EmbedlogError as problem:
            self._add_error("identity", file_names.PARTITION_METADATA, problem)
            return
        if topic_id is None and not facts.identified:
            return
        if facts.topic_id is not None and topic_id != facts.topic_id:
            self._add(
                "identity",
                file_names.PARTITION_METADATA,
                "the topic has another id" if topic_id else "the file is missing",
                expected=facts.topic_id,
                found=topic_id,
            )

    def _read_epochs(self) -> None:
        try:
            self._epochs = checkpoints.read_epochs(self._directory / file_names.EPOCHS)
        except EmbedlogError as problem:
            self._add_error("epochs", file_names.EPOCHS, problem)
        self._checked.epochs = self._epochs

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
        end = self._log_end()
        for base in file_names.bases(names, file_names.SNAPSHOT):
            name = file_names.file_name(base, file_names.SNAPSHOT)
            data = files.read_bytes(self._directory / name, INDEX_BYTES_MAX)
            try:
                if data is not None:
                    ProducerState.decode(data, base)
            except EmbedlogError as problem:
                if end is not None and base >= end and self._may_be_in_progress():
                    self._add("unfinished", name, "the snapshot is not complete")
                else:
                    self._add_error("snapshot", name, problem)
                continue
            if end is not None and base > end and not self._facts.clean:
                self._add("unfinished", name, "the snapshot is after the end of the log")
            elif end is not None and base > end:
                self._add(
                    "snapshot",
                    name,
                    "the snapshot is after the end of the log",
                    expected=f"at most offset {end}",
                    found=base,
                )
        if file_names.DURABLE in names and self._facts.topic_id is not None:
            self._check_durable(end)
        self._check_epochs(names, end)

    def _may_be_in_progress(self) -> bool:
        """Whether a process works at the end of the log, or a crash has ended its work."""
        return self._facts.segments is not None or not self._facts.clean

    def _check_durable(self, end: int | None) -> None:
        assert self._facts.topic_id is not None
        record = DurableRecord(self._directory, identity.id_bytes(self._facts.topic_id))
        for position in record.invalid_slots():
            self._add("durable", file_names.DURABLE, "the checksum of a record is wrong", position)
        durable = record.read()
        if durable is None or end is None or durable.offset <= end or self._has_damage():
            return
        self._add(
            "missing-records",
            file_names.DURABLE,
            "records that were on stable storage are missing",
            expected=f"a log end of at least {durable.offset}",
            found=end,
            first=end,
            end=durable.offset,
        )

    def _check_epochs(self, names: list[str], end: int | None) -> None:
        entries = [] if self._epochs is None else self._epochs.entries
        has_batches = any(check.has_epochs for check in self._checked.segments)
        if file_names.EPOCHS not in names and has_batches:
            self._add("missing-epochs", file_names.EPOCHS, "the file is missing")
        elif self._epochs is not None and not entries and has_batches:
            self._add(
                "missing-epochs",
                file_names.EPOCHS,
                "the file has no epoch",
                expected="the epochs of the batches",
                found="none",
            )
        elif end is not None and entries and entries[-1][1] > end and self._may_lack_batches():
            self._add("unfinished", file_names.EPOCHS, "an epoch starts after the end of the log")
        elif end is not None and entries and entries[-1][1] > end:
            self._add(
                "epochs",
                file_names.EPOCHS,
                "an epoch starts after the end of the log",
                expected=f"a start of at most {end}",
                found=entries[-1][1],
            )

    def _may_lack_batches(self) -> bool:
        """Whether batches of the last epochs can be missing: an epoch is on disk before them. A load
        cuts it then.
        """
        is_open = self._facts.segments is not None
        return not self._facts.clean or (is_open and self._facts.in_set)

    def _has_damage(self) -> bool:
        """Whether a segment is damaged."""
        return any(
            finding.severity == "damage"
            for check in self._checked.segments
            for finding in check.findings
        )

    def _log_end(self) -> int | None:
        """The log end: as published, or after the last good batch."""
        if self._facts.log_end is not None:
            return self._facts.log_end
        if not self._checked.segments:
            return None
        last = self._checked.segments[-1]
        return max(last.end, last.segment.base)

    # ---- leftovers -------------------------------------------------------------------------------

    def _plan_names(self, names: list[str], manifest: Manifest | None) -> list[str]:
        """The names after the next opening for writing; what it will finish is a note."""
        facts = self._facts
        sealed = facts.sealed_without_gaps(manifest)
        plan = leftovers.make_plan(self._directory, names, sealed, broker_wrote=facts.broker_wrote)
        self._checked.plan = plan
        if plan.swaps:
            self._add(
                "interrupted",
                plan.swaps[0],
                "segments were being replaced when the last process stopped; the new ones are "
                "complete",
            )
        if plan.half_retained:
            self._add(
                "interrupted",
                file_names.file_name(plan.half_retained[0], file_names.LOG),
                "old segments were being deleted when the last process stopped",
            )
        return sorted(plan.names)

    def _bases_above_start(self, bases: list[int]) -> list[int]:
        """All but the segments that a load after a crash sets aside unread."""
        manifest = self._checked.manifest
        facts = self._facts
        if facts.clean or facts.broker_wrote or manifest is None or manifest.start is None:
            return bases
        return bases[len(leftovers.segments_below(bases, self._required_start())) :]

    # ---- manifest --------------------------------------------------------------------------------

    def _read_manifest(self, names: list[str], topic_id_bytes: bytes) -> Manifest | None:
        """The manifest; None if there is none, or if it is older than the files."""
        if file_names.MANIFEST not in names:
            if not self._facts.broker_wrote and file_names.DURABLE in names:
                self._add("manifest", file_names.MANIFEST, "the file is missing")
            return None
        manifest = Manifest(self._directory, topic_id_bytes)
        try:
            manifest.refresh()
        except EmbedlogError as problem:
            self._add_error("manifest", file_names.MANIFEST, problem)
            return None
        data = files.read_bytes(manifest.path) or b""
        is_empty = manifest.start is None and not manifest.segments
        if not manifest.is_whole or (len(data) >= HEAD_BYTES and is_empty):
            self._add(
                "manifest",
                file_names.MANIFEST,
                "a record is torn, or its checksum is wrong",
                manifest.understood_bytes,
            )
        self._checked.manifest = manifest
        return None if self._facts.broker_wrote else manifest

    def _infos_by_base(self, manifest: Manifest | None) -> dict[int, SegmentInfo]:
        """What is known of each segment, as published, or by the manifest."""
        if self._facts.segments is not None:
            return {info.base: info for info in self._facts.segments}
        if manifest is None:
            return {}
        infos = dict(manifest.segments)
        if manifest.closed is not None and self._facts.clean:
            infos[manifest.closed.base] = manifest.closed
        return infos

    # ---- segments --------------------------------------------------------------------------------

    def _check_segments(self, bases: list[int], infos: dict[int, SegmentInfo]) -> None:
        end = self._required_start()
        epoch = -1
        durable = self._facts.durable_offset()
        if bases and bases[0] > end and not self._facts.broker_wrote:
            self._add_missing(bases[0], end, bases[0])
        for number, base in enumerate(bases):
            next_base = bases[number + 1] if number + 1 < len(bases) else -1
            info = infos.get(base)
            plan = self._checked.plan
            if plan is not None and base in plan.replaced_bases():
                info = None  # it describes a segment that is replaced
            if number:
                self._check_gap(base, end, infos.get(bases[number - 1]))
                end = max(end, base)
            else:
                end = base  # the log can start inside of the first segment
            segment = CheckedSegment(
                self._directory,
                base,
                size=self._check_size(base, info, last=next_base < 0),
                next_offset=end,
                epoch=epoch,
                info=info,
                following=next_base,
                gaps_allowed=self._gaps_allowed or self._has_noted_gaps(base),
                plan=plan,
                is_read_again=not self._facts.clean and base >= durable,
            )
            check = SegmentCheck(segment, self._epochs, self._signs, self._advance)
            if not files.exists(check.path):
                end = base if info is None else info.next_offset
                self._add_missing(base, base, end)
                continue
            self._checked.segments.append(check)
            check.run()
            if next_base < 0:
                self._forgive_torn_tail(check)
            end = max(check.end, base)
            epoch = check.epoch
        self._check_gaps()
        last = max(infos, default=-1)
        if self._facts.clean and last > max(bases, default=-1) and infos[last].next_offset > end:
            self._add_missing(last, end, infos[last].next_offset)

    def _required_start(self) -> int:
        """The first offset that the log must have."""
        manifest = self._checked.manifest
        facts = self._facts
        if manifest is None or manifest.start is None:
            return facts.log_start
        if facts.broker_wrote or facts.segments is not None:
            return facts.log_start
        return max(facts.log_start, manifest.start.offset)

    @property
    def _gaps_allowed(self) -> bool:
        """Whether offsets may be missing in a segment that is not described."""
        facts = self._facts
        manifest = self._checked.manifest
        return (
            facts.gaps_allowed or facts.broker_wrote or manifest is None or manifest.start is None
        )

    def _has_noted_gaps(self, base: int) -> bool:
        """Whether the manifest says of an undescribed segment that offsets are missing in it."""
        manifest = self._checked.manifest
        start = None if manifest is None else manifest.start
        return start is not None and start.gaps_base == base

    def _add_missing(self, base: int, first: int, end: int) -> None:
        """Records before a segment are missing, or a segment itself."""
        manifest = self._checked.manifest
        segment_base = base
        if manifest is not None and first in manifest.segments:
            segment_base = first
        message = "records before this segment are missing"
        if segment_base == first:
            message = "the segment is missing"
        self._add(
            "missing-records",
            file_names.file_name(segment_base, file_names.LOG),
            message,
            expected=f"offsets {first} to {end - 1}",
            found="none",
            first=first,
            end=end,
        )

    def _check_size(self, base: int, info: SegmentInfo | None, *, last: bool) -> int:
        """The bytes to check: those that are known, or those of the file. Others are a finding."""
        name = file_names.file_name(base, file_names.LOG)
        if self._checked.plan is not None:
            name = self._checked.plan.current_name(name)
        facts = files.facts_of(self._directory / name)
        size = 0 if facts is None else facts.size
        if info is None or size <= info.size:
            return size  # the check of the segment names missing records
        if last and self._facts.segments is not None:
            self._check_bytes_after_end(name, info.size, size)
        elif self._facts.clean:
            self._add(
                "records",
                name,
                "bytes after the end of the segment",
                position=info.size,
                expected=f"{info.size} bytes",
                found=size,
            )
        else:
            return size
        return info.size

    def _check_bytes_after_end(self, name: str, start: int, size: int) -> None:
        """Bytes after the published end: reserved zeros, or an append that was interrupted or is
        being made.
        """
        path = self._directory / name
        with files.opened(path) as fd:
            for first, end in files.data_ranges(fd, start, size, path):
                if files.pread(fd, min(end - first, TAIL_BYTES_MAX), first, path).strip(b"\0"):
                    self._add(
                        "unfinished",
                        name,
                        "bytes after the published end",
                        position=start,
                        expected=f"{start} bytes",
                        found=size,
                    )
                    return

    def _forgive_torn_tail(self, check: SegmentCheck) -> None:
        """A torn tail that no process has read is a note if the log was not closed in order."""
        if self._facts.clean or self._facts.segments is not None or not check.spans:
            return
        last = check.spans[-1]
        if last.problem is None or not last.problem.torn:
            return
        if last.unproven or last.header:  # a whole batch
            return
        if last.end < check.segment.size or last.first_offset < self._facts.durable_offset():
            return
        check.findings[:] = [
            finding
            for finding in check.findings
            if finding.first_offset != last.first_offset or finding.kind != "records"
        ]
        self._add("unfinished", check.path.name, last.problem.message, last.start)

    def _check_gaps(self) -> None:
        """Missing offsets that nothing explains, by the rule of a load (`partition/recovery`)."""
        manifest = self._checked.manifest
        facts = self._facts
        is_described = (
            not facts.broker_wrote and manifest is not None and manifest.start is not None
        )
        if is_described or facts.compacted or self._signs.found or self._has_damage():
            return
        plan = self._checked.plan
        if plan is not None and plan.swaps:
            return  # only a compaction, or the split of a segment that one has left, makes these
        checks = self._checked.segments
        for number, check in enumerate(checks):
            gaps = list(check.gaps)
            if number + 1 < len(checks):
                gaps.append((check.end, checks[number + 1].segment.base))
            for first, end in gaps:
                if first < end:
                    self._add(
                        "gap",
                        file_names.file_name(check.segment.base, file_names.LOG),
                        "offsets are missing, and there is no sign of a compaction",
                        expected=f"offsets {first} to {end - 1}",
                        found="none",
                        first=first,
                        end=end,
                    )

    def _check_gap(self, base: int, end: int, info: SegmentInfo | None) -> None:
        """The offsets between two segments must have been removed by compaction or by a broker."""
        if self._checked.segments:
            previous = self._checked.segments[-1]
            if any(span.problem is not None for span in previous.spans):
                return  # its damage goes up to this segment
        if info is not None:
            end = info.next_offset
        if end > base:
            self._add(
                "records",
                file_names.file_name(base, file_names.LOG),
                "the segment overlaps the one before",
                position=0,
                expected=f"a base offset of at least {end}",
                found=base,
            )
        elif end < base and (info is not None or not self._gaps_allowed):
            self._add_missing(base, end, base)
