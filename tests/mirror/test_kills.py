"""Mirrors and writers that are killed: the copy has each committed record once, in the order of its
partition.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import embedlog
from embedlog import Log, TopicPartition
from embedlog._native import system
from embedlog.mirror import Mirror
from tests.support import mirrored_topics
from tests.support.campaign_report import add_counts
from tests.support.mirrored_topics import rows

QUIET = {"housekeeping": False}
KILLS = 100
DEADLINE_S = 120.0
CALLS = ("pwrite", "fsync", "fdatasync", "ftruncate", "rename", "unlink", "mkdir", "fallocate")
WRITER = """
import random, sys
import embedlog

path, name = sys.argv[1:]
rng = random.Random(name)
with embedlog.open(path) as log, log.producer() as plain, log.producer(transactional_id="writer") as owner:
    owner.init_transactions()

    def send(producer):
        for _ in range(rng.randrange(1, 30)):
            send.number += 1
            key = b"%s-%d" % (name.encode(), send.number)
            value = rng.choice([key, bytes(rng.randrange(3000)), None])
            headers = [("h", rng.choice([None, b"x"]))] * rng.randrange(2)
            producer.send("events", value, key=key, partition=rng.randrange(3), headers=headers)
        producer.flush()

    send.number = 0
    while send.number < 3000:
        if rng.random() < 0.6:
            send(plain)
        else:
            owner.begin_transaction()
            send(owner)
            owner.abort_transaction() if rng.random() < 0.3 else owner.commit_transaction()
"""


def check_equal(source: Path, target: Path, topic: str) -> int:
    """Compare both sides; returns the number of records. The keys are unique: a repetition is not
    equal.
    """
    with embedlog.open(source, config=QUIET) as here, embedlog.open(target, config=QUIET) as there:
        with Mirror(here, there, groups=None) as mirror:
            mirror.run()
        found = rows(here, topic)
        assert rows(there, topic) == found
        assert len({row[1] for row in found}) == len(found)
        one = mirrored_topics.offsets(here, topic)
        other = mirrored_topics.offsets(there, topic)
        for group in here.groups():
            for place, at in here.group_offsets(group).items():
                copied = there.group_offsets(group)[place].offset
                best = mirrored_topics.exact(one, other, place, at.offset)
                assert copied <= best
        return len(found)


def killed(work: Callable[[], object], nth: int, name: str) -> bool:
    """Do the work in a process that is killed at the nth call that changes a file with this name;
    whether it was.
    """
    child = os.fork()
    if child == 0:
        try:
            system.fault_arm(CALLS, nth, "kill_before", name=name)
            work()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def kill_at_calls(tmp_path: Path, rng: random.Random, step: int) -> int:
    """Mirrors that are killed at each `step`th call, about; records, transactions and groups are
    added between them.
    """
    here = tmp_path / "here"
    there = tmp_path / "there"
    with embedlog.open(here, config=QUIET) as log:
        log.create_topic("events", 3)
    number = 0

    def send(log: Log, transactional_id: str | None) -> None:
        nonlocal number
        with log.producer(transactional_id=transactional_id) as producer:
            if transactional_id is not None:
                producer.init_transactions()
                producer.begin_transaction()
            for _ in range(rng.randrange(1, 40)):
                number += 1
                producer.send(
                    "events",
                    rng.randbytes(rng.randrange(200)),
                    key=b"%d" % number,
                    partition=rng.randrange(3),
                )
            if transactional_id is not None:
                producer.flush()
                producer.abort_transaction() if rng.random() < 0.5 else producer.commit_transaction()

    def work() -> None:
        with (
            embedlog.open(here, read_only=True) as source,
            embedlog.open(there, config=QUIET) as target,
            Mirror(source, target, groups=None) as mirror,
        ):
            mirror.run()

    nth = rng.randrange(1, step + 1)
    kills = 0
    while True:
        with embedlog.open(here, config=QUIET) as log:
            for transactional_id in (None, "t"):
                send(log, transactional_id)
            ends = {
                TopicPartition("events", part.partition): part.log_end_offset
                for part in log.describe_topic("events").partitions
            }
            log.reset_group_offsets(
                "readers", to={place: rng.randrange(end + 1) for place, end in ends.items()}
            )
        if not killed(work, nth, "/there"):
            break
        kills += 1
        nth += rng.randrange(1, 2 * step)
    check_equal(here, there, "events")
    return kills


def test_a_mirror_killed_at_any_call_is_continued(tmp_path: Path, rng: random.Random) -> None:
    assert kill_at_calls(tmp_path, rng, 80) >= 2


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_mirror_killed_at_every_call_is_continued(tmp_path: Path, rng: random.Random) -> None:
    kills = sum(kill_at_calls(tmp_path / str(number), rng, 2) for number in range(5))
    add_counts("mirrors killed at a system call", kills=kills, violations=0)
    assert kills > KILLS


class Killing:
    """A following mirror and a writer at its source, as processes that are killed and started
    again.
    """

    def __init__(self, tmp_path: Path, rng: random.Random, stack: ExitStack) -> None:
        self.here = tmp_path / "here"
        self.there = tmp_path / "there"
        self._rng = rng
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        with embedlog.open(self.here, config=QUIET) as log:
            log.create_topic("events", 3)
        with embedlog.open(self.there, config=QUIET) as log:
            log.create_topic("events", 3)
        self._readers = {
            "writer": stack.enter_context(embedlog.open(self.here, read_only=True)),
            "mirror": stack.enter_context(embedlog.open(self.there, read_only=True)),
        }
        stack.callback(self.end)

    def _start(self, name: str) -> None:
        self._started += 1
        if name == "writer":
            words = ["-c", WRITER, str(self.here), f"w{self._started}"]
        else:
            words = [
                "-m",
                "embedlog",
                "mirror",
                "--from",
                str(self.here),
                "--to",
                str(self.there),
                "--follow",
                "--groups",
            ]
        command = [sys.executable, *words]
        self._processes[name] = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def _end_offsets(self, name: str) -> int:
        return sum(
            part.log_end_offset for part in self._readers[name].describe_topic("events").partitions
        )

    def kill(self) -> str:
        """Kill one of both, or both, after some of its progress."""
        victims = self._rng.choice([["mirror"], ["mirror"], ["writer"], ["mirror", "writer"]])
        watched = victims[0]
        wanted = self._end_offsets(watched) + self._rng.choice([1, 10, 100, 500])
        deadline = time.monotonic() + DEADLINE_S
        while self._end_offsets(watched) < wanted:
            assert time.monotonic() < deadline
            for name in ("writer", "mirror"):
                process = self._processes.get(name)
                if process is None or process.poll() is not None:
                    assert process is None or (name == "writer" and process.returncode == 0), (
                        self._failure(name)
                    )
                    self._reap(name)
                    self._start(name)
        for name in victims:
            self._processes[name].kill()
        for name in victims:
            self._reap(name)
        return "+".join(victims)

    def _failure(self, name: str) -> str:
        _, errors = self._processes[name].communicate()
        return f"{name}: {self._processes[name].returncode}: {errors.decode()}"

    def _reap(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.communicate()

    def end(self) -> None:
        for name in list(self._processes):
            self._processes[name].kill()
            self._reap(name)


def kill_repeatedly(tmp_path: Path, rng: random.Random, count: int) -> None:
    kills: dict[str, int] = {}
    with ExitStack() as stack:
        killing = Killing(tmp_path, rng, stack)
        for _ in range(count):
            victims = killing.kill()
            kills[victims] = kills.get(victims, 0) + 1
    records = check_equal(tmp_path / "here", tmp_path / "there", "events")
    add_counts("mirrors and writers killed", kills=count, records=records, violations=0)
    assert records > count
    print(kills)


@pytest.mark.slow
def test_killed_processes_leave_equal_topics(tmp_path: Path, rng: random.Random) -> None:
    kill_repeatedly(tmp_path, rng, 5)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_processes_killed_a_hundred_times_leave_equal_topics(
    tmp_path: Path, rng: random.Random
) -> None:
    kill_repeatedly(tmp_path, rng, KILLS)
