"""Three busy threads of one process keep no other process from a partition."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import embedlog

SENDS = 60
ANSWER_S = 5.0  # the lock timeout: a send that waits longer is refused

OTHER_PROCESS = """
import sys, threading, embedlog

pause = threading.Event()
with embedlog.open(sys.argv[1]) as log, log.producer() as producer:
    for number in range(int(sys.argv[2])):
        producer.send("t", b"single").result(float(sys.argv[3]))
        pause.wait(0.02)
print("all acknowledged")
"""


def test_single_sends_of_another_process_are_answered(tmp_path: Path) -> None:
    """The append lock is free between two appends, and a waiting process is woken by its release."""
    root = tmp_path / "log"
    stop = threading.Event()
    counts = [0] * 3
    with embedlog.open(root) as log, log.producer() as producer:
        log.create_topic("t")

        def send_without_pause(number: int) -> None:
            while not stop.is_set():
                producer.send("t", b"busy").result(60)
                counts[number] += 1

        threads = [threading.Thread(target=send_without_pause, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        try:
            answer = subprocess.run(
                [sys.executable, "-c", OTHER_PROCESS, root, str(SENDS), str(ANSWER_S)],
                capture_output=True,
                text=True,
                timeout=120,
            )
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert (answer.stdout, answer.returncode) == ("all acknowledged\n", 0), answer.stderr
        assert min(counts) > SENDS, "the threads were busy meanwhile"
        assert log.describe_topic("t").partitions[0].log_end_offset == sum(counts) + SENDS
