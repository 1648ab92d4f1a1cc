"""Serves the console to browsers: each connection is a process of its own.

The printed address has a key. It opens a session: a path and a cookie, both random and neither of
them the key. A browser sends a cookie to every port of its host, so a page of another user at
127.0.0.1 could read one that is valid below `/`; it cannot read this one, because it does not know
the path. A request without path and cookie is refused, and so is one whose `Host` is no name of
this machine (a name of another site that was bound to its address) or whose `Origin` is another
page. A page loads nothing from another host, and no other page can contain it. The end of the
server ends its processes within `END_S`.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web
from textual_serve.server import Server

END_S = 3.0
HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:]+))(?::\d+)?")
FOREIGN_LINK = re.compile(r"<link\b[^>]*\bhref=[\"'](?:https?:)?//[^>]*>")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleServer(Server):
    """textual-serve with a key."""

    def __init__(self, command: str, host: str, port: int, key: str) -> None:
        super().__init__(command, host=host, port=port, title="embedlog console")
        self._key = key
        self._cookie = f"embedlog-console-{port}"
        self._session = secrets.token_urlsafe(16)
        self._root = f"/{secrets.token_urlsafe(16)}"
        self._names = {"localhost", socket.gethostname().lower(), host.lower()}
        self.address = f"http://{host_in_address(host)}:{port}/?key={key}"

    async def application(self) -> web.Application:
        """The routes of textual-serve below the path of the session, each after its checks."""

        async def check_and_handle(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._check_and_handle(request, handler)

        application = web.Application(middlewares=[web.middleware(check_and_handle)])
        application.router.add_get("/", self._open_session)
        console: web.Application = await self._make_app()
        application.add_subapp(self._root, console)
        return application

    async def on_startup(self, app: web.Application) -> None:
        sys.stdout.write(f"{self.address}\n")
        sys.stdout.flush()

    async def _open_session(self, request: web.Request) -> web.StreamResponse:
        if not is_same(request.query.get("key", ""), self._key):
            raise make_refusal()
        redirect = web.HTTPFound(f"{self._root}/")  # the key does not stay in the address
        redirect.set_cookie(
            self._cookie, self._session, path=f"{self._root}/", httponly=True, samesite="Strict"
        )
        raise redirect

    async def _check_and_handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._is_own_host(request.host):
            raise web.HTTPForbidden(
                text=f"Host is {request.host!r}, which is neither an address nor a name of this "
                "machine\n"
            )
        own_origin = f"{request.scheme}://{request.host}"
        origin = request.headers.get("Origin")
        is_handshake = request.headers.get("Upgrade") is not None
        # a browser sends it with each handshake
        if origin != own_origin and (origin is not None or is_handshake):
            raise web.HTTPForbidden(text=f"Origin is {origin!r}, expected {own_origin!r}\n")
        if request.path == "/":
            return await handler(request)
        is_below_root = request.path.startswith(f"{self._root}/")
        if not is_below_root or not is_same(request.cookies.get(self._cookie, ""), self._session):
            raise make_refusal()
        self.public_url = own_origin  # of the page that is rendered now
        response = await handler(request)
        if not response.prepared:
            self._protect(request, response)
        return response

    def _protect(self, request: web.Request, response: web.StreamResponse) -> None:
        """Take links to other hosts out of a page, and forbid everything else that leads there."""
        response.headers["Content-Security-Policy"] = (
            "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' "
            "'unsafe-inline'; "
            f"img-src 'self' data:; connect-src 'self' ws://{request.host} wss://{request.host}; "
            "frame-ancestors 'none'"
        )
        response.headers["Referrer-Policy"] = "no-referrer"
        if (
            isinstance(response, web.Response)
            and response.content_type == "text/html"
            and response.text is not None
        ):
            response.text = FOREIGN_LINK.sub("", response.text)

    def _is_own_host(self, host: str) -> bool:
        """Whether no other site can have sent the browser here: an address cannot be bound to
        another machine, as a name can.
        """
        match = HOST.fullmatch(host.lower())
        if match is None:
            return False
        name = match["name"] or match["address"]
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def host_in_address(host: str) -> str:
    """A host as in an address: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host


def is_same(secret: str, expected: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(secret.encode("utf-8", "replace"), expected.encode())


def make_refusal() -> web.HTTPForbidden:
    """The answer to a request without the key, or without a session."""
    return web.HTTPForbidden(text="open the address that `embedlog console --web` printed\n")


def serve(paths: Sequence[str], *, write: bool, interval_s: float, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM. Raises OSError if the address cannot be used."""
    arguments = [
        sys.executable,
        "-m",
        "embedlog",
        "console",
        "--interval",
        str(interval_s),
    ]
    if write:
        arguments.append("--write")
    command = shlex.join([*arguments, "--", *map(os.path.abspath, paths)])
    server = ConsoleServer(f"exec {command}", host, port, secrets.token_urlsafe(16))
    # else a thread waits, and writes a line if the loop ends first
    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    loop = asyncio.new_event_loop()
    settings: dict[str, Any] = {
        "host": host,
        "port": port,
        "print": None,
        "loop": loop,
        "shutdown_timeout": END_S,
    }
    web.run_app(server.application(), **settings)
    return 0
