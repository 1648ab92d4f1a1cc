"""Tasks of a victim. They run inside the forked process; each victim has one `Stage` with its
state.

Uses only public names of `embedlog`, fault hooks (`embedlog._native.system`) and mutants
(`tests.support.mutants`).
"""

from __future__ import annotations

import codecs
import importlib
import os
import pkgutil
import random
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.coordination import directory
from tests.faults.harness.content import Mark, Row, value_of
from tests.faults.harness.processes import ROOT
from tests.support.mutants import apply_mutant

TOPIC = "t"


class Stage:
    """The handles of one victim."""

    def __init__(self, line: Connection) -> None:
        self.line = line
        self.log: embedlog.Log | None = None
        self.patience = {"retries": 2, "retry_backoff_ms": 5}
        self._producer: embedlog.Producer | None = None

    def note(self, content: Any) -> None:
        self.line.send(("note", content))

    @property
    def opened(self) -> embedlog.Log:
        assert self.log is not None, "open first"
        return self.log

    @property
    def producer(self) -> embedlog.Producer:
        if self._producer is None:
            self._producer = self.opened.producer(**self.patience)
        return self._producer

    def drop_producer(self) -> None:
        producer = self._producer
        self._producer = None
        if producer is not None:
            producer.close()


TASKS: dict[str, Callable[..., Any]] = {}


def task(function: Callable[..., Any]) -> Callable[..., Any]:
    TASKS[function.__name__.removesuffix("_")] = function
    return function


def obey(line: Connection) -> None:
    """Run requested tasks until the connection closes."""
    stage = Stage(line)
    while True:
        try:
            name, arguments, keywords = line.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            answer = ("done", TASKS[name](stage, *arguments, **keywords))
        except BaseException as problem:  # noqa: BLE001  the process's edge: a victim reports everything it met
            kinds = tuple(kind.__name__ for kind in type(problem).__mro__)
            answer = ("error", (kinds, str(problem), traceback.format_exc()))
        line.send(answer)


# -- hooks
# ------------------------------------------------------------------------------------------


@task
def arm(
    _: Stage, kinds: tuple[str, ...], nth: int, action: str, error: int, sticky: bool, name: str
) -> None:
    system.fault_arm(kinds, nth, action, error, sticky=sticky, name=name)


@task
def disarm(_: Stage) -> int:
    struck = system.fault_counters()[1]
    system.fault_off()
    return struck


@task
def counters(_: Stage, reset: bool = False) -> dict[str, int]:
    return system.fault_counters(reset)[0]


@task
def mutants(_: Stage, *names: str) -> None:
    for name in names:
        apply_mutant(name)


@task
def trace(_: Stage, path: str | None) -> None:
    system.fault_trace(
        -1 if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    )


@task
def record(_: Stage, path: str | None) -> None:
    """Record every change to files from now on."""
    system.record_to(
        -1 if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    )


@task
def shift_wall(_: Stage, ms: int) -> None:
    system.shift_wall(ms)


class NoLateImports:
    """Refuses imports, as the files of a clone in the home directory of root do: a test passes
    below every directory or none.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        raise ModuleNotFoundError(
            f"{name} was not imported before the process became another user's", name=name
        )


def import_modules_of_a_log() -> None:
    """Import all modules of embedlog but those of integrations, which need other packages."""
    units = tomllib.loads((ROOT / "tests" / "project" / "dependencies.toml").read_text())["unit"]
    integrations = {unit["name"] for unit in units if unit["purpose"].startswith("integration")}
    for unit in pkgutil.iter_modules(embedlog.__path__):
        if unit.name in integrations or unit.name == "__main__":
            continue
        name = f"embedlog.{unit.name}"
        module = importlib.import_module(name)
        for part in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            if part.name != "embedlog._native.build":  # the compiler's side of cffi
                importlib.import_module(part.name)


@task
def become(_: Stage, uid: int, gid: int, umask: int) -> None:
    """Another user from now on: needs root, once. Late imports happen before: Python's files and
    this clone's may be root's.
    """
    import concurrent.futures.thread  # noqa: F401  (embedlog imports it when it syncs several directories together)

    import_modules_of_a_log()
    for name in ("ascii", "idna", "latin-1"):
        codecs.lookup(name)
    sys.meta_path.insert(0, NoLateImports())
    os.umask(umask)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


# -- the life of a log
# ------------------------------------------------------------------------------


@task
def open_(stage: Stage, path: str, **keywords: Any) -> None:
    stage.log = embedlog.open(path, **keywords)


@task
def close(stage: Stage) -> None:
    """Whatever it answers, the handles are closed afterwards."""
    log = stage.opened
    stage.log = None
    try:
        stage.drop_producer()
    finally:
        log.close()


@task
def lock_shared(_: Stage, path: str) -> bool:
    """As any process can with read access to the file; until this process ends."""
    return system.lock_try(os.open(path, os.O_RDONLY), False) == 0


@task
def create_topic(
    stage: Stage, name: str = TOPIC, partitions: int = 1, config: dict[str, Any] | None = None
) -> None:
    stage.opened.create_topic(name, partitions, config=config)


@task
def on_log(stage: Stage, method: str, *arguments: Any) -> Any:
    return getattr(stage.opened, method)(*arguments)


@task
def append(stage: Stage, values: list[bytes], partition: int = 0, topic: str = TOPIC) -> list[int]:
    """Append one batch; the offsets of its records, once acknowledged."""
    offsets: list[int] = []
    for _, _, base, count in stage.producer.send_batch(topic, values, partition=partition).result(
        30
    ):
        offsets.extend(range(base, base + count))
    return offsets


@task
def append_one(stage: Stage, value: bytes, partition: int = 0, topic: str = TOPIC) -> int:
    """Append one record; its offset, once acknowledged. From the second one on the caller's thread
    appends it.
    """
    return stage.producer.send(topic, value, partition=partition).result(30).offset


@task
def flush(stage: Stage, topic: str = TOPIC) -> None:
    stage.opened.flush(topic)


@task
def durable(stage: Stage, partition: int = 0, topic: str = TOPIC) -> int:
    return stage.opened.durable_offset(topic, partition)


@task
def delete_records(stage: Stage, offset: int, partition: int = 0, topic: str = TOPIC) -> Any:
    return stage.opened.delete_records({TopicPartition(topic, partition): offset})


@task
def ends(stage: Stage, topic: str = TOPIC) -> dict[int, tuple[int, int]]:
    partitions = [
        TopicPartition(topic, n) for n in range(len(stage.opened.describe_topic(topic).partitions))
    ]
    with stage.opened.consumer() as consumer:
        first = consumer.beginning_offsets(partitions)
        last = consumer.end_offsets(partitions)
    return {tp.partition: (first[tp], last[tp]) for tp in partitions}


@task
def read(stage: Stage, topic: str = TOPIC, partition: int | None = None) -> dict[int, list[Row]]:
    """Everything a scan gives, by partition."""
    rows: dict[int, list[Row]] = {
        n: [] for n in range(len(stage.opened.describe_topic(topic).partitions))
    }
    chosen = None if partition is None else [partition]
    for record in stage.opened.scan(topic, partitions=chosen).records():
        rows[record.partition].append(Row(record.offset, record.leader_epoch, record.value))
    return rows


@task
def read_directory(_: Stage, path: str, topic: str = TOPIC) -> dict[int, list[Row]]:
    """Open, read everything, close: the view of the next process."""
    stage = Stage(_.line)
    stage.log = embedlog.open(path)
    with stage.log:
        return read(stage, topic)


@task
def poll_all(stage: Stage, topic: str = TOPIC) -> list[Row]:
    """The records of polls from the beginning until there are none: unlike a scan it has no end
    pinned before.
    """
    rows: list[Row] = []
    with stage.opened.consumer(topic, auto_offset_reset="earliest") as consumer:
        while more := consumer.poll(timeout=0.0):
            rows += [Row(r.offset, r.leader_epoch, r.value) for r in more]
    return rows


@task
def poll_at(stage: Stage, offset: int, count: int = 1, topic: str = TOPIC) -> list[Row]:
    """The first records from an offset on, by seeking."""
    here = TopicPartition(topic, 0)
    with stage.opened.consumer() as consumer:
        consumer.assign([here])
        consumer.seek(here, offset)
        return [
            Row(r.offset, r.leader_epoch, r.value)
            for r in consumer.poll(timeout=0.1, max_records=count)
        ]


@task
def wake_times(stage: Stage, count: int, topic: str = TOPIC) -> list[float]:
    """How long after it was sent each of `count` records was returned by `poll`; a value holds its
    time.
    """
    times: list[float] = []
    with stage.opened.consumer(topic, auto_offset_reset="latest") as consumer:
        consumer.poll(timeout=0.0)
        stage.note("ready")
        while len(times) < count:
            found = consumer.poll(timeout=10.0)
            now = time.monotonic_ns()
            times += [(now - int(record.value)) / 1e6 for record in found]
            stage.note("got")
    return times


@task
def append_time(stage: Stage, topic: str = TOPIC) -> None:
    append(stage, [b"%d" % time.monotonic_ns()], 0, topic)


@task
def tail(stage: Stage, count: int, topic: str = TOPIC) -> list[Row]:
    """Follow the topic until `count` records have come."""
    rows: list[Row] = []
    with stage.opened.consumer(topic, auto_offset_reset="earliest") as consumer:
        while len(rows) < count:
            rows += [Row(r.offset, r.leader_epoch, r.value) for r in consumer.poll(timeout=10.0)]
    return rows


@task
def pretend_filesystem(_: Stage, kind: int) -> None:
    """Let `statfs` tell another type of file system."""
    system.filesystem = lambda path: kind


@task
def stop_instead_of_settling(_: Stage) -> None:
    """Freeze where an opener waits for a departing broker's unlink, until another process resumes
    this one.
    """
    directory.time = SimpleNamespace(sleep=lambda seconds: signal.raise_signal(signal.SIGSTOP))  # type: ignore[assignment]


# -- work until a signal
# -----------------------------------------------------------------------------


@task
def write_on(
    stage: Stage,
    writer: int,
    start: int,
    partitions: int,
    seed: int,
    sizes: tuple[int, int],
    count: int = 1 << 60,
    durable: bool = False,
) -> int:
    """Append batches of one to five values to random partitions; each acknowledgement is a note
    (partition, base, marks).
    """
    rng = random.Random(seed)
    number = start
    while number - start < count:
        partition = rng.randrange(partitions)
        marks = [Mark(writer, number + at) for at in range(rng.randint(1, 5))]
        number += len(marks)
        values = [value_of(*mark, rng.randint(*sizes)) for mark in marks]
        offsets = append(stage, values, partition)
        if durable:
            flush(stage)
        stage.note((partition, offsets, marks))
    return number


@task
def open_and_write(stage: Stage, path: str, *arguments: Any, **keywords: Any) -> int:
    open_(stage, path)
    return write_on(stage, *arguments, **keywords)


def path_of(directory: Path, topic: str = TOPIC, partition: int = 0) -> Path:
    return directory / f"{topic}-{partition}"
