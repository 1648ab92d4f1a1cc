"""The steps of "A disk is lost: what now" in docs/replicas.md, from a shell, for each way to lose a
directory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog

GUIDE = Path(__file__).parents[3] / "docs/replicas.md"
DISKS = [f"disk{node}/log" for node in (1, 2, 3)]


def commands() -> list[str]:
    """The command lines of the guide."""
    section = GUIDE.read_text().split("## A disk is lost: what now\n")[1].split("\n## ")[0]
    found = re.search(r"^```console\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found is not None
    return [line.removeprefix("$ ") for line in found[1].splitlines()]


def send(paths: list[Path], *values: bytes) -> None:
    with embedlog.open(paths) as log, log.producer(acks="all") as producer:
        for value in values:
            producer.send("t", value).result(60)


def lost(root: Path) -> None:
    (root / "disk2").rename(root / "dead disk")


def put_back(root: Path) -> None:
    shutil.copytree(root / DISKS[1], root / "copy")
    send([root / disk for disk in DISKS], b"after the copy")
    shutil.rmtree(root / DISKS[1])
    (root / "copy").rename(root / DISKS[1])


def written_alone(root: Path) -> None:
    with embedlog.open(root / DISKS[1], alone=True) as log:
        log.create_topic("other")


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("lose", [lost, put_back, written_alone], ids=lambda lose: lose.__name__)
def test_the_steps_of_the_guide_bring_a_set_in_order(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    paths = [tmp_path / disk for disk in DISKS]
    with embedlog.open(paths) as log:
        log.create_topic("t", replication_factor=3, config={"min.insync.replicas": "2"})
    send(paths, b"first")
    lose(tmp_path)
    statuses = []
    for command in commands():
        arguments = command.split()
        program = (
            [sys.executable, "-m", "embedlog", *arguments[1:]]
            if arguments[0] == "embedlog"
            else arguments
        )
        done = subprocess.run(
            program,
            cwd=tmp_path,
            env=os.environ | {"EMBEDLOG_DIR": os.pathsep.join(DISKS)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        print(command, done.stdout, done.stderr)
        statuses.append(done.returncode)
    assert statuses == [1, 0, 0, 0, 0], "one is away; then all are live, and equal"
    with embedlog.open(paths) as log:
        assert all(each.answers for each in log.replicas().directories)
        assert b"first" in [record.value for record in log.scan("t").records()]
        assert log.verify_replicas() == []
