"""One INFO line for each decided change of a leader or an ISR, by the process that decided it; and
their counters.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import embedlog
from embedlog.replica import ReplicatedEngine
from embedlog.replicas.decisions.proposals import Decision, Proposal
from embedlog.replicas.observation import decision_words
from embedlog.replicas.observation.replica_events import ReplicaEvents
from embedlog.replicas.rules.events import AlterIsr, Elect, Election, Event, Refusal
from embedlog.replicas.rules.records import DecidedPartition
from embedlog.replicas.rules.state import State, apply_all
from tests.support.replica_sets import (
    PARTITION_ID,
    after,
    decided,
    partition,
    registration_id,
    seen,
    with_topic,
)

QUIET = {"housekeeping": False}
PATIENT_S = 20.0

Lines = Callable[[], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The lines about leaders and ISRs since the last call."""
    caplog.set_level(logging.INFO, logger="embedlog")

    def found() -> list[str]:
        every = [
            each.getMessage()
            for each in caplog.records
            if each.levelno == logging.INFO or "unclean" in each.getMessage()
        ]
        caplog.clear()
        return [text for text in every if text.startswith("t-") or "leader" in text]

    return found


def opened(root: Path) -> embedlog.Log:
    return embedlog.open([root / f"d{node}" for node in (1, 2, 3)], config=QUIET)


def events(log: embedlog.Log) -> ReplicaEvents:
    return cast("ReplicatedEngine", log._engine).set.events


def counts(found: ReplicaEvents) -> dict[str, int]:
    return {
        name: meter["Count"]
        for name, meter in found.report().items()
        if meter["Count"] and "Bytes" not in name
    }


# ---- real directories ----------------------------------------------------------------------------


def test_a_follower_leaves_and_returns_with_one_line_each(tmp_path: Path, lines: Lines) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        assert lines() == [], "a new partition has no line"
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"1").result(PATIENT_S)
            assert lines() == []
            (tmp_path / "d3").rename(tmp_path / "removed")
            for _ in range(3):
                producer.send("t", b"2").result(PATIENT_S)
            (line,) = lines()
            assert line.startswith("t-0: ISR [1, 2, 3] -> [1, 2] (partition epoch 1): node 3: ")
            assert str(tmp_path / "d3") in line
        assert counts(events(log)) == {"IsrShrinksPerSec": 1}
    (tmp_path / "removed").rename(tmp_path / "d3")
    lines()
    with opened(tmp_path) as log, opened(tmp_path) as other:
        log.housekeep()
        (line,) = lines()
        assert line == "t-0: ISR [1, 2] -> [1, 2, 3] (partition epoch 2): node 3 caught up"
        other.housekeep()
        assert lines() == [], "the other process has decided nothing"
        assert counts(events(log)) == {"IsrExpandsPerSec": 1}
        assert counts(events(other)) == {}


def test_a_leader_that_fails_is_replaced_with_one_line(tmp_path: Path, lines: Lines) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"1").result(PATIENT_S)
            lines()
            (tmp_path / "d1").rename(tmp_path / "removed")
            producer.send("t", b"2").result(PATIENT_S)
        (line,) = lines()
        assert line.startswith(
            "t-0: leader 1 -> 2 in epoch 1, ISR [1, 2, 3] -> [2, 3] (partition epoch 1): the "
            "leader, node 1: "
        )
        assert str(tmp_path / "d1") in line
        found = events(log).report()
        assert counts(events(log)) == {"IsrShrinksPerSec": 1, "LeaderElectionRateAndTimeMs": 1}
        timer: Any = found["LeaderElectionRateAndTimeMs"]
        assert 0 < timer["Mean"] <= timer["Max"]


def test_a_replaced_directory_is_named_in_the_line_of_its_registration(
    tmp_path: Path, lines: Lines
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with log.producer() as producer:
            producer.send("t", b"1").result(PATIENT_S)
    with embedlog.open(tmp_path / "d2", alone=True, config=QUIET):
        pass
    with opened(tmp_path) as log:
        lines()
        log.replace_directory(2, tmp_path / "d2")
        line = lines()[0]
    assert line.startswith(
        "t-0: ISR [1, 2, 3] -> [1, 3] (partition epoch 1): registration of the directories "
    )


def test_elections_and_reassignments_on_request_have_one_line_for_each_decision(
    tmp_path: Path, lines: Lines
) -> None:
    tp = embedlog.TopicPartition("t", 0)
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2]})
        with log.producer() as producer:
            producer.send("t", b"1").result(PATIENT_S)
        log.elect("t", 0, unclean=True, node=2)
        (line,) = lines()
        loss = (
            "; acknowledged records are lost that node 2 (its log ends at 1) does not have, also "
            "if [1] have them"
        )
        assert (
            line
            == "t-0: leader 1 -> 2 in epoch 1, unclean, ISR [1, 2] -> [2] (partition epoch 1): "
            "unclean election" + loss
        )
        log.housekeep()
        assert lines() == [
            "t-0: ISR [2] -> [1, 2] (partition epoch 2): node 1 caught up",
            "t-0: leader 2 -> 1 in epoch 2 (partition epoch 3): preferred election",
        ]
        log.reassign({tp: [3, 1]})
        log.housekeep()
        begun, joined, finished, elected = lines()
        assert begun.startswith("t-0: replicas [1, 2] -> [3, 1, 2] (")
        assert begun.endswith(": reassignment")
        assert joined.endswith(": node 3 caught up")
        assert "replicas [3, 1, 2] -> [3, 1]" in finished
        assert finished.endswith("all replicas of the reassignment are in sync")
        assert elected.startswith("t-0: leader 1 -> 3 in epoch 4 (")
        assert (log.replicas().partitions[0].replicas, log.reassignments()) == ((3, 1), {})


def test_a_child_process_does_not_log_what_its_parent_decided(tmp_path: Path, lines: Lines) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        pid = os.fork()
        if pid == 0:
            own = opened(tmp_path)
            (tmp_path / "d3").rename(tmp_path / "removed")
            with own.producer(linger_ms=0) as producer:
                producer.send("t", b"1").result(PATIENT_S)
            os._exit(0 if counts(events(own)) == {"IsrShrinksPerSec": 1} else 1)
        assert os.waitpid(pid, 0)[1] == 0
        lines()
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"2").result(PATIENT_S)
        assert lines() == []
        assert counts(events(log)) == {}
        assert 3 not in log.replicas().partitions[0].isr


@pytest.mark.parametrize("steps", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_each_decided_change_has_exactly_one_line(
    tmp_path: Path, lines: Lines, rng: random.Random, steps: int
) -> None:
    """Two openings of one set, directories that fail and return: the lines are the changes in the
    decision log, in any order.
    """
    logged = []
    lost = 0
    with opened(tmp_path) as one, opened(tmp_path) as other:
        one.create_topic("t", assignment={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
        for step in range(steps):
            if step % 2 == 0:
                lost = rng.choice((1, 2, 3))
                (tmp_path / f"d{lost}").rename(tmp_path / "removed")
            else:
                (tmp_path / "removed").rename(tmp_path / f"d{lost}")
            for log in rng.sample((one, other), 2):
                with log.producer(linger_ms=0) as producer:
                    for number in range(3):
                        producer.send("t", b"x", partition=number).result(PATIENT_S)
                if step % 2:
                    log.housekeep()
            logged += lines()
        copy = cast("ReplicatedEngine", one._engine).set.decisions.attached_copy(2)
        assert copy is not None
        every = decision_words.recent(copy.partition.replica, "cluster", count_max=10_000)
    wanted = [
        text.split(", ELR ")[0] for each in every for text in each.changes if text.startswith("t-")
    ]
    assert sorted(text.split(" (partition epoch ")[0] for text in logged) == sorted(wanted)
    assert len(wanted) >= steps


def test_copied_bytes_are_counted_in_each_way_to_copy(tmp_path: Path) -> None:
    def followers(log: embedlog.Log) -> int:
        paths = [path for node in (2, 3) for path in (tmp_path / f"d{node}" / "t-0").glob("*.log")]
        return sum(path.stat().st_size for path in paths)

    def counted(log: embedlog.Log) -> tuple[int, int]:
        found = log.metrics()
        return found["ReplicationBytesInPerSec"]["Count"], found["ReplicationBytesOutPerSec"][
            "Count"
        ]

    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"segment.bytes": 2000})
        assert counted(log) == (0, 0)
        with log.producer(linger_ms=0) as producer:
            for number in range(40):
                producer.send("t", b"%020d" % number).result(PATIENT_S)
        size = followers(log)
        assert size > 40 * 60
        assert counted(log) == (size, size), "with the append of the leader"
        with log.producer(acks=1, enable_idempotence=False, linger_ms=0) as producer:
            producer.send_batch("t", [b"%020d" % number for number in range(40)]).result(PATIENT_S)
        log.housekeep()
        size = followers(log)
        assert counted(log) == (size, size), "copied later"
        for directory in log._engine.directories:
            for each in list(directory.partitions.values()):
                each._lock.writer.release()
        assert counted(log) == (size, size), "without descriptors"
        assert log.metrics()["ReplicationBytesInPerSec"]["OneMinuteRate"] > 0
    with opened(tmp_path) as log:
        assert counted(log) == (0, 0), "the counters are those of this opening"


# ---- proposals -----------------------------------------------------------------------------------


def proposal(
    before: Any, event: Event, outcome: Refusal | None = None, reason: str = "why"
) -> Proposal:
    records = () if outcome else decided(before, event)
    return Proposal(
        (event,), before, outcome or Decision(apply_all(before, records), records), reason, 0.25
    )


def elect(observed: str, state: State, kind: Election = Election.OFFLINE) -> Elect:
    return Elect(PARTITION_ID, kind, partition(state).partition_epoch, seen(observed))


def shrink(state: Any, isr: tuple[int, ...]) -> AlterIsr:
    old = partition(state)
    return AlterIsr(
        PARTITION_ID,
        old.leader_epoch,
        old.partition_epoch,
        isr,
        {node: registration_id(node) for node in isr},
    )


def test_a_refused_change_of_the_isr_is_counted_and_not_logged(lines: Lines) -> None:
    state = with_topic()
    found = ReplicaEvents()
    found.observe(proposal(state, shrink(state, (1, 2)), Refusal.INVALID_UPDATE_VERSION))
    found.observe(proposal(state, elect("1 2 3", state), Refusal.ELECTION_NOT_NEEDED))
    assert lines() == []
    assert counts(found) == {"FailedIsrUpdatesPerSec": 1}


def test_a_decision_without_a_change_has_no_line(lines: Lines) -> None:
    state = with_topic()
    found = ReplicaEvents()
    found.observe(proposal(state, shrink(state, (1, 2, 3))))
    assert (lines(), counts(found)) == ([], {})


def test_the_line_of_an_unclean_election_says_so(lines: Lines) -> None:
    state = with_topic()
    found = ReplicaEvents()
    state = after(state, shrink(state, (1,)))
    found.observe(proposal(state, elect("2 3", state, Election.UNCLEAN)))
    (line,) = lines()
    assert line.startswith(
        "t-0: leader 1 -> 2 in epoch 1, unclean, ISR [1] -> [2] (partition epoch 2): why; "
    )
    assert "does not have, also if [1] have them" in line
    assert counts(found) == {
        "IsrShrinksPerSec": 1,
        "IsrExpandsPerSec": 1,
        "UncleanLeaderElectionsPerSec": 1,
        "LeaderElectionRateAndTimeMs": 1,
    }
    timer: Any = found.report()["LeaderElectionRateAndTimeMs"]
    assert timer["Mean"] == timer["Max"] == 250


def test_a_partition_that_loses_its_leader_has_a_line_and_no_election(lines: Lines) -> None:
    state = with_topic()
    found = ReplicaEvents()
    found.observe(proposal(state, elect("", state)))
    (line,) = lines()
    assert line.startswith("t-0: leader 1 -> none in epoch 1 (partition epoch 1)")
    assert counts(found) == {}


def test_a_registration_logs_each_partition_once(lines: Lines) -> None:
    state = with_topic()
    found = ReplicaEvents()
    old = partition(state)
    records = (DecidedPartition(**{**_fields(old), "isr": (1, 2), "partition_epoch": 1}),)
    outcome = Decision(apply_all(state, records), records)
    found.observe(Proposal((), state, outcome, "", 0.0))
    assert lines() == ["t-0: ISR [1, 2, 3] -> [1, 2] (partition epoch 1)"]


def _fields(record: DecidedPartition) -> dict[str, Any]:
    return {name: getattr(record, name) for name in DecidedPartition.__slots__}
