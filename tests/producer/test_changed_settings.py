"""A record is judged by the settings that its topic has at the moment of the append, and not by
those of an earlier one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import embedlog
from embedlog import EmbedlogError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError

OLD_MS = 1_000_000_000_000  # 2001
HOUR_MS = 3_600_000
NEVER_MS = "9223372036854775807"
LARGE = random.Random(1).randbytes(40_000)  # no codec makes it smaller


class Case(NamedTuple):
    """A setting with two values, a record that only the first one accepts, and the error with the
    second one.
    """

    setting: str
    lenient: str
    strict: str
    record: dict[str, Any]
    error: type[EmbedlogError]
    others: Mapping[str, str] = MappingProxyType({})  # other settings of the topic


def keyed(**named: Any) -> dict[str, Any]:
    return {"value": b"v", "key": b"k", **named}


CASES = {
    "keyless": Case("cleanup.policy", "delete", "compact", {"value": b"v"}, InvalidRecordError),
    "old": Case(
        "message.timestamp.before.max.ms",
        NEVER_MS,
        "60000",
        keyed(timestamp_ms=OLD_MS),
        InvalidTimestampError,
    ),
    "early": Case(
        "message.timestamp.after.max.ms",
        str(24 * HOUR_MS),
        "60000",
        keyed(timestamp_ms=int(time.time() * 1000) + 12 * HOUR_MS),
        InvalidTimestampError,
    ),
    "own time": Case(
        "message.timestamp.type",
        "LogAppendTime",
        "CreateTime",
        keyed(timestamp_ms=OLD_MS),
        InvalidTimestampError,
        {"message.timestamp.before.max.ms": "60000"},
    ),
    "large": Case("max.message.bytes", "1048588", "20000", keyed(value=LARGE), RecordTooLargeError),
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
    return {
        "values": [record["value"]] * count,
        "keys": keys,
        "timestamps_ms": record.get("timestamp_ms"),
    }


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
    """An asynchronous producer in a loop of its own, so that it lives as long as the synchronous
    ones.
    """

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


class Way(NamedTuple):
    """A way to write a record: what makes its producer, and the write."""

    make: Callable[[Log], Any]
    write: Callable[[Log, Any, dict[str, Any]], None]


WAYS = {
    "send": Way(lambda log: log.producer(linger_ms=0, **QUIET), send),
    "linger": Way(lambda log: log.producer(linger_ms=5, **QUIET), send),
    "flush": Way(lambda log: log.producer(linger_ms=5, **QUIET), send_and_flush),
    "plain": Way(lambda log: log.producer(enable_idempotence=False, **QUIET), send),
    "serializer": Way(lambda log: log.producer(value_serializer=bytes, **QUIET), send),
    "list": Way(lambda log: log.producer(**QUIET), send_batch),
    "columns": Way(lambda log: log.producer(**QUIET), send_columns),
    "compressed": Way(lambda log: log.producer(compression_type="lz4", **QUIET), send),
    "conditional": Way(lambda log: log.producer(**QUIET), send_conditionally),
    "transaction": Way(make_transactional, send_in_transaction),
    "asyncio": Way(AsyncWriter, send_by_asyncio),
}

EVERY = [(case, way) for case in CASES for way in WAYS]
SOME = [(case, way) for case, way in EVERY if case == "keyless" or way in ("send", "list")]
PAIRS = [pytest.param(SOME, id="some"), pytest.param(EVERY, id="every", marks=pytest.mark.slow)]

# ---- ways to change the topic ----------------------------------------------------------------------------------------


def alter(log: Log, settings: dict[str, str]) -> None:
    log.alter_topic("t", settings)


def recreate(log: Log, settings: dict[str, str]) -> None:
    log.delete_topic("t")
    log.create_topic("t", config=settings)


CHILD = """
import json
import sys

import embedlog

paths = sys.argv[1:]
with embedlog.open(paths if len(paths) > 1 else paths[0], config={"housekeeping": False}) as log:
    print("open", flush=True)
    for line in sys.stdin:
        verb, settings = json.loads(line)
        if verb == "recreate":
            log.delete_topic("t")
            log.create_topic("t", config=settings)
        else:
            log.alter_topic("t", settings)
        print("changed", flush=True)
"""


class OtherProcess:
    """Changes the topic by a process that stays open."""

    def __init__(self, paths: list[Path]) -> None:
        command = [sys.executable, "-c", CHILD, *map(str, paths)]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect("open")

    def _expect(self, word: str) -> None:
        assert self.child.stdout is not None
        assert self.child.stdout.readline().strip() == word

    def change(self, verb: str, settings: dict[str, str]) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps([verb, settings]) + "\n")
        self.child.stdin.flush()
        self._expect("changed")

    def alter(self, log: Log, settings: dict[str, str]) -> None:
        self.change("alter", settings)

    def recreate(self, log: Log, settings: dict[str, str]) -> None:
        self.change("recreate", settings)

    def close(self) -> None:
        self.child.communicate(timeout=30)


Change = Callable[[Log, dict[str, str]], None]
PLACES = ["this handle", "another handle", "another process"]


def change_of(place: str, verb: str, paths: list[Path], until_end: ExitStack) -> Change:
    """What changes the topic, by one of the places."""
    if place == "another process":
        process = OtherProcess(paths)
        until_end.callback(process.close)
        return process.recreate if verb == "recreate" else process.alter
    change = recreate if verb == "recreate" else alter
    if place == "this handle":
        return change
    other = until_end.enter_context(
        embedlog.open(paths if len(paths) > 1 else paths[0], config={"housekeeping": False})
    )
    return lambda log, settings: change(other, settings)


def attempt_each(
    log: Log, change: Change, pairs: list[tuple[str, str]], *, first: bool, strict_first: bool
) -> list[str]:
    """Write in each way after each change of a setting, and return what was not as the present
    settings want it.
    """
    wrong = []
    for case, way in pairs:
        setting, lenient, strict, record, error, others = CASES[case]
        before, after = (strict, lenient) if strict_first else (lenient, strict)
        every = {each.setting: None for each in CASES.values()}
        log.alter_topic("t", {**every, **others, setting: before})
        with contextlib.closing(WAYS[way].make(log)) as producer:
            if first:
                # the second one is appended by this thread, if it waits for one record
                for _ in range(2):
                    WAYS[way].write(log, producer, {"value": b"first", "key": b"k"})
            change(log, {**others, setting: after})
            outcome: object = None
            try:
                WAYS[way].write(log, producer, record)
            except EmbedlogError as refusal:
                outcome = refusal
        is_right = outcome is None if strict_first else isinstance(outcome, error)
        if not is_right:
            wrong.append(f"{case}, {way}: {outcome!r}")
    return wrong


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("strict_first", [False, True], ids=["stricter", "laxer"])
@pytest.mark.parametrize("first", [False, True], ids=["before the first write", "after a write"])
@pytest.mark.parametrize("verb", ["alter", "recreate"])
@pytest.mark.parametrize("place", PLACES)
def test_a_changed_setting_decides_about_the_next_record(
    tmp_path: Path,
    until_end: ExitStack,
    place: str,
    verb: str,
    first: bool,
    strict_first: bool,
    pairs: list[tuple[str, str]],
) -> None:
    """The next append after the return of the change, without a wait."""
    log = until_end.enter_context(embedlog.open(tmp_path / "log", config={"housekeeping": False}))
    log.create_topic("t")
    change = change_of(place, verb, [tmp_path / "log"], until_end)
    assert attempt_each(log, change, pairs, first=first, strict_first=strict_first) == []


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("strict_first", [False, True], ids=["stricter", "laxer"])
@pytest.mark.parametrize("place", PLACES)
def test_a_changed_setting_decides_on_a_set(
    tmp_path: Path,
    until_end: ExitStack,
    place: str,
    strict_first: bool,
    pairs: list[tuple[str, str]],
) -> None:
    """The decision log has the settings there, and the directory of the leader shows the change."""
    paths = [tmp_path / "d1", tmp_path / "d2"]
    log = until_end.enter_context(embedlog.open(paths, config={"housekeeping": False}))
    log.create_topic("t", replication_factor=2)
    change = change_of(place, "alter", paths, until_end)
    assert attempt_each(log, change, pairs, first=True, strict_first=strict_first) == []


def test_a_setting_that_changed_there_and_back_decides(tmp_path: Path) -> None:
    """The first change was noticed, by an append that was not refused."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        with log.producer(on_delivery_error="log") as producer:
            for _ in range(5):
                producer.send("t", b"v", key=b"k").result(20)
            log.alter_topic("t", {"cleanup.policy": "compact"})
            producer.send("t", b"v", key=b"k").result(20)
            log.alter_topic("t", {"cleanup.policy": "delete"})
            producer.send("t", b"v").result(20)


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
        has_written = threading.Event()
        is_altered = threading.Event()

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
