"""Histories of the decision log with kills, failing directories, old copies and power losses.

A decision that a process has acted on is never lost (M1). They are executions of the model
`decisions`; each rule of the protocol has a history that loses a decision without it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.errors import EmbedlogError
from tests.faults.power.powerloss import HEAD, PROMISE, Change, changes, disks
from tests.support.decision_logs import (
    DONE,
    NODES,
    Acted,
    Process,
    begun,
    copy_path,
    each_kill,
    killed_with,
    made,
    outcome,
)
from tests.support.mutants import mutated

PAIRS = ((1, 2), (2, 3), (1, 3))


def finished(root: Path, acted: Acted, *, boot: int, pair: tuple[int, ...] = (1, 2)) -> None:
    """A process with a majority decides, then one with all directories; then nothing may be
    lost.
    """
    with Process(root, pair, boot=boot) as process:
        assert acted.decide(process, 100)
    with Process(root, boot=boot) as process:
        assert acted.decide(process, 101)
    acted.check(root, NODES)


def restored(root: Path, node: int, source: Path) -> None:
    """An operator puts an old copy of a directory in its place."""
    shutil.rmtree(root / f"d{node}")
    shutil.copytree(source / f"d{node}", root / f"d{node}")


# ---- kills ---------------------------------------------------------------------------------------


def test_m1_a_process_is_killed_at_any_call_of_a_decision(
    tmp_path: Path, rng: random.Random
) -> None:
    """At every fourth call, from one of the first four on."""
    begun(tmp_path / "begun")
    count = 0
    work = lambda here: Process(here).decide(2)  # noqa: E731
    kills = each_kill(tmp_path / "begun", tmp_path, work, first=rng.randint(1, 4), step=4)
    for count, (here, pair) in enumerate(zip(kills, itertools.cycle(PAIRS)), 1):
        finished(here, Acted(1), boot=1 + count % 2, pair=pair)
        shutil.rmtree(here)
    assert count > 10


@pytest.mark.slow
def test_m1_a_process_is_killed_at_any_call_while_it_levels(tmp_path: Path) -> None:
    """The first copy has a decision that does not count, the others have counted ones that it
    lacks.
    """
    root = begun(tmp_path / "begun")
    killed_with(root, NODES, lambda process: process.decide(2), 2)
    acted = Acted(1)
    with Process(root, (2, 3)) as process:
        assert acted.decide(process, 3)
        assert acted.decide(process, 4)
    work = lambda here: Process(here, (1, 2)).decide(5)  # noqa: E731
    count = 0
    for count, (here, pair) in enumerate(
        zip(each_kill(root, tmp_path, work), itertools.cycle(((1, 3), (1, 2)))), 1
    ):
        finished(here, Acted(*acted.numbers), boot=1 + count % 2, pair=pair)
        shutil.rmtree(here)
    assert count > 20


def test_m1_random_histories(tmp_path: Path, rng: random.Random) -> None:
    """Any directories are away, any process is killed at any call, pages are lost."""
    for turn in range(3):
        root = begun(tmp_path / str(turn))
        acted = Acted(1)
        boot = 1
        for number in range(2, 22):
            nodes = rng.choice([*PAIRS, NODES])
            boot += rng.random() < 0.2
            nth = rng.choice([rng.randrange(1, 60), 10_000])
            if outcome(partial(_decided, root, nodes, boot, number), nth) == DONE:
                acted.numbers.append(number)
        finished(root, acted, boot=boot, pair=rng.choice(PAIRS))
        print(f"{len(acted.numbers)} decisions in history {turn}")


def _decided(root: Path, nodes: tuple[int, ...], boot: int, number: int) -> None:
    Process(root, nodes, boot=boot).decide(number)


# ---- old copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("node", NODES)
def test_m1_an_old_copy_of_a_minority_is_put_back(tmp_path: Path, node: int) -> None:
    root = begun(tmp_path / "set")
    acted = Acted(1)
    shutil.copytree(root, tmp_path / "old")
    with Process(root) as process:
        assert acted.decide(process, 2)
    restored(root, node, tmp_path / "old")
    finished(root, acted, boot=2, pair=next(pair for pair in PAIRS if node in pair))


def test_m1_a_destroyed_copy_begins_empty(tmp_path: Path) -> None:
    root = begun(tmp_path / "set")
    acted = Acted(1)
    shutil.rmtree(root / "d1")
    made(root, (1,))
    finished(root, acted, boot=2)


# ---- power losses --------------------------------------------------------------------------------


def after_power_losses(tmp_path: Path, rng: random.Random, states: int) -> int:
    """Open disks that a power loss may leave; returns their number. Raises AssertionError if a
    decision is lost.
    """
    root = tmp_path / "recorded"
    for node in NODES:
        (root / f"d{node}").mkdir(parents=True)
    found = recorded_from_the_start(root, tmp_path / "recording", 3)
    moments = sorted(rng.randrange(len(found)) for _ in range(states))
    acted = Acted()

    def act(change: Change) -> None:
        acted.numbers.append(json.loads(change.data))

    for where, target in disks(found, root, tmp_path, moments, rng, act):
        for node in NODES:
            if (
                not copy_path(target, node).exists()
                or not (copy_path(target, node) / "partition.metadata").exists()
            ):
                shutil.rmtree(copy_path(target, node), ignore_errors=True)
                made(target, (node,))
        try:
            with Process(target, boot=9) as process:
                if not process.log.settle().nodes:
                    process.begin()
                process.decide(100)
        except EmbedlogError as problem:
            raise AssertionError(f"{where}: {problem}") from problem
        Acted(*acted.numbers, 100).check(target, NODES)
        shutil.rmtree(target)
    return len(moments)


def recorded_from_the_start(root: Path, recording: Path, count: int) -> list[Change]:
    """The changes of a process that decides from the first decision on, and the numbers that it
    acted on between them.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            fd = os.open(recording, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            system.record_to(fd)
            for node in NODES:
                shutil.rmtree(root / f"d{node}")
            process = Process(made(root))
            process.begin()
            for number in range(1, 1 + count):
                process.decide(number)
                data = json.dumps(number).encode()
                os.write(fd, HEAD.pack(PROMISE, 0, 0, 0, 0, len(data)) + data)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return list(changes(recording))


def test_m1_power_losses(tmp_path: Path, rng: random.Random) -> None:
    assert after_power_losses(tmp_path, rng, 40) == 40


# ---- the rules -----------------------------------------------------------------------------------


def by_a_minority(tmp_path: Path) -> None:
    root = begun(tmp_path / "set")
    acted = Acted(1)
    with Process(root, (3,)) as process:
        acted.decide(process, 2)
    finished(root, acted, boot=1)


def in_one_term(tmp_path: Path) -> None:
    """Two processes write different records of the next term. The first one is killed, pages are
    lost.
    """
    root = begun(tmp_path / "set")
    acted = Acted(1)
    killed_with(root, (1, 2), lambda process: process.decide(2), 2)
    with Process(root, (2, 3), boot=2) as process:
        acted.decide(process, 3)
    finished(root, acted, boot=3)


def from_a_longer_copy(tmp_path: Path) -> None:
    """A killed process has left two records in one copy; the decision after that is one record."""
    root = begun(tmp_path / "set")
    acted = Acted(1)
    killed_with(root, NODES, lambda process: process.set_voters((1, 2), 2), 2)
    with Process(root, (2, 3)) as process:
        acted.decide(process, 3)
    finished(root, acted, boot=1)


def on_a_found_record(tmp_path: Path) -> None:
    """The first process leaves a record in d1, the second one a record of a later term in d2; the
    third one finds the first.
    """
    root = begun(tmp_path / "set")
    acted = Acted(1)
    killed_with(root, NODES, lambda process: process.decide(2), 2)
    killed_with(root, (2, 3), lambda process: process.decide(3), 3)
    with Process(root, (1, 3)) as process:
        acted.numbers += process.settled()
    finished(root, acted, boot=1, pair=(2, 3))


def with_the_old_voters_alone(tmp_path: Path) -> None:
    """The voter is replaced by two directories that do not hear of it; then an old copy of it is
    put back.
    """
    root = made(tmp_path / "set")
    acted = Acted()
    with Process(root, voters=(1,)) as process:
        process.begin((1,))
        process.add(2, voter=False)
        process.add(3, voter=False)
        assert acted.decide(process, 1)
    shutil.copytree(root, tmp_path / "old")
    with Process(root, (1,), voters=(1,)) as process:
        try:
            process.set_voters((2, 3), 2)
        except EmbedlogError:
            pass
        else:
            acted.numbers.append(2)
    restored(root, 1, tmp_path / "old")
    with Process(root, (1,), boot=2, voters=(1,)) as process:
        acted.decide(process, 3)
    with Process(root, boot=2, voters=(1,)) as process:
        acted.decide(process, 4)
    acted.check(root, NODES)


def not_synced(tmp_path: Path) -> None:
    after_power_losses(tmp_path, random.Random(1), 60)


HISTORIES: dict[str, Callable[[Path], None]] = {
    "minority_decides": by_a_minority,
    "no_promise": in_one_term,
    "longest_copy_leads": from_a_longer_copy,
    "found_record_counts": on_a_found_record,
    "decision_unsynced": not_synced,
    "old_voters_alone": with_the_old_voters_alone,
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", HISTORIES)
def test_each_rule_keeps_the_decisions_of_its_history(tmp_path: Path, rule: str) -> None:
    HISTORIES[rule](tmp_path / "with")
    with mutated(rule), pytest.raises(AssertionError):
        HISTORIES[rule](tmp_path / "without")
