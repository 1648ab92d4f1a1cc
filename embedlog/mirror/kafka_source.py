"""Contains `KafkaSource`: a Kafka cluster as the source of a mirror.

- An error of one partition is raised after the records before it were returned.
- The position passes offsets without records when the client reports the end of the partition.
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
from embedlog.mirror.kafka_client import ABSENT, DEADLINE_S, TRANSIENT, KafkaSide, typed_error
from embedlog.mirror.sides import MirrorPiece, Settings, SourcePosition

RECORDS_MAX = 20_000  # of one transaction
WAIT_MAX_S = 0.1  # the client returns records at the end of its wait only
OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")


class KafkaSource(KafkaSide):
    """Reads committed records of a cluster, as a member of no group."""

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        super().__init__(bootstrap, settings)
        self._consumer = self.make_consumer()
        self._positions: dict[TopicPartition, SourcePosition] = {}
        self._error: EmbedlogError | None = None

    def add(self, starts: Mapping[TopicPartition, SourcePosition]) -> None:
        if not starts:
            return
        with self.calls():
            self._consumer.incremental_assign(
                [_client_partition(tp, position) for tp, position in starts.items()]
            )
        self._positions |= starts

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        removed = [tp for tp in partitions if tp in self._positions]
        if removed:
            with self.calls():
                self._consumer.incremental_unassign(
                    [confluent_kafka.TopicPartition(*tp) for tp in removed]
                )
        for tp in removed:
            del self._positions[tp]

    def take(self, timeout_s: float) -> list[MirrorPiece]:
        if self._error is not None:
            error = self._error
            self._error = None
            raise error
        by_partition: dict[TopicPartition, list[Any]] = {}
        with self.calls():
            messages = self._consumer.consume(RECORDS_MAX, min(timeout_s, WAIT_MAX_S))
        for message in messages:
            number = message.partition()
            tp = TopicPartition(message.topic() or "", -1 if number is None else number)
            error = message.error()
            if tp not in self._positions:
                if error is not None:
                    self._keep_error(error, tp)
            elif error is None:
                by_partition.setdefault(tp, []).append(message)
                epoch = message.leader_epoch()
                self._positions[tp] = SourcePosition(
                    message.offset() + 1, -1 if epoch is None else epoch
                )
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                self._positions[tp] = self._positions[tp]._replace(offset=message.offset())
            else:
                self._keep_error(error, tp)
        return [
            self._make_piece(tp, partition_messages)
            for tp, partition_messages in by_partition.items()
        ]

    def _keep_error(self, error: Any, tp: TopicPartition) -> None:
        """Keep an error for the next call: the records before it are returned first."""
        name = error.name()
        if name in OUT_OF_RANGE:
            self._error = OffsetOutOfRangeError(
                f"{self.label}: {error.str()}", topic=tp.topic, partition=tp.partition
            )
        elif name in ABSENT:
            self._error = UnknownTopicOrPartitionError(
                f"{self.label}: {tp.topic}-{tp.partition}: {error.str()}"
            )
        elif name not in TRANSIENT and (error.fatal() or not error.retriable()):
            self._error = typed_error(error, self.label)

    def _make_piece(self, tp: TopicPartition, messages: list[Any]) -> MirrorPiece:
        keys = [message.key() for message in messages]
        values = [message.value() for message in messages]
        headers = [message.headers() or () for message in messages]
        return MirrorPiece(
            tp,
            offsets=[message.offset() for message in messages],
            timestamps_ms=[message.timestamp()[1] for message in messages],
            keys=keys,
            values=values,
            headers=headers if any(headers) else None,
            following=self._positions[tp],
            size_bytes=sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values))),
        )

    def position(self, tp: TopicPartition) -> SourcePosition:
        return self._positions[tp]

    def group_ids(self) -> list[str]:
        answer = self._repeat(
            lambda: self._admin.list_consumer_groups(request_timeout=DEADLINE_S).result(DEADLINE_S)
        )
        if answer.errors:
            with self.calls():
                raise answer.errors[0]
        return sorted(group.group_id for group in answer.valid)

    def wake(self) -> None:
        """The longest wait is short."""

    def close(self) -> None:
        self._consumer.close()


def _client_partition(tp: TopicPartition, position: SourcePosition) -> Any:
    """A place in the form of the client; with an epoch it notices records that the brokers have
    lost.
    """
    if position.leader_epoch < 0:
        return confluent_kafka.TopicPartition(*tp, position.offset)
    return confluent_kafka.TopicPartition(*tp, position.offset, leader_epoch=position.leader_epoch)
