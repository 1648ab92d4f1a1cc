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
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import browser
from tests.tools.console.support import NEEDED

pytest.importorskip("textual_serve", reason=NEEDED)
DEADLINE_S = 60.0


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


REFUSED = "open the address that `embedlog console --web` printed\n"


def waits_for_programs() -> list[threading.Thread]:
    """The threads of asyncio that wait for the programs that the server has started."""
    return [thread for thread in threading.enumerate() if "waitpid-" in thread.name]


async def wait_for_a_program() -> None:
    """Without that, the end of a test cancels the start of the program, and nobody waits for it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not waits_for_programs():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


@asynccontextmanager
async def client(host: str = "127.0.0.1") -> AsyncIterator[Any]:
    """A client of a server with the key `secret` that keeps no cookies."""
    from aiohttp import DummyCookieJar, web
    from aiohttp.test_utils import TestClient, TestServer

    from embedlog.tools.console.web import ConsoleServer

    application = await ConsoleServer("head -c 1 >/dev/null", host, 1, "secret").application()
    assert isinstance(application, web.Application)
    async with TestClient(TestServer(application), cookie_jar=DummyCookieJar()) as made:
        yield made
    for thread in waits_for_programs():
        await asyncio.to_thread(thread.join, DEADLINE_S)
    await asyncio.sleep(0)  # then the loop closes the pipes of the program


async def session_of(http: Any) -> tuple[str, str]:
    """The path and the cookie of a session."""
    answer = await http.get("/?key=secret", allow_redirects=False)
    assert answer.status == 302
    match = re.fullmatch(
        r"(embedlog-console-1=[\w-]{22}); HttpOnly; Path=(/[\w-]{22}/); SameSite=Strict",
        answer.headers["Set-Cookie"],
    )
    assert match is not None
    assert answer.headers["Location"] == match[2]
    return match[2], match[1]


def test_a_request_without_the_key_is_refused() -> None:
    async def scenario() -> None:
        async with client() as http:
            root, cookie = await session_of(http)
            assert "secret" not in root + cookie
            below = ("", "ws", "ws?key=secret", "?key=secret", "static/js/textual.js", "download/x")
            for path in (
                "/",
                "/ws",
                "/static/js/textual.js",
                "/?key=",
                "/?key=wrong",
                *(root + name for name in below),
            ):
                for wrong in ({}, {"Cookie": "embedlog-console-1=secret"}, {"Cookie": cookie[:-1]}):
                    answer = await http.get(path, headers=wrong, allow_redirects=False)
                    assert (answer.status, await answer.text()) == (403, REFUSED), (path, wrong)
            for path in (
                "/ws",
                "/static/js/textual.js",
                root.rstrip("/"),
                f"{root.rstrip('/')}x/",
            ):  # the cookie without its path
                answer = await http.get(path, headers={"Cookie": cookie})
                assert (answer.status, await answer.text()) == (403, REFUSED), path
            assert (
                await http.get(f"{root}static/js/textual.js", headers={"Cookie": cookie})
            ).status == 200

    asyncio.run(scenario())


def test_a_page_loads_nothing_from_elsewhere() -> None:
    async def scenario() -> None:
        async with client() as http:
            root, cookie = await session_of(http)
            answer = await http.get(root, headers={"Cookie": cookie})
            assert answer.status == 200
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            page = await answer.text()
            assert f'"ws://127.0.0.1:{http.port}{root}ws"' in page
            hosts = set(re.findall(r"//([^/\s\"')]+)", page))
            # the latter names the language SVG
            assert hosts == {f"127.0.0.1:{http.port}", "www.w3.org"}, hosts

    asyncio.run(scenario())


def test_a_foreign_host_or_origin_is_refused_everywhere() -> None:
    async def scenario() -> None:
        from aiohttp import WSServerHandshakeError

        async with client() as http:
            root, cookie = await session_of(http)
            own = {"Host": f"127.0.0.1:{http.port}", "Origin": f"http://127.0.0.1:{http.port}"}
            for changed in (
                {"Host": f"evil.example:{http.port}", "Origin": f"http://evil.example:{http.port}"},
                {"Host": "127.0.0.1.evil.example"},
                {"Host": "[::1].evil.example"},
                {"Host": "127.0.0.1@evil.example"},
                {"Host": ""},
                {"Origin": "http://evil.example"},
                {"Origin": "null"},
                {"Origin": "http://127.0.0.1:1"},
                {"Origin": f"https://127.0.0.1:{http.port}"},
            ):
                for path in ("/", "/?key=secret", root, f"{root}ws", f"{root}static/js/textual.js"):
                    answer = await http.get(
                        path, headers={"Cookie": cookie, **own, **changed}, allow_redirects=False
                    )
                    text = await answer.text()
                    assert (answer.status, text.split()[0]) == (
                        403,
                        "Origin" if "Host" not in changed else "Host",
                    ), (
                        changed,
                        path,
                    )
                with pytest.raises(WSServerHandshakeError) as refused:
                    await http.ws_connect(f"{root}ws", headers={"Cookie": cookie, **own, **changed})
                assert refused.value.status == 403
            with pytest.raises(WSServerHandshakeError):
                # no browser: each sends an Origin
                await http.ws_connect(f"{root}ws", headers={"Cookie": cookie})
            async with http.ws_connect(
                f"{root}ws", headers={"Cookie": cookie, **own}
            ) as socket_of_page:
                assert not socket_of_page.closed
                await wait_for_a_program()

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "log.example"])
def test_the_names_of_this_machine_are_accepted(host: str) -> None:
    async def scenario() -> None:
        async with client(host) as http:
            own = [
                "127.0.0.1:8000",
                "localhost",
                "LOCALHOST:9",
                "[::1]:8000",
                "192.168.1.7:8000",
                host,
                f"{host}:8000",
                socket.gethostname(),
            ]
            for name in own:
                answer = await http.get(
                    "/?key=secret", headers={"Host": name}, allow_redirects=False
                )
                assert answer.status == 302, name

    asyncio.run(scenario())


@contextmanager
def served(path: Path, *arguments: str) -> Iterator[str]:
    """The address of a server, which is ended by SIGTERM; it and its processes have then ended."""
    command = [
        sys.executable,
        "-m",
        "embedlog",
        "console",
        str(path),
        "--web",
        "--port",
        str(free_port()),
        *arguments,
    ]
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
        listening = subprocess.run(
            ["ss", "-Hltn", f"sport = :{found[1]}"], capture_output=True, text=True, check=False
        ).stdout
        assert not listening or [line.split()[3] for line in listening.splitlines()] == [
            f"127.0.0.1:{found[1]}"
        ]
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=DEADLINE_S)
        with closing(connection):
            connection.request("GET", "/")
            assert connection.getresponse().status == 403


@pytest.mark.slow
def test_a_real_browser_shows_the_log_and_its_keyboard_works(
    known_log: Path, tmp_path: Path
) -> None:
    with (
        browser.started("--window-size=1400,900") as driven,
        served(known_log, "--interval", "0.2") as address,
    ):
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
        # type: ignore[var-annotated]
        self._browser = driven
        self.output = b""
        self._requests = []

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
        plain = lambda: re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", self.output).decode(  # noqa: E731
            "utf-8", "replace"
        )
        self._until(lambda: all(text in plain() for text in texts), f"not shown: {texts}")

    def closed(self) -> None:
        """Wait until the page says that the session has ended."""
        self._until(
            lambda: "-closed" in self._browser.execute_script("return document.body.className"),
            "still open",
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self._browser).send_keys(key).perform()

    def requests_elsewhere(self, address: str) -> list[str]:
        """Answers from other hosts."""
        own = address.partition("?")[0]
        return [url for url in self._requests if not url.startswith((own, "data:", "blob:"))]
