"""Every example runs, shows the public API, and has the result of plain Python for the same
input.
"""

from __future__ import annotations

import ast
import base64
import collections
import contextlib
import datetime
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.conftest import ROOT
from tests.kafka import client, oracle
from tests.support import examples
from tests.support.examples import EXAMPLES

PROGRAMS = [
    *sorted(path for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()),
    EXAMPLES / "demo",
]
each_program = pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
# each starts a Spark of its own
in_spark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2000)]


# ---- as documents ----------------------------------------------------------------------------------------------------


def run_without_spark(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = """
import runpy, sys
sys.modules["pyspark"] = None  # as if it were not installed
sys.path.insert(0, sys.argv.pop(1))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    line = [sys.executable, "-c", program, str(EXAMPLES), str(path), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


@pytest.mark.sample(0.25)
@each_program
def test_it_says_what_it_wants(path: Path) -> None:
    """Without Spark, too: nothing heavy is imported before it is needed."""
    answer = run_without_spark(path, "--help")
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert answer.stdout.startswith("usage: ")


def test_it_says_in_one_line_that_spark_is_missing() -> None:
    answer = run_without_spark(EXAMPLES / "weblog_demo.py")
    assert (answer.returncode, answer.stderr) == (
        1,
        "weblog_demo: Spark is not installed: pip install 'embedlog[spark]'\n",
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_it_uses_public_names_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            ours = [
                name
                for name in names
                if name.split(".")[0] == "embedlog" or getattr(node, "module", None) == "embedlog"
            ]
            assert not [
                name for name in ours if any(part.startswith("_") for part in name.split("."))
            ], node.lineno
            for name in (
                ours if isinstance(node, ast.ImportFrom) and node.module == "embedlog" else ()
            ):
                assert name in (*embedlog.__all__, "embedlog"), f"line {node.lineno}: {name}"


def test_all_are_named_where_they_are_looked_for() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert {path.name for path in EXAMPLES.glob("*.py") if f"({path.name})" not in page} == set()
    assert "(demo/demo.py)" in page
    for text in ("README.md", "docs/spark.md"):
        assert "examples/README.md" in (ROOT / text).read_text(), text


# ---- word count ------------------------------------------------------------------------------------------------------


def words_of(values: Iterable[bytes]) -> dict[str, int]:
    counts = collections.Counter(
        word for value in values for word in re.findall(rb"[A-Za-z_]+", value)
    )
    return {word.decode(): count for word, count in counts.items()}


def sources(file_count: int) -> list[bytes]:
    """Every line of the first files of the standard library."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))[:file_count]
    return [line for path in paths for line in path.read_bytes().removesuffix(b"\n").split(b"\n")]


def counted(path: Path) -> dict[str, int]:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    return dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))


def digest(directory: Path) -> dict[str, str]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


class TestWordCount:
    pytestmark = in_spark

    def test_of_the_standard_library(self, tmp_path: Path) -> None:
        shown = examples.run(
            "word_count.py", "--files", 300, "--fused", "--top", 3, "--output", tmp_path / "words"
        ).stdout
        expected = words_of(sources(300))
        assert counted(tmp_path / "words") == expected
        assert re.search(rf"\|self *\| *{expected['self']}\|", shown)

    def test_of_what_a_broker_wrote_as_it_lies(self, kafka: None, tmp_path: Path) -> None:
        """The broker is stopped, its directory is read, and not a byte of it is another one
        afterwards.
        """
        import confluent_kafka

        values = sources(100)
        with oracle.Broker(tmp_path / "kafka") as broker:
            config = {"compression.type": "zstd", "segment.bytes": "1048576"}
            client.create_topics(broker.bootstrap, {"lines": 3}, {"lines": config})
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": broker.bootstrap, "linger.ms": 50}
            )
            for number, value in enumerate(values):
                producer.produce("lines", value, str(number))
                producer.poll(0)
            assert producer.flush(60) == 0
        before = digest(tmp_path / "kafka")
        examples.run("word_count.py", tmp_path / "kafka", "lines", "--output", tmp_path / "words")
        assert counted(tmp_path / "words") == words_of(values)
        assert digest(tmp_path / "kafka") == before

    def test_of_the_golden_directories(
        self,
        spark: Any,
        golden: Path,
        golden_expected: Callable[[str, str], list[dict[str, Any]]],
        program: Callable[[str], Any],
    ) -> None:
        count = program("word_count")
        for topic in ("client-zstd", "broker-snappy", "compacted", "rolled-by-time"):
            values = [row["value"] for row in golden_expected("clean", topic)]
            assert not any(isinstance(value, dict) for value in values), "too long to be printed"
            expected = words_of(base64.b64decode(value) for value in values if value is not None)
            rows = count.table(spark, str(golden / "clean" / "log"), topic).collect()
            assert {row["word"]: row["count"] for row in rows} == expected, topic


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """An example as a module."""
    import importlib

    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


# ---- status documents ------------------------------------------------------------------------------------------------


def values(directory: Path, topic: str) -> list[dict[str, Any]]:
    with embedlog.open(directory, read_only=True) as log:
        return [
            json.loads(record.value)
            for record in log.scan(topic, isolation_level="read_committed").records()
        ]


def windows_of(documents: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Zone, start in ms, requests, refused, failed of every window that is over when the last
    document has come.
    """
    minute = 60_000
    seen: dict[tuple[str, int], list[tuple[int, int, int]]] = collections.defaultdict(list)
    for each in documents:
        for zone, its in each["server_zones"].items():
            for back in range(5):
                start = each["timestamp"] // minute * minute - back * minute
                seen[zone, start].append(
                    (its["requests"], its["responses"]["4xx"], its["responses"]["5xx"])
                )
    watermark = max(each["timestamp"] for each in documents) - 30_000
    over = {
        place: counters for place, counters in seen.items() if place[1] + 5 * minute <= watermark
    }
    return sorted(
        (*place, *(max(column) - min(column) for column in zip(*rows, strict=True)))
        for place, rows in over.items()
    )


class TestAlerts:
    pytestmark = in_spark

    def test_windows_and_alerts_are_those_of_plain_python_written_once(
        self, tmp_path: Path, program: Callable[[str], Any]
    ) -> None:
        documents = [
            json.loads(line)
            for line in program("common").lines(EXAMPLES / "data" / "nginx_status.jsonl.xz")
        ]
        halves = [documents[:300], documents[300:]]
        for number, half in enumerate(halves):  # as if it had come in the meantime
            (tmp_path / f"{number}.jsonl").write_text(
                "".join(json.dumps(each) + "\n" for each in half)
            )
            shown = examples.run(
                "nginx_alerts.py", tmp_path / "log", "--input", tmp_path / f"{number}.jsonl"
            ).stdout
        found = values(tmp_path / "log", "traffic")
        rows = [
            (each["zone"], in_ms(each["start"]), each["requests"], each["refused"], each["failed"])
            for each in found
        ]
        expected = windows_of(documents)
        assert len(expected) > 100
        assert sorted(rows) == expected
        alerts = [(each["subject"], each["text"]) for each in values(tmp_path / "log", "alerts")]
        assert sorted(alerts) == sorted(
            {*failures_of(documents, {start for _, start, *_ in expected}), *peers_of(documents)}
        )
        assert f"{len(expected)} windows" in shown
        assert "trac-backend 10.0.0.1:8081: is unhealthy" in shown


def in_ms(text: str) -> int:
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)


def peers_of(documents: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """The output about peers that are not up."""
    peers = (
        (name, peer)
        for each in documents
        for name, its in each["upstreams"].items()
        for peer in its["peers"]
    )
    return {
        (f"{name} {peer['server']}", f"is {peer['state']}")
        for name, peer in peers
        if peer["state"] != "up"
    }


def failures_of(documents: list[dict[str, Any]], starts: set[int]) -> set[tuple[str, str]]:
    """The output about zones: the counter at the end of each window in which it grew."""
    said = set()
    for start in starts:
        inside = [
            each["server_zones"]
            for each in documents
            if start <= each["timestamp"] < start + 300_000
        ]
        for zone in inside[0]:
            failed = [each[zone]["responses"]["5xx"] for each in inside]
            if max(failed) > min(failed):
                said.add((zone, f"{max(failed)} requests have failed"))
    return said


# ---- a web server's log ----------------------------------------------------------------------------------------------


class TestWebLog:
    pytestmark = in_spark

    def test_the_demo_proves_what_it_says(
        self, tmp_path: Path, program: Callable[[str], Any]
    ) -> None:
        shown = examples.run("weblog_demo.py", "--keep", tmp_path / "log").stdout
        assert shown.count("proved  ") == 3
        assert "10,000 lines = 9,999 in sessions + 1 refused, 0 came late" in " ".join(
            shown.split()
        )
        assert "Googlebot" in shown
        assert "23:00" in shown
        self.check(tmp_path, program)

    def test_killed_in_the_middle_it_goes_on(
        self, tmp_path: Path, program: Callable[[str], Any]
    ) -> None:
        """kill -9 of the driver, its JVM and their workers, as soon as there are sessions; then to
        the end.
        """
        line = examples.command("weblog.py", tmp_path / "log", "--at-once", 1000)
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            while process.poll() is None and not sessions_in(tmp_path / "log"):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found = sessions_in(tmp_path / "log")
        assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
        examples.run("weblog.py", tmp_path / "log", "--at-once", 1000)
        assert 0 < found < sessions_in(tmp_path / "log")
        self.check(tmp_path, program)

    @staticmethod
    def check(directory: Path, program: Callable[[str], Any]) -> None:
        """Topic and table hold the sessions of plain Python, each once; the topic of refused lines
        the one that is cut off.
        """
        import pyarrow.parquet

        lines = list(program("common").lines(EXAMPLES / "data" / "apache_access.log.xz"))
        expected, refused = program("weblog_demo").by_hand(lines)
        assert (len(lines), len(refused), sum(row[4] for row in expected)) == (10_000, 1, 9_999)
        wanted = sorted(
            (client, in_utc(start), in_utc(end), *rest) for client, _, start, end, *rest in expected
        )
        in_topic = values(directory / "log", "sessions")
        rows = [
            (each["client"], in_ms(each["start"]), in_ms(each["end"]), *counts(each))
            for each in in_topic
        ]
        assert sorted(rows) == wanted
        table = pyarrow.parquet.read_table(directory / "log-tables" / "sessions").to_pylist()
        rows = [
            (each["client"], in_utc(each["start"]), in_utc(each["end"]), *counts(each))
            for each in table
        ]
        assert sorted(rows) == wanted
        names = {each["client"]: each.get("name") for each in in_topic}
        assert {client: name for client, name in names.items() if name} == program("weblog").NAMES
        with embedlog.open(directory / "log", read_only=True) as log:
            found = log.scan("refused", isolation_level="read_committed").records()
            assert [record.value for record in found] == refused


def sessions_in(directory: Path) -> int:
    try:
        return len(values(directory, "sessions"))
    except embedlog.EmbedlogError:  # not made yet
        return 0


def counts(session: dict[str, Any]) -> tuple[int, ...]:
    return session["requests"], session["bytes"], session["errors"]


def in_utc(moment: datetime.datetime) -> int:
    """Milliseconds, of a moment in UTC that may not know it."""
    return round(moment.replace(tzinfo=datetime.UTC).timestamp() * 1000)
