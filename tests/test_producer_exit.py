"""The interpreter ends with records in a buffer, in every order in which things can end."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from tests.producing import run_program, values

SEND = """
for number in range(100):
    producer.send("one", b"%d" % number)
    producer.send_batch("one", [b"of a batch"])
"""
ENDS = {
    "the log is closed by the user's own exit handler": SEND + "import atexit; atexit.register(log.close)",
    "an error that nobody catches": SEND + "raise KeyError('mine')",
    "in the middle of a with": "with producer:\n    " + SEND.replace("\n", "\n    ") + "\n    raise SystemExit(3)",
    "another thread still sends": """
import threading, time
def send():
    threading.main_thread().join()
""" + SEND.replace("\n", "\n    ") + "\nthreading.Thread(target=send).start()",
    "a callback sends on": """
def again(future):
    for number in range(99):
        producer.send("one", b"%d" % number)
        producer.send_batch("one", [b"of a batch"])
producer.send("one", b"first").add_done_callback(again)
producer.send_batch("one", [b"of a batch"])
producer.flush()
""",
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_what_is_buffered_when_the_interpreter_ends_is_written(tmp_path: Path, end: str) -> None:
    begin = """
import sys, warnings, embedlog
warnings.simplefilter("ignore", ResourceWarning)
log = embedlog.open(sys.argv[1], config={"housekeeping": False})
log.create_topic("one")
producer = log.producer(linger_ms=60_000, delivery_timeout_ms=600_000)
"""
    done = run_program(begin + ENDS[end], tmp_path)
    assert done.returncode == {"in the middle of a with": 3, "an error that nobody catches": 1}.get(end, 0)
    assert "dropped" not in done.stderr
    assert "Exception ignored" not in done.stderr
    with embedlog.open(tmp_path / "log") as log:
        assert len(values(log)) == 200
