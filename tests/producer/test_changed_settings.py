"""A record is judged by the settings that its topic has at the moment of the append, and not by those of an earlier one."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog import EmbedlogError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError

OLD_MS = 1_000_000_000_000  # 2001
LARGE = random.Random(1).randbytes(40_000)  # no codec makes it smaller

# A setting, its two values, the arguments of a record that only the first one accepts, and the error with the second one
CASES: dict[str, tuple[str, str, str, dict[str, Any], type[EmbedlogError]]] = {
    "keyless": ("cleanup.policy", "delete", "compact", {"value": b"v"}, InvalidRecordError),
    "old": (
        "message.timestamp.before.max.ms",
        "9223372036854775807",
        "60000",
        {"value": b"v", "key": b"k", "timestamp_ms": OLD_MS},
        InvalidTimestampError,
    ),
    "large": ("max.message.bytes", "1048588", "20000", {"value": LARGE, "key": b"k"}, RecordTooLargeError),
}

Log = embedlog.Log
QUIET: Any = {"on_delivery_error": "log"}


@pytest.fixture
def until_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


# ---- ways to write one record ----------------------------------------------------------------------------------------


def send(log: Log, producer: Any, record: dict[str, Any]) -> None:
    producer.send("t", **record).result(20)


def send_and_flush(log: Log, producer: Any, record: dict[str, Any]) -> None:
    future = producer.send("t", **record)
    producer.flush(20)
    future.result(0)


def columns_of(record: dict[str, Any], count: int) -> dict[str, Any]:
    keys = [record["key"]] * count if "key" in record else None
    return {"values": [record["value"]] * count, "keys": keys, "timestamps_ms": record.get("timestamp_ms")}


def send_batch(log: Log, producer: Any, record: dict[str, Any]) -> None:
    producer.send_batch("t", **columns_of(record, 3)).result(20)


def send_columns(log: Log, producer: Any, record: dict[str, Any]) -> None:
    columns = columns_of(record, 2)
    columns["values"] = np.frombuffer(b"".join(columns["values"]), np.uint8).reshape(2, -1)
    producer.send_batch("t", **columns).result(20)


def send_conditionally(log: Log, producer: Any, record: dict[str, Any]) -> None:
    partition = embedlog.TopicPartition("t", 0)
    with log.consumer() as consumer:
        end = consumer.end_offsets([partition])[partition]
    producer.send("t", **record, expected_offset=end).result(20)


def send_in_transaction(log: Log, producer: Any, record: dict[str, Any]) -> None:
    with producer.transaction():
        producer.send("t", **record)


def send_by_asyncio(log: Log, producer: Any, record: dict[str, Any]) -> None:
    async def write() -> None:
        await (await producer.send("t", **record))

    producer.runner.run(write())


class AsyncWriter:
    """An asynchronous producer in a loop of its own, so that it lives as long as the synchronous ones."""

    def __init__(self, log: Log) -> None:
        self.runner = asyncio.Runner()
        self.producer = self.runner.run(self._make(log))

    async def _make(self, log: Log) -> Any:
        return await log.async_producer(**QUIET).__aenter__()

    def send(self, *arguments: Any, **named: Any) -> Any:
        return self.producer.send(*arguments, **named)

    def close(self) -> None:
        self.runner.run(self.producer.close())
        self.runner.close()


def make_transactional(log: Log) -> Any:
    producer = log.producer(transactional_id="x", on_delivery_error="log")
    producer.init_transactions()
    return producer


Way = tuple[Callable[[Log], Any], Callable[[Log, Any, dict[str, Any]], None]]
WAYS: dict[str, Way] = {
    "send": (lambda log: log.producer(**QUIET), send),
    "linger": (lambda log: log.producer(linger_ms=5, **QUIET), send_and_flush),
    "serializer": (lambda log: log.producer(value_serializer=bytes, **QUIET), send),
    "list": (lambda log: log.producer(**QUIET), send_batch),
    "columns": (lambda log: log.producer(**QUIET), send_columns),
    "compressed": (lambda log: log.producer(compression_type="lz4", **QUIET), send),
    "conditional": (lambda log: log.producer(**QUIET), send_conditionally),
    "transaction": (make_transactional, send_in_transaction),
    "asyncio": (AsyncWriter, send_by_asyncio),
}


DIRECT = {"send", "linger", "compressed", "asyncio"}  # the caller's thread appends, if it waits for one record

# ---- ways to change the topic ----------------------------------------------------------------------------------------

CHILD = """
import sys
import embedlog

with embedlog.open(sys.argv[1]) as log:
    print("open", flush=True)
    for line in sys.stdin:
        setting, value = line.split()
        log.alter_topic("t", {setting: value})
        print("altered", flush=True)
"""


class OtherProcess:
    """Changes settings of the topic by a process that stays open."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", CHILD, str(path)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._expect("open")

    def _expect(self, word: str) -> None:
        assert self._child.stdout is not None
        assert self._child.stdout.readline().strip() == word

    def alter(self, log: Log, setting: str, value: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{setting} {value}\n")
        self._child.stdin.flush()
        self._expect("altered")

    def close(self) -> None:
        self._child.communicate(timeout=30)


def alter_here(log: Log, setting: str, value: str) -> None:
    log.alter_topic("t", {setting: value})


def recreate(log: Log, setting: str, value: str) -> None:
    log.delete_topic("t")
    log.create_topic("t", config={setting: value})


CHANGES = {"here": alter_here, "recreated": recreate}


def attempt_each_way(log: Log, change: Callable[[Log, str, str], None], *, first: bool, strict_first: bool) -> list[str]:
    """Writes in each way after each change of a setting, and returns what was not as the present settings want it."""
    wrong = []
    for case, (setting, lenient, strict, record, error) in CASES.items():
        for way, (make, write) in WAYS.items():
            before, after = (strict, lenient) if strict_first else (lenient, strict)
            recreate(log, setting, before)
            producer = make(log)
            try:
                if first:
                    write(log, producer, {"value": b"first", "key": b"k"})
                change(log, setting, after)
                outcome: object = None
                try:
                    write(log, producer, record)
                except EmbedlogError as refusal:
                    outcome = refusal
                is_right = outcome is None if strict_first else isinstance(outcome, error)
                if not is_right:
                    wrong.append(f"{case}, {way}: {outcome!r}")
            finally:
                producer.close()
    return wrong


@pytest.mark.parametrize("strict_first", [False, True], ids=["stricter", "laxer"])
@pytest.mark.parametrize("first", [False, True], ids=["before the first write", "after a write"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_setting_decides_about_the_next_record(tmp_path: Path, change: str, first: bool, strict_first: bool) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        assert attempt_each_way(log, CHANGES[change], first=first, strict_first=strict_first) == []


@pytest.mark.parametrize("strict_first", [False, True], ids=["stricter", "laxer"])
def test_a_setting_that_another_process_changed_decides_about_the_next_record(
    tmp_path: Path, until_end: ExitStack, strict_first: bool
) -> None:
    log = until_end.enter_context(embedlog.open(tmp_path / "log", config={"housekeeping": False}))
    log.create_topic("t")
    other = OtherProcess(tmp_path / "log")
    until_end.callback(other.close)
    wrong = attempt_each_way(log, other.alter, first=True, strict_first=strict_first)
    assert [line for line in wrong if line.partition(", ")[2].partition(":")[0] not in DIRECT] == []


def test_a_direct_append_soon_notices_a_setting_that_another_process_changed(tmp_path: Path, until_end: ExitStack) -> None:
    """The thread of the caller appends without a look at the topics; the producer's thread looks every 100 ms."""
    log = until_end.enter_context(embedlog.open(tmp_path / "log", config={"housekeeping": False}))
    log.create_topic("t")
    other = OtherProcess(tmp_path / "log")
    until_end.callback(other.close)
    producer = until_end.enter_context(log.producer(on_delivery_error="log"))
    producer.send("t", b"v").result(20)
    other.alter(log, "cleanup.policy", "compact")
    deadline_s = time.monotonic() + 20
    with pytest.raises(InvalidRecordError, match="every record needs a key"):
        while time.monotonic() < deadline_s:
            producer.send("t", b"v").result(20)


@pytest.mark.parametrize("strict_first", [False, True], ids=["stricter", "laxer"])
def test_a_changed_setting_decides_on_a_set(tmp_path: Path, strict_first: bool) -> None:
    directories = [tmp_path / "d1", tmp_path / "d2"]
    with embedlog.open(directories, config={"housekeeping": False}) as log:
        log.create_topic("t")
        assert attempt_each_way(log, alter_here, first=True, strict_first=strict_first) == []


def test_records_of_an_open_batch_are_judged_when_it_is_written(tmp_path: Path) -> None:
    """They were accepted by the settings of the call, and the batch waits for its linger."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        with log.producer(linger_ms=60_000, on_delivery_error="log") as producer:
            producer.send("t", b"first", key=b"k")
            producer.flush(20)
            waiting = producer.send("t", b"v")
            log.alter_topic("t", {"cleanup.policy": "compact"})
            with pytest.raises(InvalidRecordError, match="every record needs a key"):
                waiting.result(20)
            producer.send("t", b"v", key=b"k").result(20)
        assert [record.value for record in log.scan("t").records()] == [b"first", b"v"]


def test_only_the_batches_that_the_new_settings_refuse_fail(tmp_path: Path) -> None:
    """Several batches wait for the producer's thread, which writes them in one append."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        has_written, is_altered = threading.Event(), threading.Event()

        def hold_the_thread(future: object) -> None:
            has_written.set()
            is_altered.wait(20)

        with log.producer(linger_ms=60_000, batch_size=200, on_delivery_error="log") as producer:
            producer.send("t", b"first", key=b"k").add_done_callback(hold_the_thread)
            keyed = [producer.send("t", b"v" * 150, key=b"0")]  # the first batch is complete
            assert has_written.wait(20)
            keyed += [producer.send("t", b"v" * 150, key=b"%d" % number) for number in (1, 2)]
            keyless = producer.send("t", b"v" * 150)
            log.alter_topic("t", {"cleanup.policy": "compact"})
            is_altered.set()
            producer.flush(20)
            assert isinstance(keyless.exception(20), InvalidRecordError)
            assert [future.exception(20) for future in keyed] == [None] * 3
        assert [record.key for record in log.scan("t").records()] == [b"k", b"0", b"1", b"2"]
