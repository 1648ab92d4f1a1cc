"""A kill loses nothing that was published: beside an absent directory the others go on, at
whatever step of an opening or a close a process was killed (REPLICA-13).
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.storage import control_page
from tests.support.put_back_directories import check_it_waits
from tests.support.replica_directories import CHANGES

NODES = (1, 2)  # the third one is away
STRIDE = 13  # of the steps before which a process is killed
FEW = 3  # steps in `make test`
LAST = {"opens": 500, "closes": 200, "creates": 200}  # about the number of steps of each work
OF_THIS_BOOT = "of this boot"
STEPS = (*CHANGES, "open", "link", "lock", "mmap", "point")
PERIOD = {"offsets.topic.num.partitions": 1}

Killed = Callable[[Path, int], bool]


def opened(root: Path, nodes: Sequence[int] = NODES) -> embedlog.Log:
    paths = [root / f"d{node}" for node in nodes]
    return embedlog.open(paths, housekeeping=False, config=PERIOD)


def send(log: embedlog.Log, *values: bytes) -> None:
    with log.producer(acks="all") as producer:
        for value in values:
            producer.send("t", value, partition=0).result(60)


def values(log: embedlog.Log) -> list[bytes | None]:
    return [record.value for record in log.scan("t").records()]


def made(root: Path) -> None:
    """A set that was closed in order, whose leader is away since."""
    root.mkdir()
    with opened(root, (1, 2, 3)) as log:
        log.create_topic("t", assignment={0: [3, 1, 2]}, config={"min.insync.replicas": 2})
        send(log, b"before")
    (root / "d3").rename(root / "away")


def copied(root: Path, target: Path) -> Path:
    """The set on another disk: its control pages prove nothing, as after a restart of the
    machine.
    """
    shutil.copytree(root, target)
    return target


def in_a_process(work: Callable[[], object]) -> int:
    """The exit code of a process that does this."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code


def opens(root: Path, nth: int) -> bool:
    """Whether a process was killed before the nth step of an opening, a reading and a sending."""

    def work() -> None:
        system.fault_arm(STEPS, nth, "kill_before")
        with opened(root) as log:
            values(log)
            send(log, b"by a killed process")
            system.fault_off()

    return in_a_process(work) != 0


def closes(root: Path, nth: int) -> bool:
    """Whether a process was killed before the nth step of its close."""

    def work() -> None:
        log = opened(root)
        send(log, b"by a killed process")
        system.fault_arm(STEPS, nth, "kill_before")
        log.close()
        system.fault_off()

    return in_a_process(work) != 0


def creates(root: Path, nth: int) -> bool:
    """Whether a process was killed before the nth step of the creation of a topic."""

    def work() -> None:
        with opened(root) as log:
            system.fault_arm(STEPS, nth, "kill_before")
            log.create_topic("t2", assignment={0: [1, 2]})
            system.fault_off()

    return in_a_process(work) != 0


def check_it_goes_on(root: Path, nth: object) -> None:
    """The partition has a leader and every record that was acknowledged."""
    with opened(root) as log:
        rows = values(log)
        assert log.replicas("t").partitions[0].leader in NODES, nth
        kept = [row for row in rows if row != b"by a killed process"]
        assert kept == [b"before", *[b"after"] * (len(kept) - 1)], nth
        send(log, b"after")
        assert values(log) == [*rows, b"after"], nth
        if "t2" in log.topics():
            with log.producer(acks="all") as producer:
                producer.send("t2", b"first", partition=0).result(60)
            log.delete_topic("t2")


def states(root: Path, pages: str) -> Iterator[Path]:
    """Sets that were closed in order, one after the other."""
    made(root / "made")
    for number in itertools.count():
        if pages == OF_THIS_BOOT:
            yield root / "made"  # the last one was closed in order, too
        else:
            yield copied(root / "made", root / str(number))
            shutil.rmtree(root / str(number))


every_work = pytest.mark.parametrize("killed", [opens, closes, creates])
every_page = pytest.mark.parametrize("pages", [OF_THIS_BOOT, "of a copy"])


@every_page
@every_work
def test_a_kill_lets_the_others_go_on_beside_an_absent_directory(
    tmp_path: Path, rng: random.Random, pages: str, killed: Killed
) -> None:
    last = LAST[killed.__name__]
    steps = sorted(rng.sample(range(1, last), FEW))
    for nth, root in zip(steps, states(tmp_path, pages), strict=False):
        killed(root, nth)
        check_it_goes_on(root, nth)


def test_a_power_loss_after_a_kill_waits_for_all_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    """Also if nothing was written since the orderly close, and after a further kill in the new
    boot.
    """
    root = tmp_path / "set"
    made(root)

    def work() -> None:
        with opened(root):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_process(work)
    monkeypatch.setattr(control_page, "boot_number", lambda: 1)
    assert opens(root, rng.randint(1, LAST["opens"] // 2))
    for _ in range(2):
        with opened(root) as log:
            check_it_waits(log)
    (root / "away").rename(root / "d3")
    with opened(root, (1, 2, 3)) as log:
        assert values(log)[0] == b"before"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@every_page
@every_work
def test_a_kill_at_any_step_lets_the_others_go_on_beside_an_absent_directory(
    tmp_path: Path, rng: random.Random, pages: str, killed: Killed
) -> None:
    nth = rng.randint(1, STRIDE)
    for root in states(tmp_path, pages):
        is_killed = killed(root, nth)
        check_it_goes_on(root, nth)
        if not is_killed:
            break
        nth += STRIDE
    assert nth > LAST[killed.__name__] // 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@every_page
def test_kills_at_any_steps_of_several_openings_let_the_others_go_on(
    tmp_path: Path, rng: random.Random, pages: str
) -> None:
    """No orderly close is between them."""
    for _, root in zip(range(12), states(tmp_path, pages), strict=False):
        steps = [(rng.choice((opens, closes)), rng.randint(1, LAST["opens"])) for _ in range(3)]
        for killed, nth in steps:
            killed(root, nth)
        check_it_goes_on(root, steps)
