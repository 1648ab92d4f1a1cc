"""Contains the whole table: an import of each module of verbs enters its own."""

from __future__ import annotations

from tests.interrupts import async_verbs, consumer_verbs, log_verbs, producer_verbs, set_verbs  # noqa: F401
from tests.interrupts.verbs import VERBS

__all__ = ["VERBS"]
