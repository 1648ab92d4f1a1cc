"""This module describes transactions: of transactional ids, and those that are open in partitions.

Nothing is written and nothing is ended: `init_transactions` with an id aborts its transaction and
fences its producer.

An entry of a partition is hanging if it is there before and after a reading of the ids, and none of
them covers it. One with the same first offset is the same transaction: it was open all the time. An
id covers a partition from before its first record until after its marker, so an owner would have
been read. One reading of the partitions is not enough. After that of the ids it finds transactions
that began in between, before it those that ended in between.
"""

from __future__ import annotations

from embedlog.descriptions.groups import OpenTransaction, TransactionDescription
from embedlog.engine.engine import Engine
from embedlog.errors import UnknownTopicOrPartitionError
from embedlog.transaction import PREPARED, SETTLED, Status, Transaction, covers
from embedlog.types import TopicPartition

NAMES = {status: "".join(word.capitalize() for word in status.name.split("_")) for status in Status}


def describe_all(engine: Engine) -> list[TransactionDescription]:
    """All transactional ids, sorted. Raises CorruptRecordError, LeaderNotAvailableError."""
    engine.check_open()
    return [_describe(engine, name, state) for name, state in sorted(_read_states(engine).items())]


def _read_states(engine: Engine) -> dict[str, Transaction]:
    coordinator = engine.transactions
    if coordinator.topic.partition_count() == 0:
        return {}
    states = {}
    for number in coordinator.topic.written_partitions():
        view = coordinator.topic.view(number)
        for name in list(view.names()):
            state = view.get(name)
            if state is not None:
                states[name] = state
    return states


def _describe(engine: Engine, name: str, state: Transaction) -> TransactionDescription:
    in_use = None
    if not engine.read_only:
        in_use = engine.transactions.is_in_use(state)
    return TransactionDescription(
        name,
        state.producer_id,
        state.epoch,
        NAMES[state.status],
        state.timeout_ms,
        state.started_ms if state.started_ms >= 0 and state.partitions else None,
        state.updated_ms,
        tuple(sorted(TopicPartition(*partition) for partition in state.partitions)),
        in_use,
    )


def open_in_partitions(engine: Engine, topic: str | None) -> list[OpenTransaction]:
    """The open transactions of one topic, or of all. Raises UnknownTopicOrPartitionError,
    CorruptRecordError.

    One without an id is *hanging*. Other processes begin and end transactions meanwhile, so this
    needs a proof: the partitions are read, then the ids, then again the partitions with entries that
    no id covers.
    """
    engine.check_open()
    names = engine.topic_names() if topic is None else [engine.topic(topic).name]
    entries = []
    for name in names:
        for number in range(engine.partition_count(name)):
            entries += [((name, number), entry) for entry in _read_open(engine, (name, number))]
    owners = {
        state.producer_id: (name, state)
        for name, state in _read_states(engine).items()
        if state.status not in SETTLED
    }
    owned_entries = []
    for partition, entry in entries:
        producer_id, epoch, _first_offset = entry
        owner = _owner_of(owners.get(producer_id), partition, epoch)
        owned_entries.append((partition, entry, owner))
    doubtful = {partition for partition, _, owner in owned_entries if owner is None}
    confirmed = {
        (partition, entry) for partition in doubtful for entry in _read_open(engine, partition)
    }
    return [
        OpenTransaction(*partition, *entry, owner)
        for partition, entry, owner in owned_entries
        if owner is not None or (partition, entry) in confirmed
    ]


def _read_open(engine: Engine, partition: tuple[str, int]) -> list[tuple[int, int, int]]:
    """(producer id, epoch, first offset) of each open transaction; none of a topic that was deleted
    meanwhile.
    """
    try:
        return engine.partition(*partition).open_transactions()
    except UnknownTopicOrPartitionError:
        return []


def _owner_of(
    named: tuple[str, Transaction] | None, partition: tuple[str, int], epoch: int
) -> str | None:
    """The id whose state covers the data. A decision raises the epoch, but not that of an older
    client of a broker.
    """
    if named is None:
        return None
    name, state = named
    same_epoch = state.status in PREPARED and state.epoch == epoch and partition in state.partitions
    return name if same_epoch or covers(state, partition, epoch) else None
