"""LOCK-1, LOCK-2 and OPEN-1 to OPEN-5 of the protocol, step by step with several processes.

A few lines act as a Kafka broker: they use `.lock`, the clean mark and the log as it does; real
ones are in `interop/test_files.py`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.storage import file_names
from tests.faults.harness.content import Mark, Verdict, value_of
from tests.faults.harness.processes import Nursery, RemoteError, Victim, state_of, until
from tests.faults.harness.stage import FakeBroker, Play, check_rule
from tests.faults.harness.tasks import TOPIC

# -- LOCK-1
# ---------------------------------------------------------------------------------------------------------------


def page_deleted_between(play: Play) -> Verdict:
    """Trace `opening: without identity`."""
    a = play.enter()
    play.append(a)
    (play.partition / "embedlog.page").unlink()
    b = play.enter()
    for _ in range(5):
        play.append(b)
    play.append(a)
    play.append(b)
    verdict = play.seen_by(a)
    verdict.add(play.seen_by(b))
    play.leave(a)
    play.leave(b)
    verdict.add(play.seen_afresh())
    return verdict


def test_lock_1_a_page_that_the_name_does_not_lead_to_is_mapped_again(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_identity", page_deleted_between, nursery, tmp_path)


def test_lock_1_a_page_is_made_under_the_append_lock(nursery: Nursery, tmp_path: Path) -> None:
    """Trace `opening: without made_under_lock`: B may not scan while A is between writing and
    publishing.
    """
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    play.stop_in_append(a, "before-publish")
    (play.partition / "embedlog.page").unlink()
    b = play.enter()
    b.arm_refused(file_names.LOCK)
    play.start_append(b)
    assert b.is_refused(), "B made a page beside A's append"
    a.resume()
    play.finish_append(a)
    b.resume()
    play.finish_append(b)
    play.append(a)
    verdict = play.seen_by(a)
    play.leave(a)
    play.leave(b)
    verdict.add(play.seen_afresh())
    assert not verdict.violations, verdict


def test_lock_1_a_lock_file_that_was_replaced_locks_nobody_out(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    (play.partition / "embedlog.lock").unlink()
    b = play.enter()
    play.append(b)
    play.append(a)
    play.append(b)
    play.leave(a)
    play.leave(b)
    assert not play.seen_afresh().violations


# -- OPEN-1
# ---------------------------------------------------------------------------------------------------------------


def departing_broker_unlinks_late(play: Play) -> Verdict:
    """Traces `opening: without stat_again` and `without settle`: we lock the inode that a broker is
    about to unlink.
    """
    broker = FakeBroker(play.directory)
    assert broker.start(), "no process has the lock"
    a = play.nursery.spawn()
    if play.mutants:
        a.call("mutants", *play.mutants)
    a.arm(["lock"], "stop_before", name="/.lock")
    a.start("open", str(play.directory), config={"housekeeping": False})
    a.wait_stopped()
    broker.mark_and_unlock()
    broker.unlink()
    a.resume()
    a.result()
    verdict = Verdict()
    if FakeBroker(play.directory).start():
        verdict.violations.append("a broker and we are in at once")
    return verdict


def test_open_1_the_lock_is_looked_at_again_after_locking(nursery: Nursery, tmp_path: Path) -> None:
    check_rule("no_stat_again", departing_broker_unlinks_late, nursery, tmp_path)


def test_open_1_behind_foreign_use_the_lock_is_looked_at_once_more(
    nursery: Nursery, tmp_path: Path
) -> None:
    """The broker unlinks only after the lock and the first check: the second check, after the
    settling delay, detects it.
    """
    play = Play(nursery, tmp_path / "log")
    broker = FakeBroker(play.directory)
    assert broker.start()
    broker.mark_and_unlock()
    a = play.nursery.spawn()
    a.arm(["lock"], "stop_after", name="/.lock")
    a.start("open", str(play.directory), config={"housekeeping": False})
    a.wait_stopped()
    broker.unlink()
    a.resume()
    a.result()
    assert not FakeBroker(play.directory).start(), "a broker and we are in at once"


def nudged(victim: Victim) -> bool:
    """Whether it has answered; if it froze once more, it is resumed."""
    if state_of(victim.pid) == "T":
        victim.resume()
    return victim.note_waiting()


def unlinked_while_settling(play: Play) -> Verdict:
    """Trace `opening: without settle`: the first look finds the name in place, the unlink comes
    after it.
    """
    broker = FakeBroker(play.directory)
    assert broker.start()
    broker.mark_and_unlock()
    a = play.nursery.spawn()
    a.call("mutants", *play.mutants)
    a.call("stop_instead_of_settling")
    a.start("open", str(play.directory), config={"housekeeping": False})
    until(lambda: state_of(a.pid) == "T" or a.note_waiting(), "A to settle or to be in")
    broker.unlink()
    until(lambda: nudged(a), "A to be in")
    a.result()
    return Verdict(
        violations=["a broker and we are in at once"] if FakeBroker(play.directory).start() else []
    )


def test_open_1_the_second_look_comes_after_the_settling_delay(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_settle", unlinked_while_settling, nursery, tmp_path)


def test_open_1_who_lost_the_lock_file_retakes_it_or_stops_writing(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    (play.directory / ".lock").unlink()
    broker = FakeBroker(play.directory)
    if not broker.start():
        return  # a process holds the new one already
    with pytest.raises(RemoteError) as refused:
        play.append(a)
        play.append(a)
    assert refused.value.kind in ("DirectoryInUseError", "StateError", "ClosedError"), refused.value


def test_open_1_a_lock_file_that_a_killed_broker_created_is_not_locked_again(
    nursery: Nursery, tmp_path: Path
) -> None:
    """The broker has left no mark: the only trace of its run is a lock file that no process
    holds.
    """
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    (play.directory / ".lock").unlink()
    broker = FakeBroker(play.directory)
    assert broker.start()
    broker.append(b"the broker's")
    broker.die()
    with pytest.raises(RemoteError) as refused:
        play.append(a)
    assert refused.value.kind == "DirectoryInUseError", refused.value
    a.kill()
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        assert len(list(log.scan("t").records())) == 2


@pytest.mark.parametrize("others", [0, 1, 2])
def test_open_1_processes_that_lost_the_lock_file_continue_together(
    nursery: Nursery, tmp_path: Path, others: int
) -> None:
    play = Play(nursery, tmp_path / "log")
    victims = [play.enter() for _ in range(1 + others)]
    for victim in victims:
        play.append(victim)
    (play.directory / ".lock").unlink()
    for victim in [*victims, *victims]:
        play.append(victim)
    assert not FakeBroker(play.directory).start()
    for victim in victims:
        play.leave(victim)
    verdict = play.seen_afresh()
    assert not verdict.violations, verdict


def test_open_1_a_process_that_lost_the_lock_file_does_not_continue_beside_a_new_incarnation(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    (play.directory / ".lock").unlink()
    b = play.enter()
    play.append(b)
    with pytest.raises(RemoteError) as refused:
        play.append(a)
    assert refused.value.kind == "DirectoryInUseError", refused.value
    play.append(b)


def test_open_2_a_delayed_opener_joins_no_incarnation_whose_processes_are_dead(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two tries of `.lock` the last process is killed, and a broker comes and is killed
    without a mark.
    """
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    broker = FakeBroker(tmp_path / "log")
    real = system.lock_try
    tries = []

    def delayed(fd: int, exclusive: bool) -> int:
        code = real(fd, exclusive)
        if (
            exclusive
            and code < 0
            and not tries
            and os.readlink(f"/proc/self/fd/{fd}").endswith("/.lock")
        ):
            tries.append(fd)
            a.kill()
            assert broker.start()
            broker.append(b"the broker's")
            broker.die()
        return code

    monkeypatch.setattr(system, "lock_try", delayed)
    with (
        embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log,
        log.producer() as producer,
    ):
        assert tries
        producer.send("t", b"after").result(10)
        assert [record.offset for record in log.scan("t").records()] == [0, 1, 2]


def test_open_1_a_running_broker_keeps_us_out_and_we_it(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    broker = FakeBroker(play.directory)
    assert broker.start()
    with pytest.raises(RemoteError) as refused:
        play.enter()
    assert refused.value.kind == "DirectoryInUseError"
    broker.mark_and_unlock()
    broker.unlink()
    play.enter()
    assert not FakeBroker(play.directory).start()


# -- OPEN-2
# ---------------------------------------------------------------------------------------------------------------


def broker_between_two_of_our_openings(play: Play) -> Verdict:
    """Trace `opening: without incarnation`."""
    a = play.enter()
    for _ in range(3):
        play.append(a)
    play.leave(a)
    broker = FakeBroker(play.directory)
    assert broker.start()
    mark = Mark(99, 1)
    broker.append(value_of(*mark, 150))
    play.acks[0, 3] = mark
    broker.mark_and_unlock()
    broker.unlink()
    b = play.enter()
    play.append(b)
    verdict = play.seen_by(b)
    play.leave(b)
    verdict.add(play.seen_afresh())
    return verdict


def test_open_2_a_page_of_another_incarnation_is_rebuilt_from_the_log(
    nursery: Nursery, tmp_path: Path
) -> None:
    verdict = broker_between_two_of_our_openings(Play(nursery, tmp_path / "log"))
    assert not verdict.violations, verdict


def test_open_2_a_copy_of_a_live_directory_is_another_directory(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    for _ in range(3):
        play.append(a)
    shutil.copytree(play.directory, tmp_path / "copy")
    play.append(a)
    b = nursery.spawn()
    b.call("open", str(tmp_path / "copy"), config={"housekeeping": False})
    assert b.call("append", [value_of(77, 0, 150)]) == [3]
    assert b.call("append", [value_of(77, 1, 150)]) == [4]
    assert play.append(a) == 4
    assert not play.seen_by(a).violations
    assert len(b.call("read")[0]) == 5


def test_open_2_below_an_old_pages_end_a_bad_batch_is_corruption(
    nursery: Nursery, tmp_path: Path
) -> None:
    """All processes are killed without a sync, and a published batch is damaged: the page of this
    boot has the published end.
    """
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    for _ in range(4):
        play.append(a)
    a.kill()
    log = play.partition / f"{0:020d}.log"
    size = log.stat().st_size
    with log.open("r+b") as file:
        file.seek(size - 20)
        file.write(b"\xff" * 5)
    with pytest.raises(RemoteError) as refused:
        play.seen_afresh()
    assert refused.value.kind == "CorruptRecordError"
    assert log.stat().st_size == size, "refused, and cut nevertheless"


# -- OPEN-3
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["locked", "before-publish", "after-publish", "before-unlock"])
def test_open_3_who_joins_loads_nothing_while_others_write(
    nursery: Nursery, tmp_path: Path, point: str
) -> None:
    """Trace `opening: without loads_alone`: B opens while A is in the middle of an append."""
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    play.stop_in_append(a, point)
    size = (play.partition / f"{0:020d}.log").stat().st_size
    b = play.enter()
    rows = b.call("read")[0]
    assert len(rows) >= 1
    assert (play.partition / f"{0:020d}.log").stat().st_size == size
    a.resume()
    play.finish_append(a)
    play.append(b)
    verdict = play.seen_by(b)
    play.leave(b)
    play.leave(a)
    verdict.add(play.seen_afresh())
    assert not verdict.violations, verdict


# -- OPEN-4 and DIR-1
# ------------------------------------------------------------------------------------------------------


def test_open_4_our_files_have_names_that_a_broker_passes_over(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", config={"segment.bytes": 500})
    a = play.enter()
    for _ in range(10):
        play.append(a)
    a.call("flush")
    a.call("on_log", "housekeep")
    ours = [path for path in play.directory.rglob("*") if path.name.startswith("embedlog")]
    assert len(ours) > 8
    suffixes = (
        ".log",
        ".index",
        ".timeindex",
        ".txnindex",
        ".snapshot",
        ".deleted",
        ".cleaned",
        ".swap",
        ".checkpoint",
    )
    for path in play.directory.rglob("*"):
        assert path.is_dir() == (path.name == f"{TOPIC}-0"), f"a directory of ours: {path}"
    for path in ours:
        assert not path.name[0].isdigit()
        assert not path.name.endswith(suffixes), path.name


def answer_to(play: Play, victim: Victim) -> int | str:
    """The offset of an append, or the name of its error."""
    try:
        return play.append(victim)
    except RemoteError as refused:
        return refused.kind


def test_dir_1_nothing_is_acknowledged_into_a_topic_that_was_deleted(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    b = play.enter()
    play.append(a)
    b.call("on_log", "delete_topic", TOPIC)
    b.call("create_topic", TOPIC, 1, {"flush.ms": 3_600_000})
    play.acks.clear()
    answer = answer_to(play, a)
    assert answer in ("UnknownTopicOrPartitionError", 0), f"the new topic was empty; A got {answer}"
    play.append(b)
    verdict = play.seen_by(b)
    assert not verdict.violations, verdict
