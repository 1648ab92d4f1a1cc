"""This module judges which of the opened directories of a set are the registered ones.

JUDGEMENT-1  each copy of the decision log shows a state, with records of which some may not count. It judges only if its own
    directory continues in it (REGISTRATION-2)
JUDGEMENT-2  the state of the set is one in which a majority of its voters continues: of several the most advanced one of the
    latest generation. A forced retirement begins a generation, which may have fewer decisions
JUDGEMENT-3  a directory that does not continue in the state of the set is a stranger. So is one of an earlier generation with
    more decisions than the set: its copy would undo a forced retirement
JUDGEMENT-4  without a majority the most advanced state judges. No decision is possible then
JUDGEMENT-5  the only directory of a set is no stranger (REGISTRATION-5)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from embedlog.errors import DirectoryInUseError, ReplicaSetError
from embedlog.replica_set import registration
from embedlog.replica_set.decisions.decision_view import View
from embedlog.replica_set.registration import Entered
from embedlog.replication.state import State

RESTORED = "embedlog.open([…], restored=True), or embedlog directories --restored,"


class Judgement(NamedTuple):
    """The state that judges, whether a majority of its voters continues in it, and the reason of each stranger by node."""

    state: State
    has_majority: bool
    strangers: Mapping[int, str]


def judged(entered: Mapping[int, Entered], views: Mapping[int, View]) -> Judgement | None:
    """Judge the opened directories by what their copies show; None before the first registration of a set."""
    choices = []
    for node, view in views.items():
        if not view.state.nodes:
            continue
        found = {other: why for other, each in entered.items() if (why := _strangeness(each, view.state))}
        able = entered.keys() - found.keys()
        voters = set(view.state.voters)
        is_own = node in able
        has_majority = is_own and 2 * len(voters & able) > len(voters)
        order = (has_majority, is_own, view.state.generation, *advance(view), node)
        choices.append((order, view, found))
    if not choices:
        return None
    order, chosen, strangers = max(choices, key=lambda choice: choice[0])
    for node, view in views.items():
        is_ahead = advance(view) > advance(chosen)
        if is_ahead and view.state.nodes and view.state.generation < chosen.state.generation:
            strangers.setdefault(node, "it has decisions of an earlier generation of the set, which this one lacks")
    return Judgement(chosen.state, order[0], strangers)


def advance(view: View) -> tuple[int, int]:
    """The order of the states that copies show."""
    return view.term, view.position


def _strangeness(entered: Entered, state: State) -> str:
    if not registration.is_judged(state):
        return ""
    if entered.membership.cluster_generation > state.generation:
        return "it has decisions of a later generation of the set"
    return registration.strangeness(entered, state)


def stranger(node: int, path: Path, why: str, *, has_majority: bool = True) -> ReplicaSetError:
    """The reason why a stranger is away, with the command that helps."""
    text = (
        f"the directory is not the registered one of node {node}: {why}. replace_directory({node}, {os.fspath(path)!r}), or"
        f" embedlog directories --replace {node}, makes it a member again: its content is kept beside it, and it is copied"
    )
    if not has_majority:
        text += (
            f". That needs a majority of the other directories. Without one, retire_directory({node}, force=True) gives it up;"
            f" {RESTORED} begins again if all directories were restored from copies"
        )
    return ReplicaSetError(text, paths=[os.fspath(path)])


def all_strangers(entered: Mapping[int, Entered], strangers: Mapping[int, str]) -> ReplicaSetError:
    """The error of a set of which no directory continues."""
    paths = {node: os.fspath(entered[node].path) for node in sorted(strangers)}
    reasons = "; ".join(f"node {node} ({path}): {strangers[node]}" for node, path in paths.items())
    text = f"no directory is the registered one. If all of them were restored from copies, {RESTORED} begins from these"
    return ReplicaSetError(text, paths=list(paths.values()), found=reasons)


def check_restored(found: Judgement | None, entered: Mapping[int, Entered]) -> None:
    """Check that a set may begin again from the given copies.

    Raises ReplicaSetError if a majority continues, or if a directory is absent; DirectoryInUseError.
    """
    if found is None:
        raise ReplicaSetError("the directories have no decisions of a set: there is nothing to be restored")
    if found.has_majority:
        commands = [f"replace_directory({node}, {os.fspath(entered[node].path)!r})" for node in sorted(found.strangers)]
        text = "the set continues: open it without restored=True"
        if commands:
            text += f", then {', '.join(commands)}"
        raise ReplicaSetError(text, paths=[os.fspath(each.path) for each in entered.values()])
    absent = [each.path for node, each in sorted(found.state.nodes.items()) if node not in entered]
    if absent:
        raise ReplicaSetError("a restored set begins with all of its directories: some are absent", paths=absent)
    for each in entered.values():
        if not each.first:
            raise DirectoryInUseError("another process has the directory of a restored set open", path=each.path)
