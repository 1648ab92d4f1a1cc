"""Serves topics as server-sent events; a browser that lost its connection continues at the next
record (Last-Event-ID).

    python examples/event_stream.py data --port 8000 curl -N http://127.0.0.1:8000/orders
    from now on curl -N 'http://127.0.0.1:8000/orders?from=earliest'                from the first
    record on curl -N -H 'Last-Event-ID: 0:12,1:7' http://127.0.0.1:8000/orders   after an event
    that was received

In a browser: `new EventSource("/orders")` with a listener of the messages. The id of an event has
the next offset of each partition. So the server keeps no state of a client, and any server of the
same directory can continue a stream. Committed records come once, and in the order of their
partition. The log is opened read-only.

An id that is malformed is an error 400. The error 410 means that records after the id were deleted:
the client must decide where to begin. Without a record, a comment is sent from time to time, so
that proxies keep the connection. There is no access control: bind it to a local address, after a
proxy that has one.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import embedlog
from embedlog import Consumer, Record, TopicPartition

EVENT_ID = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*", re.ASCII)
KEEP_ALIVE_S = 15.0
POLL_S = 0.2  # the longest delay of the end of the server


class RefusedError(Exception):
    """A request that cannot be answered: its status and the reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class EventServer(ThreadingHTTPServer):
    """A server of one log. Each connection has a thread and a consumer of its own."""

    daemon_threads = False  # the close waits for them: the log is closed after it

    def __init__(self, address: tuple[str, int], log: embedlog.Log) -> None:
        self.log = log
        self.stopping = threading.Event()
        super().__init__(address, EventHandler)

    def stop(self) -> None:
        """End `serve_forever` and all streams. Not to be called by the thread of
        `serve_forever`.
        """
        self.stopping.set()
        self.shutdown()
        self.server_close()


class EventHandler(BaseHTTPRequestHandler):
    """One connection."""

    timeout = 60  # for a request, and for a client that does not read

    def do_GET(self) -> None:
        """Send the records of the topic in the path, until the client leaves."""
        server = self.server
        assert isinstance(server, EventServer)
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        with server.log.consumer(
            isolation_level="read_committed", auto_offset_reset="none"
        ) as consumer:
            try:
                start(
                    server.log,
                    consumer,
                    unquote(url.path[1:]),
                    self.headers["Last-Event-ID"],
                    query.get("from", ["latest"])[0],
                )
            except RefusedError as refusal:
                self.send_error(refusal.status, str(refusal))
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Cache-Control", "no-cache")
            self.end_headers()
            try:
                self._stream(consumer, server.stopping)
            except (ConnectionError, TimeoutError):
                pass  # the client left
            except embedlog.OffsetOutOfRangeError:
                pass  # deleted before it was sent: the next request of the client gets 410

    def _stream(self, consumer: Consumer[bytes, bytes], stopping: threading.Event) -> None:
        positions = {place.partition: consumer.position(place) for place in consumer.assignment()}
        sent_s = time.monotonic()
        while not stopping.is_set():
            records = consumer.poll(POLL_S)
            for record in records:
                positions[record.partition] = record.offset + 1
                self.wfile.write(event_of(record, positions))
            if records or time.monotonic() - sent_s > KEEP_ALIVE_S:
                if not records:
                    self.wfile.write(b": no record\n\n")
                self.wfile.flush()
                sent_s = time.monotonic()

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not printed."""


def start(
    log: embedlog.Log,
    consumer: Consumer[bytes, bytes],
    topic: str,
    event_id: str | None,
    begin: str,
) -> None:
    """Assign all partitions of the topic, at the positions of the id or at the begin. Raises
    RefusedError.
    """
    if topic not in log.topics():
        raise RefusedError(HTTPStatus.NOT_FOUND, "no such topic")
    places = [
        TopicPartition(topic, number) for number in range(log.describe_topic(topic).partition_count)
    ]
    consumer.assign(places)
    ends = consumer.end_offsets(places)
    if not event_id:
        starts = consumer.beginning_offsets(places) if begin == "earliest" else ends
    else:
        if EVENT_ID.fullmatch(event_id) is None:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Last-Event-ID is not an id of this server")
        known = {
            int(number): int(offset)
            for number, offset in (pair.split(":") for pair in event_id.split(","))
        }
        first = consumer.beginning_offsets(places)
        # a new partition has no position yet
        starts = {place: known.get(place.partition, first[place]) for place in places}
        if any(not first[place] <= starts[place] <= ends[place] for place in places):
            raise RefusedError(
                HTTPStatus.GONE, "records after this Last-Event-ID are not in the log"
            )
    for place, offset in starts.items():
        consumer.seek(place, offset)


def event_of(record: Record[bytes, bytes], positions: Mapping[int, int]) -> bytes:
    """An event: the id is the position after it. JSON has no line breaks, so its data is one
    line.
    """
    event_id = ",".join(f"{number}:{offset}" for number, offset in sorted(positions.items()))
    fields = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    data = json.dumps({**fields, "key": text_of(record.key), "value": text_of(record.value)})
    return f"id: {event_id}\ndata: {data}\n\n".encode()


def text_of(data: bytes | None) -> str | dict[str, str] | None:
    """UTF-8 as text, other bytes in base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", help="the log directory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    with embedlog.open(given.directory, read_only=True) as log:
        server = EventServer((given.host, given.port), log)
        print(f"http://{given.host}:{server.server_port}/TOPIC", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.stopping.set()
        finally:
            server.server_close()


if __name__ == "__main__":
    main()
