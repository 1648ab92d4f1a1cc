"""Export and import as processes: killed at any time until both are complete, and with a set of
directories.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

import embedlog

RECORDS = 60_000


def killed_until_done(command: list[str], progress: Callable[[], int], rng: random.Random) -> int:
    """Start the command, kill it after some progress, and repeat; returns the number of kills."""
    kills = 0
    deadline = time.monotonic() + 200
    while True:
        before = progress()
        process = subprocess.Popen(
            [sys.executable, "-m", "embedlog", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            more = rng.randrange(1, 4)
            while process.poll() is None and progress() < before + more:
                assert time.monotonic() < deadline
            process.kill()
        finally:
            process.kill()
            _, errors = process.communicate()
        if process.returncode == 0:
            return kills
        assert process.returncode == -9, errors.decode()
        kills += 1


@pytest.mark.slow
def test_a_killed_export_and_a_killed_import_make_an_equal_copy(
    tmp_path: Path, rng: random.Random
) -> None:
    values = pyarrow.array(
        [b"%08d" % n + rng.randbytes(200) for n in range(RECORDS)], pyarrow.binary()
    )
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("events", 2)
        for start in range(0, RECORDS, 2000):
            producer.send_batch(
                "events", values.slice(start, 2000), partition=start // 2000 % 2
            ).result()
    out = tmp_path / "out"
    copy = tmp_path / "copy"

    def exported() -> int:
        return len(os.listdir(out / "events")) if (out / "events").exists() else 0

    export = [
        "-d",
        str(tmp_path / "data"),
        "export",
        str(out),
        "--format",
        "arrow",
        "--file-size",
        "1",
    ]
    assert killed_until_done(export, exported, rng) > 2
    with embedlog.open(copy) as log:
        log.create_topic("events", 2)
        with embedlog.open(copy, read_only=True) as reader:

            def imported() -> int:
                reader_bounds = reader.scan("events", isolation_level="read_committed").bounds
                return sum(end for _, end in reader_bounds.values()) // 2000

            assert killed_until_done(["-d", str(copy), "import", str(out)], imported, rng) > 2
    copies = []
    for path in (tmp_path / "data", copy):
        with embedlog.open(path, read_only=True) as log:
            found = [
                (each.partition, each.value)
                for each in log.scan("events", isolation_level="read_committed").records()
            ]
            copies.append(found)
    assert copies[1] == copies[0]
    assert len(copies[0]) == RECORDS


@pytest.mark.slow
def test_a_set_is_searched_exported_and_imported(tmp_path: Path) -> None:
    places = [str(tmp_path / name) for name in "abc"]

    def run(*words: str, given: bytes = b"") -> list[str]:
        command = [sys.executable, "-m", "embedlog", *words]
        environment = os.environ | {"EMBEDLOG_DIR": os.pathsep.join(places)}
        done = subprocess.run(
            command, input=given, capture_output=True, env=environment, timeout=100
        )
        assert (done.returncode, done.stderr) == (0, b""), words
        return done.stdout.decode().splitlines()

    for topic in ("events", "copy"):
        run(
            "topics", "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3"
        )
    run("produce", "-t", "events", given=b"".join(b"%d\n" % n for n in range(20)))
    assert sorted(run("grep", "^1.$", "events", "-f", "%s\\n")) == [str(n) for n in range(10, 20)]
    run("export", str(tmp_path / "out"), "--format", "csv", "-t", "events")
    run("import", str(tmp_path / "out"), "-t", "copy")
    assert run("cat", "copy") == run("cat", "events")
    with embedlog.open(places):
        assert [each.split()[2] for each in run("who")[1:] if "directory in use" in each] == [
            "write"
        ] * 3
