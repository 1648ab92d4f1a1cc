"""Checks a log directory: its own files, and all partitions.

- A directory that is not open is checked with what its files say; nothing is changed, and no lock
  is held.
- A partition of a topic that is not in its place is a finding, also if all other files are in
  order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from embedlog.coordination import topic_directories
from embedlog.coordination.closed_directory import Use, find_last_use
from embedlog.errors import EmbedlogError, StorageError
from embedlog.integrity.partition_check import PartitionCheck, PartitionFacts, PartitionResult
from embedlog.integrity.report import CheckReport, Finding
from embedlog.storage import checkpoints, file_names, files, identity
from embedlog.storage.manifest import Manifest, changed_by_others
from embedlog.topic import TopicRegistry, is_internal

Progress = Callable[[int, int], object]  # bytes read so far, all bytes


class Count:
    """The bytes of one check, for its progress."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def add(self, size: int) -> None:
        """Note bytes that were read. Raises what the progress function raises: that ends the
        check.
        """
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


class Total:
    """Collects the results of partitions."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.partitions = 0
        self.internal_partitions = 0
        self.segments = 0
        self.batches = 0
        self.size_bytes = 0
        self.ends: checkpoints.Offsets = {}  # the log ends

    def add(self, facts: PartitionFacts, checked: PartitionResult) -> None:
        """Add one partition."""
        self.partitions += 1
        self.internal_partitions += is_internal(facts.topic)
        if checked.end is not None:
            self.ends[facts.topic, facts.number] = checked.end
        self.findings += checked.findings
        self.segments += len(checked.segments)
        self.batches += sum(check.batches for check in checked.segments)
        self.size_bytes += sum(check.segment.size for check in checked.segments)

    def merge(self, other: Total) -> None:
        """Add another total."""
        self.findings += other.findings
        self.ends |= other.ends
        self.partitions += other.partitions
        self.internal_partitions += other.internal_partitions
        self.segments += other.segments
        self.batches += other.batches
        self.size_bytes += other.size_bytes

    def report(self) -> CheckReport:
        """The report of all that was added: damage first."""
        order = {"damage": 0, "cache": 1, "note": 2}
        findings = sorted(self.findings, key=lambda finding: order[finding.severity])
        return CheckReport(
            tuple(findings),
            partitions=self.partitions,
            segments=self.segments,
            batches=self.batches,
            size_bytes=self.size_bytes,
            internal_partitions=self.internal_partitions,
        )


def check_root(
    path: Path,
    ends: checkpoints.Offsets,
    end_now: Callable[[str, int], int] = lambda topic, number: 0,
    *,
    may_be_cut: bool = False,
) -> list[Finding]:
    """The findings in the files of the directory itself.

    `ends` are the log ends of its partitions when they were checked. An open log may have grown
    since: `end_now` is asked then. `may_be_cut`: of replicas that may have been cut, or begun again,
    since the checkpoints were written.
    """
    findings = []
    try:
        # A broker reads a directory without the file, which brokers before 0.9 did not write.
        # embedlog writes it first.
        if identity.read_meta(path) is None and files.exists(path / file_names.TOPICS):
            findings.append(
                Finding("identity", str(path / file_names.META_PROPERTIES), "the file is missing")
            )
    except EmbedlogError as problem:
        findings.append(Finding.of("identity", path / file_names.META_PROPERTIES, problem))
    for name in (
        file_names.RECOVERY_POINTS,
        file_names.LOG_STARTS,
        file_names.HIGH_WATERMARKS,
        file_names.CLEANER,
    ):
        kind = "checkpoint-cache" if name in file_names.CACHES else "checkpoint"
        try:
            offsets = checkpoints.read_offsets_exactly(path / name)
        except EmbedlogError as problem:
            findings.append(Finding.of(kind, path / name, problem))
            continue
        for (topic, number), offset in offsets.items():
            end = ends.get((topic, number), offset)
            if offset > end:
                end = max(end, end_now(topic, number))
            if offset > end and not may_be_cut:
                findings.append(
                    Finding(
                        kind,
                        str(path / name),
                        f"the offset of {topic}-{number} is after its log",
                        expected=f"at most {end}",
                        found=offset,
                        topic=topic,
                        partition=number,
                    )
                )
    findings += [
        Finding(
            "unknown-directory",
            str(directory),
            "no partition",
            expected="files of a partition",
            found=topic_directories.find_unknown_name(directory, follow_links=True),
        )
        for directory in topic_directories.scan_directories(path).lookalikes
    ]
    return findings


def find_lost_topics(registry: TopicRegistry) -> list[Finding]:
    """A finding if the file of topics is missing although embedlog has written to a partition."""
    if files.exists(registry.path):
        return []
    paths = (
        path
        for numbers in topic_directories.scan_directories(registry.path.parent).live.values()
        for path in numbers.values()
    )
    if not any(files.exists(path / file_names.MANIFEST) for path in paths):
        return []
    return [Finding("topics", str(registry.path), "the file is missing")]


def missing_partition(path: Path, topic: str, number: int) -> Finding:
    """A partition of a known topic has no directory."""
    return Finding(
        "missing-partition", str(path), "no such directory", topic=topic, partition=number
    )


class PartitionPlace(NamedTuple):
    """A partition that the directory has, or should have."""

    path: Path
    topic: str
    number: int
    topic_id: str | None
    gaps_allowed: bool
    compacted: bool = False  # by the settings of the topic
    identified: bool = True  # a file has named the topic's id


def is_outdated(partition: PartitionPlace, visit: int) -> bool:
    """Whether the manifest of a partition describes a time before a broker's last visit, as a load
    decides it.
    """
    if partition.topic_id is None:
        return True
    manifest = Manifest(partition.path, identity.id_bytes(partition.topic_id))
    try:
        manifest.refresh()
    except EmbedlogError:  # a finding of the partition
        return True
    return changed_by_others(manifest, visit)


class ClosedDirectory:
    """A directory that this process has not opened. Threads: one."""

    def __init__(self, path: Path, use: Use | None = None) -> None:
        """`use` is its last use, if the caller knows it."""
        self.path = path
        self.findings: list[Finding] = []
        self.clean, self.broker_wrote = self._last_use() if use is None else use
        self._visit = identity.read_visit(path)
        self.log_starts = self._offsets(file_names.LOG_STARTS)
        self.cleaned = self._offsets(file_names.CLEANER)

    def _last_use(self) -> Use:
        try:
            return find_last_use(self.path)
        except EmbedlogError as problem:
            self.findings.append(Finding.of("directory", self.path, problem))
            return Use(clean=False, broker_wrote=True)

    def _offsets(self, name: str) -> checkpoints.Offsets:
        try:
            return checkpoints.read_offsets(self.path / name)
        except EmbedlogError:  # a finding of the root
            return {}

    def find_partitions(self) -> Iterator[PartitionPlace]:
        """Every partition, by the file of topics and by the names of directories. Findings for what
        is missing.
        """
        registry = TopicRegistry(self.path)
        try:
            registry.load()
        except EmbedlogError as problem:
            self.findings.append(Finding.of("topics", registry.path, problem))
        self.findings += find_lost_topics(registry)
        directories = topic_directories.scan_directories(self.path).live
        topics = {topic.name: topic for topic in registry.all()}
        for name in sorted(topics.keys() | directories.keys()):
            topic = topics.get(name)
            existing = directories.get(name, {})
            required: set[int] = set()
            if topic is not None and topic.state == "live":
                required = {number for number in topic.numbers if number < topic.partitions}
            for number in sorted(required | existing.keys()):
                path = self.path / file_names.partition_name(name, number)
                if number not in existing:
                    self.findings.append(missing_partition(path, name, number))
                    continue
                settings = {} if topic is None else topic.config
                compacted = "compact" in settings.get("cleanup.policy", "")
                topic_id = self._id_of(path, None if topic is None else topic.topic_id)
                # a creation that was interrupted has not written the id yet
                is_made = topic is None or (topic.state != "creating" and number < topic.partitions)
                yield PartitionPlace(
                    path,
                    name,
                    number,
                    topic_id,
                    gaps_allowed=compacted or topic is None,
                    compacted=compacted,
                    identified=is_made,
                )

    @staticmethod
    def _id_of(path: Path, known: str | None) -> str | None:
        """The id of a topic; that of the directory if the topic is not known."""
        if known is not None:
            return known
        try:
            return identity.read_topic_id(path)
        except EmbedlogError:  # a finding of the partition
            return None

    def facts_of(self, partition: PartitionPlace) -> PartitionFacts:
        """What the files of the directory say about a partition."""
        key = partition.topic, partition.number
        broker_wrote = self.broker_wrote or is_outdated(partition, self._visit)
        return PartitionFacts(
            partition.path,
            partition.topic,
            partition.number,
            partition.topic_id,
            gaps_allowed=partition.gaps_allowed or broker_wrote,
            clean=self.clean,
            broker_wrote=broker_wrote,
            log_start=self.log_starts.get(key, 0),
            compacted=partition.compacted or self.cleaned.get(key, 0) > 0,
            identified=partition.identified,
        )


def size_of(path: Path) -> int:
    """The bytes of the segments in a partition directory, 0 if it cannot be read."""
    try:
        names = [name for name in files.listing(path) if name.endswith(file_names.LOG)]
        size_bytes = 0
        for name in names:
            facts = files.facts_of(path / name)
            if facts is not None:
                size_bytes += facts.size
        return size_bytes
    except StorageError:
        return 0


def check_closed(path: Path, progress: Progress | None = None) -> CheckReport:
    """Check a directory that cannot be opened, by what its files say. Raises StorageError if it
    cannot be listed.
    """
    directory = ClosedDirectory(path)
    total = Total()
    partitions = list(directory.find_partitions())
    count = Count(sum(size_of(partition.path) for partition in partitions), progress)
    for partition in partitions:
        check_partition(directory.facts_of(partition), count, total)
    may_be_cut = not directory.clean and files.exists(path / file_names.REPLICAS)
    total.findings += directory.findings
    total.findings += check_root(path, total.ends, may_be_cut=may_be_cut)
    return total.report()


def check_partition(facts: PartitionFacts, count: Count, total: Total) -> PartitionResult | None:
    """Check one partition; files that cannot be read are a finding, None is returned for these."""
    try:
        checked = PartitionCheck(facts, count.add).run()
    except StorageError as problem:
        total.findings.append(
            Finding.of("partition", facts.directory, problem, facts.topic, facts.number)
        )
        return None
    total.add(facts, checked)
    return checked
