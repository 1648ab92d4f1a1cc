"""The consumer group of the demo: three processes share a topic, one is killed, and the others take
over its partitions.

- Before its offset is committed, a line is counted in mapped memory that outlives the process. A
  count of 0 is a skipped line, 2 or more a line that was read again.
- One reader is killed by SIGKILL while it reads, without any notice to the others.
- The demo uses public names only.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import embedlog
from embedlog import TopicPartition

GROUP = "readers"
READER_COUNT = 3
LINES_PER_POLL = 2_000
STALLED_S = 60.0
POLL_S = 0.002
ONE_MORE = bytes(min(255, number + 1) for number in range(256))

Show = Callable[..., None]
Assignment = dict[TopicPartition, str]


class GroupError(Exception):
    """A line was skipped, or the group does not become stable."""


# ---- counts per line -----------------------------------------------------------------------------


class Marks:
    """How often each line was read: one byte per line, in a file that all processes map."""

    def __init__(self, path: Path, ends: dict[TopicPartition, int]) -> None:
        self._bases: dict[TopicPartition, int] = {}
        self.total = 0
        for tp in sorted(ends):
            self._bases[tp], self.total = self.total, self.total + ends[tp]
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(max(self.total, 1))
        self._map = mmap.mmap(self._file.fileno(), max(self.total, 1))

    def take(self, tp: TopicPartition, start: int, end: int) -> None:
        """Count lines [start, end) of a partition once more."""
        base = self._bases[tp]
        self._map[base + start : base + end] = self._map[base + start : base + end].translate(
            ONE_MORE
        )

    def counts(self) -> Counter[int]:
        """The number of lines for each count."""
        return Counter(self._map[: self.total])

    def close(self) -> None:
        self._map.close()
        self._file.close()


# ---- readers -------------------------------------------------------------------------------------


def read(
    paths: list[str],
    topic: str,
    marks_path: str,
    number: int,
    read_count: Any,
    go: Event,
    stop: Event,
) -> None:
    """Reader `number`: join, wait for `go`, then read, count and commit until `stop`."""
    settings: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "client_id": f"reader {number + 1}",
    }
    with (
        embedlog.open(paths, create=False) as log,
        log.consumer(group_id=GROUP, **settings) as consumer,
    ):
        tps = [TopicPartition(topic, at) for at in range(len(log.describe_topic(topic).partitions))]
        marks = Marks(Path(marks_path), consumer.end_offsets(tps))
        consumer.subscribe(
            [topic], on_assigned=lambda tps: None if go.is_set() else consumer.pause(*tps)
        )
        while not stop.is_set():
            if go.is_set() and (paused := consumer.paused()):
                consumer.resume(*paused)
            records = consumer.poll(timeout=0.02, max_records=LINES_PER_POLL)
            for tp, start, end in ranges(records):
                marks.take(tp, start, end)
            if records:
                read_count.value += len(records)
                try:
                    consumer.commit()
                except (embedlog.CommitFailedError, embedlog.RebalanceInProgressError):
                    continue  # a rebalance runs: the next owner of these lines reads them again
        marks.close()


def ranges(records: Iterable[Any]) -> list[tuple[TopicPartition, int, int]]:
    """Runs of consecutive lines of one partition: start and end."""
    found: list[tuple[TopicPartition, int, int]] = []
    for record in records:
        if found and found[-1][0].partition == record.partition and found[-1][2] == record.offset:
            found[-1] = (found[-1][0], found[-1][1], record.offset + 1)
        else:
            found.append(
                (TopicPartition(record.topic, record.partition), record.offset, record.offset + 1)
            )
    return found


# ---- the group as a whole ------------------------------------------------------------------------


class Group:
    """The reader processes and the state of their group."""

    def __init__(self, log: embedlog.Log, paths: list[str], directory: str, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._marks_path = Path(directory) / "demo-marks"
        self.tps = [
            TopicPartition(topic, at) for at in range(len(log.describe_topic(topic).partitions))
        ]
        with log.consumer() as consumer:
            self._ends = consumer.end_offsets(self.tps)
        self.largest = max(self._ends, key=self._ends.__getitem__)
        self.marks = Marks(self._marks_path, self._ends)
        spawn = multiprocessing.get_context("spawn")
        self.go = spawn.Event()
        self.stop = spawn.Event()
        self.counts: list[Any] = [spawn.Value("q", 0) for _ in range(READER_COUNT)]
        self.readers: list[Any] = []
        for number, count in enumerate(self.counts):
            shared = (paths, topic, str(self._marks_path), number, count, self.go, self.stop)
            self.readers.append(
                spawn.Process(target=read, args=shared, name=f"reader {number + 1}")
            )

    def shared_out(self, count: int) -> Assignment | None:
        """The owner of each partition, once `count` members own all partitions; else None."""
        if GROUP not in self._log.groups():
            return None
        found = self._log.describe_group(GROUP)
        owners = {tp: member.client_id for member in found.members for tp in member.assignment}
        return (
            owners
            if found.state == "Stable"
            and len(found.members) == count
            and len(owners) == len(self.tps)
            else None
        )

    def lag(self) -> int:
        committed = self._log.group_offsets(GROUP) if GROUP in self._log.groups() else {}
        return sum(
            end - (committed[tp].offset if tp in committed else 0) for tp, end in self._ends.items()
        )

    def wait(self, what: str, probe: Callable[[], Any], show: Show, *, dead: int = -1) -> Any:
        """Wait for a result of `probe`. Raises GroupError."""
        until = time.perf_counter() + STALLED_S
        while not (found := probe()):
            for number, reader in enumerate(self.readers):
                if number != dead and reader.exitcode:
                    raise GroupError(f"{reader.name} exited with {reader.exitcode}")
            if time.perf_counter() > until:
                counts = [each.value for each in self.counts]
                state = (
                    self._log.describe_group(GROUP)
                    if GROUP in self._log.groups()
                    else "the group does not exist"
                )
                raise GroupError(
                    f"waited {STALLED_S:.0f} s without success for {what}; read so far: {counts}; "
                    f"{state}"
                )
            show(grouped=self.marks.total - self.lag())
            time.sleep(POLL_S)
        return found

    def close(self) -> None:
        for reader in self.readers:
            if reader.pid is not None:
                reader.kill()
                reader.join()
        self.marks.close()
        self._marks_path.unlink()


def read_as_group(
    log: embedlog.Log, paths: list[str], directory: str, topic: str, show: Show
) -> dict[str, Any]:
    """Run three readers and kill one; return the assignments before and after, and the counts of
    the lines.
    """
    group = Group(log, paths, directory, topic)
    try:
        for reader in group.readers:
            reader.start()
        before = group.wait("a stable group", lambda: group.shared_out(READER_COUNT), show)
        began = time.perf_counter()
        group.go.set()
        victim = int(before[group.largest].split()[-1]) - 1
        enough = group.marks.total // 4
        group.wait(
            "the readers to read",
            lambda: (
                group.counts[victim].value and sum(each.value for each in group.counts) > enough
            ),
            show,
        )
        os.kill(group.readers[victim].pid, 9)
        killed = time.perf_counter()
        after = group.wait(
            "the others to take over", lambda: group.shared_out(READER_COUNT - 1), show, dead=victim
        )
        moved = time.perf_counter()
        group.wait("the lag to be zero", lambda: group.lag() == 0, show, dead=victim)
        ended = time.perf_counter()
        show(grouped=group.marks.total)
        group.stop.set()
        for number, reader in enumerate(group.readers):
            reader.join(STALLED_S)
            if number != victim and reader.exitcode:
                raise GroupError(f"{reader.name} exited with {reader.exitcode}")
        given = group.marks.counts()
        if given[0]:
            raise GroupError(f"{given[0]} lines of {group.marks.total} were skipped")
        return {
            "killed": f"reader {victim + 1}",
            "before": {str(tp.partition): before[tp] for tp in group.tps},
            "after": {str(tp.partition): after[tp] for tp in group.tps},
            "moved_s": moved - killed,
            "read_s": ended - began,
            "lag": group.lag(),
            "skipped": given[0],
            "read_again": sum(count for times, count in given.items() if times > 1),
        }
    finally:
        group.close()


def as_table(found: dict[str, Any], topic: str) -> list[str]:
    """The assignment before and after, one line per partition."""
    width = max(len(name) for name in [*found["before"].values(), *found["after"].values()]) + 12
    lines = [f"{'partition':<14}{'before':<{width}}after"]
    for number, owner in found["before"].items():
        was = f"{owner} (killed)" if owner == found["killed"] else owner
        lines.append(f"{topic}-{number:<{13 - len(topic)}}{was:<{width}}{found['after'][number]}")
    return lines
