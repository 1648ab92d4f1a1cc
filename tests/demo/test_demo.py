"""The demo does the main job on small texts, prints its findings, and fails with an error where it must."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest


def demo(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "embedlog.demo", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.fixture
def text(tmp_path: Path, rng: random.Random) -> Path:
    """A few thousand lines: some empty, some not UTF-8, one very long, no newline after the last."""
    lines = [b"host-%d line %d %s" % (rng.randrange(50), number, rng.randbytes(5).hex().encode()) for number in range(5000)]
    lines += [b"", b"   ", b"\xff\xfe not text", b"long " + b"x" * 200_000, b"last"]
    rng.shuffle(lines)
    (tmp_path / "text").write_bytes(b"\n".join(lines))
    return tmp_path / "text"


def test_every_line_of_a_file_comes_back(text: Path) -> None:
    pytest.importorskip("pyarrow")
    answer = demo("--json", text)
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout)
    assert figures["every_line_came_back"] is True
    assert figures["lines"] == 5005
    assert figures["stored_bytes"] < figures["bytes"]
    group = figures["group"]
    assert (group["lag"], group["skipped"]) == (0, 0)
    assert len(set(group["before"].values())) == 3
    assert set(group["after"].values()) == set(group["before"].values()) - {group["killed"]}


def test_a_person_gets_a_table(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    answer = demo(text, "--keep", tmp_path / "log")
    assert answer.returncode == 0, answer.stderr
    assert "every line came back" in answer.stdout
    assert "yes, in order" in answer.stdout
    assert "(killed)" in answer.stdout
    assert (tmp_path / "log" / "lines-0").is_dir()


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_nothing_to_write_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").write_bytes(b"")
    answer = demo(tmp_path / name)
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith("embedlog.demo: ")


@pytest.mark.parametrize("damage", ["lose a line", "change a byte", "swap two lines"])
def test_the_check_can_fail(damage: str) -> None:
    """The demo's claim is worth something: each kind of damage is seen."""
    pa = pytest.importorskip("pyarrow")
    from embedlog.demo.demo import DemoError, check

    lines = [(b"key", b"line %d" % number) for number in range(10)]
    back = list(lines)
    if damage == "lose a line":
        del back[3]
    elif damage == "change a byte":
        back[3] = (b"key", b"line X")
    else:
        back[3], back[4] = back[4], back[3]
    keys, values = zip(*back, strict=True)
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), "offset": range(len(back))})
    with pytest.raises(DemoError):
        check(table, lines)
    check(pa.table({"key": [b"key"] * 10, "value": [line for _, line in lines], "offset": range(10)}), lines)


def test_a_line_that_nobody_was_given_is_seen(tmp_path: Path) -> None:
    from embedlog import TopicPartition
    from embedlog.demo.group import Marks

    one, two = TopicPartition("lines", 0), TopicPartition("lines", 1)
    marks, again = (Marks(tmp_path / "marks", {one: 5, two: 3}) for _ in range(2))
    marks.take(one, 0, 5)
    again.take(two, 0, 2)
    assert marks.counts() == {1: 7, 0: 1}
    again.take(two, 1, 3)
    assert marks.counts() == {1: 7, 2: 1}
    marks.close()
    again.close()
