"""Checks all files of an open log.

Of a set each directory is checked, and the replicas are compared. Files that are in order are also
read as a reader reads them.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from embedlog import index
from embedlog.admin.directory_engine import open_directory
from embedlog.config.options import parse
from embedlog.config.topic import LogConfig
from embedlog.coordination import topic_directories
from embedlog.descriptions.replicas import ReplicaDifference
from embedlog.errors import (
    CorruptRecordError,
    DirectoryInUseError,
    EmbedlogError,
    ForeignDirectoryError,
    LeaderNotAvailableError,
    LockTimeoutError,
    OffsetOutOfRangeError,
    StateError,
    StorageError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from embedlog.format import aborted_transactions
from embedlog.integrity.directory_check import (
    ClosedDirectory,
    Count,
    PartitionPlace,
    Progress,
    Total,
    check_closed,
    check_partition,
    check_root,
    find_lost_topics,
    is_outdated,
    missing_partition,
    size_of,
)
from embedlog.integrity.partition_check import PartitionFacts
from embedlog.integrity.report import CheckReport, Finding
from embedlog.storage import file_names, files, identity, interval_digests, location
from embedlog.storage.manifest import Manifest, SegmentInfo
from embedlog.topic import Topic, TopicRegistry

if TYPE_CHECKING:
    from embedlog.descriptions.directories import DirectoryDescription
    from embedlog.engine.engine import Engine
    from embedlog.engine.log_directory import LogDirectory
    from embedlog.partition.partition import Partition
    from embedlog.types import TopicPartition

# of a partition whose segments are replaced during its check; small partitions are tried longer
TRIES: Final = 20
PATIENCE_S: Final = 5.0


def check(
    engine: Engine, of_set: Sequence[Finding] = (), progress: Progress | None = None
) -> CheckReport:
    """Check all directories of an open log; `of_set` are the findings of `findings_of_set`. Raises
    ClosedError.
    """
    total = Total()
    partitions = {
        directory: list(_find_partitions(directory, total))
        for directory in list(engine.directories)
    }
    all_partitions = itertools.chain.from_iterable(partitions.values())
    count = Count(sum(size_of(partition.path) for partition in all_partitions), progress)
    for directory, directory_partitions in partitions.items():
        directory_total = Total()
        for partition in directory_partitions:
            engine.check_open()
            _check_one(directory, partition, count, directory_total)
        is_closed = directory.read_only and directory.context.clean
        directory_total.findings += check_root(
            directory.path,
            directory_total.ends,
            partial(_find_end, directory),
            may_be_cut=directory.in_set and not is_closed,
        )
        total.merge(directory_total)
    total.findings += of_set
    return total.report()


def findings_of_set(
    differences: Iterable[ReplicaDifference],
    directories: Iterable[DirectoryDescription],
    unled: Mapping[TopicPartition, LeaderNotAvailableError],
) -> list[Finding]:
    """The findings of a set as a whole: directories that do not answer, partitions without a
    leader, and differences of replicas.
    """
    findings = []
    for directory in directories:
        if not directory.answers:
            message = f"node {directory.node} is {directory.state}: {directory.reason}"
            findings.append(Finding("away", directory.path, message))
    for tp, problem in unled.items():
        name = file_names.partition_name(*tp)
        findings.append(
            Finding("leader", name, str(problem), topic=tp.topic, partition=tp.partition)
        )
    return findings + [_finding_of_difference(difference) for difference in differences]


def _finding_of_difference(difference: ReplicaDifference) -> Finding:
    return Finding(
        "replica",
        str(difference.path),
        f"node {difference.node}: {difference.message}",
        topic=difference.topic,
        partition=difference.partition,
        first_offset=difference.first_offset,
        end_offset=difference.end_offset,
    )


def _find_end(directory: LogDirectory, topic: str, number: int) -> int:
    """The current log end of a partition, 0 if it has none any more."""
    try:
        return directory.partition(topic, number).bounds().log_end
    except EmbedlogError:
        return 0


def _find_partitions(directory: LogDirectory, total: Total) -> Iterator[PartitionPlace]:
    """The partitions of a directory; those that are missing are findings in `total`, once the
    iteration has ended. Topics may be created and deleted meanwhile.

    Three sources name them: the directories on disk, the file of topics, and the registry of the
    open log. A reader's registry prefers what the directories say, so the file comes before it.
    """
    directory.refresh_topics()
    live_directories = topic_directories.scan_directories(directory.path).live
    written = TopicRegistry(directory.path)
    written.load()
    total.findings += find_lost_topics(written)
    recorded = {topic.name for topic in written.all()}
    topics = {topic.name: topic for topic in directory.registry.all()}
    topics |= {topic.name: topic for topic in written.all()}
    for topic in topics.values():
        if not topic.is_finished:
            continue
        compacted = "compact" in directory.settings_of(topic).get("cleanup.policy", "")
        for number in topic.usable_numbers:
            path = directory.path / file_names.partition_name(topic.name, number)
            if number in live_directories.get(topic.name, {}):
                identified = topic.name in recorded or files.exists(
                    path / file_names.PARTITION_METADATA
                )
                yield PartitionPlace(
                    path,
                    topic.name,
                    number,
                    topic.topic_id,
                    gaps_allowed=compacted,
                    compacted=compacted,
                    identified=identified,
                )
            elif not files.is_directory(path) and _is_missing(directory, topic, number):
                total.findings.append(missing_partition(path, topic.name, number))


def _is_missing(directory: LogDirectory, topic: Topic, number: int) -> bool:
    """Whether the file of topics still has the partition, and its directory is still missing."""
    if not _is_registered(directory, topic.name, topic.topic_id, number):
        return False
    return not files.is_directory(directory.path / file_names.partition_name(topic.name, number))


def _is_registered(directory: LogDirectory, name: str, topic_id: str | None, number: int) -> bool:
    """Whether the file of topics still has the partition."""
    written = TopicRegistry(directory.path)
    written.load()
    registry = written
    if not files.exists(written.path):
        directory.refresh_topics()
        registry = directory.registry
    current_topic = registry.get(name)
    if current_topic is None or current_topic.topic_id != topic_id:
        return False
    return current_topic.is_finished and number in current_topic.usable_numbers


def _check_one(
    directory: LogDirectory, described: PartitionPlace, count: Count, total: Total
) -> None:
    """Check one partition as it is published at one moment, again if its segments change meanwhile.

    One that cannot be loaded is checked with what its files say; the reason is a finding, too. One
    that is deleted meanwhile has no finding.
    """
    try:
        partition = directory.partition(described.topic, described.number)
        facts = _read_facts(directory, partition, described)
        tries = 0
        begin_s = time.monotonic()
        while True:
            tries += 1
            result = Total()
            check_partition(facts, count, result)
            after = facts if result.report().good else _read_facts(directory, partition, described)
            is_unchanged = after.segments == facts.segments
            if is_unchanged or (tries >= TRIES and time.monotonic() - begin_s >= PATIENCE_S):
                break
            facts = after
        if not is_unchanged:
            result = Total()
            message = f"its segments were replaced during each of {tries} checks"
            result.findings.append(_make_unsettled_finding(described, message))
        if not result.report().damaged:
            result.findings += _find_unreadable(partition, facts)
    except LockTimeoutError as problem:
        result = Total()
        result.findings.append(_make_unsettled_finding(described, problem.message))
    except (
        CorruptRecordError,
        ForeignDirectoryError,
        StateError,
        StorageError,
        UnknownTopicOrPartitionError,
        UnsupportedFormatError,
    ) as problem:
        if not _is_registered(directory, described.topic, described.topic_id, described.number):
            return
        result = Total()
        context = directory.context
        closed = ClosedDirectory(directory.path)
        facts = closed.facts_of(described)
        check_partition(
            replace(
                facts, clean=context.clean, broker_wrote=facts.broker_wrote or context.broker_wrote
            ),
            count,
            result,
        )
        is_explained = isinstance(problem, StateError) and any(
            finding.kind == "interrupted" for finding in result.findings
        )
        if not result.report().damaged and not is_explained:
            result.findings.append(
                Finding.of("partition", described.path, problem, described.topic, described.number)
            )
    total.merge(result)


def _make_unsettled_finding(described: PartitionPlace, message: str) -> Finding:
    return Finding(
        "unsettled",
        str(described.path),
        message,
        topic=described.topic,
        partition=described.number,
    )


def _find_unreadable(partition: Partition, facts: PartitionFacts) -> list[Finding]:
    """A finding if a reader refuses the first batch of a segment."""
    for info in facts.segments or ():
        offset = max(info.base, facts.log_start)
        if offset >= min(info.next_offset, partition.bounds().high_watermark):
            continue
        try:
            partition.fetch(offset, max_bytes=1)
        except OffsetOutOfRangeError:
            continue  # its records were deleted meanwhile
        except (LockTimeoutError, UnknownTopicOrPartitionError):
            raise  # its segments are being replaced, or the topic is deleted
        except EmbedlogError as problem:
            finding = Finding.of("unreadable", facts.directory, problem, facts.topic, facts.number)
            return [finding._replace(first_offset=offset, end_offset=info.next_offset)]
    return []


def _read_facts(
    directory: LogDirectory, partition: Partition, described: PartitionPlace
) -> PartitionFacts:
    """A partition as it is published now. What a read-only process has loaded itself is replaced by
    what the manifest and the files say: its load hides what disagrees with them.
    """
    state, infos = partition.current_segments()
    is_loaded_by_reader = partition.loaded is not None
    segments = tuple(infos)
    cleaned = directory.context.cleaned
    compacted = described.compacted or bool(
        cleaned and cleaned.of(described.topic, described.number)
    )
    if is_loaded_by_reader and described.topic_id is not None:
        manifest = Manifest(described.path, identity.id_bytes(described.topic_id))
        manifest.refresh()
        recorded = list(manifest.segments.values())
        if manifest.closed is not None:
            recorded.append(manifest.closed)
        by_extent = {_extent_of(segment): segment for segment in recorded}
        segments = tuple(
            _choose_noted(described.path, segment, by_extent.get(_extent_of(segment)))
            for segment in segments
        )
        if not directory.context.clean:
            segments = (*segments[:-1], _limit_to_files(described.path, segments[-1]))
    broker_wrote = directory.context.broker_wrote or is_outdated(
        described, directory.context.last_broker_visit
    )
    return PartitionFacts(
        described.path,
        described.topic,
        described.number,
        described.topic_id,
        described.gaps_allowed,
        clean=not is_loaded_by_reader or directory.context.clean,
        broker_wrote=broker_wrote,
        log_start=state.log_start,
        compacted=compacted,
        identified=described.identified,
        segments=segments,
        log_end=state.log_end,
        in_set=directory.in_set,
    )


def _choose_noted(path: Path, loaded: SegmentInfo, noted: SegmentInfo | None) -> SegmentInfo:
    """The description of a segment in the manifest, unless its time index was made again since.

    An index that is made again can lack the last entry, which a roll adds. Then the load has found as
    many entries as the file has, and the manifest has at most one more.
    """
    if noted is None:
        return loaded
    if loaded.time_entries == noted.time_entries:
        return noted
    facts = files.facts_of(file_names.segment_path(path, loaded.base, file_names.TIME_INDEX))
    size = 0 if facts is None else facts.size
    entries, remainder = divmod(size, index.TIME_ENTRY.size)
    is_complete = loaded.time_entries == entries and remainder == 0
    was_made_again = is_complete and noted.time_entries <= entries + 1
    return loaded if was_made_again else noted


def _extent_of(segment: SegmentInfo) -> tuple[int, int, int]:
    return segment.base, segment.size, segment.next_offset


def _limit_to_files(path: Path, loaded: SegmentInfo) -> SegmentInfo:
    """The active segment with the entries of its caches that are in the files: the append that a
    crash has interrupted writes the others after the log.
    """

    def count(suffix: str, entry_bytes: int) -> int:
        facts = files.facts_of(file_names.segment_path(path, loaded.base, suffix))
        return 0 if facts is None else facts.size // entry_bytes

    index_entries = min(loaded.index_entries, count(file_names.INDEX, index.OFFSET_ENTRY.size))
    if loaded.digested:
        digest_count = count(file_names.DIGESTS, interval_digests.RECORD_BYTES)
        index_entries = min(index_entries, digest_count)
    transaction_count = count(file_names.TRANSACTION_INDEX, aborted_transactions.ENTRY_SIZE)
    if transaction_count < loaded.transaction_entries:
        loaded = loaded._replace(transaction_entries=transaction_count, transaction_digest=0)
    return loaded._replace(index_entries=index_entries)


def check_path(path: str | os.PathLike[str], progress: Progress | None = None) -> CheckReport:
    """Check one directory by its path; one that cannot be opened is checked with what its files
    say.

    Other processes may use it meanwhile. Raises DirectoryInUseError if a broker does, StorageError
    if there is no such directory.
    """
    directory = location.check_path(path)
    try:
        engine = open_directory(
            directory, read_only=True, create=False, config=parse(LogConfig, None)
        )
    except DirectoryInUseError:
        raise
    except EmbedlogError as problem:
        if not files.is_directory(directory):
            raise
        report = check_closed(directory, progress)
        if report.damaged:
            return report
        finding = Finding.of("directory", directory, problem)
        return replace(report, findings=(finding, *report.findings))
    try:
        return check(engine, progress=progress)
    finally:
        engine.close()
