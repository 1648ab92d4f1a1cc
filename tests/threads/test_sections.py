"""The sections of `_rows` (objects/section.h): the import keeps the GIL off, and programs fail
without sections.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from embedlog._native import _rows
from tests.conftest import ROOT
from tests.support.crowd import FREE_THREADED

ATTEMPTS = 5
# PYTHONPATH names the tested build first; without -P the sources of the current folder would be
PYTHON = (sys.executable, "-P")
OBJECTS = sorted((ROOT / "embedlog" / "_native" / "objects").glob("*.c"))
PRELUDE = """
import sys, threading
import embedlog
from embedlog._native import _rows
from tests.support.crowd import crowd
_rows.set_sections_off({off})
"""
# records of eight threads are encoded into the same batches
SEND = """
with embedlog.open(sys.argv[1]) as log:
    log.create_topic("t")
    producer = log.producer(linger_ms=1)
    producer.send("t", b"first").result()
    crowd(8, lambda number: [producer.send("t", b"%d" % at) for at in range(20_000)])
    producer.flush(60)
    assert producer._rows.memory_used == 0 and producer._rows.record_count == 160_001
    producer.close(60)
    with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0) as consumer:
        assert sum(1 for record in consumer) == 160_001
"""
# a list is shortened while its items are copied
COPY = """
items = [b"%d" % number for number in range(500)]
ended = threading.Event()

def change():
    while not ended.is_set():
        del items[100:]
        items.extend(b"%d" % number for number in range(400))

def copy(_):
    try:
        for _ in range(20_000):
            own, total, largest, nulls = _rows.list_take(items)
            assert total == sum(map(len, own)) and nulls == own.count(None)
    finally:
        ended.set()

crowd(1, copy, change)
"""
needs_sections = pytest.mark.skipif(not FREE_THREADED, reason="with the GIL no section exists")


def run(program: str, folder: Path, off: bool) -> bool:
    """Whether the program ends well. Under ThreadSanitizer its first race ends a program without
    sections.
    """
    text = PRELUDE.format(off=off) + textwrap.dedent(program)
    options = f"{os.environ.get('TSAN_OPTIONS', '')} log_path=stderr halt_on_error=1 exitcode=66"
    sanitizer = {"TSAN_OPTIONS": options} if off else {}
    environment = os.environ | sanitizer
    try:
        done = subprocess.run(
            [*PYTHON, "-c", text, str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
    except subprocess.TimeoutExpired:
        return False
    assert off or done.returncode == 0, done.stderr[-2000:]
    return done.returncode == 0


def test_each_method_of_a_section_is_defined() -> None:
    """With the GIL the macros are empty: only a build without it would miss the definition."""
    used = {
        (path.name, name)
        for path in OBJECTS
        for name in re.findall(r"EL_ALONE\((\w+)\)", path.read_text())
    }
    made = {
        (path.name, name)
        for path in OBJECTS
        for name in re.findall(r"^EL_[A-Z]+\(\w+, (\w+)\b", path.read_text(), re.MULTILINE)
    }
    assert used
    assert used == made


@needs_sections
def test_the_import_keeps_the_gil_off() -> None:
    program = (
        "import sys, embedlog; from embedlog._native import _rows; sys.exit(sys._is_gil_enabled())"
    )
    assert subprocess.run([*PYTHON, "-W", "error", "-c", program], timeout=60).returncode == 0


@needs_sections
@pytest.mark.parametrize("program", [SEND, COPY], ids=["send", "list_take"])
def test_without_sections_the_state_is_damaged(program: str, tmp_path: Path) -> None:
    assert run(program, tmp_path / "with", off=False)
    assert not all(
        run(program, tmp_path / f"without{attempt}", off=True) for attempt in range(ATTEMPTS)
    )


@pytest.mark.skipif(FREE_THREADED, reason="this build has sections")
def test_with_the_gil_there_is_no_mutant_of_sections() -> None:
    assert not hasattr(_rows, "set_sections_off")
