"""Retry topics: one outcome for each record, after the right number of attempts, also if the
program is killed.
"""

from __future__ import annotations

import collections
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import ProducerRecord
from tests.faults.harness.processes import until
from tests.support import examples

sys.path.append(str(examples.EXAMPLES))
retry_topics: Any = importlib.import_module("retry_topics")

QUIET = {"housekeeping": False}


def fill(log: embedlog.Log, values: list[bytes]) -> None:
    log.create_topic("t", 2, exist_ok=True)
    log.create_topic("t.results", exist_ok=True)
    with log.producer() as producer:
        for number, value in enumerate(values):
            producer.send(
                "t",
                value,
                key=b"%d" % number,
                partition=number % 2,
                headers=[("mine", b"%d" % number)],
            )


def committed(log: embedlog.Log, topic: str) -> list[Any]:
    return list(log.scan(topic, isolation_level="read_committed").records())


class Flaky:
    """A handler: a value is the number of attempts that fail."""

    def __init__(self) -> None:
        self.attempts: collections.Counter[bytes] = collections.Counter()

    def __call__(self, record: Any) -> list[ProducerRecord]:
        self.attempts[record.key] += 1
        if self.attempts[record.key] <= int(record.value):
            raise ValueError(f"attempt {self.attempts[record.key]}")
        return [ProducerRecord("t.results", record.value, record.key)]


def test_a_record_succeeds_at_its_attempt_or_is_dead(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, [b"0", b"1", b"2", b"3", b"0"])
        flaky = Flaky()
        retry_topics.Retries(log, "t", flaky, delays_s=(0.01, 0.02)).run(idle_s=0.01)
        assert flaky.attempts == {b"0": 1, b"1": 2, b"2": 3, b"3": 3, b"4": 1}
        assert sorted(each.key for each in committed(log, "t.results")) == [b"0", b"1", b"2", b"4"]
        (dead,) = committed(log, "t.dead")
        headers = dict(dead.headers)
        assert (dead.key, dead.value) == (b"3", b"3")
        assert headers["mine"] == b"3"
        assert (headers["retry.first"], headers["retry.attempts"]) == (b"t-1@1", b"3")
        assert headers["retry.error"] == b"ValueError('attempt 3')"
        assert len(dead.headers) == len(headers) == 5


def test_a_retry_waits_for_its_delay_and_others_do_not(tmp_path: Path) -> None:
    now = [1000.0]
    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, [b"1", b"0"])
        flaky = Flaky()

        def run(attempts: int) -> None:
            """Until a record waits, or has had this number of attempts."""

            def clock() -> float:
                if retries is not None and (retries._due_s or flaky.attempts[b"0"] == attempts):
                    retries.stop()
                return now[0]

            retries = None
            retries = retry_topics.Retries(log, "t", flaky, delays_s=(60,), clock_s=clock)
            retries.run()

        run(attempts=2)
        now[0] += 59
        run(attempts=2)
        assert flaky.attempts == {b"0": 1, b"1": 1}
        now[0] += 1
        run(attempts=2)
        assert flaky.attempts == {b"0": 2, b"1": 1}
        assert sorted(each.key for each in committed(log, "t.results")) == [b"0", b"1"]


@pytest.mark.parametrize("nth", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_killed_program_leaves_one_outcome_of_each_record(tmp_path: Path, nth: int) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, [b"0", b"9", b"0", b"9"])
    child = os.fork()
    if child == 0:
        try:
            calls = 0

            def handle(record: Any) -> list[ProducerRecord]:
                nonlocal calls
                calls += 1
                if calls == nth:
                    os.kill(os.getpid(), signal.SIGKILL)
                if record.value == b"9":
                    raise ValueError
                return [ProducerRecord("t.results", record.value, record.key)]

            with embedlog.open(tmp_path, config=QUIET) as log:
                retry_topics.Retries(log, "t", handle, delays_s=(0.01,)).run(idle_s=5)
        finally:
            os._exit(1)  # it was not killed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with embedlog.open(tmp_path, config=QUIET) as log:
        flaky = Flaky()
        retry_topics.Retries(log, "t", flaky, delays_s=(0.01,)).run(idle_s=0.01)
        assert sorted(each.key for each in committed(log, "t.results")) == [b"0", b"2"]
        assert sorted(each.key for each in committed(log, "t.dead")) == [b"1", b"3"]


@pytest.fixture
def _handlers() -> Iterator[None]:
    """The handlers of signals are those of before."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_after_the_present_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    with embedlog.open(tmp_path / "log") as log:
        fill(log, [b"present"])

    def interrupted(target: str, record: Any) -> list[ProducerRecord]:
        signal.raise_signal(number)
        return [ProducerRecord(target, record.value, record.key)]

    monkeypatch.setattr(retry_topics, "doubled", interrupted)
    monkeypatch.setattr(sys, "argv", ["retry_topics", str(tmp_path / "log"), "t"])
    retry_topics.main()
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert [each.value for each in committed(log, "t.results")] == [b"present"]


@pytest.mark.usefixtures("_handlers")
def test_the_program_writes_results_and_dead_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(tmp_path / "log") as log:
        fill(log, [b'{"amount": 4}', b"no json", b'{"amount": "5"}'])
    monkeypatch.setattr(
        sys,
        "argv",
        ["retry_topics", str(tmp_path / "log"), "t", "--delays", "0.01", "--idle", "0.01"],
    )
    retry_topics.main()
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert sorted(each.value for each in committed(log, "t.results")) == [b"10", b"8"]
        assert [each.value for each in committed(log, "t.dead")] == [b"no json"]


def test_processes_with_ids_of_their_own_share_the_retries(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, [b"0", b"9"] * 10)
        both = [
            retry_topics.Retries(log, "t", Flaky(), process=name, partitions=2, delays_s=(0.01,))
            for name in "ab"
        ]
        assert log.describe_topic("t.retry.1").partition_count == 2
        with ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(retries.run, idle_s=0.2) for retries in both]:
                each.result(60)
        assert sorted(each.key for each in committed(log, "t.results")) == sorted(
            b"%d" % number for number in range(0, 20, 2)
        )
        assert sorted(each.key for each in committed(log, "t.dead")) == sorted(
            b"%d" % number for number in range(1, 20, 2)
        )


def test_a_second_process_with_one_id_ends_the_first(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, [b"0"])

        def overtaken(record: Any) -> list[ProducerRecord]:
            with log.producer(transactional_id="retries-0") as later:
                later.init_transactions()
            return [ProducerRecord("t.results", record.value, record.key)]

        with pytest.raises(embedlog.FencedError):
            retry_topics.Retries(log, "t", overtaken).run(idle_s=5)
        assert committed(log, "t.results") == []


def deadly(record: Any) -> list[ProducerRecord]:
    """Work that does not survive one value."""
    if record.value == b"kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return [ProducerRecord("t.results", record.value, record.key)]


@pytest.fixture(scope="module")
def _tracker() -> None:
    """The process of multiprocessing that removes semaphores; its pipe stays open as long as this
    process runs.
    """
    resource_tracker.ensure_running()


@pytest.mark.slow
@pytest.mark.usefixtures("_tracker")
def test_a_record_that_kills_the_isolated_work_is_dead_after_its_attempts(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log, retry_topics.Isolated(deadly) as handle:
        fill(log, [b"kill", b"good"])
        retry_topics.Retries(log, "t", handle, delays_s=()).run(idle_s=0.01)
        (dead,) = committed(log, "t.dead")
        assert dead.value == b"kill"
        assert dict(dead.headers)["retry.error"].startswith(b"BrokenProcessPool")
        assert [each.value for each in committed(log, "t.results")] == [b"good"]


@pytest.mark.slow
def test_the_child_process_ends_with_a_killed_program(tmp_path: Path) -> None:
    """The child has the write end of the pipe of the output too: the output ends when both
    processes have ended.
    """
    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, [b'{"amount": 4}'])
        command = [
            sys.executable,
            str(examples.EXAMPLES / "retry_topics.py"),
            str(tmp_path),
            "t",
            "--isolated",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            try:
                until(lambda: bool(committed(log, "t.results")), "the child has worked", 30)
            finally:
                program.kill()
            assert program.communicate(timeout=30)[0] == b""
