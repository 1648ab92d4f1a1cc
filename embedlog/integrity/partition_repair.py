"""Repairs the files of one partition of a closed log: damaged bytes are cut out and kept, caches
are removed and made again.

SEGMENTCUT-1  a good batch is never removed. Bytes that are not part of one are cut out of a
    segment. They stay in `embedlog.cut-BASE-POSITION`, as those of a recovery do
SEGMENTCUT-2  the log end never falls: records that were lost at the end leave a gap, and their
    offsets are not used again
SEGMENTCUT-3  the order is: copies of the cut bytes and new files on disk; caches removed; files
    renamed; the manifest replaced. After an interruption the partition is still damaged, and the
    next repair completes it
SEGMENTCUT-4  a transaction marker with one wrong bit is restored (MARKERREPAIR-1). Without it
    records of its transaction would be read as committed, or hidden
SEGMENTCUT-5  an offset that is not as written is restored if the neighbours of the batch show it. A
    log with another header that is not as written is left
"""

from __future__ import annotations

from pathlib import Path

from embedlog import index, segment
from embedlog._native import system
from embedlog.format.record_batch import Chain
from embedlog.integrity.marker_repair import MARKER_BYTES, restored
from embedlog.integrity.partition_check import Checked, Known
from embedlog.integrity.segment_check import SegmentCheck
from embedlog.integrity.spans import Span
from embedlog.storage import checkpoints, file_names, files, identity
from embedlog.storage.manifest import (
    CLOSED,
    DIGESTED,
    EMPTY_MS,
    GAPLESS,
    SEALED,
    Manifest,
    SegmentInfo,
    Start,
)

COPY_BYTES = 1 << 20


class PartitionRepair:
    """The repair of one partition. REQUIRES that no process has the directory open. Threads:
    one.
    """

    def __init__(self, known: Known, checked: Checked, end: int, mode: int) -> None:
        self._known = known
        self._checked = checked
        self._mode = mode
        self._directory = known.directory
        self._end = end  # the log end that must not fall
        self.done: list[str] = []

    def run(self) -> None:
        """Change the files. `done` describes the changes. Raises StorageError."""
        kinds = {each.kind for each in self._checked.findings}
        self._repair_identity(kinds)
        spans = [span for each in self._checked.segments for span in each.spans]
        if any(span.unproven for span in spans):
            self._note("the log is left as it is: a header that is not as written is not known")
        elif any(span.header for span in spans) or kinds & {"records", "missing-records"}:
            self._repair_log()
        for each in self._checked.findings:
            if each.kind == "gap":  # an opening for writing describes the segments as they are
                self._note(
                    f"the gap from offset {each.first_offset} to {each.end_offset - 1} is accepted"
                )
        self._repair_caches(kinds)
        if "overflow" in kinds:
            self._note(
                "a segment with offsets that its index cannot hold is split by the next load"
            )
        files.sync_directory(self._directory)

    def _note(self, text: str) -> None:
        self.done.append(f"{self._known.topic}-{self._known.number}: {text}")

    def _repair_identity(self, kinds: set[str]) -> None:
        if "identity" not in kinds:
            return
        if self._known.topic_id is not None:
            identity.write_topic_id(self._directory, self._known.topic_id, self._mode)
            self._note(f"{file_names.PARTITION_METADATA} is written again")
        else:  # nothing else knows the id: the next load gives the topic a new one
            kept = files.set_damaged_aside(self._directory / file_names.PARTITION_METADATA)
            self._note(
                f"{file_names.PARTITION_METADATA} is kept as {kept}: the topic gets a new id, "
                "unknown to its brokers"
            )

    # ---- the log ---------------------------------------------------------------------------------

    def _repair_log(self) -> None:
        """SEGMENTCUT-3."""
        cut = [
            each
            for each in self._checked.segments
            if any(self._is_cut(span) or span.header for span in each.spans)
        ]
        long = [each for each in self._checked.segments if self._is_cut_behind(each)]
        for each in cut:
            self._write_without_damage(each)
        for each in long:
            self._keep(each, each.segment.size, self._rest(each))
        files.sync_directory(self._directory)
        system.point("repair-copied")
        self._remove_caches([*cut, *long])
        files.sync_directory(self._directory)
        system.point("repair-caches-removed")
        for each in cut:
            files.rename(self._cleaned(each), each.path)
        for each in long:
            with files.opened(each.path, files.WRITE) as fd:
                files.truncate(fd, each.segment.size, each.path)
                files.sync(fd, each.path)
        bases = [each.segment.base for each in self._checked.segments]
        last = self._checked.segments[-1].end if bases else -1
        if self._end > max(last, bases[-1] if bases else -1):
            segment.create(self._directory, self._end, self._mode)
            self._note(
                f"the log continues at offset {self._end}; the records before it from "
                f"{max(last, 0)} on are lost"
            )
            bases.append(self._end)
        files.sync_directory(self._directory)
        system.point("repair-renamed")
        self._write_manifest(bases)

    @staticmethod
    def _is_cut(span: Span) -> bool:
        return (
            span.problem is not None
            and not span.unproven
            and not span.header
            and span.end > span.start
        )

    def _is_cut_behind(self, each: SegmentCheck) -> bool:
        """Whether bytes after the known end of a segment are cut: no batch that is valid in itself
        may be among them.
        """
        rest = self._rest(each)
        if rest and segment.has_batch(each.path, each.segment.size, each.segment.size + rest):
            self._note(
                f"{each.path.name} is left as it is: batches follow byte {each.segment.size}, "
                "where it has ended"
            )
            return False
        return rest > 0

    def _rest(self, each: SegmentCheck) -> int:
        """Bytes after the known end of a segment."""
        facts = files.facts_of(each.path)
        return 0 if facts is None else max(0, facts.size - each.segment.size)

    def _cleaned(self, each: SegmentCheck) -> Path:
        return each.path.with_name(each.path.name + file_names.CLEANED)

    def _kept_path(self, each: SegmentCheck, position: int) -> Path:
        return self._directory / f"{file_names.CUT}{each.segment.base:020d}-{position}"

    def _keep(self, each: SegmentCheck, position: int, size: int) -> None:
        """Copy bytes that are cut (SEGMENTCUT-1)."""
        target = self._kept_path(each, position)
        segment.copy_aside(each.path, position, position + size, target, self._mode)
        self._note(
            f"{size} bytes are cut out of {each.path.name} at byte {position}, and kept in "
            f"{target.name}"
        )

    def _write_without_damage(self, each: SegmentCheck) -> None:
        """Write the good ranges of a segment into a new file."""
        target = self._cleaned(each)
        with (
            files.opened(each.path) as source,
            files.opened(target, files.CREATE, self._mode) as fd,
        ):
            files.truncate(fd, 0, target)
            at = 0
            for span in each.spans:
                if self._is_cut(span):
                    self._keep(each, span.start, span.end - span.start)
                    marker = self._restored_marker(each, source, span)
                    files.write_all(fd, marker, at, target)
                    at += len(marker)
                    continue
                for position in range(span.start, span.end, COPY_BYTES):
                    data = files.pread(
                        source, min(COPY_BYTES, span.end - position), position, each.path
                    )
                    if span.header and position == span.start:
                        data = self._with_header(each, span, data)
                    files.write_all(fd, data, at, target)
                    at += len(data)
            files.sync(fd, target)

    def _with_header(self, each: SegmentCheck, span: Span, data: bytes) -> bytes:
        """The first bytes of a batch with the offset that its neighbours leave (SPANS-3)."""
        self._note(
            f"the header of the batch at byte {span.start} of {each.path.name} is restored: "
            f"offset {span.first_offset}"
        )
        return span.first_offset.to_bytes(8, signed=True) + data[8:]

    def _restored_marker(self, each: SegmentCheck, source: int, span: Span) -> bytes:
        """The transaction marker that a cut range was; no bytes if it was none."""
        data = (
            files.pread(source, span.end - span.start, span.start, each.path)
            if span.end - span.start == MARKER_BYTES
            else b""
        )
        found = restored(data, span.first_offset, each.epoch_at(span.first_offset, data))
        if found is not None:
            self._note(f"the transaction marker at offset {span.first_offset} is restored")
        return found or b""

    def _remove_caches(self, changed: list[SegmentCheck]) -> None:
        """Remove what describes the damaged log: control page, durable end, indexes and digests of
        the changed segments.
        """
        for name in (file_names.PAGE, file_names.DURABLE):
            files.unlink(self._directory / name, missing_ok=True)
        for each in changed:
            self._forget_indexes(each)

    def _forget_indexes(self, each: SegmentCheck) -> None:
        for suffix in (file_names.INDEX, file_names.TIME_INDEX, file_names.DIGESTS):
            files.unlink(
                file_names.segment_path(self._directory, each.segment.base, suffix), missing_ok=True
            )

    # ---- the manifest ----------------------------------------------------------------------------

    def _write_manifest(self, bases: list[int]) -> None:
        """Describe the segments as they are now. A log without a manifest is loaded from its
        files.
        """
        manifest = self._checked.manifest
        start = None if self._checked.manifest is None else self._checked.manifest.start
        if manifest is None or start is None or self._known.foreign or not bases:
            return
        infos = []
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            infos.append(self._described(base, following, manifest))
        first = max(start.offset, bases[0])
        gaps = -1 if infos[-1].gapless else infos[-1].base
        if first > start.offset:
            self._note(
                f"the log starts at offset {first}; the records from {start.offset} on are lost"
            )
        manifest.rewrite(infos, Start(first, gaps, start.visit))

    def _described(self, base: int, following: int | None, manifest: Manifest) -> SegmentInfo:
        """A segment as its file is now; `following` is the base of the next one."""
        known = (
            manifest.closed
            if manifest.closed is not None and manifest.closed.base == base
            else manifest.segments.get(base)
        )
        path = file_names.segment_path(self._directory, base)
        builder = index.Builder(base, 1 << 62)
        chain = Chain(gaps_allowed=True)
        gapless = True
        end = base
        facts = files.facts_of(path)
        with files.opened(path) as fd:
            walk = segment.Walk(fd, path, chain, 0, 0 if facts is None else facts.size)
            for batches in walk:
                ends = batches["base_offset"] + batches["last_offset_delta"] + 1
                gapless = (
                    gapless
                    and int(batches["base_offset"][0]) == end
                    and bool((batches["base_offset"][1:] == ends[:-1]).all())
                )
                end = int(ends[-1])
                builder.add(batches, walk.before)
        next_offset = end if following is None else following
        if known is not None and (known.size, known.digest, known.digested) == (
            walk.end,
            chain.digest,
            True,
        ):
            same = known.next_offset == next_offset
            flags = known.flags if same else known.flags & ~GAPLESS
            return known._replace(
                next_offset=next_offset, flags=flags, kind=CLOSED if following is None else SEALED
            )
        builder.add_time_entry()
        created_ms = 0 if known is None else known.created_ms
        return SegmentInfo(
            base,
            walk.end,
            next_offset,
            builder.max_timestamp,
            builder.max_timestamp_offset,
            chain.digest,
            created_ms=created_ms,
            epoch=max(chain.epoch, 0),
            flags=DIGESTED | (GAPLESS if gapless and end == next_offset else 0),
            kind=CLOSED if following is None else SEALED,
            min_timestamp=builder.min_timestamp if walk.end else EMPTY_MS,
            lateness_ms=builder.lateness_ms,
        )

    # ---- caches ----------------------------------------------------------------------------------

    def _repair_caches(self, kinds: set[str]) -> None:
        """Remove invalid caches: the next load makes them again from the log."""
        for each in self._checked.segments:
            wrong = {found.kind for found in each.findings} & {
                "index",
                "digests",
                "transaction-index",
            }
            if wrong:
                self._forget_indexes(each)
                files.unlink(
                    file_names.segment_path(
                        self._directory, each.segment.base, file_names.TRANSACTION_INDEX
                    ),
                    missing_ok=True,
                )
                self._note(f"the indexes of {each.path.name} are made again")
        for found in self._checked.findings:
            if found.kind in ("snapshot", "durable"):
                files.unlink(found.path, missing_ok=True)
                self._note(f"{Path(found.path).name} is removed")
        if kinds & {"epochs", "missing-epochs"}:
            self._repair_epochs()
            for each in self._checked.segments:
                self._forget_indexes(each)
            self._note(f"{file_names.EPOCHS} is made again")
        if "manifest" in kinds:
            self._repair_manifest()

    def _repair_epochs(self) -> None:
        """Write the epochs of the batches. The last epoch that is known never falls: readers may
        have its records.
        """
        made = checkpoints.EpochCache()
        for each in self._checked.segments:
            for epoch, start in each.epochs.entries:
                if epoch > made.latest_epoch:
                    made.assign(epoch, start)
        manifest = self._checked.manifest
        noted = self._checked.epochs
        infos = (
            []
            if manifest is None
            else [*manifest.segments.values(), *([manifest.closed] if manifest.closed else [])]
        )
        highest = max(
            [*(info.epoch for info in infos), -1 if noted is None else noted.latest_epoch],
            default=-1,
        )
        if highest > max(made.latest_epoch, 0):
            made.assign(highest, self._end)
        path = self._directory / file_names.EPOCHS
        if made.entries:
            checkpoints.write_epochs(path, made, self._mode)
        else:  # only messages of magic 0 and 1, or no record
            files.unlink(path, missing_ok=True)

    def _repair_manifest(self) -> None:
        manifest = self._checked.manifest
        if manifest is None or manifest.start is None:
            files.unlink(self._directory / file_names.MANIFEST, missing_ok=True)
        else:
            closed = [] if manifest.closed is None else [manifest.closed]
            start = manifest.start
            # its end is lost, perhaps with a newer start, which the checkpoint has
            if not manifest.whole:
                start = start._replace(offset=max(start.offset, self._known.log_start))
            manifest.rewrite([*manifest.segments.values(), *closed], start)
        self._note(f"{file_names.MANIFEST} is written again")
