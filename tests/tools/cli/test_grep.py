"""The verb `grep`: matches and their statuses, as those of grep; the same output with any number of
workers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.tools.cli import search_jobs

LINE = "events\t{0}\t{1}\t{2}\t{3}\t{4}\n"


@pytest.fixture
def filled(events: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Values `v0` to `v9`, one of them null, in the first partition; `Straße` and bytes in the
    second.
    """
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_partitions("events", 2)
        for number in range(10):
            value = None if number == 3 else b"v%d" % number
            headers = [("h", b"%d" % number)]
            producer.send(
                "events",
                value,
                key=b"k%d" % number,
                timestamp_ms=1000 + number,
                headers=headers,
                partition=0,
            )
        for text in ("Straße".encode(), b"\xff\x00"):
            producer.send("events", text, timestamp_ms=5, partition=1)
    return events


def first(*numbers: int) -> str:
    return "".join(
        LINE.format(0, n, 1000 + n, f"k{n}", "null" if n == 3 else f"v{n}") for n in numbers
    )


MATCHES: list[tuple[tuple[str, ...], str]] = [
    (("v4",), first(4)),
    (("[47]", "events"), first(4, 7)),
    (("^v[0-2]$", "-t", "events"), first(0, 1, 2)),
    (("[0-2]", "-k"), first(0, 1, 2)),
    (("v", "-k"), ""),
    (("3", "-V"), ""),
    (("3",), first(3)),
    (("V4",), ""),
    (("V4", "-i"), first(4)),
    (("V4", "-i", "-F"), first(4)),
    (("v.", "-F"), ""),
    (("^h$", "-H", "-m", "2"), first(0, 1)),
    (("v", "-v", "-p", "0"), first(3)),
    (("v[1-9]", "-m", "3"), first(1, 2, 4)),
    (("k", "--start-offset", "2", "--end-offset", "4"), first(2, 3)),
    (("k", "--start-time", "1008"), first(8, 9)),
    (
        ("k", "--start-time", "1970-01-01T00:00:01.002", "--end-time", "1003", "--include", "ev.*"),
        first(2),
    ),
    (("v8", "-f", "%o=%s %%\\n"), "8=v8 %\n"),
    (("stra.e", "-i", "-p", "1"), ""),  # an ASCII expression matches bytes: ß has two
    (("straß", "-i", "-f", "%s\\n"), "Straße\n"),
    (("STRASSE", "-i"), ""),
    (("STRAß", "-iF", "-f", "%s\\n"), "Straße\n"),
    (("Straße", "-F", "-f", "%s\\n"), "Straße\n"),
    (("ra[ßx]e", "-f", "%s\\n"), "Straße\n"),
    (("v4", "-q"), ""),
    (("[0-6]", "-c"), "events\t0\t7\nevents\t1\t0\n"),
    (("[0-6]", "-c", "-m", "2"), "events\t0\t2\nevents\t1\t0\n"),
]


def test_matches_are_printed(filled: Callable[..., Any]) -> None:
    for arguments, expected in MATCHES:
        outcome = filled("grep", *arguments)
        assert (outcome.out, outcome.err) == (expected, ""), arguments
        assert outcome.status == (0 if expected or "-q" in arguments else 1), arguments


def test_json_is_the_envelope_of_cat(filled: Callable[..., Any]) -> None:
    assert (
        filled("grep", "v8", "--json").out
        == filled("cat", "events", "-p", "0", "-o", "8", "-c", "1", "--json").out
    )
    counts = json.loads(filled("grep", "v8", "-c", "--json").out)
    assert counts == [
        {"topic": "events", "partition": 0, "count": 1},
        {"topic": "events", "partition": 1, "count": 0},
    ]


REFUSED: list[tuple[str, ...]] = [
    ("(",),
    ("x", "absent"),
    ("x", "-p", "9"),
    ("x", "-p", "a"),
    ("x", "--start-time", "soon"),
    ("x", "--include", "nothing"),
    ("x", "events", "--include", "e.*"),
    ("x", "-f", "%x"),
    ("x", "-d", "nowhere"),
    ("x", "--start-offset", "5", "--end-offset", "4"),
    ("é(",),
    ("a{9999999999999}",),
    (),
]


def test_each_error_has_the_status_2(filled: Callable[..., Any]) -> None:
    for arguments in REFUSED:
        outcome = filled("grep", *arguments)
        assert (outcome.status, outcome.out) == (2, ""), arguments
        assert "Traceback" not in outcome.err
        assert outcome.err


def test_debug_shows_the_traceback(filled: Callable[..., Any]) -> None:
    assert "Traceback" in filled("grep", "x", "absent", "--debug").err


def test_workers_return_the_pieces_in_their_order(
    filled: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("more", 2)
        for _ in range(20):  # a piece is at least one batch
            for partition in (0, 1):
                producer.send_batch(
                    "more", [b"%d" % n for n in range(200)], partition=partition
                ).result()
    alone = filled("grep", "9$", "more", "-j", "1")
    monkeypatch.setattr(search_jobs, "WORKER_BYTES", 1)
    monkeypatch.setattr("embedlog.tools.cli.verbs.grep.PIECE_BYTES", 1)
    together = filled("grep", "9$", "more", "-j", "2")
    assert together == alone
    assert together.out.count("\n") == 2 * 20 * 20
    assert filled("grep", "9$", "more", "-j", "2", "-m", "30").out == "".join(
        alone.out.splitlines(keepends=True)[:30]
    )


def test_damage_found_by_a_worker_is_one_line(
    filled: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data" / "events-1" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[data.index(b"Stra")] ^= 1
    file.write_bytes(data)
    monkeypatch.setattr(search_jobs, "WORKER_BYTES", 1)
    outcome = filled("grep", "absent", "-j", "2")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert re.match(r"embedlog: .*events-1", outcome.err)


def test_a_worker_that_ends_is_one_line(
    filled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_jobs, "WORKER_BYTES", 1)
    monkeypatch.setattr(search_jobs, "_work", ended)
    outcome = filled("grep", "v", "-j", "2")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)


def ended(piece: search_jobs.SearchPiece, limit: int | None) -> None:
    os._exit(1)


def test_workers_are_as_many_as_are_worth_their_start() -> None:
    piece = search_jobs.SearchPiece("t", 0, 0, 1, search_jobs.WORKER_BYTES)
    counts = [search_jobs.worker_count([piece] * count, 4) for count in range(7)]
    assert counts == [1, 1, 2, 3, 4, 4, 4]
    assert search_jobs.worker_count([piece._replace(size_bytes=1)] * 99, 4) == 1


KILLED = """
import os, sys, threading
from embedlog.tools.cli import program, search_jobs

def work(piece, limit):
    os.write(2, b"%d\\n" % os.getpid())
    threading.Event().wait()

search_jobs.WORKER_BYTES, search_jobs._work = 1, work
program.main(["-d", sys.argv[1], "grep", "v", "-j", "2"])
"""


@pytest.mark.slow
def test_workers_of_a_killed_process_end(filled: Callable[..., Any], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "data")], stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        pids = [int(process.stderr.readline()) for _ in range(2)]
    finally:
        process.kill()
        assert process.stderr is not None
        rest = process.stderr.read()  # ends when no worker has the pipe open
        process.communicate()
    assert rest == b""
    assert len(set(pids)) == 2
