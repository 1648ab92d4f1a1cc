"""What all tests share: seeds that are printed, golden directories, one broker for the whole run.

The environment is prepared once, so that processes which tests start find this embedlog and no other.
"""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker per test file, and one for all tests that need the broker, wherever they lie."""
    for item in items:
        needs_broker = "broker" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("kafka" if needs_broker else item.path.name))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed, new in every run; EMBEDLOG_SEED repeats one. Printed, so a failure's report holds it."""
    given = os.environ.get("EMBEDLOG_SEED")
    number = int(given) if given else random.SystemRandom().getrandbits(32)
    print(f"seed of {request.node.name}: EMBEDLOG_SEED={number}")
    return number


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """A random source of this test's own, so that tests do not depend on their order."""
    return random.Random(seed ^ zlib.crc32(request.node.name.encode()))
