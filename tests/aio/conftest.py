"""The log of the tests of asyncio clients."""

from __future__ import annotations

from tests.support.asyncio_logs import log as log
