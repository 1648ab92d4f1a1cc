"""Programs of docs/recipes.md beyond their own run: in web frameworks, beside transactions, and
with failures.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import serializers
from tests.conftest import ROOT
from tests.support.documents import BLOCK
from tests.support.producer_helpers import wait_until

QUIET = {"housekeeping": False}
SERVED = """
import sys

from {framework} import {application}

app = {application}(lifespan=lifespan)
with embedlog.open("data") as own:
    own.create_topic("events", exist_ok=True)


async def serve():
    answers, requests = [], asyncio.Queue()
    ready = asyncio.Event()

    async def send(message):
        answers.append(message)
        ready.set()

    await requests.put({{"type": "lifespan.startup"}})
    server = asyncio.create_task(app({{"type": "lifespan", "asgi": {{"version": "3.0"}}}}, requests.get, send))
    await ready.wait()
    assert answers == [{{"type": "lifespan.startup.complete"}}], answers
    assert await asyncio.gather(*(handle(app, b"%d" % number) for number in range(5))) == [0, 1, 2, 3, 4]
    while len(app.state.seen) < 5:
        await asyncio.sleep(0.01)
    await requests.put({{"type": "lifespan.shutdown"}})
    await server
    assert answers[-1] == {{"type": "lifespan.shutdown.complete"}}, answers


asyncio.run(serve())
"""


STREAMED = """
from fastapi import FastAPI, Header
from fastapi.responses import StreamingResponse

app = FastAPI()
streams = Streams()
log = embedlog.open("data")
log.create_topic("orders", partitions=2)
with log.producer() as producer:
    for number in range(3):
        producer.send("orders", b"order %d" % number, partition=0)


@app.get("/orders")
async def orders(last_event_id: str | None = Header(None)) -> StreamingResponse:
    return StreamingResponse(events(log, "orders", last_event_id, streams), media_type="text/event-stream")


async def requested(last_event_id):
    messages, received, arrived = asyncio.Queue(), [], asyncio.Event()

    async def send(message):
        received.append(message)
        if b"order 2" in message.get("body", b""):
            arrived.set()

    await messages.put({"type": "http.request", "body": b"", "more_body": False})
    headers = [(b"last-event-id", last_event_id)]
    request = {"type": "http", "method": "GET", "path": "/orders", "query_string": b"", "headers": headers}
    serving = asyncio.create_task(app({**request, "asgi": {"version": "3.0"}}, messages.get, send))
    await asyncio.wait_for(arrived.wait(), 30)
    await messages.put({"type": "http.disconnect"})
    await asyncio.wait_for(serving, 30)
    assert received[0]["status"] == 200
    return b"".join(message.get("body", b"") for message in received)


body = asyncio.run(requested(b"1,0"))
assert body == b"id: 2,0\\ndata: order 1\\n\\nid: 3,0\\ndata: order 2\\n\\n", body
log.close()
"""


# Ends with uvicorn's server, after its streams.
APPLICATION = """
from contextlib import asynccontextmanager

from fastapi import FastAPI, Header
from fastapi.responses import StreamingResponse

@asynccontextmanager
async def lifespan(app):
    yield
    await asyncio.to_thread(log.close)

app = FastAPI(lifespan=lifespan)
streams = Streams()
log = embedlog.open("data")
log.create_topic("orders", partitions=2)
with log.producer() as producer:
    producer.send("orders", b"order 0", partition=0)


@app.get("/orders")
async def orders(last_event_id: str | None = Header(None)) -> StreamingResponse:
    return StreamingResponse(events(log, "orders", last_event_id, streams), media_type="text/event-stream")
"""


def recipe(part: str) -> str:
    """The block that contains a text, up to the use of its functions and classes."""
    (found,) = (
        block
        for block in BLOCK.findall((ROOT / "docs" / "recipes.md").read_text())
        if part in block
    )
    return str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "application"), [("fastapi", "FastAPI"), ("starlette.applications", "Starlette")]
)
def test_a_framework_takes_the_lifespan(framework: str, application: str, tmp_path: Path) -> None:
    if find_spec(framework.partition(".")[0]) is None:
        pytest.skip(f"no {application}")
    functions = recipe("async def lifespan").partition("class App:")[0]
    program = functions + SERVED.format(framework=framework, application=application)
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.slow
def test_fastapi_streams_events_after_the_last_id_of_the_browser(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    program = recipe("async def events").partition("async def main")[0] + STREAMED
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.slow
def test_uvicorn_ends_at_once_while_streams_are_open(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    (tmp_path / "application.py").write_text(
        recipe("async def events").partition("async def main")[0] + APPLICATION
    )
    (tmp_path / "serve.py").write_text(recipe("import uvicorn").replace("port=8000", "port=0"))
    command = [sys.executable, "serve.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stderr is not None
        try:
            lines: list[str] = []
            while not (lines and "Uvicorn running" in lines[-1]):
                lines.append(server.stderr.readline())
                assert lines[-1], "".join(lines)
            found = re.search(r"http://127.0.0.1:(\d+)", lines[-1])
            assert found is not None, lines
            request = urllib.request.Request(
                f"http://127.0.0.1:{found[1]}/orders", headers={"Last-Event-ID": "0,0"}
            )
            answers = [urllib.request.urlopen(request, timeout=60) for _ in range(2)]
            assert [answer.readline() for answer in answers] == [b"id: 1,0\n"] * 2
            # without a limit: it would wait for the streams without end
            server.send_signal(signal.SIGTERM)
            assert [answer.read() for answer in answers] == [b"data: order 0\n\n"] * 2
            rest = server.communicate(timeout=60)[1]
        finally:
            server.kill()
    assert "ERROR" not in rest
    assert "Traceback" not in rest
    assert "Application shutdown complete" in rest


def test_a_failure_of_the_background_task_is_logged_and_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names: dict[str, Any] = {}
    exec(recipe("async def lifespan").partition('with embedlog.open("data")')[0], names)
    monkeypatch.chdir(tmp_path)

    async def fail(log: embedlog.Log, app: Any) -> None:
        raise ValueError("a record that cannot be read")

    async def live() -> None:
        names["follow"] = fail
        async with names["lifespan"](names["App"]()):
            while not caplog.records:
                await asyncio.sleep(0.001)

    with caplog.at_level(logging.CRITICAL), pytest.raises(ValueError, match="cannot be read"):
        asyncio.run(asyncio.wait_for(live(), 30))
    (logged,) = caplog.records
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ValueError)


class Counted:
    """A producer that counts what was sent; after too many records it raises, so that a loop
    without end is a failure.
    """

    def __init__(self, producer: embedlog.Producer[Any, Any], most: int) -> None:
        self._producer = producer
        self._most = most
        self.count = 0

    def send(self, *values: Any, **options: Any) -> embedlog.Future[Any]:
        self.count += 1
        assert self.count <= self._most, "a livelock"
        return self._producer.send(*values, **options)


def test_a_decision_conflicts_with_others_only(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(recipe("class Accounts").partition("PARTITIONS = 4")[0], names)
    with (
        embedlog.open(tmp_path, config=QUIET) as log,
        log.producer(value_serializer=serializers.json) as producer,
    ):
        log.create_topic("accounts", 2)
        counted = Counted(producer, 10)
        accounts = names["Accounts"](log, counted, "accounts", 1)
        with log.producer(transactional_id="x", value_serializer=serializers.json) as other:
            other.init_transactions()

            def pay_in(amount: int, finish: Callable[[], None]) -> None:
                other.begin_transaction()
                other.send("accounts", {"amount": amount}, key=b"anna", partition=1)
                other.flush()
                finish()

            pay_in(20, other.commit_transaction)
            accounts.read()
            assert (accounts.end, accounts.balances) == (2, {b"anna": 20})  # the marker counts
            assert accounts.withdraw(b"anna", 7)
            assert accounts.withdraw(b"anna", 7)
            assert counted.count == 2  # no conflict with its own records
            pay_in(5, other.abort_transaction)
            assert not accounts.withdraw(b"bert", 1)
            assert accounts.withdraw(b"anna", 5)
            assert counted.count == 4  # one conflict
            assert not accounts.withdraw(b"anna", 2)  # the aborted amount never counts
            assert accounts.balances == {b"anna": 1}


# Three processes run the loop of a recipe: this is one of them. It says that it reads, and ends
# with the first byte of its input.
WORKER = """
import sys
import threading

ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(1), ended.set()), daemon=True).start()

with embedlog.open("data") as log, log.producer() as out:
    def work(record):
        number = int(record.value)
        if number % 50 == 0:
            raise ValueError("cannot be processed")
        out.send("done", record.value).result()
        time.sleep(0.001)  # the work

    follow(log, "orders", work, ended.is_set, {assignors!r})
"""


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    "assignors", [["range", "cooperative-sticky"], ["range"], ["cooperative-sticky"]]
)
def test_a_rebalance_and_a_kill_end_no_other_worker_of_the_retry_recipe(
    assignors: list[str], tmp_path: Path
) -> None:
    program = recipe("def follow(\n").partition("with embedlog.open")[0] + WORKER.format(
        assignors=assignors
    )
    numbers = range(300)
    workers: list[subprocess.Popen[bytes]] = []
    with embedlog.open(tmp_path / "data") as log:
        log.create_topics([embedlog.NewTopic("orders", 8), "orders.dead", "done"])
        with log.producer() as producer:
            for number in numbers:
                producer.send("orders", b"%d" % number, key=b"%d" % number)

        def wait_for(condition: Callable[[], bool]) -> None:
            wait_until(
                lambda: condition() or any(each.poll() is not None for each in workers[1:]), 90
            )
            assert [each.poll() for each in workers[1:]] == [None, None]

        def is_done() -> bool:
            return log.describe_group("work").lag == 0

        try:
            for _ in range(3):
                command = [sys.executable, "-c", program]
                workers.append(
                    subprocess.Popen(
                        command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE
                    )
                )
            wait_for(lambda: log.scan("done").num_rows >= 30)
            workers[0].kill()
            wait_for(is_done)
            dead = {int(record.value or b"") for record in log.scan("orders.dead").records()}
            done = {int(record.value or b"") for record in log.scan("done").records()}
            assert dead == {number for number in numbers if number % 50 == 0}
            assert done == set(numbers) - dead, "a lag of 0 means that all is done"
            answers = [each.communicate(b"x", timeout=60)[1].decode() for each in workers[1:]]
            assert [each.returncode for each in workers[1:]] == [0, 0], answers
        finally:
            for each in workers:
                each.kill()
                each.communicate()
