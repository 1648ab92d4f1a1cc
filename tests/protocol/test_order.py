"""LOCK-3 and READ-2 of the protocol: locks are taken in one order, and data without a checksum is
verified at its use.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.faults.harness.content import Verdict, mark_of
from tests.faults.harness.processes import Nursery, RemoteError
from tests.faults.harness.stage import Play, fails_without

ORDER = (
    "embedlog.door",
    "embedlog.directory",
    "embedlog.housekeeper",
    "embedlog.lock",
    "embedlog.sync",
)
UNLOCK = "2"  # F_UNLCK


def out_of_order(trace: Iterable[str]) -> list[str]:
    """Locks that were taken while one that comes later, or another partition's, was held."""
    held: list[str] = []
    bad = []
    for line in trace:
        kind, number, path = line.rstrip("\n").split(" ", 2)
        if kind not in ("lock", "close") or Path(path).name not in ORDER:
            continue
        if kind == "close" or number == UNLOCK:
            held = [other for other in held if other != path]
            continue
        later = [other for other in held if key(other) > key(path)]
        bad += [f"{path} was taken while {other} was held" for other in later]
        held.append(path)
    return bad


def key(path: str) -> tuple[int, str]:
    return ORDER.index(Path(path).name), str(Path(path).parent)


def test_lock_3_the_checker_sees_a_lock_out_of_order() -> None:
    good = [
        "lock 1 /d/embedlog.door",
        "lock 1 /d/embedlog.directory",
        "lock 1 /d/t-0/embedlog.lock",
        "lock 2 /d/t-0/embedlog.lock",
    ]
    assert not out_of_order(good)
    assert out_of_order(reversed(good[:3]))
    assert out_of_order(["lock 1 /d/t-1/embedlog.lock", "lock 1 /d/t-0/embedlog.lock"])


def test_lock_3_locks_are_taken_in_one_order(nursery: Nursery, tmp_path: Path) -> None:
    """All calls on a log: create, append, roll, sync, delete, grow, alter, housekeep, close. They
    run in one thread, because a trace does not distinguish threads.
    """
    victim = nursery.spawn()
    victim.call("trace", str(tmp_path / "trace"))
    victim.start("script", str(tmp_path / "log"), 7, False)
    for _ in victim.notes():
        pass
    victim.call("trace", None)
    lines = (tmp_path / "trace").read_text().splitlines()
    assert sum(line.startswith("lock ") for line in lines) > 50
    assert not out_of_order(lines)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_read_2_an_index_that_lies_costs_time_only(
    nursery: Nursery, tmp_path: Path, suffix: str
) -> None:
    verdict = seek_by_a_lying_index(
        Play(nursery, tmp_path / "log", config={"index.interval.bytes": 200}), suffix
    )
    assert not verdict.violations, verdict


def test_read_2_a_hit_in_an_index_is_not_believed(nursery: Nursery, tmp_path: Path) -> None:
    def steps(play: Play) -> Verdict:
        return seek_by_a_lying_index(play)

    fails_without(
        "trust_index", steps, nursery, tmp_path / "mutant", config={"index.interval.bytes": 200}
    )


def seek_by_a_lying_index(play: Play, suffix: str = ".index") -> Verdict:
    """Every entry of the index points somewhere else; reading from any offset gives that offset's
    record.
    """
    a = play.enter()
    for _ in range(30):
        play.append(a)
    path = play.partition / f"{0:020d}{suffix}"
    data = bytearray(path.read_bytes())
    size = 8 if suffix == ".index" else 12
    for number, at in enumerate(range(size, len(data) + 1, size)):
        data[at - 1 if number % 2 else at - 3] ^= 0x15  # a little off, or far after the end
    with path.open("r+b") as file:
        file.write(data)
    b = play.enter()
    verdict = Verdict()
    for offset in range(30):
        try:
            rows = b.call("poll_at", offset)
        except RemoteError as problem:
            verdict.violations.append(f"offset {offset}: {problem}")
            continue
        verdict.read += len(rows)
        if [(row.offset, mark_of(row.value)) for row in rows] != [(offset, play.acks[0, offset])]:
            verdict.violations.append(f"offset {offset} was requested, and {rows} returned")
    return verdict
