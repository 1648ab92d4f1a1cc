"""Helpers for tests of transactions below the producer: an owner with its sequences, and the
records of readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import embedlog
from embedlog.coordination.transactions.transactional_id_owner import TransactionalIdOwner
from embedlog.format import record_batch
from embedlog.format.record_batch import EncodedRun, Stamp
from embedlog.format.record_columns import BytesColumn, Columns
from embedlog.partition.log_context import Appended, AppendProgress
from embedlog.storage import files
from embedlog.transaction import Outcome, Transaction

TOPIC = "t"
QUIET: dict[str, Any] = {
    "housekeeping": False,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 4,
}


def run_of(stamp: Stamp, sequence: int, values: Sequence[bytes]) -> EncodedRun:
    """One stamped batch."""
    (run,) = record_batch.encode(
        Columns(len(values), BytesColumn.of(list(values)), timestamps=1_700_000_000_000)
    )
    record_batch.stamp(run, stamp, sequence)
    return run


class Writer:
    """An owner that counts its sequences, as a producer does."""

    def __init__(self, log: embedlog.Log, name: str = "id", timeout_ms: int = 60_000) -> None:
        self.log = log
        self.owner: TransactionalIdOwner = log._engine.transactions.owner(name, timeout_ms)
        self._sequences: dict[tuple[int, int, str, int], int] = {}

    def init(self) -> Outcome | None:
        return self.owner.init()

    def write(
        self,
        *values: bytes,
        partition: int = 0,
        topic: str = TOPIC,
        again: EncodedRun | None = None,
    ) -> Appended:
        run = again or self.prepare(*values, partition=partition, topic=topic)
        return self.owner.append(self.log._engine.partition(topic, partition), run)

    def prepare(self, *values: bytes, partition: int = 0, topic: str = TOPIC) -> EncodedRun:
        stamp = self.owner.stamp
        key = (stamp.producer_id, stamp.epoch, topic, partition)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(values)
        return run_of(stamp, sequence, values)

    def begin_in(
        self, *partitions: int, topic: str = TOPIC
    ) -> dict[int, tuple[EncodedRun, AppendProgress]]:
        """The first step of a producer's thread with due batches of several partitions; the
        progress of each.
        """
        runs = {
            number: self.prepare(b"x%d" % number, partition=number, topic=topic)
            for number in partitions
        }
        begun = {number: (run, AppendProgress(run)) for number, run in runs.items()}
        self.owner.begin_in(
            [(self.log._engine.partition(topic, number), *each) for number, each in begun.items()]
        )
        return begun

    def commit(self) -> None:
        self.owner.end(True)

    def abort(self) -> None:
        self.owner.end(False)

    def state(self) -> Transaction | None:
        return state_of(self.log, self.owner.transactional_id)


def state_of(log: embedlog.Log, name: str) -> Transaction | None:
    topic = log._engine.transactions.topic
    return topic.view(topic.partition_of(name)).get(name)


def committed(log: embedlog.Log, topic: str = TOPIC) -> list[bytes | None]:
    """The records of a read_committed reader, in order of partition and offset."""
    return [each.value for each in log.scan(topic, isolation_level="read_committed").records()]


def everything(log: embedlog.Log, topic: str = TOPIC) -> list[bytes | None]:
    return [each.value for each in log.scan(topic).records()]


def last_stable(log: embedlog.Log, partition: int = 0, topic: str = TOPIC) -> tuple[int, int]:
    """Last stable offset and end."""
    bounds = log._engine.partition(topic, partition).bounds()
    return bounds.last_stable, bounds.log_end


def begun(log: embedlog.Log, name: str = "id", timeout_ms: int = 60_000) -> Writer:
    writer = Writer(log, name, timeout_ms)
    writer.init()
    return writer


def soon() -> int:
    return files.deadline_after(20)


def help_out(log: embedlog.Log, partition: int = 0, topic: str = TOPIC) -> bool:
    """The help of a waiting reader, with a longer deadline for a busy machine."""
    return log._engine.transactions.resolve(log._engine.partition(topic, partition), soon())
