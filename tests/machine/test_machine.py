"""The state machine of the public API, on one directory and on a set: a short run with a new seed,
and long ones.

A failing run prints its seed and the shrunk program.
`python -m tests.machine --seed … --directories …` repeats the run, and `--program FILE` the
program. `EMBEDLOG_MACHINE_STEPS` is the number of steps of a long run on one directory, and on a
set.
"""

from __future__ import annotations

import os

import pytest

from tests.faults.harness.processes import Nursery
from tests.machine import campaign, shrink
from tests.machine.model import demand
from tests.support.campaign_report import add_counts, pieces

SHORT_EXAMPLES = 3
SHORT_STEPS = 40
LONG_STEPS = int(os.environ.get("EMBEDLOG_MACHINE_STEPS", "200000"))
PIECES = 20
DIRECTORIES = pytest.mark.parametrize("directories", [1, 3], ids=["one directory", "a set"])


@DIRECTORIES
def test_nothing_that_kafka_does_not_allow_is_seen(
    nursery: Nursery, seed: int, directories: int
) -> None:
    counts = campaign.run_round(
        seed, directories, SHORT_EXAMPLES, nursery=nursery, steps=SHORT_STEPS
    )
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


SHRINKING = """
begin(settings={}, others={}, count=1)
sync(actor='first')
send(actor='first', topic='a', drawn={'key': None, 'value': 'text', 'headers': (('h', b'1'),), 'age_ms': 0})
send(actor='second', topic='b', drawn={'key': b'k0', 'value': 'small', 'headers': (), 'age_ms': None})
sync(actor='second')
sync(actor='second')
"""


def test_a_failing_program_is_read_back_and_shrinks_to_the_call_that_fails() -> None:
    class Machine:
        """Fails if a record with headers was sent."""

        def __init__(self) -> None:
            self.is_wrong = False

        def begin(self, **_: object) -> None: ...
        def sync(self, **_: object) -> None: ...
        def teardown(self) -> None: ...

        def send(self, topic: str, drawn: dict[str, object], **_: object) -> None:
            self.is_wrong = self.is_wrong or bool(drawn["headers"])

        def compare(self) -> None:
            demand(not self.is_wrong, "a record has headers")

    program = shrink.from_text(SHRINKING)
    assert shrink.from_text(shrink.as_text(program)) == program
    short, problem = shrink.shrunk(Machine, program, 10)
    assert str(problem) == "a record has headers"
    assert shrink.as_text(short).splitlines() == [
        "begin(settings={}, others={}, count=1)",
        "send(actor='first', topic='a', drawn={'key': None, 'value': 'small', 'headers': (('h', "
        "b'1'),), 'age_ms': None})",
    ]
    assert shrink.shrunk(Machine, short[:1], 10) == (short[:1], None)
