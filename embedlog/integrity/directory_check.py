"""Checks a log directory: its own files, and all partitions.

DIRECTORYCHECK-1  a directory that is not open is checked with what its files say; nothing is
    changed, and no lock is held
DIRECTORYCHECK-2  a partition of a topic that is not in its place is a finding, also if all other
    files are in order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from embedlog.coordination import topic_directories
from embedlog.coordination.closed_directory import Use, last_use
from embedlog.errors import EmbedlogError, StorageError
from embedlog.integrity.partition_check import Checked, Known, PartitionCheck
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
        self.partitions = self.internal_partitions = self.segments = self.batches = (
            self.size_bytes
        ) = 0
        self.ends: checkpoints.Offsets = {}  # the log ends

    def add(self, known: Known, checked: Checked) -> None:
        """Add one partition."""
        self.partitions += 1
        self.internal_partitions += is_internal(known.topic)
        if checked.end is not None:
            self.ends[known.topic, known.number] = checked.end
        self.findings += checked.findings
        self.segments += len(checked.segments)
        self.batches += sum(each.batches for each in checked.segments)
        self.size_bytes += sum(each.segment.size for each in checked.segments)

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
        found = sorted(self.findings, key=lambda each: order[each.severity])
        return CheckReport(
            tuple(found),
            self.partitions,
            self.segments,
            self.batches,
            self.size_bytes,
            internal_partitions=self.internal_partitions,
        )


def root_findings(
    path: Path,
    ends: checkpoints.Offsets,
    end_now: Callable[[str, int], int] = lambda topic, number: 0,
) -> list[Finding]:
    """The findings in the files of the directory itself.

    `ends` are the log ends of its partitions when they were checked. An open log may have grown
    since: `end_now` is asked then.
    """
    found = []
    try:
        # A broker reads a directory without the file, which brokers before 0.9 did not write.
        # embedlog writes it first.
        if identity.read_meta(path) is None and files.exists(path / file_names.TOPICS):
            found.append(
                Finding("identity", str(path / file_names.META_PROPERTIES), "the file is missing")
            )
    except EmbedlogError as problem:
        found.append(Finding.of("identity", path / file_names.META_PROPERTIES, problem))
    for name in (
        file_names.RECOVERY_POINTS,
        file_names.LOG_STARTS,
        file_names.HIGH_WATERMARKS,
        file_names.CLEANER,
    ):
        kind = "checkpoint-cache" if name in file_names.CACHES else "checkpoint"
        try:
            offsets = checkpoints.read_exactly(path / name)
        except EmbedlogError as problem:
            found.append(Finding.of(kind, path / name, problem))
            continue
        for (topic, number), offset in offsets.items():
            if offset > (end := ends.get((topic, number), offset)) and offset > (
                end := max(end, end_now(topic, number))
            ):
                message = f"the offset of {topic}-{number} is after its log"
                expected = f"at most {end}"
                found.append(
                    Finding(kind, str(path / name), message, None, expected, offset, topic, number)
                )
    for each in topic_directories.scan_directories(path).foreign:
        example = topic_directories.foreign_name(each, follow_links=True)
        found.append(
            Finding(
                "unknown-directory",
                str(each),
                "no partition",
                None,
                "files of a partition",
                example,
            )
        )
    return found


def lost_topics(registry: TopicRegistry) -> list[Finding]:
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


class Place(NamedTuple):
    """A partition that the directory has, or should have."""

    path: Path
    topic: str
    number: int
    topic_id: str | None
    gaps_allowed: bool
    compacted: bool = False  # by the settings of the topic
    identified: bool = True  # a file has named the topic's id


def is_outdated(place: Place, visit: int) -> bool:
    """Whether the manifest of a partition describes a time before a broker's last visit, as a load
    decides it.
    """
    if place.topic_id is None:
        return True
    manifest = Manifest(place.path, identity.id_bytes(place.topic_id))
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
        self.clean, self.foreign = use or self._last_use()
        self._visit = identity.read_visit(path)
        self.log_starts = self._offsets(file_names.LOG_STARTS)
        self.cleaned = self._offsets(file_names.CLEANER)

    def _last_use(self) -> Use:
        try:
            return last_use(self.path)
        except EmbedlogError as problem:
            self.findings.append(Finding.of("directory", self.path, problem))
            return Use(clean=False, by_broker=True)

    def _offsets(self, name: str) -> checkpoints.Offsets:
        try:
            return checkpoints.read_offsets(self.path / name)
        except EmbedlogError:  # a finding of the root
            return {}

    def places(self) -> Iterator[Place]:
        """Every partition, by the file of topics and by the names of directories. Findings for what
        is missing.
        """
        registry = TopicRegistry(self.path)
        try:
            registry.load()
        except EmbedlogError as problem:
            self.findings.append(Finding.of("topics", registry.path, problem))
        self.findings += lost_topics(registry)
        there = topic_directories.scan_directories(self.path).live
        known = {topic.name: topic for topic in registry.all()}
        for name in sorted(known.keys() | there.keys()):
            topic = known.get(name)
            numbers = there.get(name, {})
            wanted = (
                set()
                if topic is None or topic.state != "live"
                else {each for each in topic.numbers if each < topic.partitions}
            )
            for number in sorted(wanted | numbers.keys()):
                path = self.path / file_names.partition_name(name, number)
                if number not in numbers:
                    self.findings.append(
                        Finding(
                            "missing-partition",
                            str(path),
                            "no such directory",
                            topic=name,
                            partition=number,
                        )
                    )
                    continue
                settings = {} if topic is None else topic.config
                compacted = "compact" in settings.get("cleanup.policy", "")
                topic_id = self._id_of(path, None if topic is None else topic.topic_id)
                yield Place(path, name, number, topic_id, compacted or topic is None, compacted)

    @staticmethod
    def _id_of(path: Path, known: str | None) -> str | None:
        """The id of a topic; that of the directory if the topic is not known."""
        if known is not None:
            return known
        try:
            return identity.read_topic_id(path)
        except EmbedlogError:  # a finding of the partition
            return None

    def known(self, place: Place) -> Known:
        """What the files of the directory say about a partition."""
        key = place.topic, place.number
        foreign = self.foreign or is_outdated(place, self._visit)
        return Known(
            place.path,
            place.topic,
            place.number,
            place.topic_id,
            place.gaps_allowed or foreign,
            self.clean,
            foreign,
            self.log_starts.get(key, 0),
            place.compacted or self.cleaned.get(key, 0) > 0,
            place.identified,
        )


def size_of(path: Path) -> int:
    """The bytes of the segments in a partition directory, 0 if it cannot be read."""
    try:
        names = [name for name in files.listing(path) if name.endswith(file_names.LOG)]
        return sum(
            facts.size for name in names if (facts := files.facts_of(path / name)) is not None
        )
    except StorageError:
        return 0


def check_closed(path: Path, progress: Progress | None = None) -> CheckReport:
    """Check a directory that cannot be opened (DIRECTORYCHECK-1). Raises StorageError if it cannot
    be listed.
    """
    directory = ClosedDirectory(path)
    total = Total()
    places = list(directory.places())
    count = Count(sum(size_of(each.path) for each in places), progress)
    for place in places:
        check_partition(directory.known(place), count, total)
    total.findings += directory.findings + root_findings(path, total.ends)
    return total.report()


def check_partition(known: Known, count: Count, total: Total) -> Checked | None:
    """Check one partition; files that cannot be read are a finding, None is returned for these."""
    try:
        checked = PartitionCheck(known, count.add).run()
    except StorageError as problem:
        total.findings.append(
            Finding.of("partition", known.directory, problem, known.topic, known.number)
        )
        return None
    total.add(known, checked)
    return checked
