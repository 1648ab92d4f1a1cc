"""The programs of docs/delivery.md, killed at random moments until all is read: losses and
duplicates are as documented.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import runpy
import sys
from collections import Counter
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.conftest import ROOT
from tests.faults.harness.processes import until

PROGRAM = re.compile(r"^```python\n# (\w+)\.py\n.*?^```$", re.DOTALL | re.MULTILINE)
COUNT = 4000
KILLS = 6
DEADLINE_S = 60


def programs() -> dict[str, str]:
    """The page's blocks by the names in their first lines."""
    text = (ROOT / "docs" / "delivery.md").read_text()
    return {
        found[1]: found[0].removeprefix("```python\n").removesuffix("```")
        for found in PROGRAM.finditer(text)
    }


def live(path: str, number: str = "0") -> None:
    """One life of a program, in a process of its own. The third program reads its number."""
    os.chdir(Path(path).parent)
    sys.argv = [path, number]
    runpy.run_path(path)


def prepared(tmp_path: Path, name: str) -> Path:
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("input", partitions=3)
        log.create_topic("output")
        for number in range(COUNT):
            producer.send("input", b"record %d" % number, key=b"%d" % number)
    path = tmp_path / f"{name}.py"
    path.write_text(programs()[name])
    return path


@pytest.fixture(scope="module")
def _fork_server() -> None:
    """A process that has imported everything; it runs as long as this one."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["embedlog", __name__])
    forkserver.ensure_running()


def killed_until_done(path: Path, rng: random.Random) -> int:
    """Starts the program again and again, kills it when it has just begun to write, leaves the last
    life alone. How many died.
    """
    context = multiprocessing.get_context("forkserver")
    written = path.parent / "data" / "output-0" / f"{0:020d}.log"
    struck = 0
    for _ in range(KILLS):
        process = context.Process(target=live, args=(str(path),))
        before = size(written)
        process.start()
        until(partial(begun, process, written, before), "it writes, or ends")
        process.join(rng.uniform(0.0, 0.015))
        process.kill()
        process.join(DEADLINE_S)
        assert process.exitcode in (-9, 0)
        struck += process.exitcode == -9
    process = context.Process(target=live, args=(str(path),))
    process.start()
    process.join(DEADLINE_S)
    assert process.exitcode == 0
    return struck


def begun(process: Any, written: Path, before: int) -> bool:
    return not process.is_alive() or size(written) > before


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def results(tmp_path: Path) -> Counter[bytes]:
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        return Counter(
            record.value
            for record in log.scan("output", isolation_level="read_committed").records()
        )


EVERY = {b"RECORD %d" % number for number in range(COUNT)}


def test_the_page_has_the_programs() -> None:
    assert set(programs()) == {"at_most_once", "at_least_once", "exactly_once"}


@pytest.mark.parametrize(
    "name",
    [
        "exactly_once",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("at_most_once", "at_least_once")),
    ],
)
@pytest.mark.usefixtures("_fork_server")
def test_a_killed_program_keeps_its_word(tmp_path: Path, rng: random.Random, name: str) -> None:
    path = prepared(tmp_path, name)
    assert killed_until_done(path, rng) >= 1
    found = results(tmp_path)
    assert set(found) <= EVERY
    if name != "at_least_once":
        assert max(found.values()) == 1
    if name != "at_most_once":
        assert set(found) == EVERY


@pytest.mark.slow
@pytest.mark.usefixtures("_fork_server")
def test_copies_with_numbers_of_their_own_share_the_work(tmp_path: Path) -> None:
    path = prepared(tmp_path, "exactly_once")
    context = multiprocessing.get_context("forkserver")
    copies = [context.Process(target=live, args=(str(path), str(number))) for number in range(2)]
    for each in copies:
        each.start()
    for each in copies:
        each.join(DEADLINE_S)
    assert [each.exitcode for each in copies] == [0, 0]
    found = results(tmp_path)
    assert set(found) == EVERY
    assert max(found.values()) == 1
