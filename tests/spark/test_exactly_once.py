"""A streaming word count under faults: after every fault each word is present as often as in the
lines.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.faults.spark import sparking
from tests.faults.spark.sparking import CALL, CALLS, WHERE_COMMIT, WHERE_TASK, Fault, World
from tests.support.campaign_report import add_counts, pieces

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

LONG = 25
LONG_PIECES = 6
RETRIED = 30
DRIVERS = 8
DRIVERS_PIECES = 3


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.make()
    return made


def faults(rng: random.Random, count: int) -> list[Fault]:
    """So many, every kind in turn."""
    kinds = [(where, what) for where in WHERE_TASK for what in ("exit", "kill", "raise")]
    kinds += [(where, what) for where in WHERE_COMMIT for what in ("exit", "raise")] + [
        (CALL, "")
    ] * 6
    rng.shuffle(kinds)
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    return [
        (where, str(rng.randint(1, CALLS)) if where == CALL else what) for where, what in chosen
    ]


def one_of_each_place(rng: random.Random) -> list[Fault]:
    """A killed task, a task that ends or fails, an interrupted commit, and a commit that stops at
    one of its calls.
    """
    other = rng.choice(("exit", "raise"))
    commit = rng.choice(("exit", "raise"))
    chosen = [
        (rng.choice(WHERE_TASK), "kill"),
        (rng.choice(WHERE_TASK), other),
        (rng.choice(WHERE_COMMIT), commit),
    ]
    chosen.append((CALL, str(rng.randint(1, CALLS))))
    rng.shuffle(chosen)
    return chosen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_word_count_is_the_same_whatever_dies(
    spark: Any, world: World, rng: random.Random
) -> None:
    """Four faults, and a run that completes all work, a minute; the other slow tests have 150 of
    every kind.
    """
    sparking.register(spark)
    chosen = one_of_each_place(rng)
    found = sparking.under_fire(spark, world, rng, chosen, each=len(chosen))
    add_counts("Spark: exactly once", **found, violations=0)


@pytest.mark.slow
@pieces(LONG_PIECES)
def test_each_fault_is_mended_by_the_next_run(
    spark: Any, world: World, rng: random.Random, piece: int
) -> None:
    sparking.register(spark)
    found = sparking.under_fire(spark, world, rng, faults(rng, LONG), each=5)
    add_counts("Spark: exactly once", **found, violations=0)


def driver(world: World, *arguments: object) -> tuple[int, str]:
    """A driver of its own, and all its processes: its exit status and its last output."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.spark.sparking",
        str(world.path.parent),
        *map(str, arguments),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as running:
        try:
            said, complained = running.communicate(timeout=900)
        finally:
            os.killpg(running.pid, signal.SIGKILL)  # whatever a dead driver has left running
    return running.returncode, said.strip() or complained[-3000:]


@pytest.mark.slow
def test_a_task_that_is_tried_again_writes_once(world: World, seed: int) -> None:
    code, said = driver(world, seed, RETRIED)
    assert code == 0, said
    found = json.loads(said.splitlines()[-1])
    assert found["faults"] > RETRIED // 2
    assert found["queries_ended_by_them"] == 0
    add_counts("Spark: exactly once", **found, violations=0)


@pytest.mark.slow
@pieces(DRIVERS_PIECES)
def test_what_a_killed_driver_left_another_one_mends(
    spark: Any, world: World, rng: random.Random, piece: int
) -> None:
    """SIGKILL to the JVM and to the process that commits: before, within, and after the commit."""
    sparking.register(spark)
    struck = 0
    for number in range(DRIVERS):
        world.say(rng, rng.randint(2, 12))
        where = ("commit-begins", CALL, CALL, "commit-ends")[(number + piece) % 4]
        world.scheme(where, f"driver {rng.randint(1, CALLS)}" if where == CALL else "driver")
        driver(world)
        struck += not world.left()
        sparking.compare(*world.counts_so_far(), f"{where}, before any repair")
        problem = sparking.run(spark, world, "available", 30)
        assert not problem, f"after {where}: {problem}"
        sparking.compare(*world.counts(), where)
        assert not world.staged()
    add_counts("Spark: exactly once", faults=struck, drivers_killed=struck, violations=0)
