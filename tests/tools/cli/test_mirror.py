"""The verb `mirror`: the examples of its page, its messages, and its end by signals."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from tests.conftest import ROOT
from tests.support.mirrored_topics import rows_in

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SESSION = "".join(BLOCK.findall((ROOT / "docs" / "mirroring.md").read_text()))
QUIET = {"housekeeping": False}


@pytest.fixture
def east(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the page's examples, in the current directory."""
    monkeypatch.chdir(tmp_path)
    with embedlog.open("east", config=QUIET) as log, log.producer() as producer:
        log.create_topic("orders", 1)
        for value in (b"first", b"second", b"third"):
            producer.send("orders", value)
        producer.flush()
        log.reset_group_offsets("billing", to={TopicPartition("orders", 0): 2})
    return tmp_path / "east"


def test_the_examples_of_the_page_print_what_it_shows(east: Path, run: Callable[..., Any]) -> None:
    printed = ""
    for line in SESSION.splitlines():
        if line.startswith("$ embedlog "):
            outcome = run(*shlex.split(line)[2:])
            assert outcome.status == 0
            assert outcome.err == "" or re.fullmatch(
                r"\d+ records, .* in \d+\.\d s\n", outcome.err
            ), line
            printed += f"{line}\n{outcome.out}"
    assert printed == SESSION


def test_the_other_side_is_that_of_the_directory_option(
    east: Path, run: Callable[..., Any]
) -> None:
    """`run` gives the directory `data` by the environment."""
    outcome = run("mirror", "--from", "east", "--json")
    found = json.loads(outcome.out)
    assert (found["from"], found["to"], found["records"]) == ("east", str(east.parent / "data"), 3)
    assert found["topics"] == [{"topic": "orders", "target": "orders", "records": 3}]
    assert run("mirror", "--to", "back", "--prefix", "b.").status == 0
    assert rows_in(east.parent / "back", "b.orders") == rows_in(east, "orders")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "--from and --to: expected at least one"),
        (["--from", "east", "--to", "east"], 2, "the same log"),
        (["--from", "absent", "--to", "west"], 1, "no such log directory"),
        (["--from", "east", "--to", "west", "--pattern", "("], 2, "expected a regular expression"),
        (["--from", "east", "--to", "west", "-t", "absent"], 1, "no topic 'absent' in east"),
        (["--from", "east", "--to", "west", "-t", "__own"], 2, "internal topics are not mirrored"),
        (["--from", "east", "--to", "west", "--name", "a/b"], 2, "name of a mirror"),
        (["--from", "east", "--to", "kafka://"], 2, "expected kafka://HOST:PORT"),
        (
            ["--from", "east", "--to", "west", "--group", "g", "--groups"],
            2,
            "--group and --groups exclude each other",
        ),
        (
            ["--from", "east", "--to", "west", "--to-property", "x"],
            2,
            "--to-property: expected key=value",
        ),
        (["--from", "east", "--to", "west", "--to-property", "linger.mss=1"], 2, "linger.ms"),
    ],
)
def test_a_refusal_is_one_line(
    words: list[str], status: int, message: str, east: Path, run: Callable[..., Any]
) -> None:
    outcome = run("mirror", *words)
    assert (outcome.status, outcome.out) == (status, "")
    assert message in outcome.err.splitlines()[-1]


def test_an_absent_client_of_kafka_is_named(
    east: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("embedlog.mirror.kafka")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    outcome = run("mirror", "--from", "east", "--to", "kafka://localhost:1")
    assert (outcome.status, outcome.out) == (2, "")
    assert 'pip install "embedlog[kafka]"' in outcome.err


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow)],
)
def test_a_signal_ends_a_following_mirror_in_order(
    number: signal.Signals, status: int, east: Path, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "embedlog",
        "mirror",
        "--from",
        "east",
        "--to",
        "west",
        "--follow",
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        with embedlog.open(tmp_path / "west", config=QUIET) as west:
            west.create_topic("orders", exist_ok=True)
            with west.consumer(
                "orders", isolation_level="read_committed", auto_offset_reset="earliest"
            ) as consumer:
                found = 0
                deadline = time.monotonic() + 60
                while found < 3:
                    found += len(consumer.poll(timeout=1))
                    assert time.monotonic() < deadline
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, err) == (status, b"")
    assert json.loads(out)["records"] == 3
