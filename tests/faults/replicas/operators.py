"""Processes that change a set, or back it up, while others work with it and while faults happen.

An operator may be killed at any call. Another one then completes its operation.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import embedlog
from tests.faults.harness.processes import Victim
from tests.faults.harness.tasks import Stage, task
from tests.faults.replicas.set_tasks import open_set, repeated


@dataclass
class Operator:
    """A process, and the task that it runs."""

    task: str
    arguments: tuple[Any, ...]
    finish: Callable[[], object]  # what follows the completed task
    victim: Victim


def without_open_transactions(log: embedlog.Log, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while found := log.open_transactions():
        assert time.monotonic() < end, f"the transactions of a backup do not end: {found}"
        log.housekeep()


def closed(stage: Stage) -> None:
    log = stage.opened
    stage.log = None
    log.close()


@task
def replace_directory(
    stage: Stage, paths: Sequence[str], old: str, new: str, deadline_s: float
) -> None:
    """Add a directory, move all replicas of another one to it, and retire that one."""

    def operation(log: embedlog.Log) -> None:
        nodes = {str(each.path): each.node for each in log.replicas().directories}
        if old in nodes:
            log.add_directory(new)
            log.retire_directory(nodes[old])

    open_set(stage, paths, deadline_s)
    repeated(stage, "replacement", deadline_s, lambda: operation(stage.opened))
    closed(stage)


@task
def replace_stranger(stage: Stage, paths: Sequence[str], path: str, deadline_s: float) -> None:
    """Replace a directory that was put back. Before that it is used for nothing (REPLICA-12)."""

    def operation(log: embedlog.Log) -> None:
        found = next(each for each in log.replicas().directories if each.path == path)
        if found.answers:
            raise AssertionError(f"a directory that was put back is used: {found}")
        log.replace_directory(found.node, path)

    open_set(stage, paths, deadline_s)
    repeated(stage, "replacement", deadline_s, lambda: operation(stage.opened))
    closed(stage)


@task
def back_up(stage: Stage, paths: Sequence[str], target: str, deadline_s: float) -> None:
    """Copy the set to a directory, and open the copy, which completes the decided transactions and
    aborts the others.

    What a killed process has left there is removed before.
    """
    shutil.rmtree(target, ignore_errors=True)
    open_set(stage, paths, deadline_s)
    repeated(stage, "backup", deadline_s, lambda: stage.opened.backup(target))
    closed(stage)
    with embedlog.open(target) as copy:
        without_open_transactions(copy, deadline_s)
