"""This module judges which of the opened directories of a set are the registered ones.

- Each copy of the decision log shows a state, with records of which some may not count. It judges
  only if its own directory continues in it.
- The state of the set is one in which a majority of its voters continues: of several the most
  advanced one of the latest generation. A forced retirement begins a generation, which may have
  fewer decisions.
- A majority of directories that were put back together to earlier copies is none, if another
  directory has the later decisions. Openings are recorded before the decision that has them, so no
  decision makes strangers of a majority that has not got it yet. A copy of another history has
  later decisions, too, but not after all of those of the majority.
- A directory that does not continue in the state of the set is a stranger. So is one of an earlier
  generation with more decisions than the set: its copy would undo a forced retirement.
- Without a majority the most advanced state judges, also that of a directory that could not be
  opened because its locks are not free. No decision is possible then.
- The only directory of a set is no stranger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from embedlog.errors import DirectoryInUseError, ReplicaSetError
from embedlog.replicas.decisions.decision_view import DecisionView
from embedlog.replicas.members import registration
from embedlog.replicas.members.registration import EnteredDirectory
from embedlog.replicas.rules.state import State

RESTORED = "embedlog.open([…], restored=True), or embedlog directories --restored,"


class Judgement(NamedTuple):
    """The state that judges, whether a majority of its voters continues in it, and the reason of
    each stranger by node.
    """

    state: State
    has_majority: bool
    strangers: Mapping[int, str]


class Choice(NamedTuple):
    """A state that may be the one of the set: the node whose copy shows it, and who is a stranger
    in it.
    """

    node: int
    view: DecisionView
    strangers: dict[int, str]
    has_majority: bool  # of the voters, which continue in it; the node, too

    @property
    def is_own(self) -> bool:
        """Whether the directory that shows it continues in it."""
        return self.node not in self.strangers

    @property
    def order(self) -> tuple[int, ...]:
        """The best one is the state of the set."""
        return (
            self.has_majority,
            self.is_own,
            self.view.state.generation,
            *advance(self.view),
            self.node,
        )


def judge(
    entered: Mapping[int, EnteredDirectory],
    views: Mapping[int, DecisionView],
    continues: Callable[[int, int], bool],
) -> Judgement | None:
    """Judge the opened directories by what their copies show; None before the first registration of
    a set.

    `continues`: whether the records of the copy of one node begin with all of those of another one.
    It may be slow.
    """
    choices = [_choice_of(node, view, entered) for node, view in views.items() if view.state.nodes]
    if not choices:
        return None
    chosen = max(choices, key=lambda choice: choice.order)
    later = [
        choice
        for choice in choices
        if _is_later(choice, chosen) and continues(choice.node, chosen.node)
    ]
    if later:
        chosen = max(later, key=lambda choice: choice.order)
    strangers = chosen.strangers
    for choice in choices:
        is_ahead = advance(choice.view) > advance(chosen.view)
        if is_ahead and choice.view.state.generation < chosen.view.state.generation:
            strangers.setdefault(
                choice.node,
                "it has decisions of an earlier generation of the set, which this one lacks",
            )
    return Judgement(chosen.view.state, chosen.has_majority, strangers)


def _choice_of(node: int, view: DecisionView, entered: Mapping[int, EnteredDirectory]) -> Choice:
    strangers = dict[int, str]()
    for judged_node, directory in entered.items():
        reason = _strangeness(directory, view.state)
        if reason:
            strangers[judged_node] = reason
    voters = set(view.state.voters)
    able = voters & (entered.keys() - strangers.keys())
    has_majority = node not in strangers and 2 * len(able) > len(voters)
    return Choice(node, view, strangers, has_majority)


def _is_later(choice: Choice, chosen: Choice) -> bool:
    """Whether a majority continues in the chosen state, but not in this one, which has later
    decisions.
    """
    is_of_same_generation = choice.view.state.generation == chosen.view.state.generation
    is_ahead = advance(choice.view) > advance(chosen.view)
    return (
        chosen.has_majority
        and choice.is_own
        and not choice.has_majority
        and is_of_same_generation
        and is_ahead
    )


def advance(view: DecisionView) -> tuple[int, int]:
    """The order of the states that copies show."""
    return view.term, view.position


def _strangeness(entered: EnteredDirectory, state: State) -> str:
    if not registration.is_judged(state):
        return ""
    if entered.membership.cluster_generation > state.generation:
        return "it has decisions of a later generation of the set"
    return registration.strangeness(entered, state)


def stranger_error(
    node: int, path: Path, reason: str, *, has_majority: bool = True
) -> ReplicaSetError:
    """The reason why a stranger is away, with the command that helps."""
    text = (
        f"the directory is not the registered one of node {node}: {reason}. "
        f"replace_directory({node}, {os.fspath(path)!r}), or"
        f" embedlog directories --replace {node}, makes it a member again: its content is kept "
        "beside it, and it is copied"
    )
    if not has_majority:
        text += (
            ". That needs a majority of the other directories. Without one, "
            f"retire_directory({node}, force=True) gives it up;"
            f" {RESTORED} begins again if all directories were restored from copies"
        )
    return ReplicaSetError(text, paths=[os.fspath(path)])


def strangers_error(
    entered: Mapping[int, EnteredDirectory], strangers: Mapping[int, str]
) -> ReplicaSetError:
    """The error of a set of which no directory continues."""
    paths = {node: os.fspath(entered[node].path) for node in sorted(strangers)}
    reasons = "; ".join(f"node {node} ({path}): {strangers[node]}" for node, path in paths.items())
    text = (
        "no directory is the registered one. If all of them were restored from copies, "
        f"{RESTORED} begins from these"
    )
    return ReplicaSetError(text, paths=list(paths.values()), found=reasons)


def check_restored(verdict: Judgement | None, entered: Mapping[int, EnteredDirectory]) -> None:
    """Check that a set may begin again from the given copies.

    Raises ReplicaSetError if a majority continues, or if a directory is absent;
    DirectoryInUseError.
    """
    if verdict is None:
        raise ReplicaSetError(
            "the directories have no decisions of a set: there is nothing to be restored"
        )
    if verdict.has_majority:
        commands = [
            f"replace_directory({node}, {os.fspath(entered[node].path)!r})"
            for node in sorted(verdict.strangers)
        ]
        text = "the set continues: open it without restored=True"
        if commands:
            text += f", then {', '.join(commands)}"
        paths = [os.fspath(directory.path) for directory in entered.values()]
        raise ReplicaSetError(text, paths=paths)
    absent = [
        registered.path
        for node, registered in sorted(verdict.state.nodes.items())
        if node not in entered
    ]
    if absent:
        raise ReplicaSetError(
            "a restored set begins with all of its directories: some are absent", paths=absent
        )
    for directory in entered.values():
        if not directory.first:
            raise DirectoryInUseError(
                "another process has the directory of a restored set open", path=directory.path
            )
