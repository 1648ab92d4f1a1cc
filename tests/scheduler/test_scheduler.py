"""Schedules of the real code: a defect of before is found again, short explorations of each
scenario, long ones by pieces.

A failure prints the smallest schedule that was found, with the command that repeats it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.harness.processes import Nursery
from tests.scheduler.controller import Scenario, controlling
from tests.scheduler.exploring import explore, find, lengths_of, listed, preempted, random_choices
from tests.scheduler.scenarios import Appending, Committing, PutBack, Reassigning, Replacing
from tests.scheduler.schedules import Listed, Schedule
from tests.support.campaign_report import pieces, share

SCENARIOS = {
    "open": PutBack,
    "append": Appending,
    "commit": Committing,
    "replace": Replacing,
    "reassign": Reassigning,
}
# random schedules in `make test`
SHORT = {PutBack: 2, Appending: 4, Committing: 2, Replacing: 2, Reassigning: 2}
LONG = 250  # random schedules of a scenario, in each piece
# schedules with two preemptions, in each piece
TWICE = int(os.environ.get("EMBEDLOG_SCHEDULES", 250))
PIECES = 4
FOUND_WITHIN = 60  # random schedules

every_scenario = pytest.mark.parametrize("make", SCENARIOS.values(), ids=SCENARIOS)
Make = Callable[[int], Scenario]


class Off(NamedTuple):
    """A rule that is off, where that is found, and a part of the paths at whose changes a process
    is preempted.

    Without paths the schedules are random ones.
    """

    mutant: str
    make: Make
    within: str = ""
    first: int = 0


MUTANTS = [
    Off("strangers_continue", PutBack),
    Off("no_append_lock", Appending),
    Off("rolled_without_the_lock", Appending),
    Off("committed_without_the_lock", Committing, "/t-0/"),
    Off("older_decision_counts", Reassigning),
]


# ---- the first test ----------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_the_records_that_a_put_back_directory_lacks_are_cut_without_the_rule(
    tmp_path: Path, processes: Nursery
) -> None:
    """A process has entered the copy, and is slow before it registers it; another one elects the
    copy.

    One preemption is enough, after a release of a lock in the copy.
    """
    with controlling(
        PutBack(), tmp_path / "without", "strangers_continue", nursery=processes
    ) as controller:
        seed, run = find(
            controller, listed(preempted(controller, 1, fine=False, within="/d3/", first=[1]))
        )
    check_keeps(PutBack(), tmp_path / "with", processes, seed, run.schedule)


# ---- exploration -------------------------------------------------------------------------------------------------


@pytest.mark.sample(0.25)
@every_scenario
@pytest.mark.timeout(900)
def test_random_schedules_keep_every_promise(
    tmp_path: Path, processes: Nursery, make: Make, seed: int
) -> None:
    scenario = make(2)
    with controlling(scenario, tmp_path, nursery=processes) as controller:
        explore(controller, random_choices(seed, SHORT[type(scenario)], lengths_of(controller)))


@pytest.mark.faults
@pytest.mark.timeout(7200)
@every_scenario
@pytest.mark.parametrize("count", [2, 3])
@pieces(PIECES)
def test_many_random_schedules_keep_every_promise(
    tmp_path: Path, processes: Nursery, make: Make, count: int, campaign_seed: int, piece: int
) -> None:
    with controlling(make(count), tmp_path, nursery=processes) as controller:
        explore(
            controller,
            random_choices(campaign_seed, LONG, lengths_of(controller), first=piece * LONG),
        )


@pytest.mark.faults
@pytest.mark.timeout(7200)
@every_scenario
@pytest.mark.parametrize("kill", [False, True], ids=["preempted", "killed"])
@pieces(PIECES)
def test_every_schedule_with_one_preemption_keeps_every_promise(
    tmp_path: Path, processes: Nursery, make: Make, kill: bool, piece: int
) -> None:
    """Before each change of a file or of a shared word a process is preempted or killed, and the
    other one goes on.
    """
    with controlling(make(2), tmp_path, nursery=processes) as controller:
        explore(controller, listed(share(list(preempted(controller, 1, kill=kill)), piece, PIECES)))


@pytest.mark.faults
@pytest.mark.timeout(7200)
@every_scenario
@pieces(PIECES)
def test_schedules_with_two_preemptions_keep_every_promise(
    tmp_path: Path, processes: Nursery, make: Make, campaign_seed: int, piece: int
) -> None:
    """After each release of a lock: thousands, of which each run takes others. EMBEDLOG_SCHEDULES
    sets their number.
    """
    with controlling(make(2), tmp_path, nursery=processes) as controller:
        every = list(preempted(controller, 2, fine=False))
        drawn = random.Random(campaign_seed).sample(every, min(len(every), TWICE * PIECES))
        print(f"{len(drawn)} of {len(every)} schedules with two preemptions")
        explore(controller, listed(share(drawn, piece, PIECES)))


# ---- mutants -----------------------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("off", MUTANTS, ids=[off.mutant for off in MUTANTS])
def test_a_rule_that_is_off_is_found(
    tmp_path: Path, processes: Nursery, off: Off, rng: random.Random
) -> None:
    """Some schedule breaks a promise without the rule, and none with it."""
    with controlling(
        off.make(2), tmp_path / "without", off.mutant, nursery=processes
    ) as controller:
        if off.within:
            schedules = list(preempted(controller, 1, within=off.within, first=[off.first]))
            choices = listed(rng.sample(schedules, len(schedules)))
        else:
            choices = random_choices(rng.getrandbits(30), FOUND_WITHIN, lengths_of(controller))
        seed, run = find(controller, choices)
    check_keeps(off.make(2), tmp_path / "with", processes, seed, run.schedule)


def check_keeps(
    scenario: Scenario, root: Path, processes: Nursery, seed: int, schedule: Schedule
) -> None:
    """The real code keeps its promises under a schedule."""
    with controlling(scenario, root, nursery=processes) as controller:
        run = controller.run(Listed(schedule), seed=seed)
        assert not run.violations, str(run)
