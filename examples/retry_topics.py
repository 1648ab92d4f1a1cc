"""Retries with delays, and a topic for records that never succeed: each record has one outcome,
also after kill -9.

    python examples/retry_topics.py data orders --delays 1 10 60

The program parses JSON values with a number `amount`, and writes the doubled amount to
`orders.results`. A record that fails goes to `orders.retry.1`, after the delay of that topic to the
next one, and in the end to `orders.dead`. Its headers have the error and its first place. Other
records continue meanwhile, so a retry is processed later than newer records of its key.

Results, retries and offsets are in one transaction. Readers with `isolation.level=read_committed`
see each outcome once. A retry topic has one delay, so its records are due in order: a partition
whose first record is not due is paused until then.

Several processes share the work: each needs an `--id` of its own, and the topics of retries need as
many `--partitions`. Of two processes with one id the later one continues, and the earlier one ends
with FencedError.

A record that kills the process is no failed attempt: nothing of it is in the log, and it is read
again without end. With `--isolated` the work runs in a child process. Then its death is an error of
that record, and is counted. A SIGTERM that is sent to the child too, as by a service manager, is
such a death. The alternative needs no child: a topic of started attempts. The program writes the
place of a record to it before the work, outside of the transaction, and counts them after a
restart.

SIGINT and SIGTERM end the program after the present poll. The child ends with the program, also
after its SIGKILL.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import TracebackType
from typing import Self

import embedlog
from embedlog import ProducerRecord, Record, TopicPartition

Handle = Callable[[Record[bytes, bytes]], Iterable[ProducerRecord]]
PREFIX = "retry."  # of the headers that this program adds


class Retries:
    """The topics of the retries of a topic, and the program that follows them. Threads: one, except
    `stop`.
    """

    def __init__(
        self,
        log: embedlog.Log,
        topic: str,
        handle: Handle,
        *,
        group: str = "retries",
        process: str = "0",
        partitions: int = 1,
        delays_s: Sequence[float] = (1, 10, 60),
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._handle = handle
        self._group = group
        self._clock_s = clock_s
        self._transactional_id = f"{group}-{process}"
        self._stages = [
            topic,
            *(f"{topic}.retry.{number}" for number in range(1, len(delays_s) + 1)),
            f"{topic}.dead",
        ]
        self._delays_s = [*delays_s, 0.0]  # before the next stage is processed
        self._due_s: dict[TopicPartition, float] = {}  # of paused partitions
        self._stopped = False
        for name in self._stages:
            log.create_topic(name, partitions, exist_ok=True)

    def stop(self) -> None:
        """End `run` after the present poll. May be called by any thread and by a signal handler."""
        self._stopped = True

    def run(self, *, idle_s: float | None = None) -> None:
        """Process records until `stop`, or until no record came and none waited for `idle_s`."""
        options = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        with self._log.producer(transactional_id=self._transactional_id) as producer:
            producer.init_transactions()
            with self._log.consumer(group_id=self._group, config=options) as consumer:
                consumer.subscribe(self._stages[:-1], on_revoked=self._forget)
                busy_s = time.monotonic()
                while not self._stopped:
                    now_s = self._clock_s()
                    for place in [place for place, due_s in self._due_s.items() if due_s <= now_s]:
                        consumer.resume(place)
                        del self._due_s[place]
                    assigned = bool(consumer.assignment())
                    records = consumer.poll(
                        max(0.0, min([0.2, *(due_s - now_s for due_s in self._due_s.values())]))
                    )
                    if records or self._due_s or not assigned:
                        busy_s = time.monotonic()
                    elif idle_s is not None and time.monotonic() - busy_s >= idle_s:
                        break
                    if not records:
                        continue
                    with producer.transaction():
                        for record in records:
                            for outcome in self._outcomes(consumer, record):
                                producer.send(
                                    outcome.topic,
                                    outcome.value,
                                    key=outcome.key,
                                    headers=outcome.headers,
                                )
                        positions = {
                            place: consumer.position(place) for place in consumer.assignment()
                        }
                        producer.send_offsets_to_transaction(positions, consumer.group_metadata())

    def _forget(self, places: list[TopicPartition]) -> None:
        for place in places:
            self._due_s.pop(place, None)

    def _outcomes(
        self, consumer: embedlog.Consumer[bytes, bytes], record: Record[bytes, bytes]
    ) -> list[ProducerRecord]:
        """The records that a record becomes; none if it is not due: then it is read again."""
        place = TopicPartition(record.topic, record.partition)
        headers = dict(record.headers)
        if place in self._due_s:  # an earlier record of this poll was not due
            return []
        due_s = int(headers.get(f"{PREFIX}due-ms") or b"0") / 1000
        if due_s > self._clock_s():
            consumer.seek(place, record.offset)
            consumer.pause(place)
            self._due_s[place] = due_s
            return []
        try:
            return list(self._handle(record))
        except Exception as error:  # noqa: BLE001 (any error of the handler is a failed attempt)
            return [self._retry(record, error)]

    def _retry(self, record: Record[bytes, bytes], error: Exception) -> ProducerRecord:
        """The record in the topic of its next attempt, or in that of the dead ones."""
        known = dict(record.headers)
        stage = self._stages.index(record.topic)
        first = (
            known.get(f"{PREFIX}first")
            or f"{record.topic}-{record.partition}@{record.offset}".encode()
        )
        due_ms = int((self._clock_s() + self._delays_s[stage]) * 1000)
        added = {
            "first": first,
            "attempts": b"%d" % (stage + 1),
            "error": repr(error)[:500].encode(),
            "due-ms": b"%d" % due_ms,
        }
        headers = [pair for pair in record.headers if not pair[0].startswith(PREFIX)]
        headers += [(PREFIX + name, value) for name, value in added.items()]
        return ProducerRecord(self._stages[stage + 1], record.value, record.key, headers=headers)


class Isolated:
    """A handler that runs in a child process, so that a record that kills the process is a failed
    attempt. Threads: one.

    The handler is a function of a module, or a `partial` of one: it is pickled.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, record: Record[bytes, bytes]) -> list[ProducerRecord]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), end_with_parent
            )
        try:
            return list(self._pool.submit(self._handle, record).result())
        except BrokenProcessPool:
            self._pool = None  # the next record has a new one
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def end_with_parent() -> None:
    """Prepare a child process: it ends when its parent does, and leaves the SIGINT of a terminal to
    it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child process has a parent here"

    def watch() -> None:
        parent.join()  # waits for a pipe that the kernel closes, whatever ended the parent
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def doubled(target: str, record: Record[bytes, bytes]) -> list[ProducerRecord]:
    """The work of the program."""
    amount = json.loads(record.value)["amount"]
    return [ProducerRecord(target, b"%d" % (2 * int(amount)), record.key)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", help="the log directory")
    parser.add_argument("topic")
    parser.add_argument(
        "--delays",
        type=float,
        nargs="+",
        default=[1.0, 10.0, 60.0],
        metavar="S",
        help="of the attempts after the first",
    )
    parser.add_argument(
        "--idle", type=float, default=None, metavar="S", help="end after this time without a record"
    )
    parser.add_argument(
        "--id",
        default="0",
        help="of this process, if several share the work; a restarted one keeps it",
    )
    parser.add_argument(
        "--partitions", type=int, default=1, metavar="N", help="of topics that the program creates"
    )
    parser.add_argument(
        "--isolated",
        action="store_true",
        help="work in a child process: its death is a failed attempt",
    )
    given = parser.parse_args()
    target = f"{given.topic}.results"
    handle = partial(doubled, target)
    with embedlog.open(given.directory) as log, Isolated(handle) as isolated:
        log.create_topic(target, given.partitions, exist_ok=True)
        retries = Retries(
            log,
            given.topic,
            isolated if given.isolated else handle,
            process=given.id,
            partitions=given.partitions,
            delays_s=given.delays,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: retries.stop())
        retries.run(idle_s=given.idle)


if __name__ == "__main__":
    main()
