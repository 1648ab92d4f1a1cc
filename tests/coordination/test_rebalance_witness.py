"""The violations of E15: two members process one partition in one generation, and both may
commit.
"""

from __future__ import annotations

import pytest

from embedlog import TopicPartition
from tests.faults.groups.group_ledger import Ledger
from tests.faults.groups.rebalancing import Reports

TP = TopicPartition("t", 0)
# (pid, window)
HOLDER = (11, 4)
MET = (12, 9)


def judge(*, holder_counted: int | None, met_in: int) -> list[str]:
    """A member found another at work in its generation `met_in`; the other's commit counted in
    `holder_counted`, if at all.
    """
    reports = Reports()
    ledger = Ledger("g")
    reports.take(HOLDER[0], ("processed", HOLDER[1], TP, 0, 5, 1, None, []))
    reports.take(MET[0], ("processed", MET[1], TP, 0, 5, met_in, HOLDER, []))
    if holder_counted is not None:
        ledger.commits[(*HOLDER, TP)] = holder_counted
        ledger.committed[TP] = 5
    return reports.violations(ledger, {TP: 5})


def test_two_at_work_in_one_generation_are_a_violation() -> None:
    assert judge(holder_counted=14, met_in=14) == [
        f"{TP}: {MET[0]} met {HOLDER} at work in generation 14, and that one's commit counted in it"
    ]


@pytest.mark.parametrize(
    ("holder_counted", "why"),
    [
        (None, "the holder's commit was refused"),
        (13, "the holder committed before the other one's generation began"),
        (16, "the later one had been frozen, and replaced, before it checked"),
    ],
)
def test_one_of_an_earlier_generation_may_still_be_at_work(
    holder_counted: int | None, why: str
) -> None:
    assert judge(holder_counted=holder_counted, met_in=14) == [], why
