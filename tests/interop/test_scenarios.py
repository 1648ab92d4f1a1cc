"""The same script at a real Kafka and in a log of ours: the same partitions, offsets, visible
records, and ends of every call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.kafka import oracle
from tests.kafka.scenarios import (
    KafkaDriver,
    OurDriver,
    Scenario,
    Step,
    abort,
    aborted,
    begin,
    commit,
    committed,
    decided,
    init,
    row,
    send,
)

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EVERY_BYTE = bytes(range(256))


# ---- the scripts ---------------------------------------------------------------------------------


def words(rng: random.Random, size: int) -> bytes:
    return b" ".join(
        rng.choice([b"offset", b"segment", b"batch", b"epoch", b"leader"])
        for _ in range(size // 6 + 1)
    )[:size]


def keyed(rng: random.Random, count: int) -> list[Any]:
    """Keys that spread over the partitions, text and binary; a header here and there."""
    rows = []
    for number in range(count):
        key = rng.choice(
            [
                b"user-%d" % rng.randrange(200),
                f"schlüssel-{number % 17}".encode(),
                rng.randbytes(number % 9),
            ]
        )
        headers = [("trace", b"%d" % number), ("none", None)][: number % 3]
        rows.append(row(words(rng, rng.randrange(300)), key, None, *headers))
    return rows


def several(who: str, rng: random.Random, turns: int = 4, count: int = 60) -> list[Step]:
    return [send(who, *keyed(rng, count)) for _ in range(turns)]


def plain() -> list[Scenario]:
    corners = [
        row(b"null key", None, 3),
        row(b"empty key", b""),
        row(None, b"null value"),
        row(b"", b"empty value"),
        row(None, None, 0),
        row(b"x", b"k", 6, ("", b"")),
        row(b"x" * 70_000, b"long"),
        row(EVERY_BYTE, EVERY_BYTE[::-1], None, ("binary", EVERY_BYTE)),
        row(
            b"h",
            b"twice",
            None,
            ("a", b"1"),
            ("a", b"2"),
            ("b", None),
            ("schlüssel-日志", "値".encode()),
        ),
        row(b"many", b"headers", None, *((f"n{number}", b"x" * number) for number in range(70))),
    ]
    found = [
        Scenario("keys", several("p", random.Random(1), 8)),
        Scenario("corners", [send("p", *corners), *(send("p", each) for each in corners)]),
        Scenario(
            "two-producers",
            [
                step
                for pair in zip(
                    several("p", random.Random(2)), several("q", random.Random(3)), strict=True
                )
                for step in pair
            ],
            producers={"p": {"compression_type": "zstd"}, "q": {"compression_type": "none"}},
        ),
        Scenario("one-partition", several("p", random.Random(4), 3), partition_count=1),
    ]
    for number, codec in enumerate(CODECS):
        producers = {"p": {"compression_type": codec}}
        found.append(
            Scenario(
                f"codec-{codec}", several("p", random.Random(10 + number)), producers=producers
            )
        )
        stored = {"compression.type": "uncompressed" if codec == "none" else codec}
        other = {"p": {"compression_type": CODECS[number - 1]}}
        found.append(
            Scenario(
                f"stored-{codec}",
                several("p", random.Random(20 + number), 2),
                producers=other,
                config=stored,
            )
        )
    return found


PLAIN = plain()
# the others are in the fast suite
OF_ONE_CODEC = {"codec-gzip", "codec-lz4", "stored-gzip", "stored-lz4", "stored-snappy"}


def spread(tag: bytes, *partitions: int) -> list[Any]:
    return [row(b"%s in %d" % (tag, partition), tag, partition) for partition in partitions]


def transactional() -> list[Scenario]:
    one = {"transactional_id": "one"}
    two = {"transactional_id": "two"}
    three = {"transactional_id": "three", "compression_type": "lz4"}
    rng = random.Random(5)
    return [
        Scenario(
            "committed",
            [
                init("t"),
                *committed("t", *spread(b"first", 0, 1, 2, 2)),
                send("p", *spread(b"plain", 0, 3)),
                *committed("t", *spread(b"second", 2, 3)),
                *committed("t", *keyed(rng, 50)),
            ],
            producers={"t": {"transactional_id": "committed"}},
        ),
        Scenario(
            "aborted",
            [
                init("t"),
                send("p", *spread(b"before", 0, 1)),
                *aborted("t", *spread(b"gone", 0, 1, 2)),
                send("p", *spread(b"between", 0)),
                *committed("t", *spread(b"kept", 0, 2)),
                *aborted("t", *spread(b"gone too", 0)),
                send("p", *spread(b"behind", 0, 1, 2)),
            ],
            producers={"t": {"transactional_id": "aborted"}},
        ),
        Scenario(
            "interleaved",
            [
                init("t"),
                init("u"),
                init("v"),
                begin("t"),
                send("t", *spread(b"t1", 0, 1)),
                begin("u"),
                send("u", *spread(b"u1", 1, 2)),
                send("p", *spread(b"plain", 0, 1, 2)),
                send("t", *spread(b"t2", 2)),
                begin("v"),
                send("v", *spread(b"v1", 0, 1, 2)),
                abort("u"),
                send("t", *spread(b"t3", 0)),
                begin("u"),
                send("u", *spread(b"u2", 0, 1)),
                commit("t"),
                send("p", *spread(b"more", 0, 1, 2)),
                send("v", *spread(b"v2", 1)),
                commit("u"),
                abort("v"),
                *committed("v", *spread(b"v3", 0)),
            ],
            partition_count=3,
            producers={"t": one, "u": two, "v": three},
        ),
        Scenario(
            "nothing-in-it",
            [
                init("t"),
                begin("t"),
                commit("t"),
                begin("t"),
                abort("t"),
                *committed("t", *spread(b"x", 1)),
                begin("t"),
                commit("t"),
            ],
            partition_count=2,
            producers={"t": {"transactional_id": "nothing"}},
        ),
        Scenario(
            "states",
            [
                begin("t"),
                commit("t"),
                init("t"),
                send("t", *spread(b"outside", 0)),
                commit("t"),
                abort("t"),
                begin("t"),
                begin("t"),
                send("t", *spread(b"inside", 0)),
                commit("t"),
                commit("t"),
            ],
            partition_count=1,
            producers={"t": {"transactional_id": "states"}},
        ),
        Scenario(
            "fenced",
            [
                init("old"),
                begin("old"),
                send("old", *spread(b"old", 0, 1)),
                init("new"),
                begin("new"),
                send("new", *spread(b"new", 1, 2)),
                send("old", *spread(b"zombie", 0, 2)),
                commit("old"),
                commit("new"),
                *committed("new", *spread(b"again", 0)),
            ],
            partition_count=3,
            producers={"old": {"transactional_id": "same"}, "new": {"transactional_id": "same"}},
        ),
        Scenario(
            "timed-out",
            [
                init("t"),
                begin("t"),
                send("t", *spread(b"too slow", 0, 1)),
                send("p", *spread(b"behind", 0, 1)),
                decided(0),
                decided(1),
                commit("t"),
                init("next"),
                *committed("next", *spread(b"next", 0, 1)),
            ],
            partition_count=2,
            producers={
                "t": {"transactional_id": "slow", "transaction_timeout_ms": 1000},
                "next": {"transactional_id": "slow"},
            },
        ),
        Scenario(
            "left-open",
            [
                init("t"),
                *committed("t", *spread(b"decided", 0, 1)),
                begin("t"),
                send("t", *spread(b"open", 0)),
                send("p", *spread(b"behind", 0, 1)),
            ],
            partition_count=2,
            producers={"t": {"transactional_id": "open"}},
        ),
    ]


TRANSACTIONAL = transactional()


# ---- both sides ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path_factory.mktemp("scenarios") / "log") as opened:
        yield opened


@pytest.fixture
def kafka_at(broker: oracle.Broker) -> str:
    if broker.process is None:
        broker.start()
    return broker.bootstrap


def compare(scenario: Scenario, bootstrap: str, log: embedlog.Log) -> None:
    """Outcomes first: where a call ended differently, the content of the logs cannot be the
    same.
    """
    theirs = KafkaDriver(scenario, bootstrap)
    ours = OurDriver(scenario, log)
    played = theirs.play(), ours.play()
    steps = [" ".join(map(str, step[:2])) for step in scenario.steps]
    assert list(zip(steps, played[1], strict=True)) == list(zip(steps, played[0], strict=True))
    for isolation in ("read_uncommitted", "read_committed"):
        assert ours.ends(isolation) == theirs.ends(isolation), isolation
        mine = ours.rows(isolation)
        real = theirs.rows(isolation)
        assert [(each["partition"], each["offset"]) for each in mine] == [
            (each["partition"], each["offset"]) for each in real
        ]
        assert mine == real, isolation
    for producer in ours.made.values():
        producer.close(0)


@pytest.mark.sample(0.25)
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, marks=pytest.mark.slow) if each.name in OF_ONE_CODEC else each
        for each in PLAIN
    ],
    ids=lambda scenario: scenario.name,
)
def test_the_same_script_gives_the_same_log(
    scenario: Scenario, kafka_at: str, log: embedlog.Log
) -> None:
    compare(scenario, kafka_at, log)


@pytest.mark.sample(0.25)
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, marks=pytest.mark.slow)
        if each.name in ("aborted", "timed-out")
        else each
        for each in TRANSACTIONAL
    ],
    ids=lambda scenario: scenario.name,
)
def test_the_same_transactions_give_the_same_log(
    scenario: Scenario, kafka_at: str, log: embedlog.Log
) -> None:
    compare(scenario, kafka_at, log)


@pytest.mark.slow
def test_what_the_scripts_left_is_whole_to_kafka(
    log: embedlog.Log, tmp_path: Path, kafka: None
) -> None:
    log.backup(tmp_path / "copy")
    with embedlog.open(tmp_path / "copy"):
        pass  # closed in order
    assert oracle.verify(tmp_path / "copy") > 0
