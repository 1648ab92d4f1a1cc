"""A Ctrl-C at each instruction of each public verb: others can write, the verb can be repeated,
nothing is lost or doubled.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import pytest

import embedlog
from tests.interrupts import table
from tests.interrupts.runner import Outcome, Runner, Verb
from tests.support.campaign_report import add_counts, pieces

SAMPLE_S = 4.0
SAMPLE_MAX = 10  # of one verb
PIECES = 16
CLASSES: tuple[Any, ...] = (
    embedlog.Log,
    embedlog.Producer,
    embedlog.Consumer,
    embedlog.AsyncProducer,
    embedlog.AsyncConsumer,
)
ENTERED = ("__enter__", "__exit__", "__iter__", "__next__", "__aenter__", "__aexit__", "__aiter__")
# their counting alone takes a second
LONG = {"open_alone", "topics", "housekeep", "descriptions", "check", "scan_ahead"}

pytestmark = pytest.mark.may_leak(
    "an interrupt between a system call and the assignment of its result"
)


def test_every_public_verb_is_in_the_table() -> None:
    covered = {name for verb in table.VERBS for name in verb.covers}
    public = set()
    for owner in CLASSES:
        refused = {
            "AsyncProducer": ("__enter__", "__exit__"),
            "AsyncConsumer": ("__enter__", "__exit__", "__iter__"),
        }.get(owner.__name__, ("__aenter__", "__aexit__", "__aiter__"))
        for name in dir(owner):
            if (not name.startswith("_") or (name in ENTERED and name not in refused)) and callable(
                getattr(owner, name)
            ):
                public.add(f"{owner.__name__}.{name}")
    assert public - covered == set()


def test_an_interrupt_at_some_instructions_of_each_verb(rng: random.Random) -> None:
    runner = Runner()
    verbs = [verb for verb in table.VERBS if verb.name not in LONG and verb.stride == 1]
    rng.shuffle(verbs)
    outcomes: list[Outcome] = []
    try:
        runner.begin()
        until = time.monotonic() + SAMPLE_S
        for verb in verbs:
            if time.monotonic() >= until:
                break
            outcomes.append(
                runner.run(
                    verb,
                    lambda points: rng.sample(range(1, points + 1), min(SAMPLE_MAX, points)),
                    until,
                )
            )
    finally:
        runner.close()
    report(outcomes)


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pieces(PIECES)
def test_an_interrupt_at_every_instruction_of_each_verb(piece: int) -> None:
    runner = Runner()
    try:
        outcomes = [runner.run(verb, partial(points_of, verb, piece)) for verb in table.VERBS]
    finally:
        runner.close()
    report(outcomes)


def points_of(verb: Verb, piece: int, points: int) -> range:
    return range(1 + piece, points + 1, PIECES * verb.stride)


def report(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        print(outcome)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    add_counts(
        "interrupts",
        struck=sum(outcome.struck for outcome in outcomes),
        verbs=len(outcomes),
        violations=len(failures),
    )
    assert not failures, "\n".join(failures)
