"""The race: each peer that is installed returns what was appended to it, and a wrong or missing
record ends a turn.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.race import data, processes, race, stores, tables
from benchmarks.race.job import BASE_MS, Job
from benchmarks.race.peers import PEERS, Peer
from benchmarks.race.workloads import SCALES, workloads
from tests.kafka.oracle import Broker

COUNT = 60
BATCH = 15
ALL = COUNT + 3 * BATCH + 1  # records of a round trip
PYTHON = [peer for peer in PEERS.values() if peer.LANGUAGE == "Python" and not peer.BROKER]
CLIENTS = [peer for peer in PEERS.values() if peer.BROKER]


def ready(peer: type[Peer]) -> None:
    if missing := peer.missing():
        pytest.skip(f"{peer.NAME} is not installed ({missing}): {peer.INSTALL}")


def take(pieces: Iterator[list[bytes]], count: int) -> list[bytes]:
    """The first `count` values of lists that may never end."""
    found: list[bytes] = []
    for values in pieces:
        found += values
        if len(found) >= count:
            break
    return found


@pytest.fixture
def values(tmp_path: Path) -> tuple[str, list[bytes]]:
    path = tmp_path / "values"
    assert data.make(path, "json", 200, COUNT * 200) == COUNT
    return str(path), data.load(str(path))


def round_trip(kind: type[Peer], job: Job, given: list[bytes]) -> None:
    """All ways of appending, in one store; then all ways of reading, by an object that has appended
    nothing.
    """
    writer = kind(job)
    writer.begin()
    for number, values in enumerate(data.pieces(given, COUNT, BATCH)):
        writer.append_timed(values, BASE_MS + BATCH * number)
    writer.finish()
    writer.append_each(given[:BATCH])
    writer.append_batch(given[BATCH : 2 * BATCH])
    writer.append_columns(pa.array(given[2 * BATCH : 3 * BATCH], pa.binary()))
    writer.acknowledged(given[3 * BATCH])
    writer.finish()
    expected = given + given[: 3 * BATCH + 1]
    assert writer.stored() == len(expected) == ALL
    writer.close()
    reader = kind(job)
    reader.open_reader()
    reader.warm_reader()
    reader.warm_columns()
    try:
        if not kind.reason("offset", "none"):
            assert [reader.value_at(offset) for offset in (0, 7, COUNT - 1)] == [
                given[0],
                given[7],
                given[COUNT - 1],
            ]
        if not kind.reason("time", "none"):
            assert [reader.value_since(BASE_MS + offset) for offset in (0, 7, COUNT - 1)] == [
                given[0],
                given[7],
                given[COUNT - 1],
            ]
        assert take(reader.records(0), len(expected)) == expected
    finally:
        reader.close()
    again = kind(job)
    again.open_reader()
    try:
        columns = itertools.chain.from_iterable([array.to_pylist()] for array in again.columns())
        assert take(columns, len(expected)) == expected
    finally:
        again.close()


@pytest.mark.parametrize("peer", PYTHON, ids=lambda peer: peer.NAME)
@pytest.mark.filterwarnings("ignore")  # those of other packages
@pytest.mark.may_leak("other packages keep threads and files until the end of the process")
def test_a_peer_returns_what_was_appended(
    peer: type[Peer], tmp_path: Path, values: tuple[str, list[bytes]]
) -> None:
    ready(peer)
    path, given = values
    round_trip(peer, Job(str(tmp_path / "store"), path, count=ALL, batch=BATCH), given)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("peer", CLIENTS, ids=lambda peer: peer.NAME)
@pytest.mark.filterwarnings("ignore")  # those of other packages
@pytest.mark.may_leak("other packages keep threads and files until the end of the process")
def test_a_client_of_kafka_returns_what_was_appended(
    peer: type[Peer], broker: Broker, values: tuple[str, list[bytes]]
) -> None:
    ready(peer)
    path, given = values
    broker.create_topic(f"race-{peer.NAME}")
    round_trip(
        peer, Job(broker.bootstrap, path, topic=f"race-{peer.NAME}", count=ALL, batch=BATCH), given
    )


@pytest.mark.slow
def test_chronicle_queue_returns_what_was_appended(
    tmp_path: Path, values: tuple[str, list[bytes]]
) -> None:
    peer = PEERS["chronicle"]
    ready(peer)
    path, given = values
    job = Job(str(tmp_path / "store"), path, count=COUNT)
    (made,) = processes.take(peer, [("fill", job)])
    (found,) = processes.take(peer, [("verify", job)])
    assert (made["records"], made["stored"]) == (COUNT, COUNT)
    assert (found["records"], found["checksum"]) == (COUNT, zlib.crc32(b"".join(given)))


def test_a_wrong_value_of_a_peer_ends_the_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = next(each for each in workloads(SCALES["quick"]) if each.store)
    monkeypatch.setattr(data, "checksum", lambda values, count: -1)
    with stores.Stores(tmp_path) as places:
        running = race.Race(SCALES["quick"], tmp_path, places, [PEERS["sqlite"]], lambda text: None)
        with pytest.raises(processes.TurnError, match="returned other values"):
            running.fill(PEERS["sqlite"], workload)


def test_a_run_has_a_figure_or_a_reason_for_each_peer(tmp_path: Path) -> None:
    said: list[str] = []
    results = race.run(
        SCALES["quick"],
        tmp_path,
        ["append", "tail"],
        ["embedlog", "sqlite"],
        "acknowledged",
        said.append,
    )
    (figures,) = results["figures"].values()
    assert set(figures) == {"embedlog", "sqlite"}
    assert all(len(each["p50_us"]) == 1 for each in figures.values()), said
    assert "SQLite (WAL)" in tables.page(results)


def test_records_that_are_missing_in_a_store_are_an_error() -> None:
    workload = next(each for each in workloads(SCALES["quick"]) if each.turn == "append/batch")
    answer = {"records": 5, "seconds": 1.0, "bytes": 500, "stored": 5, "warm": 1}
    with pytest.raises(
        processes.TurnError, match="5 and 1 records were appended, and 5 are in the store"
    ):
        race.measured(workload, [answer])


def test_a_latency_is_better_if_it_is_less() -> None:
    workload = {"measures": ["p50_us"]}
    assert tables.Row(workload, "p50_us", "sqlite", [10.0], [20.0]).ratio == 2
    assert tables.Row(workload, "records_s", "sqlite", [10.0], [20.0]).ratio == 0.5
