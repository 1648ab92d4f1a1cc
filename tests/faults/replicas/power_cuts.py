"""E17 with power losses: a set is recorded once, and each of its directories loses its unsynced
changes on its own.

Invariants: an acknowledged record of a durable topic, and a flushed one of any topic, is present
and unchanged in every replica. The records of a partition have no gaps, and each is the
acknowledged one. A record at the offset of a lost one has a larger epoch.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import embedlog
from embedlog._native import system
from tests.faults.harness.content import Mark, Row, Verdict, mark_of, value_of
from tests.faults.harness.processes import Died, Nursery, RemoteError, Victim
from tests.faults.harness.tasks import Stage, task
from tests.faults.power.powerloss import HEAD, PROMISE, Change, Disk, changes, materialise
from tests.faults.replicas.ledger import log_bytes, unequal
from tests.faults.replicas.set_tasks import CONFIG
from tests.support.replica_directories import take_for_originals

NAMES = ("d1", "d2", "d3")
TOPICS = {"durable": {"flush.messages": "1"}, "plain": {"flush.ms": "3600000"}}
STEPS = 60
LEVEL_S = 60.0
QUIET = CONFIG | {"housekeeping": False}


@task
def recorded_set(stage: Stage, root: str, seed: int, recording_path: str) -> None:
    """Work on a set, and record every change of a file, with the promises in between."""
    fd = os.open(recording_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    system.record_to(fd)

    def promise(*content: Any) -> None:
        data = json.dumps(content).encode()
        os.write(fd, HEAD.pack(PROMISE, 0, 0, 0, 0, len(data)) + data)

    _Script(Path(root), random.Random(seed), promise).run()
    system.record_to(-1)
    os.close(fd)


class _Script:
    """Appends, flushes, rolls, orderly closes, and a directory that is away for a while."""

    def __init__(self, root: Path, rng: random.Random, promise: Any) -> None:
        self.paths = [root / name for name in NAMES]
        self.rng = rng
        self.promise = promise
        self.number = 0
        self.away = ""
        self.log = embedlog.open(self.paths, config=QUIET)
        for name, config in TOPICS.items():
            self.log.create_topic(
                name,
                replication_factor=3,
                config={"segment.bytes": "4096", "min.insync.replicas": "2", **config},
            )
            self.promise("created", name)

    def run(self) -> None:
        steps = [self.append] * 8 + [
            self.flush,
            self.housekeep,
            self.reopen,
            self.remove,
            self.bring_back,
        ]
        for _ in range(STEPS):
            self.rng.choice(steps)()

    def append(self) -> None:
        name = self.rng.choice(list(TOPICS))
        count = self.rng.randint(1, 5)
        marks = [Mark(1, self.number + at) for at in range(count)]
        self.number += count
        with self.log.producer(linger_ms=0) as producer:
            values = [value_of(*mark, self.rng.randint(40, 900)) for mark in marks]
            ((_, _, base, _),) = producer.send_batch(name, values, partition=0).result(60)
        self.promise("acked", name, base, marks)

    def flush(self) -> None:
        ends = {name: self.log.describe_topic(name).partitions[0].log_end_offset for name in TOPICS}
        self.log.flush()
        for name, end in ends.items():
            self.promise("flushed", name, end)

    def housekeep(self) -> None:
        self.log.housekeep()

    def reopen(self) -> None:
        self.log.close()
        self.bring_back()
        self.log = embedlog.open(self.paths, config=QUIET)

    def remove(self) -> None:
        self.log.housekeep()
        # otherwise appends would be refused
        if not self.away and not self.log.metrics()["UnderReplicatedPartitions"]:
            self.away = str(self.rng.choice(self.paths))
            os.rename(self.away, f"{self.away}-away")

    def bring_back(self) -> None:
        if self.away:
            os.rename(f"{self.away}-away", self.away)
            self.away = ""


@dataclass
class Known:
    """The promises up to the power loss."""

    acks: dict[str, dict[int, Mark]] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)

    def take(self, change: Change) -> None:
        match json.loads(change.data):
            case ["created", name]:
                self.acks[name] = {}
                self.durable[name] = 0
            case ["acked", name, base, marks]:
                self.acks[name] |= {base + at: Mark(*mark) for at, mark in enumerate(marks)}
                if name == "durable":
                    self.durable[name] = max(self.durable[name], base + len(marks))
            case ["flushed", name, end]:
                self.durable[name] = max(self.durable[name], end)


def experiment(
    nursery: Nursery, workspace: Path, seed: int, states: int, mutants: Sequence[str] = ()
) -> tuple[Verdict, int]:
    """Open `states` sets after a power loss at moments drawn by the seed; stops at the first
    violation.
    """
    rng = random.Random(seed)
    root = workspace / "recorded"
    recording = workspace / "recording"
    victim = nursery.spawn()
    victim.mutate(mutants)
    victim.call("recorded_set", str(root), seed, str(recording), deadline_s=300)
    nursery.end(victim)
    found = list(changes(recording))
    moments = sorted(rng.randrange(len(found)) for _ in range(states))
    disks = {name: Disk(root / name) for name in NAMES}
    known = Known()
    verdict = Verdict()
    opened = 0
    for at, change in enumerate(found):
        if change.kind == "promise":
            known.take(change)
        else:
            for disk in disks.values():
                disk.replay(change)
        while moments and moments[0] == at:
            moments.pop(0)
            target = workspace / f"cut-{opened}"
            for name, disk in disks.items():
                materialise(disk.state(rng), root / name, target / name, list(disk.folders))
            take_for_originals(target)
            one = judge(nursery, target, known, mutants)
            verdict.add(one)
            opened += 1
            if one.violations:
                verdict.violations = [
                    f"seed {seed}, after change {at} of {len(found)}: {each}"
                    for each in verdict.violations
                ]
                return verdict, opened
            shutil.rmtree(target)
    return verdict, opened


def judge(nursery: Nursery, target: Path, known: Known, mutants: Sequence[str]) -> Verdict:
    """The set after the power loss: it becomes level, keeps its promises, and accepts appends."""
    verdict = Verdict(acked=sum(map(len, known.acks.values())))
    reader = nursery.spawn()
    paths = [str(target / name) for name in NAMES]
    bad = verdict.violations.append
    try:
        reader.mutate(mutants)
        reader.start("level", paths, LEVEL_S, True)
        deque(notes := iter(reader.notes(LEVEL_S + 60)), maxlen=0)  # attempts that failed
        missing = reader.result_after(notes)
        if missing:
            bad(f"the set does not become level: {missing}")
            return verdict
        reader.call("open_set", paths)
        topics = reader.call("on_log", "topics")
        for name, acks in known.acks.items():
            if name not in topics:
                if known.durable[name]:
                    bad(f"topic {name} is gone with durable records")
                continue
            rows = reader.call("read", name)[0]
            verdict.read += len(rows)
            for text in (
                *_promises(rows, acks, known.durable[name]),
                *_next(reader, name, rows, acks),
            ):
                bad(f"topic {name}: {text}")
        reader.call("close")
        for name in known.acks:
            logs = {
                node: log_bytes(target / directory / f"{name}-0")
                for node, directory in enumerate(NAMES, 1)
            }
            for problem in unequal({node: data.rstrip(b"\0") for node, data in logs.items()}):
                bad(f"topic {name}: {problem}")
    except (RemoteError, Died) as problem:
        bad(f"the set does not open or accept appends: {problem}\n{getattr(problem, 'trace', '')}")
    finally:
        nursery.end(reader)
    return verdict


def _promises(rows: list[Row], acks: dict[int, Mark], durable: int) -> list[str]:
    found = []
    if [row.offset for row in rows] != list(range(len(rows))):
        found.append(f"offsets {[row.offset for row in rows]}")
    if len(rows) < durable:
        found.append(f"ends at {len(rows)}, {durable} was durable")
    for row in rows:
        mark = mark_of(row.value)
        if mark is None or acks.get(row.offset, mark) != mark:
            found.append(f"offset {row.offset} is {mark}, acknowledged was {acks.get(row.offset)}")
    return found


def _next(reader: Victim, name: str, rows: list[Row], acks: dict[int, Mark]) -> list[str]:
    """A record after the power loss: at the end, and in a larger epoch at the offset of a lost
    one.
    """
    (offset,) = reader.call("append", [value_of(7, 0, 150)], 0, name)
    last = reader.call("read", name)[0][-1]
    if offset != len(rows) or last.offset != offset:
        return [f"appended at {offset}, the end was {len(rows)}"]
    if offset in acks and last.epoch <= max((row.epoch for row in rows), default=-1):
        return [f"offset {offset} was {acks[offset]}, and is another record in epoch {last.epoch}"]
    return []
