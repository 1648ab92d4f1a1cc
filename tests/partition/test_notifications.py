"""Notices: a follower of a partition of an internal topic sleeps until a change that it must
read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.coordination.internal_topic import InternalTopic
from embedlog.partition.partition import Partition
from embedlog.storage import files
from tests.faults.harness.processes import Nursery, state_of, until
from tests.support.mutants import mutated

NAME = "__transaction_state"
QUIET = {"housekeeping": False}


class Newest:
    """The last value of every key."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.values[key] = value


def topic_of(log: embedlog.Log) -> InternalTopic[Newest]:
    return InternalTopic(
        log._engine, NAME, partitions=2, config={"cleanup.policy": "compact"}, view=Newest
    )


def tell(topic: InternalTopic[Newest], number: int = 0, *, notice: bool = True) -> None:
    with topic.lock_for_decision(number, files.deadline_after(20)) as decision:
        decision.append([(b"n", b"%d" % time.monotonic_ns())], wake=notice)


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        topic_of(log).partition_of("a")
        tell(topic_of(log))
        yield log


KINDS = {"writer": {}, "read-only": {"read_only": True}}


@pytest.fixture(params=[*KINDS])
def following(request: pytest.FixtureRequest, writing: embedlog.Log) -> Iterator[embedlog.Log]:
    with embedlog.open(writing.path, config=QUIET, **KINDS[request.param]) as log:
        yield log


def slept(
    log: embedlog.Log,
    seen: list[tuple[Partition, int]],
    timeout_s: float,
    act: Callable[[], object],
) -> float:
    """How long a wait for notices took; `act` is called once the waiter sleeps."""
    took: list[float] = []

    def wait() -> None:
        began = time.monotonic()
        log._engine.wait([], timeout_s, slept, notices=seen)
        took.append(time.monotonic() - began)

    thread = threading.Thread(target=wait)
    thread.start()
    name = f"/proc/self/task/{thread.native_id}/stat"
    until(lambda: state_of_thread(name) == "S", "it to sleep")
    act()
    thread.join(60)
    return took[0]


def state_of_thread(name: str) -> str:
    return Path(name).read_text().rpartition(")")[2].split()[0]


def test_a_decision_that_gives_notice_wakes_who_follows(
    writing: embedlog.Log, following: embedlog.Log
) -> None:
    topic = topic_of(following)
    seen = [(topic.partition(number), topic.notice_word(number)) for number in (1, 0)]
    assert slept(following, seen, 20, lambda: tell(topic_of(writing))) < 10


def test_one_that_gives_none_wakes_nobody(writing: embedlog.Log, following: embedlog.Log) -> None:
    """Thousands of commits do not wake the followers of a group's members."""
    topic = topic_of(following)
    seen = [(topic.partition(0), topic.notice_word(0))]
    assert slept(following, seen, 0.3, lambda: tell(topic_of(writing), notice=False)) >= 0.3
    assert (
        slept(
            following,
            [(topic.partition(0), topic.notice_word(0))],
            0.3,
            lambda: tell(topic_of(writing), 1),
        )
        >= 0.3
    )


def test_what_came_between_the_look_and_the_wait_is_no_sleep(
    writing: embedlog.Log, following: embedlog.Log
) -> None:
    topic = topic_of(following)
    seen = [(topic.partition(0), topic.notice_word(0))]
    tell(topic_of(writing))
    began = time.monotonic()
    assert not following._engine.wait([], 20, topic, notices=seen)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("mutant", ["", "no_notice"])
def test_member_7_a_group_is_followed_by_one_word(writing: embedlog.Log, mutant: str) -> None:
    topic = topic_of(writing)
    with mutated(mutant):
        took = slept(
            writing,
            [(topic.partition(0), topic.notice_word(0))],
            0.3,
            lambda: tell(topic_of(writing)),
        )
    assert (took >= 0.3) == bool(mutant)


@pytest.mark.parametrize("count", [1, 200])
def test_records_and_a_notice_are_waited_for_at_once(writing: embedlog.Log, count: int) -> None:
    """Also where the kernel does not take as many words."""
    writing.create_topic("t")
    topic = topic_of(writing)
    partition = writing._engine.partition("t", 0)
    partition.open()
    woken: list[bool] = []

    def wait() -> None:
        seen = [(topic.partition(0), topic.notice_word(0))]
        woken.append(writing._engine.wait([(partition, 0)] * count, 20, topic, notices=seen))

    began = time.monotonic()
    with writing.producer() as producer:
        for act in (lambda: tell(topic_of(writing)), lambda: producer.send("t", b"x").result(10)):
            thread = threading.Thread(target=wait)
            thread.start()
            name = f"/proc/self/task/{thread.native_id}/stat"
            until(lambda name=name: state_of_thread(name) == "S", "it to sleep")  # type: ignore[misc]
            act()
            thread.join(60)
    assert woken == [False, True]
    assert time.monotonic() - began < 15


def test_another_process_is_woken(nursery: Nursery, writing: embedlog.Log) -> None:
    victim = nursery.spawn()
    victim.call("open", str(writing.path), config=QUIET)
    victim.start("await_notice", 0)
    notes = iter(victim.notes())
    assert next(notes) == "seen"
    until(lambda: state_of(victim.pid) == "S", "it to sleep")
    tell(topic_of(writing))
    assert list(notes) == []
    assert victim._last < 10


def test_with_locks_alone_it_is_seen_by_looking(tmp_path: Path) -> None:
    config = QUIET | {"shared": "locks"}
    with (
        embedlog.open(tmp_path / "log", config=config) as one,
        embedlog.open(tmp_path / "log", config=config) as two,
    ):
        topic = topic_of(one)
        topic.partition_of("a")
        tell(topic)
        seen = [(topic.partition(0), topic.notice_word(0))]
        assert slept(one, seen, 20, lambda: tell(topic_of(two))) < 10
        assert slept(one, [(topic.partition(0), topic.notice_word(0))], 0.1, lambda: None) >= 0.1


def test_where_nobody_writes_there_is_no_notice(tmp_path: Path, writing: embedlog.Log) -> None:
    writing.close()
    with embedlog.open(writing.path, read_only=True) as log:
        topic = topic_of(log)
        assert topic.notice_word(0) == -1
        log._engine.wait([], 0.01, topic, notices=[(topic.partition(0), -1)])


def test_a_notice_that_died_with_its_process_is_made_up_for_by_looking(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Killed between the append and the notice, as far as others can tell: the change is seen all
    the same, soon.
    """
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t", 2)
        with log.consumer("t", group_id="g") as mine:
            until(
                lambda: not mine.poll(timeout=0.1) and len(mine.assignment()) == 2,
                "to be the only member",
            )
            victim = nursery.spawn()
            victim.call("mutants", "no_notice")
            victim.call("open", str(log.path), config=QUIET)
            victim.start("join_group", "t", "g")
            until(
                lambda: not mine.poll(timeout=2.0) and len(mine.assignment()) == 1,
                "the other one to be noticed",
            )
            assert victim.result() == 1
