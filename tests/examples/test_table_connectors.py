"""Connectors of tables: both directions, killed in the middle, nothing lost and nothing doubled.

PostgreSQL is tested if `EMBEDLOG_TEST_POSTGRES` has the URL of an empty database.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.support import examples

sys.path.append(str(examples.EXAMPLES))
tables: Any = importlib.import_module("table_connectors")

QUIET = {"housekeeping": False}
POSTGRES = os.environ.get("EMBEDLOG_TEST_POSTGRES", "")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.skipif(not POSTGRES, reason="no server")),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without the tables of the test."""
    found = POSTGRES if request.param == "postgres" else str(tmp_path / "shop.sqlite")
    with opened(found) as database, database.transaction() as cursor:
        for name in ("orders", "orders_log", "orders_positions"):
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
    return found


@contextlib.contextmanager
def opened(place: str) -> Iterator[Any]:
    database = tables.connect(place)
    try:
        yield database
    finally:
        database.close()


def fill_table(place: str, first: int, count: int) -> None:
    with opened(place) as database, database.transaction() as cursor:
        serial = (
            "SERIAL PRIMARY KEY" if database.mark == "%s" else "INTEGER PRIMARY KEY AUTOINCREMENT"
        )
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS orders (id {serial}, item TEXT, data "
            f"{database.bytes_type})"
        )
        for number in range(first, first + count):
            cursor.execute(
                f"INSERT INTO orders (item, data) VALUES ({database.mark}, {database.mark})",
                (f"ä{number}", b"\xff"),
            )


def fill_topic(path: Path, first: int, count: int) -> None:
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("orders", 3, exist_ok=True)
        with log.producer() as producer:
            for number in range(first, first + count):
                producer.send(
                    "orders",
                    b"%d" % number,
                    key=None if number % 5 else b"\xff",
                    partition=number % 3,
                )


def topic_rows(path: Path) -> list[dict[str, Any]]:
    with embedlog.open(path, read_only=True) as log:
        return [
            json.loads(each.value)
            for each in log.scan("orders", isolation_level="read_committed").records()
        ]


def table_rows(place: str) -> list[tuple[Any, ...]]:
    with opened(place) as database, database.transaction() as cursor:
        cursor.execute("SELECT part, position, key, value FROM orders_log ORDER BY part, position")
        return list(cursor.fetchall())


def wanted_rows(path: Path) -> list[tuple[Any, ...]]:
    with embedlog.open(path, read_only=True) as log:
        return [
            (each.partition, each.offset, each.key, each.value)
            for each in log.scan("orders").records()
        ]


class Killed:
    """A source or sink whose process is killed at its second read, or before or after its second
    flush.
    """

    def __init__(self, inner: Any, where: str) -> None:
        self._inner = inner
        self._where = where
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _count(self, where: str) -> None:
        self._calls += where == self._where
        if self._calls == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(self, position: int, count: int) -> Sequence[Any]:
        rows = self._inner.read(position, count)
        self._count("read")
        return Rows(rows, lambda: self._count("sent"))

    def flush(self, positions: Mapping[Any, int]) -> None:
        self._count("before")
        self._inner.flush(positions)
        self._count("after")


class Rows(list[Any]):
    """Rows that report the end of their first iteration: all records of the transaction are sent
    then.
    """

    def __init__(self, rows: Sequence[Any], done: Callable[[], None]) -> None:
        super().__init__(rows)
        self._done = done

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self._done()


def killed(work: Callable[[], object]) -> None:
    """Do the work in a fork that kills itself."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)  # it was not killed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("where", ["read", "sent"])
def test_a_killed_pull_loses_and_repeats_no_row(place: str, where: str, tmp_path: Path) -> None:
    fill_table(place, 0, 10)

    def work() -> None:
        with opened(place) as database, embedlog.open(tmp_path / "log", config=QUIET) as log:
            tables.pull(
                log, "orders", Killed(tables.TableSource(database, "orders"), where), count=4
            )

    killed(work)
    fill_table(place, 10, 3)
    with opened(place) as database, embedlog.open(tmp_path / "log", config=QUIET) as log:
        assert tables.pull(log, "orders", tables.TableSource(database, "orders"), count=4) == 9
        assert tables.pull(log, "orders", tables.TableSource(database, "orders")) == 0
    assert topic_rows(tmp_path / "log") == [
        {"id": number + 1, "item": f"ä{number}", "data": "ff"} for number in range(13)
    ]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_killed_push_loses_and_repeats_no_record(place: str, where: str, tmp_path: Path) -> None:
    fill_topic(tmp_path / "log", 0, 20)

    def work() -> None:
        with opened(place) as database, embedlog.open(tmp_path / "log", config=QUIET) as log:
            tables.push(
                log,
                "orders",
                Killed(tables.TableSink(database, "orders", "orders"), where),
                count=4,
            )

    killed(work)
    stored = len(table_rows(place))
    assert stored == (4 if where == "before" else 8)
    fill_topic(tmp_path / "log", 20, 10)
    with opened(place) as database, embedlog.open(tmp_path / "log", config=QUIET) as log:
        assert (
            tables.push(log, "orders", tables.TableSink(database, "orders", "orders"), count=4)
            == 30 - stored
        )
        assert tables.push(log, "orders", tables.TableSink(database, "orders", "orders")) == 0
    assert table_rows(place) == wanted_rows(tmp_path / "log")


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_programs_that_are_killed_at_any_time_copy_each_row_once(
    place: str, direction: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "log"
    if direction == "pull":
        fill_table(place, 0, 3000)
        with embedlog.open(path, config=QUIET) as log:
            log.create_topic("orders")
    else:
        fill_topic(path, 0, 3000)
        with opened(place) as database:
            tables.TableSink(database, "orders", "orders")
    line = examples.command(
        "table_connectors.py", direction, path, "orders", place, "--count", 5, "--follow"
    )
    reached = []
    for _ in range(8):
        with subprocess.Popen(line) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.3, 1.5))
            process.kill()
        assert process.returncode == -signal.SIGKILL
        reached.append(len(topic_rows(path)) if direction == "pull" else len(table_rows(place)))
    print("copied when killed:", reached)
    examples.run("table_connectors.py", direction, path, "orders", place)
    if direction == "pull":
        assert [row["id"] for row in topic_rows(path)] == list(range(1, 3001))
    else:
        assert table_rows(place) == wanted_rows(path)
