"""A record that fails fatally while a transaction ends: nothing is committed, and the call raises
the error of the record.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.coordination.transactions.transactional_id_owner import TransactionalIdOwner
from embedlog.errors import FencedError, InvalidTransactionStateError, RecordTooLargeError
from embedlog.producer.transaction_manager import ClientState

FATAL = [FencedError, InvalidTransactionStateError]
HELD_MS = 60_000  # records wait for the end of the transaction


@pytest.fixture(params=[0, 1, 2], ids=["one directory", "a set of 1", "a set of 2"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[embedlog.Log]:
    paths = [tmp_path / f"d{number}" for number in range(request.param)]
    with embedlog.open(paths or tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("first")
        opened.create_topic("second")
        yield opened


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[embedlog.EmbedlogError]:
    """The error of each append to `second`."""
    errors: list[embedlog.EmbedlogError] = []
    real = TransactionalIdOwner.append

    def append(self: TransactionalIdOwner, partition: Any, *arguments: Any, **keywords: Any) -> Any:
        if errors and partition.topic == "second":
            raise errors[0]
        return real(self, partition, *arguments, **keywords)

    monkeypatch.setattr(TransactionalIdOwner, "append", append)
    # it would write the first records itself
    monkeypatch.setattr(TransactionalIdOwner, "begin_in", lambda self, runs: None)
    return errors


def opened(log: embedlog.Log) -> embedlog.Producer:
    made = log.producer(transactional_id="x", linger_ms=HELD_MS, delivery_timeout_ms=10 * HELD_MS)
    made.init_transactions()
    return made


def committed(log: embedlog.Log) -> list[bytes]:
    scans = [
        log.scan(topic, isolation_level="read_committed").records() for topic in ("first", "second")
    ]
    return [record.value for scan in scans for record in scan]


def offset_of(log: embedlog.Log, group: str) -> object:
    with log.consumer(group_id=group) as consumer:
        return consumer.committed(TopicPartition("first", 0))[TopicPartition("first", 0)]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("kind", FATAL)
def test_nothing_is_committed(
    log: embedlog.Log, refused: list[embedlog.EmbedlogError], kind: type[embedlog.EmbedlogError]
) -> None:
    refused.append(kind("of the record"))
    with opened(log) as producer:
        producer.begin_transaction()
        producer.send("first", b"half")
        producer.send_offsets_to_transaction(
            {TopicPartition("first", 0): 1}, embedlog.GroupMetadata("g")
        )
        failed = producer.send("second", b"half")
        with pytest.raises(kind, match="of the record") as caught:
            producer.commit_transaction()
        assert caught.value is failed.exception(0)
        assert producer._transaction.state is ClientState.FATAL_ERROR
        for call in (
            producer.commit_transaction,
            producer.abort_transaction,
            producer.begin_transaction,
        ):
            with pytest.raises(kind, match="of the record"):
                call()
    refused.clear()
    assert committed(log) == []
    assert offset_of(log, "g") is None
    with opened(log) as following:
        with following.transaction():
            following.send("second", b"whole")
        assert committed(log) == [b"whole"]


def test_the_error_of_the_record_leaves_the_block(
    log: embedlog.Log, refused: list[embedlog.EmbedlogError]
) -> None:
    refused.append(InvalidTransactionStateError("of the record"))
    with (
        opened(log) as producer,
        pytest.raises(InvalidTransactionStateError, match="of the record"),
        producer.transaction(),
    ):
        producer.send("first", b"half")
        producer.send("second", b"half")
    assert committed(log) == []


def test_a_record_that_fails_fatally_before_the_end(
    log: embedlog.Log, refused: list[embedlog.EmbedlogError]
) -> None:
    refused.append(FencedError("of the record"))
    with opened(log) as producer:
        producer.begin_transaction()
        producer.send("first", b"half")
        producer.send("second", b"half")
        with pytest.raises(embedlog.errors.DeliveryError):
            producer.flush()
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(FencedError, match="of the record"):
                call()
    assert committed(log) == []


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("kind", FATAL)
def test_an_abort_raises_the_error_of_the_record(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, kind: type[embedlog.EmbedlogError]
) -> None:
    """The record is being written when the abort begins, and fails then. The abort is decided."""
    writing = threading.Event()
    go = threading.Event()
    real = TransactionalIdOwner.append

    def append(self: TransactionalIdOwner, partition: Any, *arguments: Any, **keywords: Any) -> Any:
        if partition.topic != "second":
            return real(self, partition, *arguments, **keywords)
        writing.set()
        assert go.wait(30)
        raise kind("of the record")

    monkeypatch.setattr(TransactionalIdOwner, "append", append)
    with log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("first", b"half").result(10)
        producer.send("second", b"half")
        assert writing.wait(30)
        drop = producer._accumulator.drop

        def dropped(error: Exception) -> int:
            count = drop(error)
            go.set()
            return count

        monkeypatch.setattr(producer._accumulator, "drop", dropped)
        with pytest.raises(kind, match="of the record"):
            producer.abort_transaction()
        assert producer._transaction.state is ClientState.FATAL_ERROR
        assert not log._engine.partition("first", 0).open_transactions()
    assert committed(log) == []


def test_a_send_that_fails_while_the_commit_is_decided_does_not_change_it(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records of the transaction are settled then, so the record of another thread is not one
    of them.
    """
    real = TransactionalIdOwner.end
    with opened(log) as producer:
        producer.begin_transaction()
        producer.send("first", b"whole")

        def end(self: TransactionalIdOwner, commit: bool, deadline_ns: int | None = None) -> None:
            producer._transaction.note_failure(RecordTooLargeError("of another thread"))
            real(self, commit, deadline_ns)

        monkeypatch.setattr(TransactionalIdOwner, "end", end)
        producer.commit_transaction()
        assert producer._transaction.state is ClientState.READY
    assert committed(log) == [b"whole"]


def test_asyncio(log: embedlog.Log, refused: list[embedlog.EmbedlogError]) -> None:
    refused.append(InvalidTransactionStateError("of the record"))

    async def main() -> None:
        async with log.async_producer(
            transactional_id="x", linger_ms=HELD_MS, delivery_timeout_ms=10 * HELD_MS
        ) as producer:
            await producer.init_transactions()
            with pytest.raises(InvalidTransactionStateError, match="of the record"):
                async with producer.transaction():
                    await producer.send("first", b"half")
                    await producer.send("second", b"half")

    asyncio.run(main())
    assert committed(log) == []
