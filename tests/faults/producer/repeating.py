"""E14: idempotent producers in many processes, under temporary errors and kill -9: each record
once, in order.

A child sends as an application does: one by one, with or without waiting, in columns. Sometimes its
disk refuses all calls on log and index from some call on, until a moment later; no future may fail
because of that. The parent checks the log: acknowledged records are present, and none is present
twice. Those of one process and one writer are in the order of their sends.
"""

from __future__ import annotations

import errno
import random
import threading
from collections import deque
from pathlib import Path
from typing import Any

import embedlog
from embedlog._native import system
from tests.faults.harness.content import Mark, Verdict, value_of
from tests.faults.harness.processes import Nursery, RemoteError
from tests.faults.harness.tasks import TOPIC, Stage, open_, task
from tests.faults.partition.kills import Killing

CONFIG = {"segment.bytes": 1 << 17, "index.interval.bytes": 0, "flush.ms": 100}
PRODUCER = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 4,
    "delivery_timeout_ms": 120_000,
    "batch_size": 2000,
}
REFUSED = (
    ("pwrite",),
    ("pwrite", "ftruncate"),
    ("open", "pwrite"),
    ("ftruncate", "pwrite", "stat"),
)
UNDER_WAY = 200


class Sending:
    """One life of one writer."""

    def __init__(
        self,
        stage: Stage,
        producer: embedlog.Producer,
        rng: random.Random,
        writer: int,
        number: int,
    ) -> None:
        self.stage = stage
        self.producer = producer
        self.rng = rng
        self.writer = writer
        self.number = number
        self.under_way: deque[tuple[Any, list[Mark], int]] = deque()
        self.pause = threading.Event()

    def values(self, count: int) -> tuple[list[Mark], list[bytes]]:
        marks = [Mark(self.writer, self.number + at) for at in range(count)]
        self.number += count
        return marks, [value_of(*mark, self.rng.randint(40, 200)) for mark in marks]

    def send(self, partition: int) -> None:
        """One of the ways to send; a send without a wait is known by its future."""
        way = self.rng.random()
        if way < 0.2:
            marks, values = self.values(self.rng.randint(1, 40))
            self.under_way.append(
                (self.producer.send_batch(TOPIC, values, partition=partition), marks, partition)
            )
            return
        marks, values = self.values(1)
        future = self.producer.send(TOPIC, values[0], partition=partition)
        self.under_way.append((future, marks, partition))
        if way < 0.4:
            future.result(60)

    def tell(self, left: int) -> None:
        """Hand acknowledgements to the parent, the oldest first."""
        while len(self.under_way) > left:
            future, marks, partition = self.under_way.popleft()
            found = future.result(60)
            if isinstance(found, list):
                offsets = [
                    offset for _, _, base, count in found for offset in range(base, base + count)
                ]
            else:
                offsets = [found.offset]
            self.stage.note((partition, offsets, marks))

    def stumble(self) -> None:
        """The disk refuses, from one of the next calls on, for a moment."""
        kinds = self.rng.choice(REFUSED)
        error = self.rng.choice((errno.ENOSPC, errno.EIO))
        system.fault_arm(kinds, self.rng.randint(1, 4), "fail", error, sticky=True)
        for _ in range(self.rng.randint(1, 5)):
            marks, values = self.values(1)
            partition = self.rng.randrange(2)
            self.under_way.append(
                (self.producer.send(TOPIC, values[0], partition=partition), marks, partition)
            )
            self.pause.wait(self.rng.uniform(0, 0.003))
        system.fault_off()


@task
def send_through_errors(
    stage: Stage, path: str, writer: int, start: int, partitions: int, seed: int, turns: int
) -> int:
    """Send until `turns` are over or death; the number of the last record."""
    open_(stage, path)
    rng = random.Random(seed)
    with stage.opened.producer(**PRODUCER) as producer:
        sending = Sending(stage, producer, rng, writer, start)
        for _ in range(turns):
            sending.send(rng.randrange(partitions))
            if rng.random() < 0.01:
                sending.stumble()
            sending.tell(UNDER_WAY)
        sending.tell(0)
    return sending.number


class Repeating(Killing):
    """Writers of two partitions, killed one after the other."""

    partitions = 2
    turns = 1_000_000

    def prepare(self) -> None:
        first = self.nursery.spawn()
        first.call("open", str(self.directory))
        first.call("create_topic", TOPIC, self.partitions, CONFIG)
        first.call("close")
        self.nursery.end(first)

    def start_writer(self, writer: int) -> None:
        victim = self.nursery.spawn()
        victim.call("mutants", *self.mutants)
        start = self._numbers.setdefault(writer, 0)
        # numbers rise whatever the dead one had not acknowledged
        self._numbers[writer] += 1_000_000
        seed = self.rng.getrandbits(32)
        victim.start(
            "send_through_errors",
            str(self.directory),
            writer,
            start,
            self.partitions,
            seed,
            self.turns,
        )
        self._running[writer] = victim


def experiment(
    nursery: Nursery,
    directory: Path,
    seed: int,
    kills: int,
    mutants: tuple[str, ...] = (),
    writers: int = 8,
) -> tuple[Verdict, int]:
    """Kill one of the writers again and again, and all at the end; then look."""
    under_fire = Repeating(
        nursery, directory, random.Random(seed), writers=writers, mutants=mutants
    )
    under_fire.prepare()
    verdict = Verdict()
    try:
        while under_fire.kills < kills:
            under_fire.round()
        under_fire.kill_all()
        verdict.add(under_fire.verify())
    except RemoteError as problem:
        verdict.violations.append(f"a process without a fault failed: {problem}\n{problem.trace}")
    return verdict, under_fire.kills
