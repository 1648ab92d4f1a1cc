"""Exports and backups that somebody else has made: nothing but regular files of their own name is
opened, and nothing hangs.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog

ROW = b'{"value":"x"}\n'
KINDS = ("link", "pipe", "socket", "device", "directory")


def replace(path: Path, kind: str, aside: Path) -> None:
    """Put another kind of file in the place of a file or a folder. A link leads to what was
    there.
    """
    shutil.move(path, aside)
    if kind == "link":
        path.symlink_to(aside)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # the address of a socket is short
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(here)
    elif kind == "device":
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    else:
        path.mkdir()


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("t")
        producer.send("t", b"x").result()
    return tmp_path / "data"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["embedlog-export.json", "t", "t/FILE"])
def test_an_import_opens_only_regular_files_of_an_export(
    sent: Path, run: Callable[..., Any], tmp_path: Path, kind: str, place: str
) -> None:
    if kind == "directory" and place == "t":
        pytest.skip("that is a directory")
    if kind == "device" and os.geteuid():
        pytest.skip("only root can make a device")
    out = tmp_path / "out"
    assert run("export", str(out), "--format", "jsonl").status == 0
    (file,) = (out / "t").iterdir()
    replace(out / place.replace("FILE", file.name), kind, tmp_path / "aside")
    outcome = run("-d", str(tmp_path / "other"), "import", str(out), "--create")
    assert outcome.status in (1, 2)
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_a_restore_opens_only_regular_files_of_a_backup(
    sent: Path, run: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    if kind == "device" and os.geteuid():
        pytest.skip("only root can make a device")
    backup = tmp_path / "backup"
    assert run("backup", str(backup)).status == 0
    places = [path.relative_to(backup) for path in sorted(backup.rglob("*"))]
    for number, place in enumerate(places):
        if kind == "directory" and (backup / place).is_dir():
            continue
        given = tmp_path / f"given-{number}"
        shutil.copytree(backup, given)
        replace(given / place, kind, tmp_path / f"aside-{number}")
        restored = tmp_path / f"restored-{number}"
        status = run("-d", str(restored), "restore", str(given)).status
        if status == 0:  # a file that is made anew from others, or is not needed
            assert not any(path.is_symlink() for path in restored.rglob("*")), place
            with embedlog.open(restored, read_only=True) as log:
                assert [
                    record.value for topic in log.topics() for record in log.scan(topic).records()
                ] in ([b"x"], []), place
                assert kind != "link" or (given / place).is_symlink()


def test_a_link_that_the_caller_names_is_followed(
    sent: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(ROW)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    assert run("import", "-t", "t", str(tmp_path / "b.jsonl")).status == 0


@pytest.mark.parametrize(
    "text", [b'{"address": "x"}\n', b"3\n", b"[\n", b'{"value":"x","timestamp":-5}\n']
)
@pytest.mark.parametrize("source", ["file", "-"])
def test_a_refused_import_leaves_nothing(
    sent: Path, run: Callable[..., Any], tmp_path: Path, text: bytes, source: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(text)
    before = sorted(os.listdir(sent))
    given = [str(file)] if source == "file" else ["-", "--format", "jsonl", "--id", "mine"]
    outcome = run("import", "-t", "t", *given, stdin=text)
    assert outcome.status == 1
    assert "line 1" in outcome.err
    assert sorted(os.listdir(sent)) == before
    with embedlog.open(sent, read_only=True) as log:
        assert (log.groups(), log.transactions()) == ([], [])
    assert run("-d", str(tmp_path / "new"), "import", "-t", "t", str(file), "--create").status == 1
    assert not (tmp_path / "new").exists()


def test_a_line_that_is_a_value_itself_names_the_command_for_it(
    sent: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"address": "x"}\n')
    assert (
        "embedlog produce -t TOPIC -l FILE"
        in run("import", "-t", "t", str(tmp_path / "a.jsonl")).err
    )
    assert run("produce", "-t", "t", "-l", str(tmp_path / "a.jsonl")).status == 0


@pytest.mark.parametrize("time", ["-5", "9223372036854775808", "9" * 4000, '"1960-01-01"', "-2"])
def test_a_time_that_no_record_has_is_refused(
    sent: Path, run: Callable[..., Any], tmp_path: Path, time: str
) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"value":"x","timestamp":{time}}}\n')
    outcome = run("import", "-t", "t", str(tmp_path / "a.jsonl"))
    assert outcome.status == 1
    assert "line 1: timestamp" in outcome.err
    (tmp_path / "a.csv").write_text("value,timestamp\nx,-5\n")
    assert "timestamp" in run("import", "-t", "t", str(tmp_path / "a.csv")).err


def test_an_import_creates_the_directory(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(ROW)
    assert (
        run(
            "-d", str(tmp_path / "new"), "import", "-t", "t", str(tmp_path / "a.jsonl"), "--create"
        ).status
        == 0
    )
