"""The state machine of the public API, on one directory and on a set: a short run with a new seed, and long ones.

A failing run prints its seed and the shrunk program. `python -m tests.machine --seed … --directories …` repeats it.
`EMBEDLOG_MACHINE_STEPS` is the number of steps of a long run on one directory, and on a set.
"""

from __future__ import annotations

import os

import pytest

from tests.faults.harness.processes import Nursery
from tests.machine import campaign
from tests.support.campaign_report import add_counts, pieces

SHORT_EXAMPLES = 8
LONG_STEPS = int(os.environ.get("EMBEDLOG_MACHINE_STEPS", "200000"))
PIECES = 20
DIRECTORIES = pytest.mark.parametrize("directories", [1, 3], ids=["one directory", "a set"])


@pytest.mark.faults
@DIRECTORIES
def test_nothing_that_kafka_does_not_allow_is_seen(nursery: Nursery, seed: int, directories: int) -> None:
    counts = campaign.run_round(seed, directories, SHORT_EXAMPLES, nursery=nursery)
    add_counts(f"state machine, directories={directories}", **counts)


@pytest.mark.faults
@pytest.mark.timeout(7200)
@DIRECTORIES
@pieces(PIECES)
def test_nothing_that_kafka_does_not_allow_is_seen_long(
    nursery: Nursery, campaign_seed: int, piece: int, directories: int
) -> None:
    steps = 0
    first_seed = campaign_seed + (piece << 32)
    while steps < LONG_STEPS // PIECES:
        counts = campaign.run_round(first_seed, directories, 20, nursery=nursery)
        add_counts(f"state machine, directories={directories}", **counts)
        steps += counts["steps"]
        first_seed += 1
