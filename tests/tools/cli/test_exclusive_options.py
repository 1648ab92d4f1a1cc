"""Options that exclude each other are refused, in any order, before anything is opened: no option
silently wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import click
import pytest

import embedlog
from embedlog.tools.cli.commands import VERBS, program
from embedlog.tools.cli.invocation import Verb


def verbs() -> Iterator[tuple[tuple[str, ...], Verb]]:
    """All verbs with the words that call them, also those of groups."""
    context = program.make_context("embedlog", ["cat"])
    for name in sorted(VERBS):
        command = program.get_command(context, name)
        if isinstance(command, click.Group):
            yield from (
                ((name, each), found)
                for each, found in command.commands.items()
                if isinstance(found, Verb)
            )
        elif isinstance(command, Verb):
            yield (name,), command


PAIRS = [
    (words, one, other)
    for words, verb in verbs()
    for group in verb.exclusive_groups()
    for one, other in permutations(group, 2)
]


def given(option: click.Option, path: Path) -> list[str]:
    """The option with a value that it accepts."""
    name = option.opts[-1]
    if option.is_flag:
        return [name]
    return [name, str(path) if isinstance(option.type, click.Path | click.File) else "1"]


def required(words: tuple[str, ...]) -> list[str]:
    return ["x"] if words in (("grep",), ("import",), ("export",), ("handover",)) else []


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    ("words", "one", "other"),
    PAIRS,
    ids=lambda value: value.opts[-1] if isinstance(value, click.Option) else "-".join(value),
)
def test_two_of_a_group_are_refused(
    run: Callable[..., Any],
    tmp_path: Path,
    words: tuple[str, ...],
    one: click.Option,
    other: click.Option,
) -> None:
    (tmp_path / "a file").write_text("{}")
    outcome = run(
        *words,
        *required(words),
        *given(one, tmp_path / "a file"),
        *given(other, tmp_path / "a file"),
    )
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(
        f"embedlog: {one.opts[-1]} and {other.opts[-1]} exclude each other"
    )
    assert not (tmp_path / "data").exists()


GROUPS = [
    ("topics", "--create", "--delete"),
    ("topics", "--list", "--describe"),
    ("groups", "--describe", "--delete"),
    ("groups", "--reset-offsets", "--delete-offsets"),
    ("groups", "--to-earliest", "--to-latest"),
    ("groups", "--to-current", "--to-offset"),
    ("groups", "--shift-by", "--from-file"),
    ("groups", "--dry-run", "--execute"),
    ("groups", "--group", "--all-groups"),
    ("groups", "--members", "--state"),
    ("groups", "--topic", "--all-topics"),
    ("reassign", "--execute", "--list"),
    ("reassign", "--cancel", "--verify"),
    ("transactions", "--list", "--abort"),
    ("transactions", "--open", "--find-hanging"),
    ("configs", "--describe", "--alter"),
    ("replicas", "--verify", "--repair"),
    ("mirror", "--group", "--groups"),
    ("elect", "--topic", "--all-topic-partitions"),
    ("consume", "--offset", "--from-beginning"),
    ("delete-records", "--partition", "--all-partitions"),
    ("delete-records", "--partition", "--offset-json-file"),
    ("delete-records", "--topic", "--offset-json-file"),
    ("dump", "--offsets-decoder", "--transaction-log-decoder"),
]


def test_every_group_of_exclusive_options_is_known() -> None:
    found = {(words[0], one.opts[-1], other.opts[-1]) for words, one, other in PAIRS}
    assert [each for each in GROUPS if each not in found] == []


@pytest.mark.parametrize("order", [("--create", "--delete"), ("--delete", "--create")])
def test_nothing_is_deleted_beside_another_action(
    run: Callable[..., Any], tmp_path: Path, order: tuple[str, str]
) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("a.b")
    outcome = run("topics", *order, "--topic", "a.b")
    assert outcome.status == 2
    assert (
        outcome.err
        == f"embedlog: {order[0]} and {order[1]} exclude each other (embedlog topics --help "
        "lists the options)\n"
    )
    assert run("topics").out == "a.b\n"


def test_an_option_that_is_repeated_contradicts_nothing(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("a.b")
    assert run("topics", "--list", "--list").out == "a.b\n"
