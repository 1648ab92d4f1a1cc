"""Partitioners: the arguments of a user's callable, by its signature; the first partition of round
robin.
"""

from __future__ import annotations

from typing import Any

import pytest

import embedlog
from embedlog import partitioners
from embedlog.errors import ConfigError
from tests.support import producer_helpers

log = producer_helpers.log


class Json:
    """Serializers that record their input."""

    @staticmethod
    def serialize(topic: str, headers: list[Any], data: Any) -> bytes:
        return b"<%s>" % str(data).encode()


@pytest.mark.parametrize(
    "serializers",
    [{}, {"key_serializer": Json, "value_serializer": Json}],
    ids=["bytes", "objects"],
)
@pytest.mark.parametrize("manner", ["six", "any", "object", "method", "class of a method"])
def test_a_partitioner_of_six_arguments_sees_topic_key_and_value(
    log: embedlog.Log, manner: str, serializers: Any
) -> None:
    asked: list[Any] = []

    def by_value(
        topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, partitions: list[int]
    ) -> int:
        asked.append((topic, key, key_bytes, value, value_bytes, partitions))
        return len(value) % len(partitions)

    class Object:
        def for_topic(self, topic: str) -> Any:
            return by_value

    class Method:
        """As the interface of Kafka's Java client."""

        def partition(
            self,
            topic: str,
            key: Any,
            key_bytes: Any,
            value: Any,
            value_bytes: Any,
            partitions: list[int],
        ) -> int:
            return by_value(topic, key, key_bytes, value, value_bytes, partitions)

    manners: dict[str, Any] = {
        "six": by_value,
        "any": lambda *arguments: by_value(*arguments),
        "object": Object,
        "method": Method(),
        "class of a method": Method,
    }
    with log.producer(partitioner=manners[manner], **serializers) as to:
        value, key = ("ab", "k") if serializers else (b"ab", b"k")
        assert to.send("t", value, key).result(10).partition == 2
        assert to.send("t", value, key, partition=1).result(10).partition == 1
        longer = value + value[:1]
        assert to.send_batch("t", [longer, value], [None, key]).result(10) == [
            ("t", 3, 0, 1),
            ("t", 2, 1, 1),
        ]
    seen = (lambda data: b"<%s>" % str(data).encode()) if serializers else (lambda data: data)
    every = [0, 1, 2, 3]
    assert asked == [
        ("t", key, seen(key), value, seen(value), every),
        ("t", None, seen(None), longer, seen(longer), every),
        ("t", key, seen(key), value, seen(value), every),
    ]


def test_a_method_of_three_arguments_sees_the_key(log: embedlog.Log) -> None:
    class OfKey:
        def partition(self, key: bytes | None, every: list[int], here: list[int]) -> int:
            return every[-1]

    with log.producer(partitioner=OfKey()) as producer:
        assert producer.send("t", b"v").result(10).partition == 3


def test_an_object_without_a_method_is_refused(log: embedlog.Log) -> None:
    with pytest.raises(ConfigError, match="an object with a method partition"):
        log.producer(partitioner=object())  # type: ignore[arg-type]


def test_how_a_partitioner_is_asked_is_seen_once_for_each_topic(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    look = partitioners.sees_records
    monkeypatch.setattr(
        partitioners, "sees_records", lambda choose: (looks.append(choose), look(choose))[1]
    )
    with log.producer(partitioner=lambda key, every, available: 0) as producer:
        for _ in range(5):
            producer.send("t", b"v").result(10)
            producer.send_batch("one", [b"v"] * 3).result(10)
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("choose", "sees"),
    [
        (lambda key, every, available: 0, False),
        (lambda key, every, available, extra=1, more=2, most=3: 0, False),
        (lambda topic, key, key_bytes, value, value_bytes, every: 0, True),
        (lambda *arguments: 0, True),
        (lambda key, every, available, *rest: 0, True),
        (min, False),
        (partitioners.RandomPartitioner(), False),
    ],
)
def test_a_partitioner_is_asked_as_its_signature_says(choose: Any, sees: bool) -> None:
    assert partitioners.sees_records(choose) is sees


def test_a_partitioner_of_another_number_of_arguments_is_refused_in_the_call(
    log: embedlog.Log,
) -> None:
    with log.producer(partitioner=lambda key: 0) as producer:
        with pytest.raises(
            ConfigError,
            match=r"partitioner: expected a callable of \(key, all, available\) or .*found \(key\)",
        ):
            producer.send("t", b"v")
        with pytest.raises(ConfigError, match="partitioner"):
            producer.send_batch("t", [b"v"])


def test_many_short_programs_that_go_round_robin_do_not_fill_one_partition(
    log: embedlog.Log,
) -> None:
    for _ in range(40):
        with log.producer(partitioner=partitioners.RoundRobinPartitioner) as producer:
            producer.send("t", b"v").result(10)
    # by chance once in 4^39
    assert all(part.log_end_offset < 40 for part in log.describe_topic("t").partitions)
