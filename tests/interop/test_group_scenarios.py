"""The same groups at a real Kafka and in embedlog: the same assignments, offsets, lags, states and
refusals.

The answers of a broker are recorded. embedlog is compared with the record everywhere, and the
record with a broker, if there is one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import embedlog
from tests.kafka import oracle
from tests.kafka.group_scripts import BY_TOOL, SCRIPTS, recorded
from tests.kafka.groups import GroupScenario
from tests.kafka.groups_at_kafka import KafkaDriver
from tests.kafka.groups_here import CONFIG, OurDriver

RECORDED = recorded()
QUICK = [SCRIPTS[name] for name in SCRIPTS if name not in BY_TOOL]
TEDIOUS = [SCRIPTS[name] for name in SCRIPTS if name in BY_TOOL]

Assignment = Mapping[str, list[str]]


def kept(before: Assignment, after: Assignment) -> int:
    """How many partitions stayed with the member that had them."""
    return sum(len({*before.get(who, ())} & {*tps}) for who, tps in after.items())


def compare(scenario: GroupScenario, got: list[Any], expected: list[Any]) -> None:
    """Step by step; where ties decide the assignment: the same sizes, and no fewer partitions that
    stay with their owner.
    """
    assert len(got) == len(expected) == len(scenario.steps)
    before: tuple[Assignment, Assignment] = ({}, {})
    for number, (step, told, wanted) in enumerate(zip(scenario.steps, got, expected, strict=True)):
        where = f"step {number}: {step!s:.200}"
        if step[0] != "settle" or scenario.defined or not isinstance(told, dict):
            assert told == wanted, where
            continue
        assert sorted(map(len, told.values())) == sorted(map(len, wanted.values())), where
        assert kept(before[0], told) >= kept(before[1], wanted), where
        before = told, wanted


def test_every_script_is_recorded() -> None:
    assert RECORDED.keys() == SCRIPTS.keys()
    assert all(len(RECORDED[name]) == len(script.steps) for name, script in SCRIPTS.items())


@pytest.fixture
def running(broker: oracle.Broker) -> oracle.Broker:
    if broker.process is None:
        broker.start()
    return broker


@pytest.mark.slow  # of the recorded results, which the fast tests use
@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.name)
def test_a_real_kafka_still_tells_what_is_recorded(
    scenario: GroupScenario, running: oracle.Broker
) -> None:
    compare(scenario, KafkaDriver(scenario, running, "recorded-").play(), RECORDED[scenario.name])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", TEDIOUS, ids=lambda scenario: scenario.name)
def test_kafkas_tool_still_tells_what_is_recorded(
    scenario: GroupScenario, running: oracle.Broker
) -> None:
    compare(scenario, KafkaDriver(scenario, running, "recorded-").play(), RECORDED[scenario.name])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path_factory.mktemp("scenarios") / "log", config=CONFIG) as opened:
        yield opened


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("scenario", SCRIPTS.values(), ids=lambda scenario: scenario.name)
def test_ours_tells_what_a_real_kafka_told(scenario: GroupScenario, log: embedlog.Log) -> None:
    compare(scenario, OurDriver(scenario, log).play(), RECORDED[scenario.name])


@pytest.mark.parametrize("name", ["cooperative-sticky", "cooperative-sticky-too-many"])
def test_the_eager_sticky_one_ends_where_the_cooperative_one_does(
    name: str, log: embedlog.Log
) -> None:
    """librdkafka has only the cooperative one: as even, and as much stays where it is."""
    script = SCRIPTS[name]
    eager = name.removeprefix("cooperative-")
    steps = [
        ("join", *step[1:3], "sticky", *step[4:]) if step[0] == "join" else step
        for step in script.steps
    ]
    scenario = dataclasses.replace(script, name=eager, steps=steps)
    expected = json.loads(json.dumps(RECORDED[name]).replace("cooperative-sticky", "sticky"))
    compare(scenario, OurDriver(scenario, log).play(), expected)
