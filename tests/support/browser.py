"""A headless Chromium for tests of pages; without one the test is skipped."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def started(*arguments: str) -> Iterator[Any]:
    """A driver with the logs of requests and of the page's console; closed at the end of the
    block.
    """
    selenium = pytest.importorskip(
        "selenium.webdriver", reason="no selenium: pip install 'embedlog[test]'"
    )
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no chromium and chromedriver: apt install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", *arguments):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    # The path is short: Chromium makes a socket below it, and the paths of sockets are limited to
    # 108 bytes (unix(7)).
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp", ignore_cleanup_errors=True) as own:
        driven = selenium.Chrome(
            options=options,
            service=selenium.ChromeService(driver, env={**os.environ, "TMPDIR": own}),
        )
        try:
            yield driven
        finally:
            driven.quit()
