"""Producers at the interpreter's exit, with the user in a hurry or a disk that does not answer: nothing is lost in silence."""

from __future__ import annotations

from pathlib import Path

import embedlog
from tests.support.producer_helpers import run_program

STUCK = """
    import signal, sys, threading, atexit, embedlog
    log = embedlog.open(sys.argv[1], config={"housekeeping": False})
    log.create_topic("stuck")
    log.create_topic("fine")
    producers = {topic: log.producer(linger_ms=60_000) for topic in ("stuck", "fine")}
    taken = threading.Event()

    def append(*_):
        taken.set()
        threading.Event().wait()

    producers["stuck"]._delivery.appender.append = append
    for topic, producer in producers.items():
        for _ in range(5):
            producer.send(topic, b"v")

    def interrupt(*_):
        if not taken.is_set():
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            return
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.05)
"""


def test_an_interrupt_at_exit_loses_no_other_producers_records_and_says_what_is_open(tmp_path: Path) -> None:
    done = run_program(STUCK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the process ended during the write of 5 records") == 1, done.stderr
    with embedlog.open(tmp_path / "log") as log:
        assert len(list(log.scan("fine").records())) == 5
        assert list(log.scan("stuck").records()) == []
