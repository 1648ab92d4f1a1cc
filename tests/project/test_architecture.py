"""The architecture page: a record's paths are traced, and the modules of each list are called in
its order.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
MODULE = re.compile(r"`((?:\w+/)+\w+|log|group|transaction)`")
PROGRAM = """
import sys, threading
import embedlog

FOLDER = embedlog.__file__.removesuffix("__init__.py")
seen = {}

def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
        seen.setdefault(frame.f_code.co_filename[len(FOLDER):-len(".py")])

def traced(act):
    seen.clear()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    print(*seen)

with embedlog.open("data") as log:
    log.create_topic("t", partitions=2)
    with log.producer() as warm:
        warm.send_batch("t", [b"v"] * 20, partition=0).result(60)  # a scan of fewer offsets needs no read-ahead
    with log.producer(compression_type="lz4") as producer:
        traced(lambda: (producer.send("t", b"v", partition=0), producer.flush()))  # by the producer's thread
    log.scan("t").to_arrow()  # imports count as calls
    plain = log.consumer("t", auto_offset_reset="earliest", fetch_min_bytes=2)  # without the shorter path to a short log
    traced(lambda: plain.poll(60))
    traced(lambda: log.scan("t", start_time=0, end_time=2**42).to_arrow())
    member = log.consumer("t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    assert member.poll(60)
    traced(member.commit)
    member.close()
    plain.close()
"""
PATHS = ("Send", "Poll", "Scan", "Commit")


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Modules in the order of their first call, for each path."""
    folder = tmp_path_factory.mktemp("paths")
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return dict(zip(PATHS, (line.split() for line in answer.stdout.splitlines()), strict=True))


def listed(path: str) -> list[str]:
    """Modules of a path's numbered list, in order."""
    section = PAGE.partition(f"\n### {path}\n")[2].partition("\n#")[0]
    steps = [line for line in section.splitlines() if re.match(r"\d\. |   ", line)]
    return list(dict.fromkeys(name for step in steps for name in MODULE.findall(step)))


@pytest.mark.parametrize("path", PATHS)
def test_the_modules_of_a_path_are_called_in_the_order_of_its_list(
    path: str, calls: dict[str, list[str]]
) -> None:
    names = listed(path)
    assert len(names) >= 5
    assert [
        name for name in names if not (ROOT / "embedlog" / name).with_suffix(".py").exists()
    ] == []
    assert [name for name in names if name not in calls[path]] == [], "named, but not called"
    assert names == sorted(names, key=calls[path].index)


@pytest.mark.parametrize("section", ["Terms", "Terms of sets"])
def test_the_glossary_is_short_and_sorted(section: str) -> None:
    table = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    terms = [line.split("|")[1].strip() for line in table if line.startswith("| ")][2:]
    assert 10 < len(terms) <= 60
    assert terms == sorted(terms)
