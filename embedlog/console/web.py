"""Serves the console to browsers: each connection is a process of its own.

CONSOLEWEB-1  a request without the key of this server is refused: other users of the machine and other sites have no access
CONSOLEWEB-2  a page loads nothing from another host, and no other page can contain it
CONSOLEWEB-3  the end of the server ends its processes within `END_S`
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web
from textual_serve.server import Server

END_S = 3.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleServer(Server):
    """textual-serve with a key."""

    def __init__(self, command: str, host: str, port: int, key: str) -> None:
        super().__init__(command, host=host, port=port, title="embedlog console")
        self._key, self._cookie = key, f"embedlog-console-{port}"
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{port}/?key={key}"

    async def application(self) -> web.Application:
        """The routes of textual-serve, each after a check of the key."""
        made: web.Application = await self._make_app()

        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._checked(request, handler)

        made.middlewares.append(web.middleware(checked))
        return made

    async def on_startup(self, app: web.Application) -> None:
        sys.stdout.write(f"{self.address}\n")
        sys.stdout.flush()

    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.query.get("key")
        if request.path == "/" and given is not None and self._is_key(given):
            found = web.HTTPFound("/")
            found.set_cookie(self._cookie, self._key, httponly=True, samesite="Strict")
            raise found  # the key does not stay in the address
        if not self._is_key(request.cookies.get(self._cookie, "")):
            raise web.HTTPForbidden(text="open the address that `embedlog console --web` printed\n")
        host = request.host
        self.public_url = f"{request.scheme}://{host}"  # of the page that is rendered now
        response = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = (
                "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
                f"img-src 'self' data:; connect-src 'self' ws://{host} wss://{host}; frame-ancestors 'none'"
            )
            response.headers["Referrer-Policy"] = "no-referrer"
        return response

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._key.encode())


def serve(places: Sequence[str], *, write: bool, interval_s: float, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM. Raises OSError if the address cannot be used."""
    arguments = [sys.executable, "-m", "embedlog", "console", "--interval", str(interval_s), *(["--write"] if write else [])]
    command = shlex.join([*arguments, "--", *map(os.path.abspath, places)])
    server = ConsoleServer(f"exec {command}", host, port, secrets.token_urlsafe(16))
    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):  # else a thread waits, and writes a line if the loop ends first
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    loop = asyncio.new_event_loop()
    settings: dict[str, Any] = {"host": host, "port": port, "print": None, "loop": loop, "shutdown_timeout": END_S}
    web.run_app(server.application(), **settings)
    return 0
