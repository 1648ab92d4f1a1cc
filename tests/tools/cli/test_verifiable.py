"""The verb `verifiable`: lines of JSON for each event."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import embedlog

TIMEOUT_S = 120  # of a process on a slow machine


def lines(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(list(each)[:2] == ["timestamp", "name"] for each in found)
    return found


def names(found: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in found]


def test_the_producer_prints_each_acknowledged_record(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = events(
        "verifiable",
        "producer",
        "--topic",
        "events",
        "--max-messages",
        "5",
        "--value-prefix",
        "7",
        "--repeating-keys",
        "2",
        "--message-create-time",
        "1000",
        "--acks",
        "1",
        "--throughput",
        "500",
    )
    assert (outcome.status, outcome.err) == (0, "")
    found = lines(outcome.out)
    assert names(found) == [
        "startup_complete",
        *["producer_send_success"] * 5,
        "shutdown_complete",
        "tool_data",
    ]
    assert [{**each, "timestamp": 0} for each in found[1:6]] == [
        {
            "timestamp": 0,
            "name": "producer_send_success",
            "key": str(number % 2),
            "value": f"7.{number}",
            "topic": "events",
            "partition": 0,
            "offset": number,
        }
        for number in range(5)
    ]
    summary = found[-1]
    assert (summary["sent"], summary["acked"], summary["target_throughput"]) == (5, 5, 500)
    assert summary["avg_throughput"] > 0
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        records = list(log.scan("events").records())
    assert [(record.key, record.value) for record in records] == [
        (b"%d" % (n % 2), b"7.%d" % n) for n in range(5)
    ]
    times = [record.timestamp_ms for record in records]
    assert times == sorted(times)
    assert 1000 <= times[0] < 1_000_000


def test_a_failed_record_has_its_own_line(events: Callable[..., Any]) -> None:
    outcome = events(
        "verifiable", "producer", "-t", "events", "--max-messages", "1", "-X", "max.request.size=10"
    )
    assert outcome.status == 1
    failed = lines(outcome.out)[1]
    summary = lines(outcome.out)[-1]
    assert (failed["name"], failed["value"], failed["exception"]) == (
        "producer_send_error",
        "0",
        "RecordTooLargeError",
    )
    assert failed["message"]
    assert (summary["sent"], summary["acked"]) == (1, 0)


def test_the_consumer_prints_records_before_it_commits_them(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    assert events("produce", "-t", "events", "-K", ":", stdin=b"k:\xff\n" + b"a\n" * 5).status == 0
    read = (
        "verifiable",
        "consumer",
        "--topic",
        "events",
        "--group-id",
        "readers",
        "--max-messages",
    )
    outcome = events(
        *read,
        "4",
        "--verbose",
        "--assignment-strategy",
        "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    )
    assert (outcome.status, outcome.err) == (0, "")
    found = lines(outcome.out)
    own = {"topic": "events", "partition": 0}
    assert names(found) == [
        "startup_complete",
        "partitions_assigned",
        *["record_data"] * 4,
        "records_consumed",
        "offsets_committed",
        "partitions_revoked",
        "shutdown_complete",
    ]
    facts = [
        {key: value for key, value in each.items() if key not in ("timestamp", "name")}
        for each in found
    ]
    assert facts[1] == facts[8] == {"partitions": [own]}
    assert facts[2] == {"key": "k", "value": {"base64": "/w=="}, **own, "offset": 0}
    assert facts[3] == {"key": None, "value": "a", **own, "offset": 1}
    assert facts[6] == {
        "count": 4,
        "partitions": [{**own, "count": 4, "minOffset": 0, "maxOffset": 3}],
    }
    assert facts[7] == {"offsets": [{**own, "offset": 4}], "success": True}
    again = lines(events(*read, "2", "--enable-autocommit").out)
    assert names(again)[2:4] == ["records_consumed", "partitions_revoked"]
    assert again[2]["partitions"] == [{**own, "count": 2, "minOffset": 4, "maxOffset": 5}]
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        assert [each.position for each in log.describe_group("readers").partitions] == [6]


def test_a_commit_that_fails_is_a_line(
    events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, offsets: Any = None) -> None:
        raise embedlog.CommitFailedError("removed from the group")

    monkeypatch.setattr(embedlog.Consumer, "commit", fails)
    assert events("produce", "-t", "events", stdin=b"a\n").status == 0
    found = lines(
        events("verifiable", "consumer", "-t", "events", "-G", "g", "--max-messages", "1").out
    )
    (failed,) = [each for each in found if each["name"] == "offsets_committed"]
    assert (failed["success"], "removed from the group" in failed["error"]) == (False, True)


def test_wrong_options_are_refused(events: Callable[..., Any]) -> None:
    assert events("verifiable", "producer", "-t", "events", "--throughput", "0").status == 2
    assert events("verifiable", "consumer", "-t", "events").status == 2
    group = ("verifiable", "consumer", "-t", "events", "-G", "g", "--group-protocol", "consumer")
    assert "--assignment-strategy is for" in events(*group, "--assignment-strategy", "range").err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_in_order(events: Callable[..., Any], number: signal.Signals) -> None:
    command = [sys.executable, "-m", "embedlog", "verifiable"]
    arguments = (
        (["producer", "--topic", "events", "--throughput", "50"], b"producer_send_success"),
        (["consumer", "--topic", "events", "--group-id", "g"], b"offsets_committed"),
    )
    with ExitStack() as stack:
        running = []
        for options, awaited in arguments:
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
                )
            )
            stack.callback(process.kill)
            # without a buffer: `communicate` does not return what that has
            assert process.stdout is not None
            text = b""
            while awaited not in text:
                line = process.stdout.readline()
                assert line, text
                text += line
            running.append((process, text))
        ended = []
        for process, text in running:
            process.send_signal(number)
            rest, errors = process.communicate(timeout=TIMEOUT_S)
            assert (process.returncode, errors) == (0, b"")
            ended.append(lines((text + rest).decode()))
    sent, received = ended
    assert names(sent)[-2:] == ["shutdown_complete", "tool_data"]
    assert sent[-1]["sent"] == sent[-1]["acked"] == names(sent).count("producer_send_success")
    assert names(received)[-3:] == ["shutdown_requested", "partitions_revoked", "shutdown_complete"]
