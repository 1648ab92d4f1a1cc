"""Repairs the files of one partition of a closed log: damaged bytes are cut out and kept, caches
are removed and made again.

- A good batch is never removed. Bytes that are not part of one are cut out of a segment. They stay
  in `embedlog.cut-BASE-POSITION`, as those of a recovery do.
- The log end never falls: records that were lost at the end leave a gap, and their offsets are not
  used again.
- The order is: copies of the cut bytes and new files on disk; caches removed; files renamed; the
  manifest replaced. After an interruption the partition is still damaged, and the next repair
  completes it.
- A transaction marker with one wrong bit is restored. Without it records of its
  transaction would be read as committed, or hidden.
- An offset that is not as written is restored if the neighbours of the batch show it. A log with
  another header that is not as written is left.
"""

from __future__ import annotations

from pathlib import Path

from embedlog import index, segment
from embedlog._native import system
from embedlog.format.record_batch import Chain
from embedlog.integrity.marker_repair import MARKER_BYTES, restore
from embedlog.integrity.partition_check import PartitionFacts, PartitionResult
from embedlog.integrity.segment_check import SegmentCheck
from embedlog.integrity.spans import SegmentSpan
from embedlog.partition import leftovers
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


def needs_finish(checked: PartitionResult) -> bool:
    """Whether a crash has interrupted a replacement or a deletion of segments."""
    return any(finding.kind == "interrupted" for finding in checked.findings)


def finish_interrupted(facts: PartitionFacts, checked: PartitionResult) -> str:
    """Finish what a crash has interrupted, as the next opening would; a description. REQUIRES that
    no process has the directory open. Raises StorageError.

    A repair begins with it: it must not judge files by names that they are about to lose.
    """
    sealed = facts.sealed_without_gaps(checked.manifest)
    leftovers.carry_out(facts.directory, sealed, write=True, broker_wrote=facts.broker_wrote)
    files.sync_directory(facts.directory)
    return (
        f"{facts.topic}-{facts.number}: an interrupted replacement or deletion of segments is "
        "finished"
    )


class ClosedPartitionRepair:
    """The repair of one partition. REQUIRES that no process has the directory open. Threads:
    one.
    """

    def __init__(
        self, facts: PartitionFacts, checked: PartitionResult, end: int, mode: int
    ) -> None:
        self._facts = facts
        self._checked = checked
        self._mode = mode
        self._directory = facts.directory
        self._end = end  # the log end that must not fall
        self.done: list[str] = []

    def run(self) -> None:
        """Change the files. `done` describes the changes. Raises StorageError."""
        kinds = {finding.kind for finding in self._checked.findings}
        self._repair_identity(kinds)
        spans = [span for check in self._checked.segments for span in check.spans]
        if any(span.unproven for span in spans):
            self._report("the log is left as it is: a header that is not as written is not known")
        elif any(span.header for span in spans) or kinds & {"records", "missing-records"}:
            self._repair_log()
        for finding in self._checked.findings:
            if finding.kind == "gap":  # an opening for writing describes the segments as they are
                self._report(
                    f"the gap from offset {finding.first_offset} to {finding.end_offset - 1} is "
                    "accepted"
                )
        self._repair_caches(kinds)
        if "overflow" in kinds:
            self._report(
                "a segment with offsets that its index cannot hold is split by the next load"
            )
        files.sync_directory(self._directory)

    def _report(self, text: str) -> None:
        self.done.append(f"{self._facts.topic}-{self._facts.number}: {text}")

    def _repair_identity(self, kinds: set[str]) -> None:
        if "identity" not in kinds:
            return
        if self._facts.topic_id is not None:
            identity.write_topic_id(self._directory, self._facts.topic_id, self._mode)
            self._report(f"{file_names.PARTITION_METADATA} is written again")
        else:  # nothing else knows the id: the next load gives the topic a new one
            copy = files.set_damaged_aside(self._directory / file_names.PARTITION_METADATA)
            self._report(
                f"{file_names.PARTITION_METADATA} is kept as {copy}: the topic gets a new id, "
                "unknown to its brokers"
            )

    # ---- the log ---------------------------------------------------------------------------------

    def _repair_log(self) -> None:
        """Cut the damaged bytes out. The order is: copies and new files on disk, caches removed,
        files renamed, the manifest replaced.
        """
        checks = self._checked.segments
        damaged = [
            check
            for check in checks
            if any(self._is_cut(span) or span.header for span in check.spans)
        ]
        too_long = [check for check in checks if self._is_cut_behind(check)]
        for check in damaged:
            self._write_without_damage(check)
        for check in too_long:
            self._keep(check, check.segment.size, self._excess_bytes(check))
        files.sync_directory(self._directory)
        system.point("repair-copied")
        self._remove_caches([*damaged, *too_long])
        files.sync_directory(self._directory)
        system.point("repair-caches-removed")
        for check in damaged:
            files.rename(self._cleaned_path(check), check.path)
        for check in too_long:
            with files.opened(check.path, files.WRITE) as fd:
                files.truncate(fd, check.segment.size, check.path)
                files.sync(fd, check.path)
        bases = [check.segment.base for check in checks]
        log_end = -1
        last_base = -1
        if checks:
            log_end = checks[-1].end
            last_base = bases[-1]
        if self._end > max(log_end, last_base):
            segment.create(self._directory, self._end, self._mode)
            self._report(
                f"the log continues at offset {self._end}; the records before it from "
                f"{max(log_end, 0)} on are lost"
            )
            bases.append(self._end)
        files.sync_directory(self._directory)
        system.point("repair-renamed")
        self._write_manifest(bases)

    @staticmethod
    def _is_cut(span: SegmentSpan) -> bool:
        if span.problem is None or span.unproven or span.header:
            return False
        return span.end > span.start

    def _is_cut_behind(self, check: SegmentCheck) -> bool:
        """Whether bytes after the known end of a segment are cut: no batch that is valid in itself
        may be among them.
        """
        end = check.segment.size
        size = self._excess_bytes(check)
        if size and segment.has_batch(check.path, end, end + size):
            self._report(
                f"{check.path.name} is left as it is: batches follow byte {end}, where it has ended"
            )
            return False
        return size > 0

    def _excess_bytes(self, check: SegmentCheck) -> int:
        """Bytes after the known end of a segment."""
        facts = files.facts_of(check.path)
        return 0 if facts is None else max(0, facts.size - check.segment.size)

    def _cleaned_path(self, check: SegmentCheck) -> Path:
        return check.path.with_name(check.path.name + file_names.CLEANED)

    def _kept_path(self, check: SegmentCheck, position: int) -> Path:
        return self._directory / f"{file_names.CUT}{check.segment.base:020d}-{position}"

    def _keep(self, check: SegmentCheck, position: int, size: int) -> None:
        """Copy bytes that are cut, as a recovery does."""
        target = self._kept_path(check, position)
        segment.copy_aside(check.path, position, position + size, target, self._mode)
        self._report(
            f"{size} bytes are cut out of {check.path.name} at byte {position}, and kept in "
            f"{target.name}"
        )

    def _write_without_damage(self, check: SegmentCheck) -> None:
        """Write the good ranges of a segment into a new file."""
        target = self._cleaned_path(check)
        with (
            files.opened(check.path) as source,
            files.opened(target, files.CREATE, self._mode) as fd,
        ):
            files.truncate(fd, 0, target)
            target_position = 0
            for span in check.spans:
                if self._is_cut(span):
                    self._keep(check, span.start, span.end - span.start)
                    marker = self._restore_marker(check, source, span)
                    files.write_all(fd, marker, target_position, target)
                    target_position += len(marker)
                    continue
                for position in range(span.start, span.end, COPY_BYTES):
                    size = min(COPY_BYTES, span.end - position)
                    data = files.pread(source, size, position, check.path)
                    if span.header and position == span.start:
                        data = self._restore_offset(check, span, data)
                    files.write_all(fd, data, target_position, target)
                    target_position += len(data)
            files.sync(fd, target)

    def _restore_offset(self, check: SegmentCheck, span: SegmentSpan, data: bytes) -> bytes:
        """The first bytes of a batch with the offset that its neighbours leave."""
        self._report(
            f"the header of the batch at byte {span.start} of {check.path.name} is restored: "
            f"offset {span.first_offset}"
        )
        return span.first_offset.to_bytes(8, signed=True) + data[8:]

    def _restore_marker(self, check: SegmentCheck, source: int, span: SegmentSpan) -> bytes:
        """The transaction marker that a cut range was; no bytes if it was none."""
        if span.end - span.start != MARKER_BYTES:
            return b""
        data = files.pread(source, MARKER_BYTES, span.start, check.path)
        marker = restore(data, span.first_offset, check.epoch_at(span.first_offset, data))
        if marker is None:
            return b""
        self._report(f"the transaction marker at offset {span.first_offset} is restored")
        return marker

    def _remove_caches(self, changed: list[SegmentCheck]) -> None:
        """Remove what describes the damaged log: control page, durable end, indexes and digests of
        the changed segments.
        """
        for name in (file_names.PAGE, file_names.DURABLE):
            files.unlink(self._directory / name, missing_ok=True)
        for check in changed:
            self._forget_indexes(check)

    def _forget_indexes(self, check: SegmentCheck) -> None:
        for suffix in (file_names.INDEX, file_names.TIME_INDEX, file_names.DIGESTS):
            path = file_names.segment_path(self._directory, check.segment.base, suffix)
            files.unlink(path, missing_ok=True)

    # ---- the manifest ----------------------------------------------------------------------------

    def _write_manifest(self, bases: list[int]) -> None:
        """Describe the segments as they are now. A log without a manifest is loaded from its
        files.
        """
        manifest = self._checked.manifest
        if manifest is None or manifest.start is None or self._facts.broker_wrote or not bases:
            return
        start = manifest.start
        infos = []
        for number, base in enumerate(bases):
            next_base = bases[number + 1] if number + 1 < len(bases) else None
            infos.append(self._describe_segment(base, next_base, manifest))
        first = max(start.offset, bases[0])
        gaps = -1 if infos[-1].gapless else infos[-1].base
        if first > start.offset:
            self._report(
                f"the log starts at offset {first}; the records from {start.offset} on are lost"
            )
        manifest.rewrite(infos, Start(first, gaps, start.visit))

    def _describe_segment(
        self, base: int, next_base: int | None, manifest: Manifest
    ) -> SegmentInfo:
        """A segment as its file is now; `next_base` is that of the next one."""
        info = manifest.segments.get(base)
        if manifest.closed is not None and manifest.closed.base == base:
            info = manifest.closed
        path = file_names.segment_path(self._directory, base)
        builder = index.Builder(base, 1 << 62)
        chain = Chain(gaps_allowed=True)
        is_gapless = True
        end = base
        facts = files.facts_of(path)
        with files.opened(path) as fd:
            walk = segment.Walk(fd, path, chain, 0, 0 if facts is None else facts.size)
            for batches in walk:
                ends = batches["base_offset"] + batches["last_offset_delta"] + 1
                if int(batches["base_offset"][0]) != end:
                    is_gapless = False
                if (batches["base_offset"][1:] != ends[:-1]).any():
                    is_gapless = False
                end = int(ends[-1])
                builder.add(batches, walk.before)
        next_offset = end if next_base is None else next_base
        kind = CLOSED if next_base is None else SEALED
        if (
            info is not None
            and info.digested
            and info.size == walk.end
            and info.digest == chain.digest
        ):
            flags = info.flags
            if info.next_offset != next_offset:
                flags &= ~GAPLESS
            return info._replace(next_offset=next_offset, flags=flags, kind=kind)
        builder.add_time_entry()
        flags = DIGESTED
        if is_gapless and end == next_offset:
            flags |= GAPLESS
        return SegmentInfo(
            base,
            size=walk.end,
            next_offset=next_offset,
            max_timestamp=builder.max_timestamp,
            max_timestamp_offset=builder.max_timestamp_offset,
            digest=chain.digest,
            created_ms=0 if info is None else info.created_ms,
            epoch=max(chain.epoch, 0),
            flags=flags,
            kind=kind,
            min_timestamp=builder.min_timestamp if walk.end else EMPTY_MS,
            lateness_ms=builder.lateness_ms,
        )

    # ---- caches ----------------------------------------------------------------------------------

    def _repair_caches(self, kinds: set[str]) -> None:
        """Remove invalid caches: the next load makes them again from the log."""
        cache_kinds = {"index", "digests", "transaction-index"}
        for check in self._checked.segments:
            if any(finding.kind in cache_kinds for finding in check.findings):
                self._forget_indexes(check)
                path = file_names.segment_path(
                    self._directory, check.segment.base, file_names.TRANSACTION_INDEX
                )
                files.unlink(path, missing_ok=True)
                self._report(f"the indexes of {check.path.name} are made again")
        for finding in self._checked.findings:
            if finding.kind in ("snapshot", "durable"):
                files.unlink(finding.path, missing_ok=True)
                self._report(f"{Path(finding.path).name} is removed")
        if kinds & {"epochs", "missing-epochs"}:
            self._repair_epochs()
            for check in self._checked.segments:
                self._forget_indexes(check)
            self._report(f"{file_names.EPOCHS} is made again")
        if "manifest" in kinds:
            self._repair_manifest()

    def _repair_epochs(self) -> None:
        """Write the epochs of the batches. The last epoch that is known never falls: readers may
        have its records.
        """
        epochs = checkpoints.EpochCache()
        for check in self._checked.segments:
            for epoch, start in check.epochs.entries:
                if epoch > epochs.latest_epoch:
                    epochs.assign(epoch, start)
        known_epochs = [-1]
        if self._checked.epochs is not None:
            known_epochs.append(self._checked.epochs.latest_epoch)
        manifest = self._checked.manifest
        if manifest is not None:
            known_epochs += [info.epoch for info in manifest.segments.values()]
            if manifest.closed is not None:
                known_epochs.append(manifest.closed.epoch)
        highest = max(known_epochs)
        if highest > max(epochs.latest_epoch, 0):
            epochs.assign(highest, self._end)
        path = self._directory / file_names.EPOCHS
        if epochs.entries:
            checkpoints.write_epochs(path, epochs, self._mode)
        else:  # only messages of magic 0 and 1, or no record
            files.unlink(path, missing_ok=True)

    def _repair_manifest(self) -> None:
        manifest = self._checked.manifest
        if manifest is None or manifest.start is None:
            files.unlink(self._directory / file_names.MANIFEST, missing_ok=True)
        else:
            infos = list(manifest.segments.values())
            if manifest.closed is not None:
                infos.append(manifest.closed)
            start = manifest.start
            # its end is lost, perhaps with a newer start, which the checkpoint has
            if not manifest.is_whole:
                start = start._replace(offset=max(start.offset, self._facts.log_start))
            manifest.rewrite(infos, start)
        self._report(f"{file_names.MANIFEST} is written again")
