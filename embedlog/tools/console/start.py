"""Starts the console in a terminal, or as a web server that starts one for each browser.

The console needs a terminal for the keyboard, and for both outputs: textual draws on standard
error, and takes the size from standard output. The web server gives it one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from embedlog import MissingExtraError

WEB_DRIVER = "TEXTUAL_DRIVER"  # textual-serve sets it for the processes that it starts


def check_packages() -> None:
    """Raises MissingExtraError if a package is not installed."""
    try:
        import textual  # noqa: F401
        import textual_serve  # noqa: F401
    except ImportError as missing:
        raise MissingExtraError(
            "the console needs textual and textual-serve", extra="console"
        ) from missing


def has_terminal() -> bool:
    """Whether the keyboard and the screen of this process are a terminal, or those of a browser."""
    return bool(os.environ.get(WEB_DRIVER)) or find_redirected_stream() is None


def find_redirected_stream() -> str | None:
    """The first standard stream that is no terminal, with its use."""
    streams = {
        "standard input, its keyboard": sys.stdin,
        "standard output, whose size it has": sys.stdout,
        "standard error, on which it draws": sys.stderr,
    }
    for name, stream in streams.items():
        if stream is None or not stream.isatty():
            return name
    return None


def run_in_terminal(paths: Sequence[str], *, write: bool, interval_s: float) -> int:
    """Run the application until it is left; returns the exit status. REQUIRES `has_terminal`."""
    from embedlog.tools.console.app import Console

    application = Console(paths, write=write, interval_s=interval_s)
    application.run()
    return int(application.return_code or 0)


def run_as_server(
    paths: Sequence[str], *, write: bool, interval_s: float, host: str, port: int
) -> int:
    """Serve the application to browsers until SIGINT or SIGTERM; returns the exit status. Raises
    OSError.
    """
    from embedlog.tools.console.web import serve

    return serve(paths, write=write, interval_s=interval_s, host=host, port=port)
