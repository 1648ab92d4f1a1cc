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
            self._bases[tp] = self.total
            self.total += ends[tp]
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(max(self.total, 1))
        self._map = mmap.mmap(self._file.fileno(), max(self.total, 1))

    def take(self, tp: TopicPartition, start: int, end: int) -> None:
        """Count lines [start, end) of a partition once more."""
        base = self._bases[tp]
        lines = slice(base + start, base + end)
        self._map[lines] = self._map[lines].translate(ONE_MORE)

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
            if go.is_set() and consumer.paused():
                consumer.resume(*consumer.paused())
            records = consumer.poll(timeout=0.02, max_records=LINES_PER_POLL)
            for tp, start, end in find_runs(records):
                marks.take(tp, start, end)
            if records:
                read_count.value += len(records)
                try:
                    consumer.commit()
                except (embedlog.CommitFailedError, embedlog.RebalanceInProgressError):
                    continue  # a rebalance runs: the next owner of these lines reads them again
        marks.close()


def find_runs(records: Iterable[Any]) -> list[tuple[TopicPartition, int, int]]:
    """Runs of consecutive lines of one partition: start and end."""
    runs: list[tuple[TopicPartition, int, int]] = []
    for record in records:
        if runs:
            tp, start, end = runs[-1]
            if tp.partition == record.partition and end == record.offset:
                runs[-1] = (tp, start, record.offset + 1)
                continue
        tp = TopicPartition(record.topic, record.partition)
        runs.append((tp, record.offset, record.offset + 1))
    return runs


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

    def find_owners(self, count: int) -> Assignment | None:
        """The owner of each partition, once `count` members own all partitions; else None."""
        if GROUP not in self._log.groups():
            return None
        group = self._log.describe_group(GROUP)
        if group.state != "Stable" or len(group.members) != count:
            return None
        owners = {tp: member.client_id for member in group.members for tp in member.assignment}
        return owners if len(owners) == len(self.tps) else None

    def lag(self) -> int:
        lag = sum(self._ends.values())
        if GROUP in self._log.groups():
            lag -= sum(commit.offset for commit in self._log.group_offsets(GROUP).values())
        return lag

    def wait(self, event: str, probe: Callable[[], Any], show: Show, *, dead: int = -1) -> Any:
        """Wait for a result of `probe`. Raises GroupError."""
        until_s = time.perf_counter() + STALLED_S
        result = probe()
        while not result:
            for number, reader in enumerate(self.readers):
                if number != dead and reader.exitcode:
                    raise GroupError(f"{reader.name} exited with {reader.exitcode}")
            if time.perf_counter() > until_s:
                raise GroupError(
                    f"waited {STALLED_S:.0f} s without success for {event}; "
                    f"read so far: {[count.value for count in self.counts]}; {self._state_text()}"
                )
            show(grouped=self.marks.total - self.lag())
            time.sleep(POLL_S)
            result = probe()
        return result

    def _state_text(self) -> str:
        if GROUP not in self._log.groups():
            return "the group does not exist"
        return str(self._log.describe_group(GROUP))

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
        before = group.wait("a stable group", lambda: group.find_owners(READER_COUNT), show)
        began_s = time.perf_counter()
        group.go.set()
        victim = int(before[group.largest].split()[-1]) - 1

        def is_reading() -> bool:
            read_count = sum(count.value for count in group.counts)
            return bool(group.counts[victim].value) and read_count > group.marks.total // 4

        group.wait("the readers to read", is_reading, show)
        os.kill(group.readers[victim].pid, 9)
        killed_s = time.perf_counter()
        after = group.wait(
            "the others to take over",
            lambda: group.find_owners(READER_COUNT - 1),
            show,
            dead=victim,
        )
        moved_s = time.perf_counter()
        group.wait("the lag to be zero", lambda: group.lag() == 0, show, dead=victim)
        ended_s = time.perf_counter()
        show(grouped=group.marks.total)
        group.stop.set()
        for number, reader in enumerate(group.readers):
            reader.join(STALLED_S)
            if number != victim and reader.exitcode:
                raise GroupError(f"{reader.name} exited with {reader.exitcode}")
        line_counts = group.marks.counts()
        skipped = line_counts[0]
        if skipped:
            raise GroupError(f"{skipped} lines of {group.marks.total} were skipped")
        return {
            "killed": f"reader {victim + 1}",
            "before": {str(tp.partition): before[tp] for tp in group.tps},
            "after": {str(tp.partition): after[tp] for tp in group.tps},
            "moved_s": moved_s - killed_s,
            "read_s": ended_s - began_s,
            "lag": group.lag(),
            "skipped": skipped,
            "read_again": sum(count for times, count in line_counts.items() if times > 1),
        }
    finally:
        group.close()


def make_table(figures: dict[str, Any], topic: str) -> list[str]:
    """The assignment before and after, one line per partition."""
    before = figures["before"]
    after = figures["after"]
    width = max(len(name) for name in [*before.values(), *after.values()]) + 12
    lines = [f"{'partition':<14}{'before':<{width}}after"]
    for number, owner in before.items():
        text = f"{owner} (killed)" if owner == figures["killed"] else owner
        lines.append(f"{topic}-{number:<{13 - len(topic)}}{text:<{width}}{after[number]}")
    return lines
