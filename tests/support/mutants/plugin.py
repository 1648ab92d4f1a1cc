"""A plugin of pytest that switches a rule off in the whole run: `EMBEDLOG_MUTANT` names it."""

from __future__ import annotations

import os

import pytest

from tests.support.mutants import apply_mutant


def pytest_collection_finish(session: pytest.Session) -> None:
    """Apply the mutant after every module of the tests was imported (M3)."""
    apply_mutant(os.environ["EMBEDLOG_MUTANT"])
