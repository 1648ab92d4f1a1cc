"""Contains `KafkaTarget`: a Kafka cluster as the target of a mirror.

- The offsets of the records are known before the lines are written: each record has a delivery
  report.
- A transaction that cannot be committed is aborted, and the mirror ends; the next run continues
  before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import confluent_kafka
from confluent_kafka import admin

from embedlog import DeadlineError, EmbedlogError, TopicPartition
from embedlog.mirror.kafka_client import DEADLINE_S, KafkaClusterError, KafkaSide, typed_error
from embedlog.mirror.sides import (
    Lines,
    MirrorPiece,
    Settings,
    TargetSpan,
    TopicFacts,
    create_without_refused,
)

MESSAGE_BYTES_MAX = 1_000_000_000  # the topic limits the size of records
TRANSACTION_TIMEOUT_MS = 60_000
POLL_S = 0.05
REPORTS_EVERY = 500  # records after which delivery reports are taken
WITH_MEMBERS = (
    "UNKNOWN_MEMBER_ID",
    "NON_EMPTY_GROUP",
    "REBALANCE_IN_PROGRESS",
    "ILLEGAL_GENERATION",
)


class KafkaTarget(KafkaSide):
    """Writes a cluster with a transactional producer."""

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        super().__init__(bootstrap, settings)
        self._producer: Any = None
        self._state_topic = ""
        self._failed: list[tuple[str, Any]] = []  # topics and errors of records

    def create(self, facts: TopicFacts, replication_factor: int | None) -> list[str]:
        def create(config: dict[str, str]) -> None:
            topic = admin.NewTopic(
                facts.name, facts.partition_count, replication_factor or -1, config=config
            )
            with self.calls():
                futures = self._admin.create_topics([topic], operation_timeout=DEADLINE_S)
                for future in futures.values():
                    future.result(DEADLINE_S)

        lost = create_without_refused(
            facts.config, create, lambda problem: getattr(problem, "name", "") == "INVALID_CONFIG"
        )
        self._wait_until_created(facts.name, facts.partition_count)
        return lost

    def grow(self, name: str, partition_count: int) -> None:
        with self.calls():
            futures = self._admin.create_partitions([admin.NewPartitions(name, partition_count)])
            for future in futures.values():
                future.result(DEADLINE_S)
        self._wait_until_created(name, partition_count)

    def _wait_until_created(self, name: str, partition_count: int) -> None:
        """Until the brokers have the partitions with their leaders: the answer to a creation can be
        earlier.
        """
        deadline = time.monotonic() + DEADLINE_S
        while True:
            topic = self._repeat(
                lambda: self._admin.list_topics(name, timeout=DEADLINE_S).topics[name]
            )
            led_count = sum(partition.leader >= 0 for partition in topic.partitions.values())
            if topic.error is None and led_count >= partition_count:
                return
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{self.label}: the topic {name} has no leaders", expected=f"{DEADLINE_S:g} s"
                )
            self._admin.poll(POLL_S)

    # ---- transactions ----------------------------------------------------------------------------

    def begin(self, transactional_id: str, state_topic: str) -> None:
        defaults = {
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        self._state_topic = state_topic
        with self.calls():
            self._producer = confluent_kafka.Producer(
                {**defaults, **self._settings, "transactional.id": transactional_id}
            )
            self._producer.init_transactions(DEADLINE_S)

    def write(
        self,
        pieces: Sequence[tuple[str, MirrorPiece]],
        lines_of: Callable[[list[list[TargetSpan]]], Lines],
    ) -> None:
        try:
            with self.calls():
                self._producer.begin_transaction()
                self._write(pieces, lines_of)
                self._commit()
        except SystemError as problem:
            # the client raises a fatal error, then calls a callback, and loses the exception
            raise self._find_fatal_error() from problem
        except EmbedlogError:  # not for an interrupt: the abort can wait for the brokers
            self._abort()
            raise

    def _write(
        self,
        pieces: Sequence[tuple[str, MirrorPiece]],
        lines_of: Callable[[list[list[TargetSpan]]], Lines],
    ) -> None:
        self._failed = []
        offsets: list[list[int]] = [[] for _ in pieces]
        for (topic, piece), piece_offsets in zip(pieces, offsets, strict=True):
            self._produce(topic, piece, partial(self._on_delivery, piece_offsets))
        self._flush()
        for key, line in lines_of([_spans_of(piece_offsets) for piece_offsets in offsets]):
            self._send(self._state_topic, line, key, 0, partial(self._on_delivery, []))
        self._flush()

    def _produce(self, topic: str, piece: MirrorPiece, delivered: Any) -> None:
        send = self._send
        number = piece.tp.partition
        headers: Any = repeat(None) if piece.headers is None else map(list, piece.headers)
        # the headers may be endless
        rows = zip(piece.keys, piece.values, piece.timestamps_ms, headers, strict=False)
        for row, (key, value, time_ms, pairs) in enumerate(rows, 1):
            send(topic, value, key, number, delivered, timestamp=max(0, time_ms), headers=pairs)
            if row % REPORTS_EVERY == 0:
                self._producer.poll(0)

    def _send(self, *record: Any, **settings: Any) -> None:
        """Give one record to the client; if its queue is full, wait until it has sent others."""
        try:
            self._producer.produce(*record, **settings)
            return
        except BufferError:
            deadline = time.monotonic() + DEADLINE_S
        while True:
            self._producer.poll(POLL_S)
            try:
                self._producer.produce(*record, **settings)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"{self.label}: records were not accepted", expected=f"{DEADLINE_S:g} s"
                    ) from None

    def _on_delivery(self, offsets: list[int], error: Any, message: Any) -> None:
        if error is None:
            offsets.append(message.offset())
        else:
            self._failed.append((message.topic(), error))

    def _flush(self) -> None:
        unsent_count = self._producer.flush(DEADLINE_S)
        if self._failed:
            topic, error = self._failed[0]
            raise typed_error(error, f"{self.label}: {topic}")
        if unsent_count:
            raise DeadlineError(
                f"{self.label}: {unsent_count} records were not acknowledged",
                expected=f"{DEADLINE_S:g} s",
            )

    def _commit(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                self._producer.commit_transaction(max(1.0, deadline - time.monotonic()))
                return
            except confluent_kafka.KafkaException as problem:
                if not problem.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _abort(self) -> None:
        """Abort, if that is still possible; otherwise the next mirror does it when it takes
        over.
        """
        try:
            self._producer.abort_transaction(DEADLINE_S)
        except confluent_kafka.KafkaException:
            self._producer.purge()

    def _find_fatal_error(self) -> EmbedlogError:
        """The fatal error of the producer, which any later call raises."""
        try:
            self._producer.abort_transaction(DEADLINE_S)
        except confluent_kafka.KafkaException as problem:
            return typed_error(problem.args[0], self.label)
        return KafkaClusterError(
            f"{self.label}: the transaction was aborted after an error of the client"
        )

    # ---- groups ----------------------------------------------------------------------------------

    def may_commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        call = partial(self._admin.describe_consumer_groups, [group], request_timeout=DEADLINE_S)
        try:
            return not self._collect_answers(call)[group].members
        except KafkaClusterError as problem:
            if problem.name != "GROUP_ID_NOT_FOUND":
                raise
            return True

    def commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        commits = [confluent_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        request = [confluent_kafka.ConsumerGroupTopicPartitions(group, commits)]
        try:
            call = partial(
                self._admin.alter_consumer_group_offsets, request, request_timeout=DEADLINE_S
            )
            (answer,) = self._collect_answers(call).values()
            for commit in answer.topic_partitions:
                if commit.error is not None:
                    raise typed_error(commit.error, self.label)
        except KafkaClusterError as problem:
            if problem.name not in WITH_MEMBERS:
                raise
            return False
        return True

    def close(self) -> None:
        """A transaction that is open is aborted by the next mirror, or by the broker after its
        timeout.
        """
        self._producer = None


def _spans_of(offsets: list[int]) -> list[TargetSpan]:
    """Offsets in order, as runs of consecutive ones."""
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:
        return [TargetSpan(offsets[0], len(offsets))]
    spans: list[TargetSpan] = []
    for offset in offsets:
        if spans and offset == spans[-1].base_offset + spans[-1].length:
            spans[-1] = TargetSpan(spans[-1].base_offset, spans[-1].length + 1)
        else:
            spans.append(TargetSpan(offset, 1))
    return spans
