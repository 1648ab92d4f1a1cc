"""The verb `perf`: lines and columns of Kafka's performance tests."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.tools.cli import latencies as module
from embedlog.tools.cli import pace
from embedlog.tools.cli.latencies import Latencies
from embedlog.tools.cli.verbs import perf

TOTAL = re.compile(
    r"(\d+) records sent, \d+\.\d{6} records/sec \(\d+\.\d\d MB/sec\), \d+\.\d\d ms avg latency, "
    r"\d+\.\d\d ms max latency, "
    r"\d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.\n"
)
HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, "
    "fetch.MB.sec, fetch.nMsg.sec"
)
DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"


def values(path: Path) -> list[bytes]:
    with embedlog.open(path, read_only=True) as log:
        return [
            bytes(record.value)
            for record in log.scan("events", isolation_level="read_committed").records()
        ]


def test_the_producer_prints_kafkas_line(events: Callable[..., Any], tmp_path: Path) -> None:
    arguments = (
        "perf",
        "producer",
        "--topic",
        "events",
        "--num-records",
        "300",
        "--record-size",
        "7",
        "--throughput",
        "-1",
    )
    outcome = events(*arguments)
    assert (outcome.status, outcome.err) == (0, "")
    found = TOTAL.fullmatch(outcome.out)
    assert found is not None, outcome.out
    assert found[1] == "300"
    first = values(tmp_path / "data")
    assert all(re.fullmatch(rb"[A-Z]{7}", value) for value in first)
    assert len(set(first)) > 290
    assert events(*arguments, "--json").status == 0
    assert values(tmp_path / "data") == first * 2


def test_payloads_are_those_of_the_file_or_numbers(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"one;two;;three;")
    send = ("perf", "producer", "--topic", "events", "--num-records")
    outcome = events(*send, "400", "--payload-file", str(file), "--payload-delimiter", ";")
    assert outcome.out.startswith(
        f"Reading payloads from: {file}\nNumber of messages read: 4\n400 records sent"
    )
    counts = Counter(values(tmp_path / "data"))
    assert set(counts) == {b"one", b"two", b"", b"three"}
    assert events(*send, "3", "--payload-monotonic").status == 0
    assert values(tmp_path / "data")[400:] == [b"0", b"1", b"2"]
    file.write_bytes(b"")
    assert "is empty" in events(*send, "1", "--payload-file", str(file)).err


def test_the_first_records_are_no_part_of_the_steady_state(events: Callable[..., Any]) -> None:
    send = (
        "perf",
        "producer",
        "--topic",
        "events",
        "--num-records",
        "9",
        "--payload-monotonic",
        "--warmup-records",
    )
    assert "\n9 records sent" in (out := events(*send, "4").out)
    assert "\n5 steady state records sent" in out
    found = json.loads(events(*send, "4", "--json", "--print-metrics").out)
    assert (found["records"], found["failed"], found["steady_state"]["records"]) == (9, 0, 5)
    assert found["latency_ms"].keys() == {"avg", "max", "50th", "95th", "99th", "99.9th"}
    assert found["metrics"]["record-send-total"] == 9
    assert events(*send, "9").status == 2


def test_records_are_sent_in_transactions(events: Callable[..., Any], tmp_path: Path) -> None:
    send = ("perf", "producer", "--topic", "events", "--num-records", "5", "--payload-monotonic")
    assert events(*send, "--transactional-id", "tx", "--print-metrics").status == 0
    assert events(*send, "-X", "transactional.id=tx").status == 0
    assert events(*send, "--transaction-duration-ms", "1", "--throughput", "400").status == 0
    assert values(tmp_path / "data") == [b"0", b"1", b"2", b"3", b"4"] * 3
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        found = {each.transactional_id: each.state for each in log.transactions()}
        end = log.describe_topic("events").partitions[0].log_end_offset
    assert found.pop("tx") == "CompleteCommit"
    assert [name[:21] for name in found] == ["performance-producer-"]
    assert end >= 15 + 3


def test_a_transaction_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    now = 0.0

    class Sent:
        def add_done_callback(self, callback: Any) -> None:
            nonlocal now
            now += 0.4

    class Client:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Sent:
                calls.append(name.partition("_")[0])
                return Sent()

            return call

    monkeypatch.setattr(time, "monotonic", lambda: now)
    client: Any = Client()
    sending = perf._PacedSender(client, "events", pace.Pace(-1), 1.0)
    sending.send(iter([b""] * 8), Latencies(8))
    sending.end()
    assert " ".join(calls) == " ".join(["begin send send send send commit"] * 2 + ["flush"])
    calls.clear()
    sending.send(iter([b""]), Latencies(1))
    sending.end()
    assert calls == ["begin", "send", "commit", "flush"]


def test_metrics_have_kafkas_layout(events: Callable[..., Any]) -> None:
    out = events(
        "perf",
        "producer",
        "-t",
        "events",
        "--num-records",
        "2",
        "--payload-monotonic",
        "--print-metrics",
        "-X",
        "client.id=c",
    ).out
    assert re.search(r"\nMetric Name +Value\nproducer-metrics:", out)
    assert re.search(r"\nproducer-metrics:record-send-total:\{client-id=c\} +: 2\.000\n", out)


def test_failed_records_make_the_status_1(events: Callable[..., Any]) -> None:
    outcome = events(
        "perf",
        "producer",
        "-t",
        "events",
        "--num-records",
        "2",
        "--record-size",
        "3000",
        "-X",
        "max.request.size=2000",
    )
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert outcome.err.startswith("embedlog: 2 records failed: ")
    assert outcome.out.startswith("0 records sent, ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give one of --record-size"),
        (("--record-size", "1", "--payload-monotonic"), "give one of --record-size"),
        (("--payload-monotonic", "--throughput", "0"), "--throughput: expected a number above 0"),
        (("--record-size", "0"), "--record-size"),
    ],
)
def test_wrong_options_of_the_producer_are_refused(
    events: Callable[..., Any], options: tuple[str, ...], message: str
) -> None:
    outcome = events("perf", "producer", "-t", "events", "--num-records", "1", *options)
    assert (outcome.status, message in outcome.err) == (2, True), outcome.err


# ---- figures -------------------------------------------------------------------------------------


class Completed:
    """A future with a result."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    def exception(self) -> BaseException | None:
        return self._error


def test_latencies_are_sampled_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(module, "SAMPLES_MAX", 10)
    stats = Latencies(100)
    done: Any = Completed()
    for number in range(100):
        stats.count_record(now - number / 1000, 1 << 20, done)
    failed: Any = Completed(ValueError("first"))
    stats.count_record(now, 1, failed)
    assert stats.window_line() is None
    now += 5
    assert stats.window_line() == (
        "100 records sent, 20.0 records/sec (20.00 MB/sec), 49.5 ms avg latency, 99.0 ms max "
        "latency."
    )
    assert stats.window_line() is None
    shares = {name: round(value) for name, value in stats.percentiles().items()}
    assert stats.total_line() == (
        "100 records sent, 20.000000 records/sec (20.00 MB/sec), 49.50 ms avg latency, 99.00 ms "
        "max latency, " + ", ".join(f"{value} ms {name}" for name, value in shares.items()) + "."
    )
    assert all(
        found in (expected - 1, expected)
        for found, expected in zip(shares.values(), (50, 90, 90, 90), strict=True)
    )
    assert (stats.failed, str(stats.first_failure)) == (1, "first")


def test_a_call_is_not_earlier_than_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limited = pace.Pace(100)
    assert [limited.wait_s(number) for number in (0, 10)] == [0, pytest.approx(0.1)]
    now = 50.2
    assert limited.wait_s(10) == 0
    assert limited.wait_s(30) == pytest.approx(0.1)
    assert pace.Pace(-1).wait_s(1 << 60) == 0


# ---- consumer ------------------------------------------------------------------------------------


def test_the_consumer_prints_kafkas_columns(events: Callable[..., Any], tmp_path: Path) -> None:
    assert events("produce", "-t", "events", "-K", ":", stdin=b"k:value\n" * 1000).status == 0
    read = ("perf", "consumer", "--topic", "events", "--messages")
    for options in ((), ("--batches",), ("--group", "readers")):
        outcome = events(*read, "1000", *options)
        assert (outcome.status, outcome.err) == (0, "")
        header, row = outcome.out.splitlines()
        assert header == HEADER
        found = re.fullmatch(
            rf"{DATE}, {DATE}, 0\.0057, (\d+\.\d{{4}}), 1000, (\d+\.\d{{4}}), (\d+), (\d+), .*", row
        )
        assert found is not None, row
        assert len(row.split(", ")) == len(header.split(", "))
    outcome = events(*read, "7", "--json", "--print-metrics")
    (fields,) = json.loads(outcome.out)["rows"]
    assert ", ".join(fields) == HEADER
    assert fields["data.consumed.in.nMsg"] == 7
    assert json.loads(outcome.out)["metrics"]["records-consumed-total"] == 7
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        assert log.groups() == ["readers"]


def test_too_few_records_make_the_status_1(events: Callable[..., Any]) -> None:
    assert events("produce", "-t", "events", stdin=b"a\nb\n").status == 0
    read = (
        "perf",
        "consumer",
        "--include",
        "ev.*",
        "--num-records",
        "3",
        "--timeout",
        "0",
        "--hide-header",
    )
    outcome = events(*read)
    assert (outcome.status, outcome.out.split(", ")[4]) == (1, "2")
    assert outcome.err == "embedlog: 2 of 3 records arrived, then none for 0 ms (--timeout)\n"
    assert events(*read, "--from-latest").out.split(", ")[4] == "0"
    detailed = events(*read, "--show-detailed-stats").out.split(", ")
    assert (len(detailed), detailed[1], detailed[4]) == (10, "0", "2")
    assert events(*read, "--topic", "events").status == 2
    assert events("perf", "consumer", "--include", "none", "--num-records", "1").status == 1
