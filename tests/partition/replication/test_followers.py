"""Appends to a leader and its followers in one call of the C core: what it commits, and what the
copy must do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.format.record_batch import Stamp
from embedlog.partition.log_context import AppendProgress
from embedlog.partition.replication.replica_log import LeaderDecision, NotLeader, TooFew
from embedlog.storage import file_names, locks
from tests.support.appended_sets import EPOCH, Set, a_set
from tests.support.producer_helpers import wait_until
from tests.support.replica_logs import content, replica
from tests.support.stamped_batches import run_of, stamped

POINTS = ["locked", "before-publish", "after-publish", "before-unlock"]


def test_a_run_is_committed_in_one_call(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        assert replicas.append(run_of(b"first")).committed == 0, (
            "the start of the epoch is not in the files of the followers"
        )
        replicas.level()
        progress = replicas.append(run_of(b"second", b"third"))
        assert progress.committed == 3
        assert replicas.leader.published().high_watermark == 3
        assert replicas.ends() == [3, 3, 3]
        assert len(set(replicas.logs())) == 1
        replicas.append(run_of(b"fourth"))
        assert [each.published().high_watermark for each in replicas.others] == [3, 3], (
            "they know what was committed before"
        )


@pytest.mark.parametrize("number", range(4))
def test_followers_have_the_files_that_a_copy_makes(tmp_path: Path, seed: int, number: int) -> None:
    rng = random.Random(f"{seed} {number}")
    time_type = {"message.timestamp.type": rng.choice(["CreateTime", "LogAppendTime"])}
    with (
        a_set(tmp_path / "together", **time_type) as replicas,
        replica(tmp_path / "copy", 7, time_type) as copied,
    ):
        sequences = dict.fromkeys((None, 5, 6), 0)
        at_once = 0
        copied.replica.follow(0, EPOCH, replicas.leader.epoch_end)
        for _ in range(40):
            producer = rng.choice(list(sequences))
            values = [rng.randbytes(rng.randint(1, 90)) for _ in range(rng.randint(1, 4))]
            size = rng.choice([90, 1 << 20])
            if producer is None:
                progress = replicas.append(run_of(*values, batch_bytes=size))
            else:
                stamp = Stamp(producer, 0)
                progress = replicas.append(
                    stamped(stamp, sequences[producer], *values, batch_bytes=size), stamp
                )
                sequences[producer] += len(values)
            committed = progress.committed > progress.result().last_offset
            at_once += committed
            if not committed:
                replicas.level()
            assert replicas.leader.published().high_watermark == replicas.leader.published().log_end
            assert replicas.ends() == [replicas.leader.published().log_end] * 3
        assert at_once > 20, "most runs fit into the segments of all directories"
        while (at := copied.published().log_end) < replicas.leader.published().log_end:
            copied.replica.take(replicas.leader.replica.read(at, rng.randint(1, 2000)), EPOCH, at)
        expected = content(copied)
        for each in replicas.others:
            assert content(each)[1:] == expected[1:]
            for suffix in ("index", "timeindex"):
                files = sorted(
                    (tmp_path / "together").glob(
                        f"d{replicas.others.index(each) + 1}/t-0/*.{suffix}"
                    )
                )
                assert [path.read_bytes() for path in files] == [
                    (tmp_path / "copy" / "t-0" / path.name).read_bytes() for path in files
                ], suffix


def test_the_log_of_each_follower_loads_after_an_orderly_close(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        for number in range(30):
            if replicas.append(run_of(b"%060d" % number)).committed == 0:
                replicas.level()
        expected = content(replicas.leader).log
    for slot in (1, 2):
        with replica(tmp_path / f"d{slot}", slot) as alone:
            assert content(alone).log == expected


def test_a_follower_that_is_locked_is_not_waited_for(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        # its locks are those of another process
        with embedlog.open(tmp_path / "d1", config={"housekeeping": False}) as other:
            other._engine.home.context.node_slot = 1
            with other._engine.partition("t", 0).exclusive():
                progress = replicas.append(run_of(b"second"))
                assert (progress.complete, progress.committed) == (True, 0)
        assert replicas.leader.published().high_watermark == 1
        assert replicas.ends()[:2] == [2, 1]
        replicas.level()
        assert replicas.append(run_of(b"third")).committed == 3


def test_a_follower_in_use_by_a_thread_is_not_waited_for(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        taken = threading.Event()
        done = threading.Event()

        def hold() -> None:
            with replicas.others[1]._state.mutex:
                taken.set()
                done.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert taken.wait(30)
            assert replicas.append(run_of(b"second")).committed == 0
        finally:
            done.set()
            holder.join(30)
        replicas.level()
        assert replicas.append(run_of(b"third")).committed == 3


def test_a_follower_of_a_later_epoch_takes_nothing(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        assert replicas.others[0].replica.lead(LeaderDecision(1, EPOCH + 1, 2, 6, 1))
        progress = replicas.append(run_of(b"of an old leader"))
        assert progress.committed == 0
        assert replicas.ends() == [2, 1, 1]
        assert replicas.leader.published().high_watermark == 1


def test_a_follower_with_another_log_end_takes_nothing(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        replicas.leader.replica.require(EPOCH, all_in_sync=False)
        replicas.leader.append(run_of(b"acks=1"))
        assert replicas.append(run_of(b"second")).committed == 0
        assert replicas.ends() == [3, 1, 1]
        replicas.level()
        assert len(set(replicas.logs())) == 1


@pytest.mark.parametrize("isr", [0b0011, 0b1111], ids=["smaller", "larger"])
def test_another_isr_is_left_to_the_caller(tmp_path: Path, isr: int) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        assert replicas.leader.replica.lead(LeaderDecision(0, EPOCH, 2, isr, 1))
        progress = replicas.append(run_of(b"second"))
        assert (progress.complete, progress.committed, replicas.followers.stale) == (True, 0, True)
        assert replicas.followers.direct is None
        assert replicas.ends() == [2, 1, 1]
        assert replicas.leader.published().high_watermark == 1


def test_too_small_an_isr_refuses_the_run(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        assert replicas.leader.replica.lead(LeaderDecision(0, EPOCH, 2, 0b111, 4))
        with pytest.raises(TooFew):
            replicas.append(run_of(b"second"))
        assert replicas.ends() == [1, 1, 1]


def test_an_isr_that_is_too_small_for_this_process_refuses_the_run(tmp_path: Path) -> None:
    """The page is that of all processes, and requires less."""
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        others = [each.replica for each in replicas.others]
        needing = {
            needed: replicas.leader.replica.with_followers(others, EPOCH, needed)
            for needed in (3, 4)
        }
        for followers in needing.values():
            followers.note_answer(system.boot_ns())
        with pytest.raises(TooFew):
            replicas.append(run_of(b"refused"), followers=needing[4])
        assert replicas.ends() == [1, 1, 1]
        assert replicas.append(run_of(b"second"), followers=needing[3]).committed == 2


def test_a_leader_of_a_later_epoch_refuses_the_run(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        assert replicas.leader.replica.lead(LeaderDecision(0, EPOCH + 1, 2, 0b111, 1))
        with pytest.raises(NotLeader):
            replicas.append(run_of(b"second"))
        assert replicas.ends() == [1, 1, 1]


def test_a_cut_of_a_follower_is_noticed(tmp_path: Path) -> None:
    with a_set(tmp_path) as replicas:
        replicas.prepare()
        assert replicas.append(run_of(b"second")).committed == 2
        with replicas.others[0].replica.exclusive() as held:
            held.truncate(1)
        assert replicas.append(run_of(b"third")).committed == 0
        assert replicas.ends()[:2] == [3, 1]
        replicas.level()
        assert replicas.append(run_of(b"fourth")).committed == 4


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("name", ["embedlog.lock", "embedlog.page", ".lock"])
def test_a_file_that_was_replaced_in_a_follower_is_noticed(tmp_path: Path, name: str) -> None:
    """Also after the path of a lock file is no longer read by each append."""
    with a_set(tmp_path, count=2) as replicas:
        replicas.prepare()
        writer = replicas.others[0]._state.writer
        assert writer is not None
        until = time.monotonic() + 30
        while not (writer.raw.lock_changed_ns and writer.raw.directory_lock_changed_ns):
            assert time.monotonic() < until, "the change times never count"
            assert replicas.append(run_of(b"more")).committed or replicas.level() is None
        ends = replicas.ends()
        path = tmp_path / "d1" / name if name == ".lock" else tmp_path / "d1" / "t-0" / name
        os.rename(path, path.with_name("elsewhere"))
        path.write_bytes(b"")
        while replicas.append(run_of(b"last")).committed:
            assert time.monotonic() < until, "the file is never missed"
        assert replicas.ends()[0] > ends[0]


@pytest.mark.parametrize("name", ["embedlog.lock", "embedlog.page", ".lock"])
def test_the_first_append_after_a_decision_compares_the_paths_of_a_follower(
    tmp_path: Path, name: str
) -> None:
    """A directory in the place of a follower joins the ISR with a decision."""
    with a_set(tmp_path, count=2) as replicas:
        replicas.prepare()
        writer = replicas.others[0]._state.writer
        assert writer is not None
        assert replicas.append(run_of(b"first")).committed
        writer.raw.compared_ns = 2**62  # the millisecond does not end
        path = tmp_path / "d1" / name if name == ".lock" else tmp_path / "d1" / "t-0" / name
        os.rename(path, path.with_name("elsewhere"))
        assert replicas.append(run_of(b"second")).committed, "the paths are known"
        assert replicas.leader.replica.lead(LeaderDecision(0, EPOCH, 2, 0b11, 1))
        assert replicas.append(run_of(b"third")).committed == 0


def test_an_append_that_fails_at_any_call_commits_nothing_that_a_follower_lacks(
    tmp_path: Path,
) -> None:
    nth = 0
    struck = True
    while struck:
        nth += 1
        with a_set(tmp_path / str(nth), count=2) as replicas:
            replicas.prepare()
            system.fault_arm(["pwrite", "ftruncate", "lock", "stat"], nth, "fail", errno.EIO)
            try:
                progress = replicas.append(run_of(b"v" * 400))
                committed = progress.committed
            except EmbedlogError:
                committed = 0
            struck = bool(system.fault_counters()[1])
            system.fault_off()
            one = replicas.leader.published()
            two = replicas.others[0].published()
            assert one.high_watermark <= min(one.log_end, two.log_end)
            assert committed in (0, 2)
            assert not committed or one.high_watermark == two.log_end == 2
            replicas.level()
            assert len(set(replicas.logs())) == 1
    assert nth > 8, "hardly any call was hit"


def killed(root: Path, point: str, nth: int) -> bool:
    """Whether another process was killed at the nth passage of a point of an append to three
    directories.
    """
    pid = os.fork()
    if pid == 0:
        try:
            with contextlib.ExitStack() as stack:
                replicas = Set(
                    [stack.enter_context(replica(root / f"d{slot}", slot)) for slot in range(3)],
                    install=False,
                )
                replicas.prepare()
                system.fault_arm(["point"], nth, "kill_before", name=point)
                replicas.append(run_of(b"second"))
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] == 9


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_the_leader_has_every_record_of_its_followers(
    tmp_path: Path, point: str
) -> None:
    ends = set()
    nth = 0
    while True:
        nth += 1
        with a_set(tmp_path / f"{nth}") as replicas:
            replicas.leader.open()
            if not killed(tmp_path / f"{nth}", point, nth):
                break
            for each in (replicas.leader, *replicas.others):
                with each.replica.exclusive():
                    pass  # repairs
            end, *others = replicas.ends()
            assert 1 <= max(others) <= end <= 2, "the end of the leader is published first"
            assert replicas.leader.published().high_watermark <= min(others)
            assert all(replicas.logs()[0].startswith(log) for log in replicas.logs())
            ends.add((end, *others))
            replicas.level()
            assert len(set(replicas.logs())) == 1
    assert len(ends) >= 2, "the append stops in more than one directory"
    assert nth > 3, "each directory passes this point"


def test_after_a_slow_write_of_a_follower_the_next_runs_are_left_to_the_copy(
    tmp_path: Path,
) -> None:
    with a_set(tmp_path) as found:
        found.prepare()
        system.fault_arm(["pwrite"], 1, "delay", 2_000_000, name="d1/t-0/")
        try:
            began_ns = system.boot_ns()
            assert found.append(run_of(b"slow")).committed < 2
            assert found.append(run_of(b"left to the copy")).committed < 3
            assert system.boot_ns() - began_ns < 1_000_000_000
        finally:
            system.fault_off()
        assert found.leader.published().log_end == 3
        assert found.others[1].published().log_end == 1
        found.level()
        assert found.leader.published().high_watermark == 3


def test_the_lock_of_the_leader_is_free_while_the_disk_of_a_follower_hangs(tmp_path: Path) -> None:
    with a_set(tmp_path) as found:
        found.prepare()
        found.append(run_of(b"second"))
        system.fault_arm(["pwrite"], 1, "hang", name=f"/{found.others[0].path.parent.name}/")
        appending = threading.Thread(target=found.append, args=(run_of(b"third"),))
        try:
            appending.start()
            wait_until(lambda: system.fault_counters()[1], 20)
            with contextlib.closing(locks.LockFile(found.leader.path / file_names.LOCK)) as lock:
                wait_until(lock.try_lock, 20)  # another process appends meanwhile
            appending.join(20)
            assert not appending.is_alive(), "the caller goes on, too"
            assert (found.leader.published().log_end, found.leader.published().high_watermark) == (
                3,
                2,
            )
        finally:
            system.fault_off()
            appending.join()
        found.level()
        assert found.leader.published().high_watermark == 3


def test_a_follower_that_did_not_answer_is_left_to_the_copy_for_a_while(tmp_path: Path) -> None:
    with a_set(tmp_path) as found:
        found.prepare()
        system.fault_arm(["pwrite"], 1, "hang", name=f"/{found.others[0].path.parent.name}/")
        try:
            assert found.append(run_of(b"second")).committed < 2
            began = time.monotonic()
            for value in (b"third", b"fourth", b"fifth"):
                assert found.append(run_of(value)).committed < 2
            assert time.monotonic() - began < 1.0, "no caller waits for the follower again"
        finally:
            system.fault_off()
        assert found.leader.published().log_end == 5
        found.level()
        assert found.leader.published().high_watermark == 5
        assert content(found.leader) == content(found.others[0]) == content(found.others[1])


def test_a_commit_by_a_smaller_isr_is_not_that_of_a_process_that_needs_a_larger_one(
    tmp_path: Path,
) -> None:
    """While the last follower writes, another process takes it out of the ISR, and commits without
    it.
    """
    with (
        a_set(tmp_path) as found,
        replica(tmp_path / "d0") as leader,
        replica(tmp_path / "d1", 1) as follower,
    ):
        found.prepare()
        needing = found.leader.replica.with_followers(
            [each.replica for each in found.others], EPOCH, 3
        )
        needing.note_answer(system.boot_ns())
        assert found.append(run_of(b"second"), followers=needing).committed == 2
        run = run_of(b"third")
        progress = AppendProgress(run)
        append = partial(found.leader.append, run, progress=progress, followers=needing)
        system.fault_arm(["pwrite"], 1, "hang", name=f"/{found.others[-1].path.parent.name}/")
        appending = threading.Thread(target=append)
        try:
            appending.start()
            wait_until(lambda: system.fault_counters()[1], 20)
            assert leader.replica.lead(LeaderDecision(0, EPOCH, 2, 0b011, 1))
            assert leader.replica.commit([(1, follower.replica)], EPOCH) == 3
        finally:
            system.fault_off()
            appending.join()
        assert progress.complete
        assert progress.committed == 0, "the caller compares the size of the ISR"
