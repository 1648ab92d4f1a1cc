"""The protocol's rules on leaving, checkpoints, read-only readers and file systems (22-25), step by
step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from embedlog.storage import file_names
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery, RemoteError
from tests.faults.harness.stage import MARK, FakeBroker, Play, check_rule, fails_without

# -- OPEN-2 and OPEN-5
# -----------------------------------------------------------------------------------------------------


def mark_of(play: Play) -> bool:
    return (play.directory / MARK).exists()


def killed_then_joined_then_closed(play: Play) -> Verdict:
    """Traces `opening: without dirty` and `without close_all`: A dies in an append; B, without
    access to it, closes last.
    """
    a = play.enter()
    play.append(a)
    b = play.enter()
    a.arm(["pwrite"], "torn_kill", name=".log")
    play.start_append(a, size=5000)
    a.wait_dead()
    play.leave(b)
    verdict = Verdict()
    if not mark_of(play):
        verdict.violations.append("no clean mark although the last one closed in order")
    log = play.partition / f"{0:020d}.log"
    lying = log.stat().st_size > 1000
    if lying:
        verdict.violations.append("the clean mark is wrong: half a batch is in the log")
    verdict.add(play.seen_afresh())
    return verdict


def test_open_5_the_last_one_out_closes_what_a_dead_one_left(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_dirty", killed_then_joined_then_closed, nursery, tmp_path)


def test_open_5_the_last_one_out_closes_what_a_dead_one_left_not_only_its_own(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Trace `opening: without close_all`."""
    fails_without("close_own_only", killed_then_joined_then_closed, nursery, tmp_path / "mutant")


def came_in_and_died(play: Play) -> Verdict:
    """Trace `opening: without unmark_first`."""
    a = play.enter()
    a.arm(["pwrite"], "torn_kill", name=".log")
    play.start_append(a, size=5000)
    a.wait_dead()
    return Verdict(
        violations=["the clean mark is wrong: half a batch is in the log"] if mark_of(play) else []
    )


def test_open_5_the_first_one_in_takes_the_mark_away_before_any_write(
    nursery: Nursery, tmp_path: Path
) -> None:
    assert not came_in_and_died(Play(nursery, tmp_path / "log")).violations
    fails_without("keep_mark", came_in_and_died, nursery, tmp_path / "mutant")


def test_open_5_the_mark_is_there_only_while_nobody_is_in(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    assert mark_of(play)
    a = play.enter()
    assert not mark_of(play), "the first one in takes it away"
    b = play.enter()
    play.append(b)
    play.leave(a)
    assert not mark_of(play), "B is still in"
    play.leave(b)
    assert mark_of(play)
    c = play.enter()
    play.append(c)
    c.kill()
    assert not mark_of(play), "C was killed"
    assert not play.seen_afresh().violations


def test_open_2_an_opener_waits_for_a_closer_at_the_door(nursery: Nursery, tmp_path: Path) -> None:
    """Trace `opening: without door`: B comes while A, the last one, is closing."""
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    a.arm(["fsync", "fdatasync"], "stop_before")
    a.start("close")
    a.wait_stopped()
    b = nursery.spawn()
    b.arm_refused(file_names.OPEN_LOCK)
    b.start("open", str(play.directory), **play.opening({}))
    assert b.is_refused(), "B came in while A was closing"
    a.resume()
    a.result()
    b.resume()
    b.result()
    play.append(b)
    play.leave(b)
    assert mark_of(play)
    assert not play.seen_afresh().violations


def test_open_5_a_failed_sync_at_the_end_leaves_no_clean_mark(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    a.arm(["fsync", "fdatasync"], "fail", sticky=True)
    with pytest.raises(RemoteError):
        a.call("close")
    a.kill()
    assert not mark_of(play)
    assert not play.seen_afresh().violations


# -- DIR-2, OPEN-9 and DIR-4
# -----------------------------------------------------------------------------------------------


def test_dir_2_delete_records_is_on_disk_before_it_returns(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", config={"segment.bytes": 500})
    a = play.enter()
    for _ in range(8):
        play.append(a)
    a.call("delete_records", 5)
    a.kill()
    b = play.enter()
    assert b.call("ends")[0] == (5, 8)


def test_dir_2_checkpoints_of_two_processes_do_not_undo_each_other(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", partitions=3, config={"segment.bytes": 500})
    a = play.enter()
    b = play.enter()
    for partition in range(3):
        for _ in range(6):
            play.append(a, partition)
    a.arm(["rename"], "stop_before", name="log-start-offset-checkpoint")
    a.start("delete_records", 2, 0)
    a.wait_stopped()
    b.start("delete_records", 3, 1)
    a.resume()
    a.result()
    b.result()
    a.kill()
    b.kill()
    c = play.enter()
    assert {n: start for n, (start, _) in c.call("ends").items()} == {0: 2, 1: 3, 2: 0}


def listing(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*")
    }


def test_open_9_a_read_only_reader_tails_and_writes_nothing(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    before = listing(play.directory)
    b = play.enter(read_only=True)
    assert len(b.call("read")[0]) == 1
    b.start("tail", 3)
    assert listing(play.directory) == before
    play.append(a)
    play.append(a)
    assert len(b.result()) == 3
    broker = FakeBroker(play.directory)
    assert not broker.start(), "A is in"
    with pytest.raises(RemoteError):
        b.call("append", [b"x"])


def test_open_9_a_read_only_reader_refuses_a_brokers_directory(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    broker = FakeBroker(play.directory)
    assert broker.start()
    with pytest.raises(RemoteError) as refused:
        play.enter(read_only=True, config={"lock.timeout.ms": 100})
    assert refused.value.kind == "DirectoryInUseError"


def test_dir_4_an_unknown_file_system_is_refused_unless_asked_for(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = nursery.spawn()
    a.call("pretend_filesystem", 0x6969)
    with pytest.raises(RemoteError) as refused:
        a.call("open", str(play.directory))
    assert refused.value.kind == "UnsupportedFilesystemError"
    assert "NFS" in str(refused.value)
    a.call("open", str(play.directory), config={"shared": "locks", "housekeeping": False})
