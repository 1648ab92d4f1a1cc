"""The threads of the console survive errors, replaced directories and their own end."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from embedlog.tools.console.model import damage, observe
from embedlog.tools.console.model.grid import ROWS_MAX, Grid, Row
from embedlog.tools.console.model.rates import UNKNOWN, Level, Rate, Rates
from embedlog.tools.console.model.reader import LogReader, TaskOutcome
from tests.tools.console.support import QUICK

WAIT_S = 30


@pytest.fixture
def outcomes() -> queue.Queue[TaskOutcome]:
    return queue.Queue()


@pytest.fixture
def reader(own_log: Path, outcomes: queue.Queue[TaskOutcome]) -> Iterator[LogReader]:
    made = LogReader("test", [str(own_log)], outcomes.put)
    yield made
    assert made.close()


def done(reader: LogReader, outcomes: queue.Queue[TaskOutcome], work: Any) -> TaskOutcome:
    reader.submit("work", work)
    return outcomes.get(timeout=WAIT_S)


def topics(task: Any) -> list[str]:
    found: list[str] = task.log.topics()
    return found


def test_a_removed_directory_is_an_error_and_a_new_one_is_opened(
    reader: LogReader, outcomes: queue.Queue[TaskOutcome], own_log: Path
) -> None:
    assert done(reader, outcomes, topics).value == ["evil", "orders"]
    own_log.rename(own_log.with_name("moved"))
    assert done(reader, outcomes, topics).error == f"{own_log}: the log directory does not exist"
    with embedlog.open(own_log) as log:
        log.create_topic("other")
    assert done(reader, outcomes, topics).value == ["other"]
    shutil.rmtree(own_log)
    own_log.with_name("moved").rename(own_log)
    assert done(reader, outcomes, topics).value == ["evil", "orders"]


def test_an_unexpected_error_is_one_line(
    reader: LogReader, outcomes: queue.Queue[TaskOutcome]
) -> None:
    def fail(task: Any) -> None:
        raise ValueError("a\x1b\nb")

    assert done(reader, outcomes, fail).error == "internal error: ValueError: a␛ b"
    assert done(reader, outcomes, topics).value == ["evil", "orders"]


def test_a_waiting_task_is_replaced_by_a_new_one(
    reader: LogReader, outcomes: queue.Queue[TaskOutcome]
) -> None:
    started = threading.Event()
    go_on = threading.Event()

    def slow(task: Any) -> None:
        started.set()
        assert go_on.wait(WAIT_S)

    first = reader.submit("slow", slow)
    assert started.wait(WAIT_S)
    assert reader.busy_s() is not None
    reader.submit("read", lambda task: "old")
    reader.submit("read", lambda task: "new")
    go_on.set()
    assert outcomes.get(timeout=WAIT_S).task is first
    assert outcomes.get(timeout=WAIT_S).value == "new"
    assert outcomes.empty()


def test_a_thread_that_does_not_answer_does_not_keep_the_application(
    own_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlog.tools.console.model.reader.CLOSE_S", 0.01)
    started = threading.Event()
    go_on = threading.Event()
    ended = threading.Event()

    def stuck(task: Any) -> None:
        started.set()
        assert go_on.wait(WAIT_S)

    reader = LogReader("stuck", [str(own_log)], lambda outcome: ended.set())
    task = reader.submit("stuck", stuck)
    assert started.wait(WAIT_S)
    assert not reader.close()
    assert task.cancelled.is_set()
    go_on.set()
    assert ended.wait(WAIT_S)


# ---- the check -----------------------------------------------------------------------------------


def test_the_check_finds_a_changed_byte_and_names_its_place(
    reader: LogReader, outcomes: queue.Queue[TaskOutcome], own_log: Path
) -> None:
    def check(task: Any) -> Any:
        return damage.check(task, [str(own_log)])

    (intact,) = done(reader, outcomes, check).value
    assert intact.rows == ()
    assert intact.title.startswith("no damage in ")
    file = own_log / "orders-1" / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    (found,) = done(reader, outcomes, check).value
    assert found.title.startswith("1 × damage")
    assert ("damage", "orders", "1", "orders-1/00000000000000000000.log") in [
        (*row.cells[:3], row.cells[4]) for row in found.rows
    ]
    (own_log / "embedlog.topics").write_bytes(b"damaged")
    (found,) = done(reader, outcomes, check).value
    assert any(row.cells[0] == "damage" and row.cells[4] == "embedlog.topics" for row in found.rows)


def test_a_cancelled_check_reports_how_much_was_read(
    reader: LogReader, outcomes: queue.Queue[TaskOutcome]
) -> None:
    def cancelled(task: Any) -> Any:
        task.cancelled.set()
        return damage.check(task, [])

    (grid,) = done(reader, outcomes, cancelled).value
    assert grid.title.startswith("cancelled after ")


# ---- rates ---------------------------------------------------------------------------------------


def test_rates_are_differences_by_time() -> None:
    rates = Rates()
    place = [("t", 0)]
    rates.observe(10.0, {("t", 0): Level("id", 0, 100, 1000)})
    assert rates.of(place) == UNKNOWN
    rates.observe(12.0, {("t", 0): Level("id", 0, 300, 5000), ("t", 1): Level("id", 0, 1, 1)})
    assert rates.of([*place, ("t", 1)]) == Rate(100.0, 2000.0)


@pytest.mark.parametrize(
    ("level", "rate"),
    [
        (Level("id", 50, 200, 300), Rate(100.0, None)),  # old segments were deleted
        (Level("id", 0, 100, 1000), Rate(0.0, 0.0)),
        (Level("other", 0, 5, 1000), UNKNOWN),  # a new topic of the same name
    ],
)
def test_deleted_segments_and_new_topics_are_no_negative_rate(level: Level, rate: Rate) -> None:
    rates = Rates()
    rates.observe(1.0, {("t", 0): Level("id", 0, 100, 1000)})
    rates.observe(2.0, {("t", 0): level})
    assert rates.of([("t", 0)]) == rate


# ---- observations --------------------------------------------------------------------------------


def cells(grid: Grid, *columns: str) -> list[tuple[str, ...]]:
    return [tuple(row.cells[grid.columns.index(name)] for name in columns) for row in grid.rows]


def test_a_group_has_its_members_assignments_and_lags(own_log: Path) -> None:
    with (
        embedlog.open(own_log, config=QUICK) as log,
        embedlog.open(own_log, read_only=True) as reading,
    ):
        with log.consumer(
            "orders", group_id="live", client_id="c1", auto_offset_reset="earliest"
        ) as consumer:
            records = []
            while len(records) < 250:
                records += consumer.poll(timeout=WAIT_S)
            consumer.commit({TopicPartition("orders", 0): OffsetAndMetadata(100, "m")})
            groups, members, lags = observe.groups(reading, "live")
            assert cells(groups, "group", "state", "members", "lag") == [
                ("live", "Stable", "1", "-"),
                ("readers", "Empty", "0", "50"),
            ]
            assert cells(members, "client", "topics", "assignment") == [
                ("c1", "orders", "orders-0 orders-1")
            ]
            assert cells(lags, "topic", "partition", "committed", "end", "lag", "metadata") == [
                ("orders", "0", "100", "125", "25", "m"),
                ("orders", "1", "-", "125", "-", "-"),
            ]
        assert [grid.title for grid in observe.groups(reading, "readers")][1:] == [
            "members of readers",
            "partitions of readers",
        ]


def test_an_open_transaction_has_its_age_and_its_partitions(own_log: Path) -> None:
    with (
        embedlog.open(own_log, config=QUICK) as log,
        log.producer(transactional_id="tx") as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"open", partition=1).result(timeout=WAIT_S)
        started_ms = log.transactions()[0].started_ms
        assert started_ms is not None
        ids, opened = observe.transactions(log, started_ms + 125_000)
        assert cells(ids, "transactional id", "state", "open since", "partitions") == [
            ("tx", "Ongoing", "2 min", "orders-1")
        ]
        assert cells(opened, "topic", "partition", "first offset", "transactional id") == [
            ("orders", "1", "125", "tx")
        ]
        producer.abort_transaction()


def test_the_replicas_of_a_set_and_its_decisions_are_listed(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "ab"]
    with embedlog.open(places, housekeeping=False) as log:
        log.create_topic("t", 1, replication_factor=2)
        directories, copies, events = observe.replicas(log, internal=False)
        assert cells(directories, "node", "state", "path") == [
            ("1", "live", str(places[0])),
            ("2", "live", str(places[1])),
        ]
        found = cells(copies, "topic", "partition", "node", "role")
        assert sorted(role for *_, role in found) == ["in sync", "leader"]
        assert (
            {"warning", "decision"} >= {kind for (kind,) in cells(events, "kind")} >= {"decision"}
        )


@pytest.mark.usefixtures("usual_internal_topics")
def test_internal_topics_are_counted_and_shown_if_they_are_asked_for(tmp_path: Path) -> None:
    with embedlog.open([tmp_path / name for name in "ab"], housekeeping=False) as log:
        log.create_topic("t", 2, replication_factor=2)
        log.reset_group_offsets("g", ["t"], to="earliest")
        _, hidden, _ = observe.replicas(log, internal=False)
        assert {name for (name,) in cells(hidden, "topic")} == {"t"}
        assert hidden.title == "2 partitions · i shows 50 internal partitions"
        _, shown, _ = observe.replicas(log, internal=True)
        assert {name for (name,) in cells(shown, "topic")} == {"t", "__consumer_offsets"}
        assert shown.title == "52 partitions"
        (topics,) = observe.topics(log, Rates(), 0.0, internal=False)
        assert topics.title == "1 topic · i shows 1 internal topic"
        (topics,) = observe.topics(log, Rates(), 0.0, internal=True)
        assert topics.title == "2 topics"


def test_settings_have_their_origin_and_long_lists_are_cut(own_log: Path) -> None:
    with embedlog.open(own_log, read_only=True) as log:
        (own,) = observe.settings(log, own_only=True)
        assert own.rows == tuple(
            row for row in own.rows if row.cells[1:] == ("retention.ms", "-1", "topic")
        )
        (every,) = observe.settings(log, own_only=False)
    assert ("orders", "retention.ms", "-1", "topic") in [row.cells for row in every.rows]
    assert ("orders", "segment.bytes", "1073741824", "default") in [row.cells for row in every.rows]
    assert len(every.select_matching("RETENTION").rows) < len(every.rows)
    many = Grid(
        "t", ("a",), tuple(Row(str(number), (str(number),)) for number in range(ROWS_MAX + 1))
    )
    assert (
        many.select_matching("").title
        == f"t, the first {ROWS_MAX:,} of {ROWS_MAX + 1:,} rows: / limits them"
    )
    assert len(many.select_matching("").rows) == ROWS_MAX
    assert [row.key for row in many.select_matching("1000").rows] == ["1000"]
