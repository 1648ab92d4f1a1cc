"""The demo does the main job on small texts, prints its findings, and fails with an error where it
must.
"""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.support import examples

sys.path.append(str(examples.EXAMPLES / "demo"))
program: Any = importlib.import_module("demo")
group: Any = importlib.import_module("group")
replicas: Any = importlib.import_module("replicas")


def demo(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = examples.command("demo", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.fixture
def text(tmp_path: Path, rng: random.Random) -> Path:
    """A few thousand lines: some empty, some not UTF-8, one very long, no newline after the
    last.
    """
    lines = [
        b"host-%d line %d %s" % (rng.randrange(50), number, rng.randbytes(5).hex().encode())
        for number in range(5000)
    ]
    lines += [b"", b"   ", b"\xff\xfe not text", b"long " + b"x" * 200_000, b"last"]
    rng.shuffle(lines)
    (tmp_path / "text").write_bytes(b"\n".join(lines))
    return tmp_path / "text"


@pytest.mark.slow
def test_every_line_of_a_file_comes_back(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    answer = demo("--json", text, "--keep", tmp_path / "log")
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout)
    assert figures["every_line_came_back"] is True
    assert figures["lines"] == 5005
    assert figures["stored_bytes"] < figures["bytes"]
    assert all((tmp_path / "log" / name / "lines-0").is_dir() for name in ("d1", "d2", "d3"))
    check_group(figures["group"])
    check_loss(figures["replicas"])
    check_report(figures, capsys)


def check_group(group: dict[str, Any]) -> None:
    assert (group["lag"], group["skipped"]) == (0, 0)
    assert len(set(group["before"].values())) == 3
    assert set(group["after"].values()) == set(group["before"].values()) - {group["killed"]}


def check_loss(found: dict[str, Any]) -> None:
    lost = int(found["lost"][1:])
    every = {f"lines-{number}": [1, 2, 3] for number in range(4)}
    assert found["isr_before"] == found["isr_after"] == every
    assert found["isr"] == {name: sorted({1, 2, 3} - {lost}) for name in every}
    assert lost in found["leaders_before"].values()
    assert lost not in found["leaders"].values()
    assert 0 < found["acknowledged_before"] < 5005
    assert found["acknowledged_before"] + found["acknowledged_without"] == 5005


def check_report(figures: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """What a person gets instead of the figures."""
    program.print_report(figures)
    shown = capsys.readouterr().out
    for text in (
        "yes, in order",
        "(killed)",
        "0: each directory, opened alone, has every line",
        f"{figures['replicas']['lost']} is back",
    ):
        assert text in shown


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_nothing_to_write_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").write_bytes(b"")
    answer = demo(tmp_path / name)
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith("demo: ")


@pytest.mark.parametrize("damage", ["lose a line", "change a byte", "swap two lines"])
def test_the_check_can_fail(damage: str) -> None:
    """The demo's claim is worth something: each kind of damage is seen."""
    pa = pytest.importorskip("pyarrow")
    lines = [(b"key", b"line %d" % number) for number in range(10)]
    back = list(lines)
    if damage == "lose a line":
        del back[3]
    elif damage == "change a byte":
        back[3] = (b"key", b"line X")
    else:
        back[3], back[4] = back[4], back[3]
    keys, values = zip(*back, strict=True)
    table = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "offset": range(len(back)),
        }
    )
    with pytest.raises(program.DemoError):
        program.check(table, lines)
    program.check(
        pa.table({"key": [b"key"] * 10, "value": [line for _, line in lines], "offset": range(10)}),
        lines,
    )


@pytest.mark.parametrize("damage", ["lacks a record", "has another value"])
def test_a_directory_that_differs_is_seen(tmp_path: Path, damage: str) -> None:
    pytest.importorskip("pyarrow")
    for name in ("whole", "differs"):
        with embedlog.open(tmp_path / name, config={"housekeeping": False}) as log:
            log.create_topic("lines")
            values = [b"%d" % number for number in range(10)]
            if name == "differs":
                values = values[:-1] if damage == "lacks a record" else [*values[:-1], b"X"]
            with log.producer() as producer:
                producer.send_batch("lines", values).result(20)
            if name == "whole":
                table = log.scan(
                    "lines", columns=["partition", "offset", "key", "value"]
                ).to_arrow()
    replicas.compare([str(tmp_path / "whole")], "lines", table)
    with pytest.raises(replicas.ReplicaError, match="differs"):
        replicas.compare([str(tmp_path / "whole"), str(tmp_path / "differs")], "lines", table)


def test_a_directory_that_stays_in_the_isr_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = replicas.directories_in(str(tmp_path))
    with embedlog.open(paths, config={"housekeeping": False}) as log:
        log.create_topic("lines", replication_factor=3)
        loss = replicas.Loss(log, "lines")
        assert not loss.note_if_out()
        monkeypatch.setattr(replicas, "STALLED_S", 0.0)
        with pytest.raises(replicas.ReplicaError, match="did not leave the ISR"):
            loss.give_back(0)


def test_a_line_that_nobody_was_given_is_seen(tmp_path: Path) -> None:
    from embedlog import TopicPartition

    one = TopicPartition("lines", 0)
    two = TopicPartition("lines", 1)
    marks, again = (group.Marks(tmp_path / "marks", {one: 5, two: 3}) for _ in range(2))
    marks.take(one, 0, 5)
    again.take(two, 0, 2)
    assert marks.counts() == {1: 7, 0: 1}
    again.take(two, 1, 3)
    assert marks.counts() == {1: 7, 2: 1}
    marks.close()
    again.close()
