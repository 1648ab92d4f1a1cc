"""Defines the findings of a check: what is wrong where, what it means, and what repairs it.

- Damage: records, or facts that no other file has, are lost, unreadable, or less protected than
  the settings require. Somebody has to act.
- A cache can be made again from other files, or judged by a later check. Until then it costs time
  or certainty, and no record.
- A note is about what is no part of the log, or what the next process that writes finishes by
  itself. Its remedy is a choice.
- A finding names its file; `position` is a byte in it, None if the whole file is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from embedlog.descriptions.display import tables
from embedlog.errors import EmbedlogError

DAMAGE: Final = "damage"
CACHE: Final = "cache"
NOTE: Final = "note"

_FROM_COPY: Final = "restore it from a backup or another replica"
KINDS: Final[dict[str, tuple[str, str, str]]] = {  # kind: severity, meaning, remedy
    "records": (
        DAMAGE,
        "these records cannot be read; those before and after them can",
        "a set copies them from another replica; otherwise restore a backup, or a repair cuts the "
        "bytes out and keeps them",
    ),
    "headers": (
        DAMAGE,
        "a batch header in this range is not the one that was written; Kafka's checksum does not "
        "cover it",
        "a set copies the records from another replica; otherwise a repair restores an offset if "
        "its neighbours show it",
    ),
    "missing-records": (
        DAMAGE,
        "these records are lost",
        "a set copies them from another replica; otherwise restore a backup, or a repair "
        "continues after the gap",
    ),
    "gap": (
        DAMAGE,
        "records are lost, unless a compaction removed them: neither settings, checkpoint nor "
        "batches show one",
        "restore the segment from a backup or another replica; if the topic was compacted, a "
        "repair notes the gap",
    ),
    "partition": (
        DAMAGE,
        "the partition cannot be opened",
        "a repair of the other findings, or a backup",
    ),
    "missing-partition": (
        DAMAGE,
        "the directory of a partition is missing, with all its records",
        _FROM_COPY,
    ),
    "topics": (
        DAMAGE,
        "settings of topics, and empty topics, are unknown; while the file is damaged, the "
        "directory cannot be opened",
        "restore it from a backup, or a repair reads the topics from their directories; their "
        "settings are then the defaults",
    ),
    "identity": (
        DAMAGE,
        "the identity of the directory or of a topic is unknown",
        "restore it from a backup or another replica, or a repair gives a new one, which brokers "
        "of its cluster do not know",
    ),
    "checkpoint": (
        DAMAGE,
        "an offset of the directory is unknown",
        "restore it from a backup, or a repair takes the log starts from the manifests and the "
        "first segments",
    ),
    "checkpoint-cache": (
        CACHE,
        "offsets are read from the partitions",
        "the next process that writes makes it again",
    ),
    "away": (
        DAMAGE,
        "its files are not checked, and its replicas get no records",
        "bring the directory back, and its replicas catch up; or move them to other directories, "
        "and retire it",
    ),
    "leader": (
        DAMAGE,
        "no replica leads: records of the partition cannot be read, and none can be written",
        "bring a directory with a complete replica back, or elect a leader",
    ),
    "replica": (
        DAMAGE,
        "a replica is damaged, or differs from its leader",
        "a repair copies it from a complete replica",
    ),
    "directory": (
        DAMAGE,
        "the directory cannot be opened",
        "a repair of the other findings, or a backup",
    ),
    "overflow": (
        CACHE,
        "a broker before Kafka 1.1 has merged too much into one segment: it is read without its "
        "index",
        "the next process that writes splits the segment, as Kafka does",
    ),
    "index": (CACHE, "reads by offset or time take longer", "a repair makes it again from the log"),
    "transaction-index": (
        CACHE,
        "readers of committed records must search for aborted ones",
        "a repair makes it again",
    ),
    "digests": (
        CACHE,
        "later damage outside of Kafka's checksum can stay unseen",
        "a repair makes them again from the log",
    ),
    "snapshot": (
        CACHE,
        "producers are read from the log at the next recovery",
        "a repair removes it",
    ),
    "manifest": (
        CACHE,
        "the next opening reads segments; digests are lost",
        "the next process that writes makes it again",
    ),
    "unreadable": (
        DAMAGE,
        "a reader refuses these records, although their files are in order by themselves",
        "read the message; a repair makes caches and leader epochs again, otherwise restore a "
        "backup",
    ),
    "epochs": (
        DAMAGE,
        "records that were written in other epochs are refused",
        "a repair makes it again from the log",
    ),
    "missing-epochs": (
        CACHE,
        "each load reads the leader epochs from the batches",
        "a repair makes it again from the log",
    ),
    "durable": (
        CACHE,
        "the end of the durable records is unknown",
        "the next sync writes it again",
    ),
    "unsettled": (
        CACHE,
        "its files were not compared: other processes compact them",
        "check the log again at a calmer time",
    ),
    "unfinished": (
        NOTE,
        "an append or a roll was interrupted; no process has read these bytes",
        "the next process that writes cuts them, or writes the file again",
    ),
    "interrupted": (
        NOTE,
        "a compaction, a split or a deletion of segments ended in its middle; no record is lost",
        "the next process that writes finishes it (a repair does so, too); until a replacement is "
        "finished, readers without the right to write are refused",
    ),
    "kept": (
        NOTE,
        "bytes that a recovery or a repair has cut out of the log",
        "remove the file if they are not needed",
    ),
    "failed-sync": (
        NOTE,
        "the disk may not have what a sync wrote: the next one writes its bytes again, and "
        "nothing is appended to the segment",
        "keep the file: without it these bytes would count as stable",
    ),
    "unknown-file": (NOTE, "the file does not belong to the log", "none: it is ignored"),
    "unknown-directory": (
        NOTE,
        "the directory is named as a partition and is none: embedlog ignores it, a broker would "
        "take it for a topic",
        "move it",
    ),
}


class Finding(NamedTuple):
    """One finding of a check. `first_offset` and `end_offset` bound the records that it concerns,
    -1 if none.
    """

    kind: str
    path: str
    message: str
    position: int | None = None
    expected: object = None
    found: object = None
    topic: str | None = None
    partition: int | None = None
    first_offset: int = -1
    end_offset: int = -1

    @property
    def severity(self) -> str:
        """damage, cache or note."""
        return KINDS[self.kind][0]

    @property
    def meaning(self) -> str:
        """The consequence for readers and writers."""
        return KINDS[self.kind][1]

    @property
    def remedy(self) -> str:
        """What repairs it."""
        return KINDS[self.kind][2]

    @classmethod
    def of(
        cls,
        kind: str,
        path: Path,
        problem: EmbedlogError,
        topic: str | None = None,
        partition: int | None = None,
    ) -> Self:
        """The finding for an error. `path` is the file or directory in which it was noticed: the
        error can name a file there.
        """
        file = path if problem.path is None else path / problem.path
        return cls(
            kind,
            str(file),
            problem.message,
            position=problem.position,
            expected=problem.expected,
            found=problem.found,
            topic=topic,
            partition=partition,
        )

    def __str__(self) -> str:
        text = f"{self.severity}: {self.path}"
        if self.position is not None:
            text += f", byte {self.position}"
        if 0 <= self.first_offset < self.end_offset:
            text += f", offsets {self.first_offset} to {self.end_offset - 1}"
        text += f": {self.message}"
        if self.expected is not None:
            text += f" (expected {self.expected}, found {self.found})"
        return text


@dataclass(frozen=True)
class CheckReport:
    """The result of a check.

    `partitions`, `segments`, `batches` and `size_bytes` count what was read. After a repair,
    `repaired` describes the changes, and `findings` is what is left. `internal_partitions` are
    those of internal topics, for example `__consumer_offsets`; `partitions` includes them.
    """

    findings: tuple[Finding, ...] = ()
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    size_bytes: int = 0
    repaired: tuple[str, ...] = ()
    internal_partitions: int = 0

    @property
    def damaged(self) -> bool:
        """Whether a finding is damage."""
        return any(finding.severity == DAMAGE for finding in self.findings)

    @property
    def good(self) -> bool:
        """Whether there is neither damage nor an invalid cache."""
        return all(finding.severity == NOTE for finding in self.findings)

    def __str__(self) -> str:
        partitions = tables.partition_count_text(self.partitions, self.internal_partitions)
        segments = tables.count_text(self.segments, "segment")
        size = tables.count_text(self.size_bytes, "byte")
        finding_count = sum(finding.severity != NOTE for finding in self.findings)
        result = tables.count_text(finding_count, "finding") if finding_count else "in order"
        lines = [f"{partitions}, {segments}, {size}: {result}"]
        lines += [f"repaired: {change}" for change in self.repaired]
        for finding in self.findings:
            lines.append(str(finding))
            lines.append(f"    means: {finding.meaning}")
            lines.append(f"    remedy: {finding.remedy}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<embedlog.CheckReport: {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        head = ("severity", "file", "position", "finding", "means", "remedy")
        rows = [
            (
                finding.severity,
                finding.path,
                finding.position,
                finding.message,
                finding.meaning,
                finding.remedy,
            )
            for finding in self.findings
        ]
        return tables.make_short_table(str(self).splitlines()[0], head, rows)
