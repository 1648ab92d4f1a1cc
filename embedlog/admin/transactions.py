"""This module describes transactions: of transactional ids, and those that are open in partitions.

TXNADMIN-1  nothing is written and nothing is ended: `init_transactions` with an id aborts its
    transaction and fences its producer
TXNADMIN-2  an entry of a partition is hanging if it is there before and after a reading of the ids,
    and none of them covers it. One with the same first offset is the same transaction: it was open
    all the time. An id covers a partition from before its first record until after its marker, so
    an owner would have been read. One reading of the partitions is not enough. After that of the
    ids it finds transactions that began in between, before it those that ended in between
"""

from __future__ import annotations

from embedlog.descriptions.groups import OpenTransaction, TransactionDescription
from embedlog.engine import Engine
from embedlog.errors import UnknownTopicOrPartitionError
from embedlog.transaction import PREPARED, SETTLED, Status, Transaction, covers
from embedlog.types import TopicPartition

NAMES = {status: "".join(word.capitalize() for word in status.name.split("_")) for status in Status}


def describe_all(engine: Engine) -> list[TransactionDescription]:
    """All transactional ids, sorted. Raises CorruptRecordError, LeaderNotAvailableError."""
    engine.check_open()
    return [_described(engine, name, state) for name, state in sorted(_states(engine).items())]


def _states(engine: Engine) -> dict[str, Transaction]:
    coordinator = engine.transactions
    if coordinator.topic.partition_count() == 0:
        return {}
    found = {}
    for number in coordinator.topic.written_partitions():
        view = coordinator.topic.view(number)
        for name in list(view.names()):
            state = view.get(name)
            if state is not None:
                found[name] = state
    return found


def _described(engine: Engine, name: str, state: Transaction) -> TransactionDescription:
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
        tuple(sorted(TopicPartition(*each) for each in state.partitions)),
        in_use,
    )


def open_in_partitions(engine: Engine, topic: str | None) -> list[OpenTransaction]:
    """The open transactions of one topic, or of all. Raises UnknownTopicOrPartitionError,
    CorruptRecordError.

    One without an id is *hanging*. Other processes begin and end transactions meanwhile, so this
    needs a proof (TXNADMIN-2). The partitions are read, then the ids, then again the partitions
    with entries that no id covers.
    """
    engine.check_open()
    names = engine.topic_names() if topic is None else [engine.topic(topic).name]
    places = [(name, number) for name in names for number in range(engine.partition_count(name))]
    found = [(place, entry) for place in places for entry in _open_in(engine, place)]
    owners = {
        state.producer_id: (name, state)
        for name, state in _states(engine).items()
        if state.status not in SETTLED
    }
    owned = [
        (place, entry, _owner(owners.get(entry[0]), place, entry[1])) for place, entry in found
    ]
    doubtful = {place for place, _, owner in owned if owner is None}
    again = {(place, entry) for place in doubtful for entry in _open_in(engine, place)}
    return [
        OpenTransaction(*place, *entry, owner)
        for place, entry, owner in owned
        if owner is not None or (place, entry) in again
    ]


def _open_in(engine: Engine, place: tuple[str, int]) -> list[tuple[int, int, int]]:
    """(producer id, epoch, first offset) of each open transaction; none of a topic that was deleted
    meanwhile.
    """
    try:
        return engine.partition(*place).open_transactions()
    except UnknownTopicOrPartitionError:
        return []


def _owner(named: tuple[str, Transaction] | None, place: tuple[str, int], epoch: int) -> str | None:
    """The id whose state covers the data. A decision raises the epoch, but not that of an older
    client of a broker.
    """
    if named is None:
        return None
    name, state = named
    same_epoch = state.status in PREPARED and state.epoch == epoch and place in state.partitions
    return name if same_epoch or covers(state, place, epoch) else None
