"""What the processes of a set reported, and the judge of the files that they leave. No code of the
package is used.

The judge reads the segments and the decision log by the words of Kafka's format.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.harness.content import Mark, Verdict, mark_of
from tests.support.oracle import HEADER, read_batch, whole_batches

TRANSACTIONAL = 16
CONTROL = 32
PARTITION_RECORD = 3
REPLICA_STATE = "__replica_state-0"
INTERNAL = ("__consumer_offsets", "__transaction_state")


STALL = "stall: "  # begins a violation of progress: nothing was lost or changed


def contradictions(violations: Iterable[str]) -> list[str]:
    """The violations that records, files or decisions show, without those of progress."""
    return [each for each in violations if not each.startswith(STALL)]


class Stored(NamedTuple):
    """A data record in a file."""

    offset: int
    epoch: int
    value: bytes
    committed: bool


class Ended(NamedTuple):
    """What was reported until some moment."""

    acks: dict[tuple[int, int], Mark]
    transactions: dict[tuple[int, int], bool]  # whether they were committed


@dataclass
class Ledger:
    """The reports of all processes of a history."""

    acks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    shown: dict[tuple[int, int], tuple[int, bytes]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    ending: dict[tuple[int, int], bool] = field(default_factory=dict)
    ended: dict[tuple[int, int], bool] = field(default_factory=dict)
    consumed: set[tuple[int, int]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    _latest: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def take(self, reporter: int, note: tuple[Any, ...]) -> None:
        """A note of a process."""
        what, *content = note
        getattr(self, f"_{what}")(reporter, *content)

    def _failed(self, reporter: int, call: str, text: str) -> None:
        self.failures[f"{call}: {text.partition(':')[0]}"] += 1
        if "OutOfRange" in text or "AssertionError" in text:
            self.violations.append(f"{call}: {text}")

    def _fell(self, reporter: int, partition: int, before: int, end: int, replicas: str) -> None:
        self.violations.append(
            f"the end of partition {partition} fell from {before} to {end}; directly after "
            f"that:\n{replicas}"
        )

    def _acked(self, reporter: int, partition: int, found: Iterable[tuple[int, Mark]]) -> None:
        for offset, mark in found:
            known = self.acks.setdefault((partition, offset), mark := Mark(*mark))
            if known != mark:
                self.violations.append(
                    f"two acknowledgements of partition {partition}, offset {offset}: {known} and "
                    f"{mark}"
                )
            self.counts["acknowledged"] += 1

    def _ending(self, reporter: int, writer: int, turn: int, commit: bool) -> None:
        self.ending[writer, turn] = commit

    def _ended(self, reporter: int, writer: int, turn: int, commit: bool) -> None:
        self.ended[writer, turn] = commit
        self.counts["transactions"] += 1

    def _rows(
        self,
        reporter: int,
        isolation: str,
        rows: Iterable[tuple[int, int, int, bytes]],
        ends: Mapping[int, int],
    ) -> None:
        self._see(reporter, rows)
        for partition, end in ends.items():
            # also of earlier readers: at most one runs at a time
            before = self.ends.get(partition, 0)
            if end < before:
                self.violations.append(
                    f"{isolation}: the end of partition {partition} fell from {before} to {end}"
                )
            self.ends[partition] = max(before, end)

    def _see(self, reporter: int, rows: Iterable[tuple[int, int, int, bytes]]) -> None:
        for partition, offset, epoch, value in rows:
            self.counts["records_read"] += 1
            before, highest = self._latest.get((reporter, partition), (-1, -1))
            if offset <= before:
                self.violations.append(
                    f"reader {reporter} of partition {partition} got {offset} after {before}"
                )
            if epoch < highest:
                self.violations.append(
                    f"reader {reporter} of partition {partition} got epoch {epoch} after "
                    f"{highest} at {offset}"
                )
            self._latest[reporter, partition] = (offset, max(epoch, highest))
            known = self.shown.setdefault((partition, offset), (epoch, value))
            if known != (epoch, value):
                both = f"{_told(*known)} and {_told(epoch, value)}"
                self.violations.append(
                    f"two records were read at partition {partition}, offset {offset}: {both}"
                )

    def _consumed(self, reporter: int, rows: Iterable[tuple[int, int, int, bytes]]) -> None:
        for partition, offset, epoch, value in rows:
            self.consumed.add((partition, offset))
            known = self.shown.setdefault((partition, offset), (epoch, value))
            if known != (epoch, value):
                self.violations.append(
                    f"the group got another record than a reader at partition {partition}, offset "
                    f"{offset}"
                )

    # ---- the files -------------------------------------------------------------------------------

    def judge(self, directories: Mapping[int, Path], topic: str, partitions: int) -> Verdict:
        """The files of all directories, when every process has ended and every replica is in
        sync.
        """
        verdict = Verdict(len(self.acks), self.counts["records_read"], list(self.violations))
        bad = verdict.violations.append
        if self.violations:
            return verdict  # the set may not be level
        seen: dict[Mark, tuple[int, int]] = {}
        whole: dict[tuple[int, int], list[bool]] = {}
        for number in range(partitions):
            logs = {
                node: log_bytes(path / f"{topic}-{number}") for node, path in directories.items()
            }
            first = next(iter(logs.values()))
            for problem in unequal(logs):
                bad(f"partition {number}: {problem}")
            found: dict[int, Stored] = {}
            for problem in self._read(first, found):
                bad(f"partition {number}: {problem}")
            latest: dict[int, int] = {}
            for row in found.values():
                mark = mark_of(row.value)
                if mark is None:
                    bad(f"partition {number}: offset {row.offset} is no value of ours")
                    continue
                if mark in seen:
                    bad(f"{mark} is at {seen[mark]} and again at {(number, row.offset)}")
                seen[mark] = (number, row.offset)
                if latest.get(mark.writer, -1) >= mark.number:
                    bad(
                        f"partition {number}: writer {mark.writer} has {mark.number} after "
                        f"{latest[mark.writer]}"
                    )
                latest[mark.writer] = mark.number
                if row.committed and (number, row.offset) not in self.consumed:
                    bad(f"the group never got partition {number}, offset {row.offset}")
                if mark.writer >= TRANSACTIONS:
                    whole.setdefault((mark.writer, mark.number // partitions), []).append(
                        row.committed
                    )
            for (at, offset), (epoch, value) in self.shown.items():
                there = found.get(offset)
                if at == number and (there is None or (there.epoch, there.value) != (epoch, value)):
                    now = _told(there.epoch, there.value) if there is not None else "nothing"
                    bad(
                        f"partition {number}, offset {offset}: {_told(epoch, value)} was read; "
                        f"now {now}"
                    )
            for (at, offset), mark in self.acks.items():
                there = found.get(offset)
                if at == number and (there is None or mark_of(there.value) != mark):
                    now = _told(there.epoch, there.value) if there is not None else "nothing"
                    bad(
                        f"acknowledged {mark} at partition {number}, offset {offset} is at "
                        f"{seen.get(mark)}; now {now} is there"
                    )
            if (end := end_of(first)) < self.ends.get(number, 0):
                bad(
                    f"partition {number} ends at {end}, below the end {self.ends[number]} that a "
                    "reader saw"
                )
        self._judge_transactions(whole, partitions, bad, self.ended)
        for problem in (*two_leaders(directories), *unequal_values(directories)):
            bad(problem)
        return verdict

    def judge_backup(self, directory: Path, topic: str, partitions: int, before: Ended) -> None:
        """The files of a backup: what was acknowledged or decided before it began, and whole
        transactions.
        """
        whole: dict[tuple[int, int], list[bool]] = {}

        def bad(text: str) -> None:
            self.violations.append(f"backup: {text}")

        for number in range(partitions):
            found: dict[int, Stored] = {}
            for problem in self._read(log_bytes(directory / f"{topic}-{number}"), found):
                bad(f"partition {number}: {problem}")
            marks = {offset: mark_of(row.value) for offset, row in found.items()}
            for (at, offset), mark in before.acks.items():
                if at == number and marks.get(offset) != mark:
                    bad(
                        f"acknowledged {mark} at partition {number}, offset {offset}; "
                        f"{marks.get(offset)} is there"
                    )
            for offset, mark in marks.items():
                if mark is None:
                    bad(f"partition {number}: offset {offset} is no value of ours")
                elif mark.writer >= TRANSACTIONS:
                    whole.setdefault((mark.writer, mark.number // partitions), []).append(
                        found[offset].committed
                    )
        self._judge_transactions(whole, partitions, bad, before.transactions)

    def ended_so_far(self) -> Ended:
        return Ended(dict(self.acks), dict(self.ended))

    def _judge_transactions(
        self,
        whole: Mapping[tuple[int, int], list[bool]],
        partitions: int,
        bad: Callable[[str], None],
        ended: Mapping[tuple[int, int], bool],
    ) -> None:
        for place, found in whole.items():
            if len(set(found)) > 1 or (found[0] and len(found) != partitions):
                bad(f"transaction {place} is committed in a part only: {found}")
            if found[0] and place not in self.ending:
                bad(f"transaction {place} is committed without a request")
            if found[0] and not self.ending.get(place, True):
                bad(f"transaction {place} is committed, but was to be aborted")
        for place, commit in ended.items():
            found = whole.get(place, [])
            if commit != (bool(found) and all(found)):
                bad(
                    f"transaction {place} was {'committed' if commit else 'aborted'}, and is "
                    f"{found}"
                )

    def _read(self, data: bytes, found: dict[int, Stored]) -> Iterator[str]:
        """The records of a log, and what is wrong with it."""
        batches = whole_batches(data)
        if sum(map(len, batches)) != len(data):
            yield f"{len(data) - sum(map(len, batches))} bytes after the last whole batch"
        following = 0
        last_epoch = -1
        pending: dict[tuple[int, int], list[Stored]] = {}
        for raw in batches:
            base, _, epoch, _, _, attributes, delta, _, _, producer, _, _, _ = HEADER.unpack_from(
                raw
            )
            if base != following:
                yield f"offset {base} where {following} was due"
            if epoch < last_epoch:
                yield f"epoch {epoch} after {last_epoch} at offset {base}"
            following = base + delta + 1
            last_epoch = epoch
            rows = read_batch(raw)
            if attributes & CONTROL:
                commits = struct.unpack_from(">hh", rows[0].key or b"\0\0\0\0")[1] == 1
                for row in pending.pop((producer, 0), []):
                    found[row.offset] = row._replace(committed=commits)
                continue
            plain = not attributes & TRANSACTIONAL
            for each in rows:
                stored = Stored(each.offset, epoch, each.value or b"", plain)
                found[each.offset] = stored
                if not plain:
                    pending.setdefault((producer, 0), []).append(stored)


TRANSACTIONS = 100  # from this number on a writer writes transactions


def _told(epoch: int, value: bytes) -> str:
    return f"{mark_of(value)} of epoch {epoch}"


def log_bytes(directory: Path) -> bytes:
    """The bytes of all segments of a partition."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def end_of(data: bytes) -> int:
    """The offset after the last batch of a log."""
    batches = whole_batches(data)
    if not batches:
        return 0
    base, _, _, _, _, _, delta, *_ = HEADER.unpack_from(batches[-1])
    return int(base + delta + 1)


def unequal_values(directories: Mapping[int, Path]) -> Iterator[str]:
    """Internal topics whose last values differ: each directory compacts them by itself, so their
    bytes may differ.
    """
    names = {
        path.name
        for each in directories.values()
        for topic in INTERNAL
        for path in each.glob(f"{topic}-*")
    }
    for name in sorted(name for name in names if name.rpartition("-")[2].isdigit()):
        found = {node: last_values(log_bytes(path / name)) for node, path in directories.items()}
        first, expected = next(iter(found.items()))
        for node, values in found.items():
            keys = {
                key
                for key in expected.keys() | values.keys()
                if expected.get(key) != values.get(key)
            }
            if keys:
                yield f"{name}: nodes {first} and {node} have other last values of {len(keys)} keys"


def last_values(data: bytes) -> dict[bytes | None, bytes]:
    """The last value of each key; a deleted key has none."""
    found: dict[bytes | None, bytes] = {}
    for raw in whole_batches(data):
        attributes = HEADER.unpack_from(raw)[5]
        for row in [] if attributes & CONTROL else read_batch(raw):
            if row.value is None:
                found.pop(row.key, None)
            else:
                found[row.key] = row.value
    return found


def unequal(logs: Mapping[int, bytes]) -> Iterator[str]:
    """Directories whose logs differ."""
    first, data = next(iter(logs.items()))
    for node, other in logs.items():
        if other != data:
            at = next(
                (at for at, (one, two) in enumerate(zip(data, other, strict=False)) if one != two),
                min(len(data), len(other)),
            )
            yield f"nodes {first} and {node} differ at byte {at}, of {len(data)} and {len(other)}"


# ---- the decision log ------------------------------------------------------------------------------


class Led(NamedTuple):
    """A decision about a partition."""

    place: tuple[bytes, int]
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


def decisions(directory: Path) -> list[Led]:
    """The partitions' records in a copy of the decision log."""
    rows = [
        row
        for raw in whole_batches(log_bytes(directory / REPLICA_STATE))
        for row in read_batch(raw)
    ]
    return [
        _partition_record(row.value)
        for row in rows
        if row.value and row.value[1] == PARTITION_RECORD
    ]


def _partition_record(value: bytes) -> Led:
    """Kafka's PartitionRecord: frame version, type, version; the fields of version 0 come first,
    the tagged fields last.
    """
    at = 3
    number, topic = struct.unpack_from(">i16s", value, at)
    at += 20
    arrays = []
    for _ in range(4):  # replicas, isr, removing, adding
        count = 0
        shift = 0
        while True:
            byte = value[at]
            at += 1
            count |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        arrays.append(struct.unpack_from(f">{count - 1}i", value, at))
        at += 4 * (count - 1)
    leader, epoch, change = struct.unpack_from(">iii", value, at)
    return Led((topic, number), leader, epoch, change, arrays[1])


def two_leaders(directories: Mapping[int, Path]) -> Iterator[str]:
    """Epochs with two leaders, and decisions of one number that differ."""
    leaders: dict[tuple[Any, int], int] = {}
    numbers: dict[tuple[Any, int], Led] = {}
    for node, path in directories.items():
        for led in decisions(path):
            if (
                led.leader >= 0
                and leaders.setdefault((led.place, led.leader_epoch), led.leader) != led.leader
            ):
                yield (
                    f"node {node}: epoch {led.leader_epoch} of {led.place} has the leaders "
                    f"{led.leader} and another"
                )
            if numbers.setdefault((led.place, led.partition_epoch), led) != led:
                yield f"node {node}: two decisions of the number {led.partition_epoch}: {led}"
