"""One poller with a pool of worker threads: records of a key in order, commits in order, at least
once.

    python examples/worker_pool.py data events --group digests --workers 4        SHA-256 of each
    value, to `events.digests`

A consumer is for one thread. Here that thread polls and commits, and others work: useful if the
work waits (for a service, a disk) or leaves the interpreter's lock. Records of one key go to one
worker, so their order is kept. The committed offset of a partition is never after a record that is
not finished: a killed program repeats records, and loses none.

At most `--in-flight` records wait. Then all partitions are paused, and polls continue, so the
member stays in its group. Before a partition moves to another member, its records are finished and
committed. The error of a worker ends the program.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import embedlog
from embedlog import Consumer, Record, TopicPartition

Handle = Callable[[Record[bytes, bytes]], object]
COMMIT_S = 1.0  # between two commits
FINISH_S = 60.0  # for the records of a partition that moves, below max.poll.interval.ms


class FinishedPrefix:
    """The records of one partition that are being processed. `position` is the offset after the
    finished ones at the front.
    """

    def __init__(self) -> None:
        self.position: int | None = None
        self._begun: deque[int] = deque()
        self._finished: set[int] = set()

    def begin(self, offset: int) -> None:
        """A record is given to a worker. REQUIRES: in the order of offsets."""
        self._begun.append(offset)

    def finish(self, offset: int) -> None:
        """A record is finished, in any order."""
        self._finished.add(offset)
        while self._begun and self._begun[0] in self._finished:
            self.position = self._begun.popleft() + 1
            self._finished.remove(self.position - 1)

    @property
    def count(self) -> int:
        """Records that were begun and not passed by `position`."""
        return len(self._begun)


class Pool:
    """A poller and its workers. Threads: one, except `stop`."""

    def __init__(
        self,
        consumer: Consumer[bytes, bytes],
        handle: Handle,
        *,
        workers: int = 4,
        in_flight: int = 1000,
    ) -> None:
        self._consumer = consumer
        self._handle = handle
        self._limit = in_flight
        self._lanes = [ThreadPoolExecutor(1, f"worker-{number}") for number in range(workers)]
        self._done: queue.SimpleQueue[
            tuple[Record[bytes, bytes], FinishedPrefix, Future[object]]
        ] = queue.SimpleQueue()
        self._partitions: dict[TopicPartition, FinishedPrefix] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._waiting = 0
        self._stopped = threading.Event()
        self._ended = False

    def stop(self) -> None:
        """End `run` when the records that were begun are finished. May be called by any thread and
        by a signal handler.
        """
        self._stopped.set()

    def run(self, topics: Iterable[str], *, idle_s: float | None = None) -> None:
        """Process records until `stop`, or until none came for `idle_s`. Raises the error of a
        worker.
        """
        self._consumer.subscribe(topics, on_revoked=self._revoked, on_lost=self._lost)
        busy_s = commit_s = time.monotonic()
        try:
            while not self._stopped.is_set():
                assigned = bool(self._consumer.assignment())
                if self._poll() or self._waiting or not assigned:
                    busy_s = time.monotonic()
                elif idle_s is not None and time.monotonic() - busy_s >= idle_s:
                    break
                if time.monotonic() - commit_s >= COMMIT_S:
                    self._commit()
                    commit_s = time.monotonic()
            self._finish(self._partitions)
        finally:
            for lane in self._lanes:
                lane.shutdown(cancel_futures=True)
            self._commit()
            # the close of the consumer revokes partitions, too: there is nothing left to finish
            self._ended = True

    def _poll(self) -> int:
        """Give new records to the workers, and take finished ones."""
        if self._waiting >= self._limit:
            self._consumer.pause(*self._consumer.assignment())
            self._take(timeout=0.1)
            records = self._consumer.poll(0.0)  # returns no record, and keeps the membership
        else:
            self._consumer.resume(*self._consumer.paused())
            records = self._consumer.poll(
                0.01 if self._waiting else 0.1, max_records=self._limit - self._waiting
            )
        for record in records:
            self._begin(record)
        while self._take(timeout=0.0):
            pass
        return len(records)

    def _begin(self, record: Record[bytes, bytes]) -> None:
        found = self._partitions.setdefault(
            TopicPartition(record.topic, record.partition), FinishedPrefix()
        )
        found.begin(record.offset)
        self._waiting += 1
        lane = hash(record.key if record.key is not None else record.partition) % len(self._lanes)
        future: Future[object] = self._lanes[lane].submit(self._handle, record)
        future.add_done_callback(lambda done: self._done.put((record, found, done)))

    def _take(self, timeout: float) -> bool:
        """Take one finished record; whether there was one."""
        try:
            record, found, done = (
                self._done.get(timeout=timeout) if timeout else self._done.get_nowait()
            )
        except queue.Empty:
            return False
        self._waiting -= 1
        done.result()
        # also of a partition that was lost meanwhile: nothing reads it any more
        found.finish(record.offset)
        return True

    def _finish(self, places: Iterable[TopicPartition]) -> None:
        """Wait until all records of these partitions are finished."""
        for found in [self._partitions[place] for place in places if place in self._partitions]:
            until_s = time.monotonic() + FINISH_S
            while found.count:
                if time.monotonic() > until_s:
                    raise TimeoutError(
                        f"{found.count} records are not finished after {FINISH_S:g} s"
                    )
                self._take(timeout=1.0)

    def _commit(self) -> None:
        due = {
            place: found.position
            for place, found in self._partitions.items()
            if found.position is not None
        }
        due = {
            place: position
            for place, position in due.items()
            if self._committed.get(place) != position
        }
        if due:
            # then they are read again
            with contextlib.suppress(embedlog.CommitFailedError, embedlog.RebalanceInProgressError):
                self._consumer.commit(due)
                self._committed.update(due)

    def _revoked(self, places: list[TopicPartition]) -> None:
        if not self._ended:
            self._finish(places)
            self._commit()
            self._lost(places)

    def _lost(self, places: list[TopicPartition]) -> None:
        for place in places:
            self._partitions.pop(place, None)
            self._committed.pop(place, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", help="the log directory")
    parser.add_argument("topic")
    parser.add_argument("--group", default="digests")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=1000, help="records that wait for workers")
    parser.add_argument(
        "--idle", type=float, default=None, metavar="S", help="end after this time without a record"
    )
    given = parser.parse_args()
    target = f"{given.topic}.digests"
    with embedlog.open(given.directory) as log, log.producer() as producer:
        log.create_topic(target, exist_ok=True)

        def digest(record: Record[bytes, bytes]) -> None:
            producer.send(target, hashlib.sha256(record.value).digest(), key=record.key).result()

        options = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        with log.consumer(group_id=given.group, config=options) as consumer:
            Pool(consumer, digest, workers=given.workers, in_flight=given.in_flight).run(
                [given.topic], idle_s=given.idle
            )


if __name__ == "__main__":
    main()
