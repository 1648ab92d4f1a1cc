"""Disks of a set fail for good during all kinds of work, and processes are killed at each step of a
change of the set.
"""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from tests.support.growing_sets import add, nodes, recorded, retire
from tests.support.opened_sets import QUIET, isr, made, opened, paths, send, values

CHANGES = ("pwrite", "fsync", "fdatasync", "rename", "unlink", "mkdir", "fallocate", "ftruncate")


@pytest.mark.parametrize(
    ("node", "error"),
    [
        (1, errno.EIO),
        *(
            pytest.param(node, error, marks=pytest.mark.slow)
            for node, error in (
                (2, errno.EIO),
                (1, errno.ENOSPC),
                (2, errno.ENOSPC),
                (1, errno.EROFS),
                (2, errno.EROFS),
            )
        ),
    ],
)
def test_all_clients_continue_while_a_disk_fails_for_good(
    tmp_path: Path, node: int, error: int
) -> None:
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        log.create_topic("t", 2, replication_factor=3)
        wanted = [b"%02d" % number for number in range(40)]
        found: list[bytes] = []
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            with log.producer(linger_ms=0) as producer:
                for number, value in enumerate(wanted):
                    if number == 10:
                        system.fault_arm(CHANGES, 1, "fail", error, sticky=True, name=f"/d{node}/")
                    producer.send("t", value, partition=number % 2).result(60)
                    found += [record.value for record in consumer.poll(0.01)]
                    consumer.commit()
            with log.producer(transactional_id="x") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("t", b"in a transaction")
                producer.commit_transaction()
            log.create_topic("u", replication_factor=2)
            while len(found) < len(wanted) + 1:
                found += [record.value for record in consumer.poll(30)]
            consumer.commit()
        assert sorted(found) == [*wanted, b"in a transaction"]
        assert node not in isr(log)
        system.fault_off()
        log.housekeep()
        log.housekeep()
        assert all(
            len(each.isr) == len(each.replicas)
            for each in log._engine.set.decisions.counted_state().partitions.values()
        )
    with opened(tmp_path) as log:
        assert values(log) == [*wanted, b"in a transaction"]
        assert log.describe_group("g").lag == 0


def killed(work: Callable[[], None], kinds: tuple[str, ...], nth: int, name: str) -> bool:
    """Do the work in a process that is killed at the nth call of these kinds; whether it was."""
    pid = os.fork()
    if pid == 0:
        try:
            system.fault_arm(kinds, nth, "kill_before", name=name)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def test_a_process_killed_at_any_step_of_an_addition_leaves_a_set_that_opens(
    tmp_path: Path, rng: random.Random
) -> None:
    made(tmp_path)

    def work() -> None:
        add(opened(tmp_path), tmp_path / "d4")

    at = rng.randint(1, 5)
    kills = 0
    while killed(work, CHANGES, at, "/d4"):
        kills += 1
        at += rng.randint(1, 9)
        with opened(tmp_path, 4 if (tmp_path / "d4" / "embedlog.replicas").exists() else 3) as log:
            assert set(nodes(log)) >= {1, 2, 3}
            send(log, b"%d" % kills)
            assert len(values(log)) == kills + 1
            if 4 in nodes(log):
                break
    assert kills
    with opened(tmp_path) as log:
        assert add(log, tmp_path / "d4") == 4
        log.create_topic("u", assignment={0: [4, 1]})
    with opened(tmp_path, 4) as log:
        assert nodes(log) == [1, 2, 3, 4]


@pytest.mark.parametrize("force", [False, True])
def test_a_process_killed_at_any_step_of_a_retirement_leaves_a_set_that_opens(
    tmp_path: Path, rng: random.Random, force: bool
) -> None:
    with opened(tmp_path, 2) as log:
        log.create_topic("t", assignment={0: [1]})
        send(log, b"0")
    if force:
        (tmp_path / "d2").rename(tmp_path / "lost")

    def work() -> None:
        retire(
            embedlog.open(paths(tmp_path, 2), config={**QUIET, "lock_timeout_ms": 500}),
            2,
            force=force,
        )

    at = rng.randint(1, 5)
    kills = 0
    while killed(work, CHANGES, at, "/d1/"):
        kills += 1
        at += rng.randint(1, 9)
        with embedlog.open(paths(tmp_path, 2), config={**QUIET, "lock_timeout_ms": 500}) as log:
            if nodes(log) == [1]:
                assert values(log) == [b"0"]
                break
    assert kills
    with embedlog.open(
        paths(tmp_path, 2)[: 2 if 2 in recorded(tmp_path / "d1") else 1], config=QUIET
    ) as log:
        if 2 in nodes(log):
            retire(log, 2, force=force)
        assert nodes(log) == [1]
        send(log, b"1")
        assert values(log) == [b"0", b"1"]


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EIO])
def test_a_directory_that_is_lost_during_an_opening_is_not_the_first_of_the_housekeeper(
    tmp_path: Path, error: int
) -> None:
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        log.create_topic("t", replication_factor=3)
        system.fault_arm(("open",), 1, "fail", error, sticky=True, name="/d1/embedlog.housekeeper")
        with embedlog.open(paths(tmp_path), config=QUIET) as second, second.producer() as producer:
            assert producer.send("t", b"x").result(60).offset == 0
            second.housekeep()
        system.fault_off()
