"""The web server admits the holder of its key only, and the console works in a real browser."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.console.support import NEEDED
from tests.support import browser

pytest.importorskip("textual_serve", reason=NEEDED)
DEADLINE_S = 60.0


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_request_without_the_key_is_refused_and_pages_load_nothing_from_elsewhere() -> None:
    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    from embedlog.console.web import ConsoleServer

    async def scenario() -> None:
        application = await ConsoleServer("exit 1", "127.0.0.1", 1, "secret").application()
        assert isinstance(application, web.Application)
        async with TestClient(TestServer(application)) as client:
            for path in ("/", "/ws", "/static/js/textual.js", "/download/x", "/?key=", "/?key=wrong", "/ws?key=secret"):
                answer = await client.get(path, allow_redirects=False)
                assert (answer.status, await answer.text()) == (
                    403, "open the address that `embedlog console --web` printed\n",
                ), path  # fmt: skip
            answer = await client.get("/?key=secret", allow_redirects=False)
            assert (answer.status, answer.headers["Location"]) == (302, "/")
            cookie = answer.headers["Set-Cookie"]
            assert cookie == "embedlog-console-1=secret; HttpOnly; Path=/; SameSite=Strict"
            answer = await client.get("/")
            assert answer.status == 200
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            page = await answer.text()
            assert f'"ws://127.0.0.1:{client.port}/ws"' in page
            assert (await client.get("/static/js/textual.js")).status == 200

    asyncio.run(scenario())


@contextmanager
def served(path: Path, *arguments: str) -> Iterator[str]:
    """The address of a server, which is ended by SIGTERM; it and its processes have then ended."""
    command = [sys.executable, "-m", "embedlog", "console", str(path), "--web", "--port", str(free_port()), *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        children = processes_of(server.pid)
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=DEADLINE_S)
        assert (server.returncode, errors) == (0, "")
        deadline = time.monotonic() + DEADLINE_S
        while any(os.path.exists(f"/proc/{pid}") for pid in children):
            assert time.monotonic() < deadline, children
    finally:
        server.kill()
        server.communicate()


def processes_of(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in found]


@pytest.mark.slow
def test_the_server_listens_on_the_given_address_only(known_log: Path) -> None:
    with served(known_log) as address:
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?key=[\w-]{22}", address)
        assert found is not None
        listening = subprocess.run(["ss", "-Hltn", f"sport = :{found[1]}"], capture_output=True, text=True, check=False).stdout
        assert not listening or [line.split()[3] for line in listening.splitlines()] == [f"127.0.0.1:{found[1]}"]
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=DEADLINE_S)
        with closing(connection):
            connection.request("GET", "/")
            assert connection.getresponse().status == 403


@pytest.mark.slow
def test_a_real_browser_shows_the_log_and_its_keyboard_works(known_log: Path, tmp_path: Path) -> None:
    with browser.started("--window-size=1400,900") as driven, served(known_log, "--interval", "0.2") as address:
        driven.get(address)
        screen = Browser(driven)
        screen.shows("orders", "evil", "read-only")
        assert "key=" not in driven.current_url
        driven.find_element("css selector", "#terminal").click()
        screen.press("3")
        screen.shows("readers", "classic")
        screen.press("d", "1", "d")
        screen.shows("read-only: start with --write")
        screen.press("2")
        screen.shows("tombstone", "[bold]markup[/bold]", "␛[31mred")
        assert b"\x1b]0;title" not in screen.output
        assert driven.get_screenshot_as_file(str(tmp_path / "screen.png"))
        screen.press("q")
        screen.closed()
        assert not screen.requests_elsewhere(address)


class Browser:
    """What the terminal in a browser receives, and its keyboard."""

    def __init__(self, driven: Any) -> None:
        self._browser, self.output, self._requests = driven, b"", []  # type: ignore[var-annotated]

    def _read(self) -> None:
        for entry in self._browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.webSocketFrameReceived":
                response = message["params"]["response"]
                data = response["payloadData"]
                self.output += base64.b64decode(data) if response["opcode"] == 2 else data.encode()
            elif message["method"] == "Network.responseReceived":
                self._requests.append(message["params"]["response"]["url"])

    def _until(self, condition: Any, reason: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{reason}\n{self.output[-3000:]!r}"
            self._read()

    def shows(self, *texts: str) -> None:
        """Wait until all texts were written to the terminal since the last key."""
        plain = lambda: re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", self.output).decode("utf-8", "replace")  # noqa: E731
        self._until(lambda: all(text in plain() for text in texts), f"not shown: {texts}")

    def closed(self) -> None:
        """Wait until the page says that the session has ended."""
        self._until(lambda: "-closed" in self._browser.execute_script("return document.body.className"), "still open")

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self._browser).send_keys(key).perform()

    def requests_elsewhere(self, address: str) -> list[str]:
        """Answers from other hosts."""
        own = address.partition("?")[0]
        return [url for url in self._requests if not url.startswith((own, "data:", "blob:"))]
