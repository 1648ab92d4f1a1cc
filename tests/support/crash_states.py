"""Directories as a process left them that was killed, and every look at them.

`states` kills a process before each of its changes, one after the other, and gives each directory
that differs from the one before. `look` asks everything that judges files, each on a copy.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import embedlog
from embedlog.integrity.directory_check import check_closed
from embedlog.tools.cli.program import main
from tests.support.killed_processes import count_changes, is_killed_before

CONFIG = {"housekeeping": False}
TOPIC = "t"
Row = tuple[int, bytes | None, bytes | None]
# of a directory; changes count from the call of its first function to that of the second one
Work = Callable[[Path, Callable[[], None], Callable[[], None]], object]
IsExpected = Callable[[Sequence[Row]], bool]
by_extent = pytest.mark.parametrize(
    "extent",
    ["sample", pytest.param("all", marks=[pytest.mark.faults, pytest.mark.timeout(1800)])],
)


def rows(log: embedlog.Log) -> list[Row]:
    """The committed records of the topic."""
    found = log.scan(TOPIC, isolation_level="read_committed").records()
    return [(record.offset, record.key, record.value) for record in found]


def table(found: Sequence[Row]) -> dict[bytes | None, bytes | None]:
    """The newest value of each key."""
    return {key: value for _, key, value in found}


def states(
    made: Path, root: Path, work: Work, rng: random.Random | None = None, count: int = 0
) -> Iterator[tuple[int, Path]]:
    """Each directory that a kill leaves, with the number of the change before which it came; with
    `rng` only `count` of them. The next one takes its place.
    """
    numbers = range(1, _count_changes(made, root, work) + 1)
    if rng is not None:
        numbers = sorted(rng.sample(numbers, min(count, len(numbers))))
    before: dict[str, bytes] = {}
    for number in numbers:
        if not leave_killed(made, root, work, number):
            continue  # another thread has made one of the counted changes
        now = _contents(root)
        if now != before:
            before = now
            yield number, root


def leave_killed(made: Path, root: Path, work: Work, number: int) -> bool:
    """A copy of a directory as a process leaves it that is killed before its change of this number;
    False if it makes fewer.
    """
    _replace(made, root)
    return is_killed_before(number, lambda *faults: work(root, *faults))


def _count_changes(made: Path, root: Path, work: Work) -> int:
    """The changes of the whole work."""
    _replace(made, root)
    return count_changes(lambda *faults: work(root, *faults))


def _replace(made: Path, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(made, root, symlinks=True)


def _contents(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def _copy(root: Path, name: str) -> Path:
    target = root.with_name(name)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root, target, symlinks=True)
    return target


def findings(report: embedlog.CheckReport, allowed: Sequence[str] = ()) -> list[str]:
    """The findings that are no notes."""
    return [
        str(finding)
        for finding in report.findings
        if finding.severity != "note" and finding.kind not in allowed
    ]


def look(
    root: Path,
    is_expected: IsExpected,
    *,
    caches: Sequence[str] = (),
    has_topic: bool = True,
) -> set[str]:
    """Everything that judges files finds the directory in order; the kinds of the notes.

    `caches`: kinds of findings that are not judged. `has_topic`: whether the records are read, too.
    """
    closed = check_closed(_copy(root, "closed"))  # as of a directory that cannot be opened
    assert not findings(closed, caches), str(closed)
    report = embedlog.check(_copy(root, "checked"))
    assert not findings(report, caches), str(report)
    kinds = {finding.kind for finding in report.findings}
    _look_by_commands(_copy(root, "commands"), is_sound=not caches)
    _read_only(_copy(root, "read"), is_expected, caches, has_topic=has_topic)
    repaired_root = _copy(root, "repaired")
    repaired = embedlog.repair(repaired_root)
    assert not findings(repaired, caches), str(repaired)
    if not caches and "interrupted" not in kinds:
        assert not repaired.repaired, str(repaired)
    assert not list(repaired_root.rglob("embedlog.cut-*")) or "unfinished" in kinds
    _write(repaired_root, is_expected, has_topic=has_topic)
    _write(_copy(root, "written"), is_expected, has_topic=has_topic)
    return kinds


def _look_by_commands(root: Path, *, is_sound: bool) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = main(("-d", str(root), "--json", "check"))
    assert status == 0 or not is_sound, output.getvalue()
    found = json.loads(output.getvalue())["findings"]
    assert not [each for each in found if each["severity"] == "damage"], output.getvalue()
    partitions = [path.name for path in root.glob(f"{TOPIC}-?")]
    if partitions and is_sound:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = main(("-d", str(root), "--json", "dump", *partitions))
        problems = [
            line
            for line in output.getvalue().splitlines()
            if "problem" in line or not line.startswith("{")
        ]
        # a snapshot is not read before its roll is published
        assert all(".snapshot" in line for line in problems), problems
        assert status == 0 or problems, output.getvalue()


def _read_only(
    root: Path, is_expected: IsExpected, caches: Sequence[str], *, has_topic: bool
) -> None:
    """A reader is refused by a typed error, or reads what is right, and finds nothing."""
    with embedlog.open(root, read_only=True) as log:
        assert not findings(log.check(), caches)
        if not has_topic:
            return
        try:
            found = rows(log)
            log.describe_topic(TOPIC)
        except (embedlog.StateError, embedlog.UnknownTopicOrPartitionError):
            return
        assert is_expected(found), found


def _write(root: Path, is_expected: IsExpected, *, has_topic: bool) -> None:
    """A process that writes has the right records, and leaves nothing to be found."""
    backup = root.with_name("backup")
    shutil.rmtree(backup, ignore_errors=True)
    with embedlog.open(root, config=CONFIG) as log:
        if has_topic and TOPIC in log.topics():
            found = rows(log)
            assert is_expected(found), found
        assert not findings(log.check())
        log.backup(backup)
    assert not findings(embedlog.check(backup))
    report = embedlog.check(root)
    assert not findings(report)
    assert "interrupted" not in {finding.kind for finding in report.findings}
