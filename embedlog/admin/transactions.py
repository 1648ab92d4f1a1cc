"""This module describes transactions: of transactional ids, and those that are open in partitions.

TXNADMIN-1  nothing is written and nothing is ended: `init_transactions` with an id aborts its transaction and fences its producer
"""

from __future__ import annotations

from embedlog.engine import Engine
from embedlog.transaction import Status, Transaction
from embedlog.types import OpenTransaction, TopicPartition, TransactionDescription

NAMES = {status: "".join(word.capitalize() for word in status.name.split("_")) for status in Status}


def describe_all(engine: Engine) -> list[TransactionDescription]:
    """All transactional ids, sorted. Raises CorruptRecordError, LeaderNotAvailableError."""
    engine.check_open()
    return [_described(engine, name, state) for name, state in sorted(_states(engine).items())]


def _states(engine: Engine) -> dict[str, Transaction]:
    coordinator = engine.transactions
    if coordinator.topic.count() == 0:
        return {}
    found = {}
    for number in coordinator.topic.written():
        view = coordinator.topic.view(number)
        for name in list(view.names()):
            state = view.get(name)
            if state is not None:
                found[name] = state
    return found


def _described(engine: Engine, name: str, state: Transaction) -> TransactionDescription:
    in_use = None
    if not engine.read_only:
        in_use = state.owner is not None and engine.transactions.liveness.probe(state.owner)
    return TransactionDescription(
        name, state.producer_id, state.epoch, NAMES[state.status], state.timeout_ms,
        state.started_ms if state.started_ms >= 0 and state.partitions else None, state.updated_ms,
        tuple(sorted(TopicPartition(*each) for each in state.partitions)), in_use,
    )  # fmt: skip


def open_in_partitions(engine: Engine, topic: str | None) -> list[OpenTransaction]:
    """The open transactions of one topic, or of all. Raises UnknownTopicOrPartitionError, CorruptRecordError."""
    engine.check_open()
    unfinished = {
        (state.producer_id, state.epoch): name
        for name, state in _states(engine).items()
        if state.status in (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)
    }
    found = []
    for name in engine.topic_names() if topic is None else [engine.topic(topic).name]:
        for number in range(engine.partition_count(name)):
            partition = engine.partition(name, number)
            for producer_id, epoch, start in partition.open_transactions():
                owner = unfinished.get((producer_id, epoch))
                found.append(OpenTransaction(name, number, producer_id, epoch, start, owner))
    return found
