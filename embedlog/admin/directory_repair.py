"""Repairs a log directory that no process has open: its own files, and each partition with a
finding.

DIRECTORYREPAIR-1  the directory is held meanwhile: no process opens it, and no broker starts on it
DIRECTORYREPAIR-2  after the changes the log is opened once: the loads make again what was removed.
    Then everything is checked. A cached checkpoint is removed then if an offset in it is after the
    end of its log
    A replacement or a deletion of segments that a crash has interrupted is finished first
DIRECTORYREPAIR-3  a directory of a set is refused: the set repairs its replicas from each other
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
    place = location.checked(path)
    if file_names.REPLICAS in location.enter(place, read_only=False, create=False, mode=0o666):
        raise ReplicaSetError(
            "the directory belongs to a set: open the set with all of its directories, and repair "
            "its replicas",
            path=place,
            paths=[os.fspath(place)],
        )
    before = check_path(place, progress)
    if before.good and not any(each.kind == "interrupted" for each in before.findings):
        return before
    with closed_directory.hold(place) as use:
        done, touched = _repair(ClosedDirectory(place, use))
    problems = _load(place, touched)
    after = check_path(place)
    if caches := _named(after.findings, "checkpoint-cache"):
        with closed_directory.hold(place):
            done += _remove_caches(place, caches)
        after = check_path(place)
    return replace(after, repaired=(*done, *problems))


def _named(findings: Iterable[Finding], kind: str) -> list[str]:
    """The names of the files with a finding of this kind, and of kinds that begin with it."""
    return sorted({Path(each.path).name for each in findings if each.kind.startswith(kind)})


def _remove_caches(path: Path, names: list[str]) -> list[str]:
    for name in names:
        files.unlink(path / name, missing_ok=True)
    files.sync_directory(path)
    return [f"{name} is made again" for name in names]


def _repair(directory: ClosedDirectory) -> tuple[list[str], list[PartitionPlace]]:
    """Change the files; the descriptions of the changes, and the partitions that were changed."""
    path = directory.path
    total = Total()
    places = list(directory.find_partitions())
    done = _repair_topics(path, directory) + _repair_meta(path)
    places = [place._replace(topic_id=_id_of(place, places)) for place in places]
    count = Count(0, None)
    touched = []
    ends = _ends(path)
    for place in places:
        known = directory.facts_of(place)
        checked = check_partition(known, count, total)
        if checked is not None and needs_finish(checked):
            done.append(finish_interrupted(known, checked))
            touched.append(place)
            checked = check_partition(known, count, total)
        if checked is None or all(each.severity == "note" for each in checked.findings):
            continue
        repair = ClosedPartitionRepair(known, checked, _end(known, checked, ends), 0o666)
        repair.run()
        done += repair.done
        if place not in touched:
            touched.append(place)
    return done + _repair_root(path, places, total), touched


def _id_of(place: PartitionPlace, places: list[PartitionPlace]) -> str | None:
    """The id of the topic of a partition; if its file is damaged, that of another partition of the
    topic.
    """
    found = {
        each.topic_id for each in places if each.topic == place.topic and each.topic_id is not None
    }
    return place.topic_id if place.topic_id is not None or len(found) != 1 else found.pop()


def _ends(path: Path) -> checkpoints.Offsets:
    """The largest offset that a checkpoint has for each partition: the log has reached it."""
    found: checkpoints.Offsets = {}
    for name in (file_names.RECOVERY_POINTS, file_names.HIGH_WATERMARKS):
        with contextlib.suppress(EmbedlogError):  # a finding of the directory
            for place, offset in checkpoints.read_exactly(path / name).items():
                found[place] = max(offset, found.get(place, 0))
    return found


def _end(known: PartitionFacts, checked: PartitionResult, ends: checkpoints.Offsets) -> int:
    """The log end that is known from anywhere. A checkpoint after the end of a
    complete log is wrong itself.
    """
    end = 0 if checked.end is None else checked.end
    manifest = None if known.foreign else checked.manifest
    if manifest is not None and manifest.closed is not None:
        return max(end, manifest.closed.next_offset)
    if manifest is not None:
        end = max([end, *(each.next_offset for each in manifest.segments.values())])
    return max(end, ends.get((known.topic, known.number), 0), known.durable_offset())


def _repair_topics(path: Path, directory: ClosedDirectory) -> list[str]:
    """Set a damaged file of topics aside: the next opening finds the topics by their
    directories.
    """
    wrong = [
        Path(each.path)
        for each in directory.findings
        if each.kind == "topics" and files.exists(each.path)
    ]
    kept = [files.set_damaged_aside(each) for each in wrong]
    if wrong:
        files.sync_directory(path)
    return [
        f"{each} is kept as {name}: topics have default settings now"
        for each, name in zip(wrong, kept, strict=True)
    ]


def _repair_meta(path: Path) -> list[str]:
    """Set a damaged meta.properties aside: the next opening gives the directory a new identity."""
    try:
        identity.read_meta(path)
    except (ForeignDirectoryError, CorruptRecordError):
        kept = files.set_damaged_aside(path / file_names.META_PROPERTIES)
        files.sync_directory(path)
        reason = "the directory gets a new identity, and brokers of its former cluster refuse it"
        return [f"{file_names.META_PROPERTIES} is kept as {kept}: {reason}"]
    except UnsupportedFormatError:  # of a newer broker
        pass
    return []


def _repair_root(path: Path, places: list[PartitionPlace], total: Total) -> list[str]:
    """Write the damaged checkpoints of the directory again."""
    names = _named(check_root(path, total.ends), "checkpoint")
    done = []
    if file_names.LOG_STARTS in names:
        names.remove(file_names.LOG_STARTS)
        kept = files.set_damaged_aside(path / file_names.LOG_STARTS)
        checkpoints.write_offsets(path / file_names.LOG_STARTS, _starts(places))
        what = "a log without a manifest starts at its first segment, as Kafka has it then"
        done.append(f"{file_names.LOG_STARTS} is made again, and kept as {kept}: {what}")
    return done + _remove_caches(path, names)


def _starts(places: list[PartitionPlace]) -> checkpoints.Offsets:
    """The log starts by the manifests that have one."""
    found: checkpoints.Offsets = {}
    for place in places:
        if place.topic_id is None:
            continue
        manifest = Manifest(place.path, identity.id_bytes(place.topic_id))
        manifest.refresh()
        if manifest.start is not None:
            found[place.topic, place.number] = manifest.start.offset
    return found


def _load(path: Path, touched: list[PartitionPlace]) -> list[str]:
    """Open the log, and load the changed partitions (DIRECTORYREPAIR-2); the problems."""
    problems = []
    try:
        engine = open_directory(path, read_only=False, create=False, config=parse(LogConfig, None))
    except EmbedlogError as problem:
        return [f"the directory cannot be opened: {problem}"]
    try:
        for place in touched:
            try:
                engine.home.partition(place.topic, place.number).settled()
            except EmbedlogError as problem:
                logger.warning(
                    "%s-%d cannot be opened after its repair: %s",
                    place.topic,
                    place.number,
                    problem,
                )
                problems.append(f"{place.topic}-{place.number} cannot be opened: {problem}")
    finally:
        try:
            engine.close()
        except EmbedlogError as problem:  # an orderly close loads a partition that has no page
            if not problems:
                problems.append(f"the directory cannot be closed in order: {problem}")
    return problems
