"""Random histories of producers that end while records are in progress, and the counts that must
result.

Callbacks raise and call methods, and the producer ends in any way. A record is in the log exactly
once if its future succeeded, and not at all if it failed. Each callback and each waiting task gets
its result exactly once.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import EmbedlogError
from tests.support.producer_helpers import wait_until

HISTORIES = 12
RAISED = (
    ValueError,
    SystemExit,
    asyncio.CancelledError,
    KeyboardInterrupt,
    GeneratorExit,
    MemoryError,
)
# the last two by callbacks that run in the main thread
RAISED_HERE = (EmbedlogError, SystemExit, KeyboardInterrupt)
WAYS = (
    "close",
    "close in a hurry",
    "with",
    "close of the log",
    "a callback closes",
    "a callback closes the log",
    "another thread",
)


class History:
    """One producer. Every value is sent once; the results of its future and its callback are noted
    by value.
    """

    def __init__(self, path: Path, rng: random.Random, acks: str) -> None:
        self.rng = rng
        self.acks = acks
        self.path = path
        self.log = embedlog.open(path, config={"housekeeping": False})
        self.log.create_topic("t", partitions=3)
        self.way = rng.choice(WAYS)
        self.mutex = threading.Lock()
        self.sent: dict[bytes, embedlog.Future] = {}  # the first value of a call → its future
        self.rows: dict[bytes, list[bytes]] = {}
        self.called: collections.Counter[bytes] = collections.Counter()
        self.count = 0
        self.ended = threading.Event()
        self.say = f"{self.way}, acks={acks}"

    def values(self, count: int) -> list[bytes]:
        with self.mutex:
            self.count += count
            return [b"%d" % number for number in range(self.count - count, self.count)]

    def note(self, rows: list[bytes], future: embedlog.Future, end: Callable[[], None]) -> None:
        """The call was accepted: its values, and the action of its callback."""
        self.sent[rows[0]] = future
        self.rows[rows[0]] = rows
        does = self.rng.choice(["nothing", "raise", "send", "end"])
        raised = self.rng.choice(RAISED)

        def callback(told: embedlog.Future) -> None:
            with self.mutex:
                self.called[rows[0]] += 1
            if does == "send" and self.count < 3000:
                self.send(end)
            elif does == "end" and "callback" in self.way and not self.ended.is_set():
                self.ended.set()
                end()
            elif does == "raise":
                raise raised

        future.add_done_callback(callback)

    def send(self, end: Callable[[], None]) -> None:
        rows = self.values(self.rng.choice([1, 1, 1, 4]))
        partition = self.rng.choice([None, 0, 1, 2])
        with contextlib.suppress(*RAISED_HERE):  # closed
            if len(rows) == 1:
                future = self.producer.send("t", rows[0], partition=partition)
            else:
                future = self.producer.send_batch("t", rows, partition=partition)
            self.note(rows, future, end)

    def run(self) -> None:
        self.producer: Any = self.log.producer(
            acks=self.acks,
            linger_ms=self.rng.choice([0, 1, 60_000]),
            delivery_timeout_ms=600_000,
            batch_size=self.rng.choice([0, 300, 16384]),
        )
        end = self.log.close if self.way == "a callback closes the log" else self.producer.close
        for _ in range(self.rng.randrange(1, 200)):
            self.send(lambda: self.quiet(end))
            if self.rng.random() < 0.02:
                self.quiet(self.producer.flush)
        self.end()

    @staticmethod
    def quiet(call: Callable[[], object]) -> None:
        with contextlib.suppress(*RAISED_HERE):
            call()

    def end(self) -> None:
        if self.way == "close in a hurry":
            self.quiet(lambda: self.producer.close(0))
        elif self.way == "with":
            with contextlib.suppress(KeyError, *RAISED_HERE), self.producer:
                raise KeyError
        elif self.way == "close of the log":
            self.quiet(self.log.close)
        elif self.way == "another thread":
            thread = threading.Thread(target=self.quiet, args=(self.producer.close,))
            thread.start()
            for _ in range(20):
                self.send(lambda: None)
            thread.join(20)
        self.quiet(self.producer.close)
        wait_until(lambda: sum(self.called.values()) >= len(self.sent) or not self.pending())
        self.quiet(self.log.close)

    def pending(self) -> list[bytes]:
        return [value for value in list(self.sent) if not self.called[value]]

    def check(self) -> None:
        assert self.called == dict.fromkeys(self.sent, 1), self.say
        with embedlog.open(self.path, read_only=True) as log:
            found = collections.Counter(record.value for record in log.scan("t").records())
        for value, future in self.sent.items():
            assert future.done(), self.say
            lost = future.exception(0) is not None
            for row in self.rows[value]:
                if self.acks == "0" and self.way in (
                    "close in a hurry",
                    "a callback closes",
                    "a callback closes the log",
                ):
                    assert found.pop(row, 0) <= 1, self.say  # the result is unknown
                else:
                    assert found.pop(row, 0) == (not lost), (self.say, row, future)
        assert not found, f"{self.say}: records of calls that raised"


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks raise on purpose here, and are logged a thousand times."""
    monkeypatch.setattr("sys.unraisablehook", lambda what: None)
    monkeypatch.setattr(logging.getLogger("embedlog.producer"), "disabled", True)


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.usefixtures("quiet")
def test_each_record_is_in_the_log_as_its_future_says_and_each_callback_ran_once(
    tmp_path: Path, rng: random.Random, acks: str
) -> None:
    for number in range(HISTORIES):
        history = History(tmp_path / str(number), rng, acks)
        history.run()
        history.check()


def test_each_task_that_awaits_a_record_is_woken_however_the_asyncio_producer_ends(
    tmp_path: Path, rng: random.Random
) -> None:
    async def life(log: embedlog.Log) -> tuple[dict[bytes, bool], int]:
        fine: dict[bytes, bool] = {}

        async def wait(rows: list[bytes], future: embedlog.Future) -> None:
            try:
                await future
            except EmbedlogError:
                fine.update(dict.fromkeys(rows, False))
            else:
                fine.update(dict.fromkeys(rows, True))

        producer = log.async_producer(
            linger_ms=rng.choice([0, 1, 60_000]), delivery_timeout_ms=600_000
        )
        tasks = []
        count = 0
        for _ in range(rng.randrange(1, 150)):
            rows = [b"%d" % number for number in range(count, count + rng.choice([1, 1, 5]))]
            count += len(rows)
            future = await (
                producer.send("t", rows[0]) if len(rows) == 1 else producer.send_batch("t", rows)
            )
            tasks.append(asyncio.create_task(wait(rows, future)))
            if rng.random() < 0.1:
                await asyncio.sleep(0)
        way = rng.choice(["close", "in a hurry", "async with", "close of the log"])
        with contextlib.suppress(EmbedlogError):
            if way == "async with":
                async with producer:
                    pass
            elif way == "close of the log":
                await asyncio.to_thread(log.close)
            else:
                await producer.close(0 if way == "in a hurry" else None)
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        await producer.close()
        return fine, count

    for number in range(HISTORIES):
        log = embedlog.open(tmp_path / str(number), config={"housekeeping": False})
        log.create_topic("t", partitions=3)
        fine, count = asyncio.run(life(log))
        log.close()
        assert len(fine) == count
        with embedlog.open(tmp_path / str(number), read_only=True) as again:
            found = collections.Counter(record.value for record in again.scan("t").records())
        assert found == {value: 1 for value, written in fine.items() if written}


def test_what_a_transaction_commits_is_seen_once_and_what_it_aborts_never(
    tmp_path: Path, rng: random.Random
) -> None:
    log = embedlog.open(tmp_path / "log", config={"housekeeping": False})
    log.create_topic("t", partitions=3)
    called: collections.Counter[bytes] = collections.Counter()
    committed: set[bytes] = set()
    sent: set[bytes] = set()

    def callback(value: bytes) -> Callable[[embedlog.Future], None]:
        def told(future: embedlog.Future) -> None:
            called[value] += 1
            raise rng.choice([ValueError, SystemExit, asyncio.CancelledError])

        return told

    for life in range(6):
        producer = log.producer(
            transactional_id="x", linger_ms=rng.choice([0, 60_000]), delivery_timeout_ms=600_000
        )
        producer.init_transactions()
        for transaction in range(rng.randrange(1, 6)):
            producer.begin_transaction()
            rows = [
                b"%d %d %d" % (life, transaction, number) for number in range(rng.randrange(1, 60))
            ]
            for row in rows:
                producer.send("t", row).add_done_callback(callback(row))
            sent.update(rows)
            if rng.random() < 0.6:
                producer.commit_transaction()
                committed.update(rows)
            elif rng.random() < 0.7:
                producer.abort_transaction()
            else:
                break
        producer.close()
    log.close()
    assert called == dict.fromkeys(sent, 1)
    with embedlog.open(tmp_path / "log", read_only=True) as again:
        found = collections.Counter(
            record.value for record in again.scan("t", isolation_level="read_committed").records()
        )
    assert found == dict.fromkeys(committed, 1)
