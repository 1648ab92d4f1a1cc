"""Control pages under threads: sleeping on a page and reading it never touches released memory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt
from tests.support.producer_helpers import run_program

DELETED_UNDER_A_SLEEPER = """
    import sys, threading
    import embedlog

    class Owner:
        pass

    log = embedlog.open(sys.argv[1], config={"housekeeping": False})
    log.create_topic("t")
    partition, owner, asleep = log._engine.partition("t", 0), Owner(), threading.Event()
    partition.bounds()

    def sleep():
        asleep.set()
        try:
            log._engine.wait([(partition, 0)], 2, owner)
        except embedlog.UnknownTopicOrPartitionError:
            print("deleted")

    thread = threading.Thread(target=sleep)
    thread.start()
    asleep.wait()
    threading.Event().wait(0.1)
    WAY
    thread.join(20)
    print("alive")
"""


@pytest.mark.parametrize(
    "way", ["log.delete_topic('t')", "partition._state.remap(); log._engine.wake(owner)"]
)
def test_a_page_that_is_let_go_under_a_sleeping_thread_is_no_crash(
    tmp_path: Path, way: str
) -> None:
    done = run_program(DELETED_UNDER_A_SLEEPER.replace("WAY", way), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "alive" in done.stdout


def test_pages_are_unmapped_with_their_last_reference(tmp_path: Path) -> None:
    import embedlog

    def mapped() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        # without mappings of other tests
        return sum("embedlog.page" in line and str(tmp_path) in line for line in lines)

    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t", partitions=5)
        log.describe_topic("t")
        assert mapped() == 5
        log.delete_topic("t")
        assert mapped() == 0


IMPOSSIBLE = [
    {"log_end": 2**63 - 1},
    {"log_end": -1},
    {"segment_base": 2**63 - 2, "log_end": 2**63 - 1},
    {"segment_base": -5},
    {"segment_size": -1},
    {"segment_size": 2**31},
    {"max_timestamp_offset": -(2**63)},
    {"max_timestamp": -(2**63)},
    {"created_ms": -(2**63)},
    {"roll_jitter_ms": -1},
    {"bytes_since_entry": 2**63 - 1},
]


@pytest.mark.parametrize("forged", IMPOSSIBLE, ids=str)
def test_a_page_whose_numbers_cannot_be_is_no_page(tmp_path: Path, forged: dict[str, int]) -> None:
    """Its checksum is correct, but its numbers are impossible: they are not used."""
    import embedlog

    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"before").result(10)
            partition = log._engine.partition("t", 0)
            now = partition.published()
            partition._state.page.publish(now._replace(**forged), partition._context.directory_page)
            assert partition._state.page.read() is None
            partition._state.page.publish(now, partition._context.directory_page)
            assert producer.send("t", b"after").result(10).offset == 1


@OF_THIS_INTERPRETER
def test_an_interrupt_of_the_first_read_of_a_thread_leaves_the_page_readable(
    tmp_path: Path,
) -> None:
    import embedlog

    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        state = log._engine.partition("t", 0)._state
        state.ensure_open()
        page = state.page
        nth = 0
        while True:
            nth += 1
            page.local = threading.local()  # as at the first read of a thread
            interrupt = Interrupt(nth, {"system.py"})
            interrupt.run(page.read)
            assert page.read() is not None, interrupt.struck
            if interrupt.struck is None:
                break
    assert nth > 3
