"""Server-sent events: a client that comes again gets the next record; hostile ids are errors."""

from __future__ import annotations

import http.client
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from tests.support import examples

sys.path.append(str(examples.EXAMPLES))
streams: Any = importlib.import_module("event_stream")

QUIET = {"housekeeping": False}
Event = tuple[str, dict[str, Any]]  # the id and the data


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path, config=QUIET) as opened:
        opened.create_topic("t", 2)
        yield opened


@pytest.fixture
def port(log: embedlog.Log, tmp_path: Path) -> Iterator[int]:
    with embedlog.open(tmp_path, read_only=True) as readable:
        server = streams.EventServer(("127.0.0.1", 0), readable)
        serving = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        serving.start()
        yield server.server_port
        server.stop()
        serving.join(60)


def send(log: embedlog.Log, *values: bytes | None) -> None:
    """Alternately to both partitions."""
    with log.producer() as producer:
        for number, value in enumerate(values):
            producer.send("t", value, key=b"\xff", partition=number % 2)


def received(port: int, count: int, event_id: str | None = None, path: str = "/t") -> list[Event]:
    """The first events of a new connection, which is cut then."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            "GET", path, headers={} if event_id is None else {"Last-Event-ID": event_id}
        )
        answer = connection.getresponse()
        assert (answer.status, answer.headers.get_content_type()) == (200, "text/event-stream")
        found: list[Event] = []
        while len(found) < count:
            lines = [answer.readline().decode().rstrip("\n") for _ in range(3)]
            assert lines[0].startswith("id: ")
            assert lines[1].startswith("data: ")
            assert lines[2] == ""
            found.append((lines[0][4:], json.loads(lines[1][6:])))
        answer.close()
        return found
    finally:
        connection.close()


def status(port: int, path: str, event_id: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Last-Event-ID": event_id} if event_id else {})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_client_that_comes_again_gets_each_record_once(log: embedlog.Log, port: int) -> None:
    send(log, *(b"%d" % number for number in range(20)))
    first = received(port, 7, path="/t?from=earliest")
    send(log, b"20", b"21")
    second = received(port, 8, first[-1][0])
    third = received(port, 7, second[-1][0])
    places = [(data["partition"], data["offset"]) for _, data in first + second + third]
    assert sorted(places) == [(partition, offset) for partition in (0, 1) for offset in range(11)]
    for partition in (0, 1):
        assert [offset for number, offset in places if number == partition] == list(range(11))
    assert third[-1][0] == "0:11,1:11"


def test_an_event_has_text_bytes_and_null(log: embedlog.Log, port: int) -> None:
    send(log, "zwölf\nid: 5".encode(), b"\xff", None)
    found = {(data["partition"], data["offset"]): data for _, data in received(port, 3, "0:0,1:0")}
    assert found[0, 0]["value"] == "zwölf\nid: 5"
    assert found[1, 0]["value"] == found[0, 0]["key"] == {"base64": "/w=="}
    assert found[0, 1]["value"] is None


@pytest.mark.parametrize(
    "event_id", ["x", "0", "0:", "0:-1", "0:1,", "0:1;1:1", "0:" + "9" * 19, "٣:1"]
)
def test_a_malformed_id_is_an_error(port: int, event_id: str) -> None:
    assert status(port, "/t", event_id.encode().decode("latin-1")) == 400


def test_ids_outside_of_the_log_and_unknown_topics_are_errors(log: embedlog.Log, port: int) -> None:
    send(log, b"0", b"1", b"2")
    assert status(port, "/t", "0:3") == 410
    log.delete_records({TopicPartition("t", 0): 1})
    assert status(port, "/t", "0:0") == 410
    assert received(port, 1, "0:1,1:1")[0][1]["value"] == "2"
    assert received(port, 1, "1:1")[0][1]["value"] == "2", (
        "a partition without a position begins at its first record"
    )
    assert status(port, "/unknown") == 404
    assert status(port, "/%2e%2e%2fetc") == 404
    assert status(port, "/__consumer_offsets") == 404


def test_the_stop_ends_open_streams(log: embedlog.Log, tmp_path: Path) -> None:
    with embedlog.open(tmp_path, read_only=True) as readable:
        server = streams.EventServer(("127.0.0.1", 0), readable)
        serving = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        serving.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("GET", "/t")
        answer = connection.getresponse()
        server.stop()
        assert answer.read() == b""
        connection.close()
        serving.join(60)
