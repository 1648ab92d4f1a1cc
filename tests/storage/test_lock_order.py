"""The order of locks (LOCK-3): while debugging, a thread that takes one too late gets an error."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.storage import file_names, locks
from tests.support.producer_helpers import run_program

A_WHOLE_LIFE = """
    import os, sys
    os.environ["EMBEDLOG_DEBUG_LOCKS"] = "1"
    import embedlog
    from embedlog import TopicPartition

    quick = {"log.flush.offset.checkpoint.interval.ms": 1, "log.flush.scheduler.interval.ms": 1}
    for _ in range(2):
        with embedlog.open(sys.argv[1], config=quick) as log:
            log.create_topic("t", 2, config={"segment.bytes": 400, "flush.ms": 1, "retention.bytes": 800})
            with log.producer(linger_ms=0) as producer:
                for number in range(20):
                    producer.send("t", value=b"v" * 100, partition=number % 2).result()
            log.delete_records({TopicPartition("t", 0): 3})
            log.flush()
            log.housekeep()
            log.create_partitions("t", 3)
            assert log._housekeeper.jobs.try_work(log._housekeeper._work)
            log._housekeeper.jobs.write_points()
            log.delete_topic("t")
            log.create_topic("u")
        with embedlog.open(sys.argv[1]) as log:
            log.delete_topic("u")
    from embedlog.storage import locks
    assert locks.checks_order and not locks._locks_of_thread()
"""


def test_a_whole_life_takes_locks_in_order(tmp_path: Path) -> None:
    done = run_program(A_WHOLE_LIFE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "out of order" not in done.stderr


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (file_names.HOUSEKEEPER, file_names.DIRECTORY_LOCK),
        (file_names.SYNC_LOCK, file_names.LOCK),
        (file_names.LOCK, file_names.LOCK),
    ],
)
def test_a_lock_taken_too_late_is_refused(
    tmp_path: Path, until_end: ExitStack, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    monkeypatch.setattr(locks, "checks_order", True)
    one = until_end.enter_context(closing(locks.LockFile(tmp_path / first)))
    other = until_end.enter_context(closing(locks.LockFile(tmp_path / second)))
    soon = system.boot_ns() + 10**9
    with one.hold(soon), pytest.raises(RuntimeError, match="out of order"), other.hold(soon):
        pass
    with other.hold(soon):
        pass


def test_a_lock_that_becomes_free_at_the_deadline_is_held(
    tmp_path: Path, until_end: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken, and then taken again, or reported as not held."""
    monkeypatch.setattr(locks, "checks_order", True)
    path = tmp_path / file_names.SYNC_LOCK
    other = until_end.enter_context(closing(locks.LockFile(path)))
    lock_file = until_end.enter_context(closing(locks.LockFile(path)))
    assert system.lock_try(other.fd, True) == 0
    take = lock_file.lock

    def take_late(deadline_ns: int) -> None:
        system.unlock(other.fd)
        take(deadline_ns)

    monkeypatch.setattr(lock_file, "lock", take_late)
    answers = iter([True])

    def is_needed() -> bool:
        return next(answers, False)

    with lock_file.hold_while(is_needed, lambda: None, system.boot_ns()) as is_held:
        assert is_held
        assert system.lock_try(other.fd, True) == system.EAGAIN
    assert system.lock_try(other.fd, True) == 0


FORK_WHILE_A_LOCK_FILE_IS_OPENED = """
    import os, sys
    from embedlog.storage import files, locks

    path = sys.argv[1] + "/embedlog.lock"

    def fork_in(call):
        def forked(*arguments):
            result = call(*arguments)
            child = os.fork()
            if not child:
                links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                         if os.path.exists(f"/proc/self/fd/{name}")]
                os._exit(path in links)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return result
        return forked

    os.makedirs(sys.argv[1])
    files.facts = fork_in(files.facts)
    lock_file = locks.LockFile(path)
    lock_file.close()
"""


def test_a_fork_while_a_lock_file_is_opened_leaves_no_descriptor_to_the_child(
    tmp_path: Path,
) -> None:
    """Another thread may fork between the opening of the file and the end of its constructor."""
    done = run_program(FORK_WHILE_A_LOCK_FILE_IS_OPENED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"]
