"""What the processes of the scenarios do in their turns, by public names of the package."""

from __future__ import annotations

import shutil
from typing import Any

import embedlog
from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.storage import files
from embedlog.storage.locks import LockFile
from tests.faults.harness.tasks import Stage, task
from tests.scheduler.inside import deliver, program

TOPIC = "t"
CONFIG = {"housekeeping": False}


def opened(paths: list[str], **config: Any) -> embedlog.Log:
    return embedlog.open(paths if len(paths) > 1 else paths[0], config=CONFIG | config)


def send(stage: Stage, log: embedlog.Log, values: list[bytes], acks: int | str = "all") -> bool:
    """Send records one by one; whether all are acknowledged. Each acknowledgement is a note, the
    first failure ends it.
    """
    with log.producer(
        acks=acks, linger_ms=0, delivery_timeout_ms=40_000, **stage.patience
    ) as producer:
        for value in values:
            try:
                offset = deliver(producer, producer.send(TOPIC, value, partition=0)).offset
            except EmbedlogError as problem:
                stage.note(("failed", "send", f"{type(problem).__name__}: {problem}"))
                return False
            stage.note(("acked", offset, value))
    return True


def read(log: embedlog.Log) -> list[tuple[int, int, bytes]]:
    return [
        (record.offset, record.leader_epoch, record.value or b"")
        for record in log.scan(TOPIC).records()
    ]


@program
def open_read_send(
    stage: Stage, paths: list[str], values: list[bytes], copies: bool = True
) -> None:
    """Open a set, read everything, send records, read again, and close. `copies`: do the work of a
    housekeeper once.

    Before an acknowledgement a process may have reached no majority: what it reads may be old.
    """
    with opened(paths) as log:
        stage.note(("seen", read(log)))
        if send(stage, log, values):
            stage.note(("read", read(log)))
        if copies:
            log.housekeep()


@program
def open_send(stage: Stage, paths: list[str], values: list[bytes], acks: int | str) -> None:
    """Open, send records, read everything, and close."""
    with opened(paths) as log:
        send(stage, log, values, acks)
        stage.note(("read", read(log)))


@program
def open_replace(stage: Stage, paths: list[str], node: int, path: str) -> None:
    """Open a set, give a node another directory, and close."""
    with opened(paths) as log:
        try:
            log.replace_directory(node, path)
        except EmbedlogError as problem:
            stage.note(("failed", "replace", f"{type(problem).__name__}: {problem}"))
        log.housekeep()


@program
def open_reassign(stage: Stage, paths: list[str], nodes: list[int]) -> None:
    """Open a set, move its partition to other nodes, and close."""
    with opened(paths) as log:
        try:
            log.reassign({embedlog.TopicPartition(TOPIC, 0): nodes})
            log.housekeep()
            log.housekeep()
        except EmbedlogError as problem:
            stage.note(("failed", "reassign", f"{type(problem).__name__}: {problem}"))


@program
def hold_lock(stage: Stage, paths: list[str], timeout_s: float) -> None:
    """Take a lock between processes, do two steps with it, and give it back."""
    lock = LockFile(f"{paths[0]}/lock")
    with lock.hold(files.deadline_after(timeout_s)):
        system.point("inside")
        stage.note(("held",))
        files.exists(f"{paths[0]}/lock")
        system.point("leaving")


@program
def look_afterwards(stage: Stage, paths: list[str]) -> list[tuple[int, int, bytes]]:
    """What the next process reads."""
    with opened(paths) as log:
        return read(log)


@task
def make_put_back_set(
    _: Stage, paths: list[str], parts: list[list[bytes]], directory: str, copy: str
) -> None:
    """A set with two parts of records, and a copy of one directory from between them; all of it
    closed in order.
    """
    first, second = parts
    with opened(paths, **{"offsets.topic.num.partitions": 1}) as log:
        log.create_topic(TOPIC, assignment={0: [3, 1, 2]}, config={"min.insync.replicas": 2})
        fill(log, first)
    shutil.copytree(directory, copy)
    with opened(paths) as log:
        fill(log, second)


def fill(log: embedlog.Log, values: list[bytes]) -> None:
    with log.producer(acks="all") as producer:
        for value in values:
            producer.send(TOPIC, value, partition=0).result()


@task
def make_log(
    _: Stage,
    paths: list[str],
    values: list[bytes],
    segment_bytes: int,
    assignment: list[int] | None = None,
) -> None:
    """A log, or a set, with some records."""
    with opened(paths, **{"offsets.topic.num.partitions": 1}) as log:
        config = {"segment.bytes": segment_bytes}
        if assignment is None:
            log.create_topic(TOPIC, config=config)
        else:
            log.create_topic(
                TOPIC, assignment={0: assignment}, config=config | {"min.insync.replicas": 2}
            )
        fill(log, values)
