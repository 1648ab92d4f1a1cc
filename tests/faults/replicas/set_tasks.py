"""Tasks of a victim that has a set of directories open: they produce, read and consume until a
signal, and report each step.

An error of a call is a note. The task continues with the next value and a new client.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import embedlog
from embedlog import TopicPartition
from embedlog.errors import EmbedlogError
from tests.faults.harness.content import Mark, value_of
from tests.faults.harness.tasks import TASKS, Stage, task

T = TypeVar("T")
TOPIC = "t"
GROUP = "g"
PARTITIONS = 2
CONFIG: dict[str, Any] = {
    "lock_timeout_ms": 3000,
    "log.flush.scheduler.interval.ms": 50,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
TOPIC_CONFIG = {"segment.bytes": 65_536, "index.interval.bytes": 1024}
SIZES = (40, 700)
RESULT_S = 60


def repeated(stage: Stage, name: str, deadline_s: float, operation: Callable[[], T]) -> T:
    """Execute an operation; after an error again, until the deadline: a fault may end in the
    meantime.
    """
    end = time.monotonic() + deadline_s
    while True:
        try:
            return operation()
        except EmbedlogError as problem:
            if time.monotonic() >= end:
                raise
            stage.note(("failed", name, _told(problem)))
            time.sleep(0.05)


@task
def open_set(stage: Stage, paths: Sequence[str], deadline_s: float = 30.0, **config: Any) -> None:
    """Open a set."""
    stage.log = repeated(
        stage, "open", deadline_s, lambda: embedlog.open(list(paths), config=CONFIG | config)
    )


@task
def make_set(stage: Stage, paths: Sequence[str], least: int) -> None:
    """Create the set, its topic, and its internal topics."""
    open_set(stage, paths)
    config = TOPIC_CONFIG | {"min.insync.replicas": least}
    stage.opened.create_topic(TOPIC, PARTITIONS, replication_factor=len(paths), config=config)
    with stage.opened.producer(transactional_id="first", linger_ms=0) as producer:
        producer.init_transactions()
    with stage.opened.consumer(TOPIC, group_id=GROUP, auto_offset_reset="earliest") as consumer:
        consumer.poll(0.0)
        consumer.commit()
    stage.opened.close()
    stage.log = None


def _obey_beside(stage: Stage) -> None:
    """Run requests that arrive while this task runs, such as `arm`, without an answer."""

    def obey() -> None:
        while True:
            try:
                name, arguments, keywords = stage.line.recv()
            except (EOFError, OSError):
                return
            TASKS[name](stage, *arguments, **keywords)

    threading.Thread(target=obey, daemon=True).start()


def _told(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


@task
def produce_on(stage: Stage, writer: int, start: int, seed: int) -> None:
    """Append batches to random partitions with acks=all; each acknowledgement is a note."""
    _obey_beside(stage)
    rng = random.Random(seed)
    number = start
    producer = None
    while True:
        partition = rng.randrange(PARTITIONS)
        marks = [Mark(writer, number + at) for at in range(rng.randint(1, 4))]
        number += len(marks)
        values = [value_of(*mark, rng.randint(*SIZES)) for mark in marks]
        try:
            producer = producer or stage.opened.producer(linger_ms=0)
            found = producer.send_batch(TOPIC, values, partition=partition).result(RESULT_S)
        except EmbedlogError as problem:
            stage.note(("failed", "append", _told(problem)))
            _close(producer)
            producer = None
            continue
        offsets = [base + at for _, _, base, count in found for at in range(count)]
        stage.note(("acked", partition, list(zip(offsets, marks, strict=True))))


def _close(client: Any) -> None:
    """Close a client after an error; a second error says nothing new."""
    try:
        if client is not None:
            client.close()
    except EmbedlogError:
        pass


@task
def transact_on(stage: Stage, writer: int, start: int, seed: int) -> None:
    """Transactions with a record in each partition. The notes are their numbers, before the end and
    after it.
    """
    _obey_beside(stage)
    rng = random.Random(seed)
    turn = start
    producer = None
    while True:
        marks = [Mark(writer, turn * PARTITIONS + partition) for partition in range(PARTITIONS)]
        commit = rng.random() < 0.7
        try:
            if producer is None:
                producer = stage.opened.producer(transactional_id=f"id-{writer}", linger_ms=0)
                producer.init_transactions()
            producer.begin_transaction()
            for partition, mark in enumerate(marks):
                producer.send(TOPIC, value_of(*mark, rng.randint(*SIZES)), partition=partition)
            producer.flush()
            stage.note(("ending", writer, turn, commit))
            producer.commit_transaction() if commit else producer.abort_transaction()
        except EmbedlogError as problem:
            stage.note(("failed", "transaction", _told(problem)))
            _close(producer)
            producer = None
        else:
            stage.note(("ended", writer, turn, commit))
        turn += 1


@task
def read_on(stage: Stage, isolation: Literal["read_uncommitted", "read_committed"]) -> None:
    """Follow all partitions from the beginning; notes of the rows and of the ends that readers
    see.
    """
    _obey_beside(stage)
    places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    consumer = None
    positions = dict.fromkeys(places, 0)
    before = dict[int, int]()
    while True:
        try:
            if consumer is None:
                consumer = stage.opened.consumer(isolation_level=isolation)
                consumer.assign(places)
                for place, position in positions.items():
                    consumer.seek(place, position)
            rows = [(r.partition, r.offset, r.leader_epoch, r.value) for r in consumer.poll(0.05)]
            positions |= {place: consumer.position(place) for place in places}
            ends = {place.partition: end for place, end in consumer.end_offsets(places).items()}
            for number in [number for number, end in ends.items() if end < before.get(number, 0)]:
                stage.note(
                    (
                        "fell",
                        number,
                        before[number],
                        ends[number],
                        str(stage.opened.replicas(TOPIC)),
                    )
                )
            before = ends
        except EmbedlogError as problem:
            stage.note(("failed", "read", _told(problem)))
            _close(consumer)
            consumer = None
            continue
        stage.note(("rows", isolation, rows, ends))


@task
def consume_on(stage: Stage, until_end: bool = False) -> int:
    """A member of the group: each row is noted before its offset is committed. The number of rows,
    if there is an end.
    """
    if not until_end:
        _obey_beside(stage)
    places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    consumer = None
    total = 0
    while True:
        try:
            if consumer is None:
                consumer = stage.opened.consumer(
                    TOPIC,
                    group_id=GROUP,
                    auto_offset_reset="earliest",
                    isolation_level="read_committed",
                    enable_auto_commit=False,
                )
            rows = [(r.partition, r.offset, r.leader_epoch, r.value) for r in consumer.poll(0.1)]
            stage.note(("consumed", rows))
            consumer.commit()
            total += len(rows)
            if until_end and len(consumer.assignment()) == len(places):
                ends = consumer.end_offsets(places)
                read = all(consumer.position(place) >= ends[place] for place in places)
                # a killed owner's one is ended by the housekeeper
                if read and not stage.opened.open_transactions():
                    consumer.close()
                    return total
        except EmbedlogError as problem:
            stage.note(("failed", "consume", _told(problem)))
            _close(consumer)
            consumer = None


@task
def level(stage: Stage, paths: Sequence[str], deadline_s: float, repair: bool = False) -> str:
    """Open the set and do the work of its housekeeper until every replica is in sync; what is
    missing at the deadline.

    `repair`: also compare all replicas, and repair damaged ones.
    """
    end = time.monotonic() + deadline_s
    missing = ""
    open_set(stage, paths, deadline_s)
    try:
        while time.monotonic() < end:
            try:
                stage.opened.housekeep()
            except EmbedlogError as problem:
                stage.note(("failed", "housekeeping", _told(problem)))
            missing = _missing(stage.opened)
            if not missing and repair:
                missing = _repaired(stage)
            if not missing:
                return ""
            time.sleep(0.05)
        return missing
    finally:
        log = stage.opened
        stage.log = None
        log.close()


def _repaired(stage: Stage) -> str:
    """Why a comparison of all replicas is not without a finding yet."""
    try:
        found = stage.opened.verify_replicas(repair=True)
    except EmbedlogError as problem:
        return _told(problem)
    return "; ".join(map(str, found))


def _missing(log: embedlog.Log) -> str:
    """The partitions with a replica that is not in sync or not at the leader's end."""
    replicas = log._engine.set  # type: ignore[attr-defined]
    state = replicas.decisions.counted_state()
    found = []
    for place, each in state.partitions.items():
        name = f"{state.topics[place[0]].name}-{place[1]}"
        if sorted(each.isr) != sorted(each.replicas) or each.leader < 0:
            found.append(
                f"{name}: leader {each.leader}, ISR {each.isr} of {each.replicas}, ELR {each.elr}"
            )
    away = [
        f"node {each.node}: {each.problem}"
        for each in replicas.directories
        if each.problem or each.directory is None
    ]
    return "; ".join(found + away)
