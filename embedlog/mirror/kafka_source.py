"""Contains `KafkaSource`: a Kafka cluster as the source of a mirror.

KAFKASOURCE-1  an error of one partition is raised after the records before it were returned
KAFKASOURCE-2  the position passes offsets without records when the client reports the end of the
    partition
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import confluent_kafka

from embedlog import (
    EmbedlogError,
    OffsetOutOfRangeError,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from embedlog.mirror.kafka_client import ABSENT, DEADLINE_S, TRANSIENT, KafkaSide, typed
from embedlog.mirror.sides import Piece, Position, Settings

RECORDS_MAX = 20_000  # of one transaction
WAIT_MAX_S = 0.1  # the client returns records at the end of its wait only
OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")


class KafkaSource(KafkaSide):
    """Reads committed records of a cluster, as a member of no group."""

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        super().__init__(bootstrap, settings)
        self._consumer = self.consumer()
        self._positions: dict[TopicPartition, Position] = {}
        self._error: EmbedlogError | None = None

    def add(self, starts: Mapping[TopicPartition, Position]) -> None:
        if not starts:
            return
        with self.calls():
            self._consumer.incremental_assign(
                [_place(place, position) for place, position in starts.items()]
            )
        self._positions |= starts

    def remove(self, places: Iterable[TopicPartition]) -> None:
        gone = [place for place in places if place in self._positions]
        if gone:
            with self.calls():
                self._consumer.incremental_unassign(
                    [confluent_kafka.TopicPartition(*place) for place in gone]
                )
        for place in gone:
            del self._positions[place]

    def take(self, timeout_s: float) -> list[Piece]:
        if self._error is not None:
            error = self._error
            self._error = None
            raise error
        found: dict[TopicPartition, list[Any]] = {}
        with self.calls():
            messages = self._consumer.consume(RECORDS_MAX, min(timeout_s, WAIT_MAX_S))
        for message in messages:
            place = TopicPartition(
                message.topic() or "",
                message.partition() if message.partition() is not None else -1,
            )
            error = message.error()
            if place not in self._positions:
                if error is not None:
                    self._note(error, place)
            elif error is None:
                found.setdefault(place, []).append(message)
                epoch = message.leader_epoch()
                self._positions[place] = Position(
                    message.offset() + 1, -1 if epoch is None else epoch
                )
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                self._positions[place] = self._positions[place]._replace(offset=message.offset())
            else:
                self._note(error, place)
        return [self._piece(place, rows) for place, rows in found.items()]

    def _note(self, error: Any, place: TopicPartition) -> None:
        """Keep an error for the next call (KAFKASOURCE-1)."""
        name = error.name()
        if name in OUT_OF_RANGE:
            self._error = OffsetOutOfRangeError(
                f"{self.label}: {error.str()}", topic=place.topic, partition=place.partition
            )
        elif name in ABSENT:
            self._error = UnknownTopicOrPartitionError(
                f"{self.label}: {place.topic}-{place.partition}: {error.str()}"
            )
        elif name not in TRANSIENT and (error.fatal() or not error.retriable()):
            self._error = typed(error, self.label)

    def _piece(self, place: TopicPartition, rows: list[Any]) -> Piece:
        keys = [each.key() for each in rows]
        values = [each.value() for each in rows]
        headers = [each.headers() or () for each in rows]
        return Piece(
            place,
            [each.offset() for each in rows],
            [each.timestamp()[1] for each in rows],
            keys,
            values,
            headers if any(headers) else None,
            self._positions[place],
            sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values))),
        )

    def position(self, place: TopicPartition) -> Position:
        return self._positions[place]

    def group_ids(self) -> list[str]:
        answer = self._repeated(
            lambda: self._admin.list_consumer_groups(request_timeout=DEADLINE_S).result(DEADLINE_S)
        )
        if answer.errors:
            with self.calls():
                raise answer.errors[0]
        return sorted(each.group_id for each in answer.valid)

    def wake(self) -> None:
        """The longest wait is short."""

    def close(self) -> None:
        self._consumer.close()


def _place(place: TopicPartition, position: Position) -> Any:
    """A place in the form of the client; with an epoch it notices records that the brokers have
    lost.
    """
    if position.leader_epoch < 0:
        return confluent_kafka.TopicPartition(*place, position.offset)
    return confluent_kafka.TopicPartition(
        *place, position.offset, leader_epoch=position.leader_epoch
    )
