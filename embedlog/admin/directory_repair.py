"""Repairs a log directory that no process has open: its own files, and each partition with a
finding.

- The directory is held meanwhile: no process opens it, and no broker starts on it.
- After the changes the log is opened once: the loads make again what was removed. Then everything
  is checked. A cached checkpoint is removed then if an offset in it is after the end of its log.
- A replacement or a deletion of segments that a crash has interrupted is finished first.
- A directory of a set is refused: the set repairs its replicas from each other.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from embedlog.admin.directory_engine import open_directory
from embedlog.admin.log_check import check_path
from embedlog.config.options import parse
from embedlog.config.topic import LogConfig
from embedlog.coordination import closed_directory
from embedlog.errors import (
    CorruptRecordError,
    EmbedlogError,
    ForeignDirectoryError,
    ReplicaSetError,
    UnsupportedFormatError,
)
from embedlog.integrity.directory_check import (
    ClosedDirectory,
    Count,
    PartitionPlace,
    Progress,
    Total,
    check_partition,
    check_root,
)
from embedlog.integrity.partition_repair import (
    ClosedPartitionRepair,
    finish_interrupted,
    needs_finish,
)
from embedlog.integrity.report import CheckReport
from embedlog.storage import checkpoints, file_names, files, identity, location
from embedlog.storage.manifest import Manifest

if TYPE_CHECKING:
    from embedlog.integrity.partition_check import PartitionFacts, PartitionResult
    from embedlog.integrity.report import Finding

logger = logging.getLogger("embedlog")


def repair_path(path: str | os.PathLike[str], progress: Progress | None = None) -> CheckReport:
    """Repair one directory; the changes, and what a check finds after them.

    Raises DirectoryInUseError if any process has it open, ReplicaSetError for a directory of a set,
    StorageError.
    """
    directory = location.check_path(path)
    if file_names.REPLICAS in location.enter(directory, read_only=False, create=False, mode=0o666):
        raise ReplicaSetError(
            "the directory belongs to a set: open the set with all of its directories, and repair "
            "its replicas",
            path=directory,
            paths=[os.fspath(directory)],
        )
    before = check_path(directory, progress)
    is_interrupted = any(finding.kind == "interrupted" for finding in before.findings)
    if before.good and not is_interrupted:
        return before
    with closed_directory.hold(directory) as use:
        changes, changed_partitions = _repair(ClosedDirectory(directory, use))
    problems = _load(directory, changed_partitions)
    after = check_path(directory)
    caches = _file_names_of(after.findings, "checkpoint-cache")
    if caches:
        with closed_directory.hold(directory):
            changes += _remove_caches(directory, caches)
        after = check_path(directory)
    return replace(after, repaired=(*changes, *problems))


def _file_names_of(findings: Iterable[Finding], kind: str) -> list[str]:
    """The names of the files with a finding of this kind, and of kinds that begin with it."""
    return sorted(
        {Path(finding.path).name for finding in findings if finding.kind.startswith(kind)}
    )


def _remove_caches(path: Path, names: list[str]) -> list[str]:
    for name in names:
        files.unlink(path / name, missing_ok=True)
    files.sync_directory(path)
    return [f"{name} is made again" for name in names]


def _repair(directory: ClosedDirectory) -> tuple[list[str], list[PartitionPlace]]:
    """Change the files; the descriptions of the changes, and the partitions that were changed."""
    path = directory.path
    total = Total()
    partitions = list(directory.find_partitions())
    changes = _repair_topics(path, directory) + _repair_meta(path)
    partitions = [
        partition._replace(topic_id=_id_of(partition, partitions)) for partition in partitions
    ]
    count = Count(0, None)
    changed_partitions = []
    ends = _read_ends(path)
    for partition in partitions:
        facts = directory.facts_of(partition)
        checked = check_partition(facts, count, total)
        if checked is not None and needs_finish(checked):
            changes.append(finish_interrupted(facts, checked))
            changed_partitions.append(partition)
            checked = check_partition(facts, count, total)
        if checked is None or all(finding.severity == "note" for finding in checked.findings):
            continue
        repair = ClosedPartitionRepair(facts, checked, _find_end(facts, checked, ends), 0o666)
        repair.run()
        changes += repair.done
        if partition not in changed_partitions:
            changed_partitions.append(partition)
    return changes + _repair_root(path, partitions, total), changed_partitions


def _id_of(partition: PartitionPlace, partitions: list[PartitionPlace]) -> str | None:
    """The id of the topic of a partition; if its file is damaged, that of another partition of the
    topic.
    """
    if partition.topic_id is not None:
        return partition.topic_id
    ids = {other.topic_id for other in partitions if other.topic == partition.topic} - {None}
    return ids.pop() if len(ids) == 1 else None


def _read_ends(path: Path) -> checkpoints.Offsets:
    """The largest offset that a checkpoint has for each partition: the log has reached it."""
    ends: checkpoints.Offsets = {}
    for name in (file_names.RECOVERY_POINTS, file_names.HIGH_WATERMARKS):
        with contextlib.suppress(EmbedlogError):  # a finding of the directory
            for partition, offset in checkpoints.read_offsets_exactly(path / name).items():
                ends[partition] = max(offset, ends.get(partition, 0))
    return ends


def _find_end(facts: PartitionFacts, checked: PartitionResult, ends: checkpoints.Offsets) -> int:
    """The log end that is known from anywhere. A checkpoint after the end of a
    complete log is wrong itself.
    """
    end = 0 if checked.end is None else checked.end
    manifest = None if facts.broker_wrote else checked.manifest
    if manifest is not None and manifest.closed is not None:
        return max(end, manifest.closed.next_offset)
    if manifest is not None:
        end = max([end, *(segment.next_offset for segment in manifest.segments.values())])
    return max(end, ends.get((facts.topic, facts.number), 0), facts.durable_offset())


def _repair_topics(path: Path, directory: ClosedDirectory) -> list[str]:
    """Set a damaged file of topics aside: the next opening finds the topics by their
    directories.
    """
    changes = []
    for finding in directory.findings:
        if finding.kind == "topics" and files.exists(finding.path):
            damaged = Path(finding.path)
            name = files.set_damaged_aside(damaged)
            changes.append(f"{damaged} is kept as {name}: topics have default settings now")
    if changes:
        files.sync_directory(path)
    return changes


def _repair_meta(path: Path) -> list[str]:
    """Set a damaged meta.properties aside: the next opening gives the directory a new identity."""
    try:
        identity.read_meta(path)
    except (ForeignDirectoryError, CorruptRecordError):
        name = files.set_damaged_aside(path / file_names.META_PROPERTIES)
        files.sync_directory(path)
        reason = "the directory gets a new identity, and brokers of its former cluster refuse it"
        return [f"{file_names.META_PROPERTIES} is kept as {name}: {reason}"]
    except UnsupportedFormatError:  # of a newer broker
        pass
    return []


def _repair_root(path: Path, partitions: list[PartitionPlace], total: Total) -> list[str]:
    """Write the damaged checkpoints of the directory again."""
    names = _file_names_of(check_root(path, total.ends), "checkpoint")
    changes = []
    if file_names.LOG_STARTS in names:
        names.remove(file_names.LOG_STARTS)
        name = files.set_damaged_aside(path / file_names.LOG_STARTS)
        checkpoints.write_offsets(path / file_names.LOG_STARTS, _read_starts(partitions))
        meaning = "a log without a manifest starts at its first segment, as Kafka has it then"
        changes.append(f"{file_names.LOG_STARTS} is made again, and kept as {name}: {meaning}")
    return changes + _remove_caches(path, names)


def _read_starts(partitions: list[PartitionPlace]) -> checkpoints.Offsets:
    """The log starts by the manifests that have one."""
    starts: checkpoints.Offsets = {}
    for partition in partitions:
        if partition.topic_id is None:
            continue
        manifest = Manifest(partition.path, identity.id_bytes(partition.topic_id))
        manifest.refresh()
        if manifest.start is not None:
            starts[partition.topic, partition.number] = manifest.start.offset
    return starts


def _load(path: Path, changed_partitions: list[PartitionPlace]) -> list[str]:
    """Open the log, and load the changed partitions; the problems."""
    problems = []
    try:
        engine = open_directory(path, read_only=False, create=False, config=parse(LogConfig, None))
    except EmbedlogError as problem:
        return [f"the directory cannot be opened: {problem}"]
    try:
        for partition in changed_partitions:
            try:
                engine.home.partition(partition.topic, partition.number).await_replacement()
            except EmbedlogError as problem:
                logger.warning(
                    "%s-%d cannot be opened after its repair: %s",
                    partition.topic,
                    partition.number,
                    problem,
                )
                problems.append(f"{partition.topic}-{partition.number} cannot be opened: {problem}")
    finally:
        try:
            engine.close()
        except EmbedlogError as problem:  # an orderly close loads a partition that has no page
            if not problems:
                problems.append(f"the directory cannot be closed in order: {problem}")
    return problems
