"""Producers at the interpreter's exit, with the user in a hurry or a disk that does not answer:
nothing is lost in silence.
"""

from __future__ import annotations

import time
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


def test_an_interrupt_at_exit_loses_no_other_producers_records_and_says_what_is_open(
    tmp_path: Path,
) -> None:
    done = run_program(STUCK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the process ended during the write of 5 records") == 1, done.stderr
    with embedlog.open(tmp_path / "log") as log:
        assert len(list(log.scan("fine").records())) == 5
        assert list(log.scan("stuck").records()) == []


def test_a_program_with_a_long_linger_ends_soon_after_an_interrupt_and_loses_nothing(
    tmp_path: Path,
) -> None:
    began = time.monotonic()
    done = run_program(
        """
        import os, signal, sys, embedlog
        log = embedlog.open(sys.argv[1])
        log.create_topic("one", exist_ok=True)
        producer = log.producer(linger_ms=60_000)
        for number in range(1000):
            producer.send("one", b"%d" % number)
        os.kill(os.getpid(), signal.SIGINT)
        """,
        tmp_path,
    )
    assert time.monotonic() - began < 30
    assert "KeyboardInterrupt" in done.stderr
    with embedlog.open(tmp_path / "log") as log:
        assert [record.value for record in log.scan("one").records()] == [
            b"%d" % number for number in range(1000)
        ]


def test_a_worker_whose_results_have_returned_reports_no_unfinished_write(tmp_path: Path) -> None:
    done = run_program(
        """
        import multiprocessing, sys, embedlog
        from concurrent.futures import ProcessPoolExecutor
        kept = []

        def work(path, number):
            log = embedlog.open(path, config={"housekeeping": False})
            producer = log.producer(linger_ms=0)
            kept.append((log, producer))
            return [producer.send("one", b"v").result(30).offset for _ in range(20)][-1] >= 0

        if __name__ == "__main__":
            with embedlog.open(sys.argv[1]) as log:
                log.create_topic("one")
            for method in ("spawn", "fork"):
                with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
                    assert all(pool.map(work, [sys.argv[1]] * 6, range(6)))
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "ended during the write" not in done.stderr
    with embedlog.open(tmp_path / "log") as log:
        assert log.scan("one").num_rows == 2 * 6 * 20
