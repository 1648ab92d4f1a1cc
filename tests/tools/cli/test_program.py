"""The command line as a whole: statuses, one-line errors, refused options, late imports, the
process.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete

import embedlog
from embedlog.tools.cli.commands import NOT_NEEDED, SCRIPTS, VERBS, program
from embedlog.tools.cli.examples import EXAMPLES, example_lines
from embedlog.tools.cli.invocation import NETWORK
from embedlog.tools.cli.program import main
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "command-line.md").read_text()


def test_without_a_directory_the_usage_is_refused(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBEDLOG_DIR")
    outcome = run("ls")
    assert (outcome.status, outcome.out) == (2, "")
    assert "give -d DIRECTORY, or set EMBEDLOG_DIR" in outcome.err


def test_an_absent_directory_is_one_line_and_is_not_created(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    for verb in (["ls"], ["produce", "-t", "events"], ["topics", "--delete", "--topic", "events"]):
        outcome = run(*verb)
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1), verb
        assert outcome.err.startswith(f"embedlog: {tmp_path / 'data'}: no such log directory")
    assert not (tmp_path / "data").exists()


def test_an_option_with_one_value_is_refused_if_it_is_given_twice(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = run("topics", "--create", "--topic", "a", "--topic", "b")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("embedlog: --topic: given 2 times, takes one value")
    assert not (tmp_path / "data").exists()
    for name in ("a", "b"):
        run("topics", "--create", "--topic", name)
    # this one takes several, and there are no records
    assert run("consume", "-t", "a", "-t", "b", "-e").status == 1


def test_an_interrupt_ends_without_a_traceback(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(**options: Any) -> embedlog.Log:
        raise KeyboardInterrupt

    monkeypatch.setattr("embedlog.tools.cli.verbs.ls.open_log", interrupted)
    outcome = run("ls")
    assert (outcome.status, outcome.out, outcome.err.strip()) == (130, "", "")


def test_debug_shows_the_traceback(run: Callable[..., Any]) -> None:
    for arguments in (["ls", "--debug"], ["--debug", "ls"]):
        assert "Traceback" in run(*arguments).err, arguments


def test_the_directory_is_given_before_and_after_the_verb_and_by_the_environment(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    other = str(tmp_path / "other")
    assert events("-d", other, "topics", "--create", "--topic", "there").status == 0
    assert events("topics").out == "events\n"
    assert events("topics", "-d", other).out == events("-d", other, "topics").out == "there\n"


def test_several_directories_are_a_set(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "EMBEDLOG_DIR", os.pathsep.join(str(tmp_path / name) for name in ("a", "b", "c"))
    )
    made = run(
        "topics", "--create", "--topic", "events", "--partitions", "1", "--replication-factor", "3"
    )
    assert made.status == 0, made.err
    with embedlog.open([tmp_path / name for name in ("a", "b", "c")], read_only=True) as log:
        assert len(log.replicas("events").partitions[0].replicas) == 3


@pytest.mark.parametrize("option", NETWORK)
def test_a_network_option_is_refused_with_the_reason(run: Callable[..., Any], option: str) -> None:
    outcome = run("topics", option, "localhost:9092", "--list")
    assert (outcome.status, outcome.out) == (2, "")
    assert f"{option}: there is no server" in outcome.err
    assert f"`{option}`" in PAGE


def test_scripts_that_are_not_needed_name_the_reason(run: Callable[..., Any]) -> None:
    for name, reason in NOT_NEEDED.items():
        outcome = run(f"{name}.sh")
        assert outcome.status == 2
        assert reason in outcome.err
        assert name in run("--help").out
    for name, verb in SCRIPTS.items():
        assert f"is the verb {verb}" in run(name).err
    assert run("nonsense").status == 2


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_help_and_documented_keys(run: Callable[..., Any], verb: str) -> None:
    outcome = run(verb, "--help")
    assert outcome.status == 0
    assert "--directory" in outcome.out
    assert f"`{verb}" in PAGE


@pytest.mark.parametrize("words", [(), ("perf",), ("verifiable",)], ids=str)
def test_without_a_verb_the_help_is_printed_as_it_is(
    run: Callable[..., Any], words: tuple[str, ...]
) -> None:
    outcome = run(*words)
    wanted = run(*words, "--help")
    assert (outcome.status, outcome.out) == (2, "")
    assert wanted.status == 0
    assert outcome.err == wanted.out
    assert outcome.err.count("\n") > 8


MISTYPED = {
    ("topcis",): "no such verb: 'topcis': did you mean topics? embedlog --help lists the verbs",
    ("consum", "-t", "events"): "did you mean consume? ",
    ("kafka-topic.sh",): "did you mean topics",
    (
        "perf",
        "produce",
    ): "no such verb: 'produce': did you mean producer? embedlog perf --help lists the verbs",
    ("zzz",): "no such verb: 'zzz': embedlog --help lists the verbs",
    ("verif", "producer"): "did you mean verifiable? ",
}


@pytest.mark.parametrize("words", MISTYPED)
def test_a_mistyped_verb_gets_a_suggestion(
    events: Callable[..., Any], words: tuple[str, ...]
) -> None:
    outcome = events(*words)
    assert (outcome.status, outcome.out) == (2, "")
    assert MISTYPED[words] in outcome.err
    assert outcome.err.count("\n") == 1


COMPLETED = [
    ("embedlog produce -t events -z z", {"zstd"}),
    ("embedlog cat events -o s", {"stored", "s@"}),
    ("embedlog dump e", {"events-0"}),
    (
        "embedlog dump __consumer_offsets-4",
        {f"__consumer_offsets-{number}" for number in (4, *range(40, 50))},
    ),
    ("embedlog offsets --time e", {"earliest", "earliest-local"}),
    ("embedlog topics --create --topic t --config retention.m", {"retention.ms="}),
    ("embedlog configs --alter --topic events --delete-config a,retention.m", {"a,retention.ms"}),
    ("embedlog groups --list --type s", {"share", "streams"}),
    ("embedlog consume --property print.k", {"print.key="}),
    ("embedlog cat __", {"__consumer_offsets"}),
    ("embedlog cat e", {"events"}),
]


@pytest.mark.usefixtures("usual_internal_topics")
@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_values_are_completed(
    events: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    expected: set[str],
) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.reset_group_offsets("g", ["events"], to="earliest")
    words = line.split()
    complete = BashComplete(program, {}, "embedlog", "_EMBEDLOG_COMPLETE")
    assert {item.value for item in complete.get_completions(words[1:-1], words[-1])} == expected


def test_each_verb_has_examples_that_its_options_accept() -> None:
    assert set(EXAMPLES) == set(VERBS)
    for verb, rows in EXAMPLES.items():
        for text, _ in rows:
            words = shlex.split(text.partition(" | ")[2] or text)
            context = program.make_context("embedlog", words[1:])
            command = program.get_command(context, verb)
            assert command is not None, text
            rest = words[words.index(verb) + 1 :]
            while isinstance(command, click.Group):
                command = command.get_command(context, rest.pop(0))
                assert command is not None, text
            command.make_parser(click.Context(command)).parse_args(rest)


def test_help_ends_with_examples_that_can_be_copied(run: Callable[..., Any]) -> None:
    for words in (["topics", "--help"], ["perf", "--help"]):
        shown = run(*words).out
        _, _, printed = shown.partition("\nExamples:\n")
        assert [line.strip() for line in printed.splitlines()] == [
            line.strip() for line in example_lines(words[0])
        ]


def test_the_version_is_that_of_the_package(run: Callable[..., Any]) -> None:
    assert run("--version").out == f"embedlog, version {embedlog.__version__}\n"


def test_topics_are_completed_from_the_directory(events: Callable[..., Any]) -> None:
    verb = program.get_command(program.make_context("embedlog", ["cat"]), "cat")
    assert verb is not None
    context = verb.make_context("cat", ["x"])
    option = next(each for each in verb.params if each.name == "topic")
    assert [item.value for item in option.shell_complete(context, "ev")] == ["events"]
    assert option.shell_complete(context, "x") == []


def test_without_click_one_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "click", None)
    assert main(["ls"]) == 2
    assert (
        capsys.readouterr().err
        == "embedlog: the command line needs click and rich: pip install 'embedlog[cli]'\n"
    )


def test_listing_imports_no_other_verb_and_no_rich(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    """One process: its start, its status, and what it has imported."""
    program = (
        "import sys; from embedlog.tools.cli.program import main; status = main(['ls']);"
        "loaded = [name for name in sys.modules if name.startswith('embedlog.tools.cli.verbs.') or name "
        "== 'rich'];"
        "print(loaded, file=sys.stderr); sys.exit(status)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stderr) == (0, "['embedlog.tools.cli.verbs.ls']\n")
    assert answer.stdout.startswith("TOPIC")


def test_the_end_of_the_process_visits_no_objects(events: Callable[..., Any]) -> None:
    program = (
        "import atexit, gc, sys; from embedlog.tools.cli.program import main; sys.argv = ['embedlog', "
        "'ls'];"
        "atexit.register(lambda: print(len(gc.get_objects()) < 100 < gc.get_freeze_count(), "
        "file=sys.stderr)); sys.exit(main())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stderr) == (0, "True\n")


@pytest.mark.slow
def test_an_output_that_is_closed_ends_the_process_quietly(events: Callable[..., Any]) -> None:
    assert (
        events(
            "produce",
            "-t",
            "events",
            stdin=b"x" * 99 + b"\n" + b"".join(b"%099d\n" % n for n in range(100_000)),
        ).status
        == 0
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "embedlog", "cat", "events"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"x" * 99 + b"\n"
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141
