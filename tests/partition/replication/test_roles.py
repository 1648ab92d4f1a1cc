"""Leaders and followers: installed decisions, truncation by epochs, the commit, joining, refused
appends.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system, waits
from embedlog._native.replication import ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE
from embedlog.errors import EmbedlogError, OffsetOutOfRangeError
from embedlog.format.record_batch import Stamp
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_log import (
    Fenced,
    LeaderDecision,
    NotLeader,
    TooFew,
    agreed_end,
)
from embedlog.storage.checkpoints import EpochCache
from tests.support.replica_logs import content, lead, replica
from tests.support.stamped_batches import run_of, stamped

ALL = 0b111
CHANGING = ["open", "pwrite", "ftruncate", "rename", "fsync"]


@contextmanager
def three(path: Path) -> Iterator[list[Partition]]:
    with ExitStack() as opened:
        yield [opened.enter_context(replica(path / str(slot), slot)) for slot in range(3)]


def copy(leader: Partition, follower: Partition) -> None:
    """Follow in the leader's epoch, and copy up to its log end."""
    now, state = leader.replica.published()
    follower.replica.follow(state.leader, now.epoch, leader.epoch_end)
    while (at := follower.published().log_end) < leader.published().log_end:
        now = leader.published()
        follower.replica.take(leader.replica.read(at), now.epoch, now.high_watermark)
    now = leader.published()
    follower.replica.take(leader.replica.read(at), now.epoch, now.high_watermark)


def commit(leader: Partition, *followers: tuple[int, Partition]) -> int:
    return leader.replica.commit(
        [(slot, each.replica) for slot, each in followers], leader.published().epoch
    )


def test_an_append_needs_a_page_that_leads_in_the_required_epoch(tmp_path: Path) -> None:
    with three(tmp_path) as (one, two, _):
        with pytest.raises(NotLeader):
            one.append(run_of(b"without a role"))
        lead(one, 3)
        assert one.append(run_of(b"a")).base_offset == 0
        one.replica.require(2, all_in_sync=False)
        with pytest.raises(NotLeader):
            one.append(run_of(b"an older epoch"))
        with pytest.raises(NotLeader):
            one.append_marker(7, 1, commit=True)
        copy(one, two)
        two.replica.require(3, all_in_sync=False)
        with pytest.raises(NotLeader):
            two.append(run_of(b"a follower"))
        assert two.published().log_end == 1
        one.replica.require(3, all_in_sync=True)
        assert one.replica.lead(LeaderDecision(0, 3, 4, 1, 2))
        with pytest.raises(TooFew):
            one.append(run_of(b"too few"))
        assert one.published().log_end == 1
        assert one.replica.lead(LeaderDecision(0, 3, 5, 1, 1))
        one.replica.require(3, all_in_sync=True, needed=2)
        with pytest.raises(TooFew):
            one.append(run_of(b"too few for this process"))
        one.replica.require(3, all_in_sync=False, needed=2)
        assert one.append(run_of(b"acks=1")).base_offset == 1
        with one.exclusive() as held:
            one.replica.check_leads(held, 3)
        with pytest.raises(NotLeader), one.exclusive() as held:
            one.replica.check_leads(held, 2)


def test_a_page_with_a_role_refuses_appends_outside_of_its_set(tmp_path: Path) -> None:
    with replica(tmp_path) as one:
        lead(one, 1)
        one.append(run_of(b"a"))
        with (
            embedlog.open(tmp_path, config={"housekeeping": False}) as alone,
            pytest.raises(NotLeader),
        ):
            alone._engine.partition("t", 0).append(run_of(b"b"))


def test_a_decision_is_installed_over_an_older_one_only(tmp_path: Path) -> None:
    with replica(tmp_path) as one:
        assert one.replica.lead(LeaderDecision(0, 2, 5, ALL, 1))
        assert not one.replica.lead(LeaderDecision(0, 2, 5, 1, 1))
        assert not one.replica.lead(LeaderDecision(0, 1, 6, 1, 1))
        assert one.replica.lead(LeaderDecision(0, 2, 6, 3, 1))
        now, state = one.replica.published()
        assert (state.maximal_isr, state.decided_isr, state.partition_epoch, now.epoch) == (
            3,
            3,
            6,
            2,
        )
        one.replica.require(2, all_in_sync=False)
        one.append(run_of(b"a"))
        assert one.replica.lead(LeaderDecision(0, 4, 7, 1, 1))
        assert one.replica.published()[1].epoch_start == 1
        assert content(one).epochs == [(2, 0), (4, 1)]
    with replica(tmp_path) as one:
        assert one.replica.published()[1].role == ROLE_NONE
        assert one.replica.lead(LeaderDecision(0, 4, 7, 1, 1)), (
            "after an orderly close it is installed anew"
        )
        now, state = one.replica.published()
        assert (state.role, state.epoch_start, now.high_watermark) == (ROLE_LEADER, 1, 0)


def test_the_high_watermark_is_the_least_end_of_the_maximal_isr(tmp_path: Path) -> None:
    with three(tmp_path) as (one, two, other):
        lead(one, 1, ALL)
        one.append(run_of(b"a"))
        one.append(run_of(b"b"))
        assert one.published().high_watermark == 0
        copy(one, two)
        assert commit(one, (1, two)) == 0, "a member is not given"
        assert commit(one, (1, two), (2, other)) == 0, "a member is not in the epoch"
        copy(one, other)
        one.append(run_of(b"c"))
        copy(one, two)
        assert commit(one, (1, two), (2, other)) == 2
        assert one.replica.lead(LeaderDecision(0, 1, 2, 0b011, 3))
        assert commit(one, (1, two)) == 2, "the decided ISR is too small"
        assert one.replica.lead(LeaderDecision(0, 1, 3, 0b011, 2))
        assert commit(one, (1, two)) == 3
        with pytest.raises(NotLeader):
            one.replica.commit([], 0)
        with pytest.raises(NotLeader):
            two.replica.commit([], 1)


def test_a_member_whose_page_was_replaced_or_whose_log_is_being_cut_does_not_count(
    tmp_path: Path,
) -> None:
    with three(tmp_path) as (one, two, _):
        lead(one, 1, 0b011)
        one.append(run_of(b"a"))
        copy(one, two)
        two._state.page.set(system.WORD_CUT_INTENT, system.CUT_END)
        assert commit(one, (1, two)) == 0
        two._state.page.set(system.WORD_CUT_INTENT, 0)
        path = two.path / "embedlog.page"
        for page in two.path.glob("embedlog.*"):
            if page.stat().st_size == system.PAGE_BYTES:
                path = page
        moved = path.rename(path.with_name("moved"))
        path.write_bytes(moved.read_bytes())
        assert commit(one, (1, two)) == 0
        moved.rename(path)
        assert commit(one, (1, two)) == 1


def test_readers_end_at_the_high_watermark(tmp_path: Path) -> None:
    stamp = Stamp(5, 0, True, True)
    with three(tmp_path) as (one, two, _):
        lead(one, 1, 0b011)
        one.append(run_of(b"a"))
        copy(one, two)
        assert commit(one, (1, two)) == 1
        copy(one, two)
        first = one.fetch(0)
        tail = one.tail(1, "read_uncommitted")
        one.append(stamped(stamp, 0, b"b"), stamp=stamp)
        one.append_marker(5, 1, commit=True)
        for partition in (one, two):
            assert partition.fetch(0).next_offset == 1
            assert not len(partition.fetch(1).batches)
            assert partition.bounds().high_watermark == 1
            assert (
                partition.offset_for_time(int(first.batches["max_timestamp"][0]) + 10_000_000)
                is None
            )
        assert tail is not None
        assert not tail.records(), "the tail ends there, too"
        page = one.mapped_page
        assert page is not None
        assert (
            waits.Waiter().wait([(page, 1)], False, [], system.boot_ns() + 1_000_000)
            == system.TIMED_OUT
        )
        copy(one, two)
        assert commit(one, (1, two)) == 3
        assert waits.Waiter().wait([(page, 1)], False, [], system.boot_ns() + 1_000_000_000) == 0
        assert one.fetch(1).next_offset == 3
        assert one.bounds().last_stable == 3


def test_a_follower_is_cut_where_its_epochs_and_the_leaders_diverge(tmp_path: Path) -> None:
    with three(tmp_path) as (one, two, other):
        lead(one, 1, ALL)
        one.append(run_of(b"a"))
        copy(one, two)
        copy(one, other)
        assert commit(one, (1, two), (2, other)) == 1
        one.append(run_of(b"lost 1"))
        one.append(run_of(b"lost 2"))
        two.replica.lead(LeaderDecision(1, 2, 2, 0b110, 1))
        two.replica.require(2, all_in_sync=False)
        two.append(run_of(b"b"))
        copy(two, one)
        assert content(one).log == content(two).log
        assert content(one).epochs == [(1, 0), (2, 1)]
        now, state = one.replica.published()
        assert (now.epoch, now.high_watermark, state.role) == (2, 1, ROLE_FOLLOWER)
        with pytest.raises(Fenced):
            one.replica.follow(0, 1, one.epoch_end)
        with pytest.raises(Fenced):
            one.replica.take(two.replica.read(1), 1, 0)
        assert one.replica.follow(1, 2, two.epoch_end) == 2, "it is repeatable"


def test_a_replica_joins_with_everything_that_a_member_must_have(tmp_path: Path) -> None:
    with three(tmp_path) as (one, two, _):
        lead(one, 1)
        one.append(run_of(b"a"))
        one.append(run_of(b"b"))
        assert commit(one) == 2
        assert not one.replica.join(two.replica, 1, 1, 1), "it does not follow"
        two.replica.follow(0, 1, one.epoch_end)
        assert not one.replica.join(two.replica, 1, 1, 1), "it lacks records"
        copy(one, two)
        assert not one.replica.join(two.replica, 1, 1, 9), (
            "the page does not contain the newest decision"
        )
        with pytest.raises(NotLeader):
            one.replica.join(two.replica, 1, 2, 1)
        assert one.replica.join(two.replica, 1, 1, 1)
        assert one.replica.join(two.replica, 1, 1, 1), "it is repeatable"
        _, state = one.replica.published()
        assert (state.maximal_isr, state.decided_isr) == (0b011, 0b001)
        one.append(run_of(b"c"))
        assert one.published().high_watermark == 2, "the high watermark waits for the new member"


def test_a_replica_that_lacks_the_start_of_the_epoch_or_is_in_another_epoch_does_not_join(
    tmp_path: Path,
) -> None:
    with three(tmp_path) as (one, two, other):
        lead(one, 1, ALL)
        one.append(run_of(b"a"))
        for each in (two, other):
            copy(one, each)
        assert commit(one, (1, two), (2, other)) == 1
        one.append(run_of(b"b"))
        copy(one, two)
        lead(one, 2)
        now, state = one.replica.published()
        assert (now.high_watermark, state.epoch_start, two.published().log_end) == (1, 2, 2)
        assert not one.replica.join(two.replica, 1, 2, 2), "its page has a lower epoch"
        other.replica.follow(0, 2, one.epoch_end)
        assert other.published().log_end == 1
        assert not one.replica.join(other.replica, 2, 2, 2), (
            "it lacks a record below the start of the epoch"
        )
        copy(one, other)
        assert one.replica.join(other.replica, 2, 2, 2)


def test_the_log_start_ends_at_the_high_watermark_and_a_replica_joins_with_it(
    tmp_path: Path,
) -> None:
    with three(tmp_path) as (one, two, _):
        lead(one, 1, 0b011)
        one.append(run_of(b"a"))
        copy(one, two)
        assert commit(one, (1, two)) == 1
        one.append(run_of(b"b"))
        with pytest.raises(OffsetOutOfRangeError):
            one.delete_records(2)
        assert one.delete_records(-1) == 1
        copied = one.replica.read(1)
        two.replica.take(copied, 1, 1)
        assert [each.published().log_start for each in (one, two)] == [1, 0]
        assert one.replica.lead(LeaderDecision(0, 1, 2, 0b001, 1)), "the ISR without the follower"
        assert not one.replica.join(two.replica, 1, 1, 2), "it would lead with deleted records"
        two.replica.take(one.replica.read(2), 1, 1, log_start=1)
        two.delete_records(1)
        assert one.replica.join(two.replica, 1, 1, 2)


def test_a_load_after_a_kill_begins_no_epoch(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            with replica(tmp_path) as one:
                lead(one, 3)
                one.append(run_of(b"a"))
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    (tmp_path / "t-0" / "embedlog.page").unlink()  # as after a power loss
    with replica(tmp_path) as one:
        now, state = one.replica.published()
        assert (now.epoch, now.log_end, state.role) == (3, 1, ROLE_NONE)
        assert content(one).epochs == [(3, 0)]


def test_epochs_agree_as_a_search_over_all_offsets_finds() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(300):
        shared = [epoch for epoch in range(rng.randint(0, 4)) for _ in range(rng.randint(0, 3))]
        ours = shared + [5 + 2 * each for each in range(2) for _ in range(rng.randint(0, 3))]
        theirs = (
            shared + [6 + 2 * each for each in range(3) for _ in range(rng.randint(0, 3))] + [20]
        )
        caches = []
        for log in (ours, theirs):
            cache = EpochCache()
            for offset, epoch in enumerate(log):
                if epoch > cache.latest_epoch:
                    cache.assign(epoch, offset)
            caches.append(cache)
        found = agreed_end(caches[0], len(ours), partial(caches[1].end_offset, log_end=len(theirs)))
        assert found == len(shared), (ours, theirs)


def test_an_epoch_that_began_without_a_publication_begins_again_at_the_log_end(
    tmp_path: Path,
) -> None:
    with replica(tmp_path) as one:
        lead(one, 3)
        with one.replica.exclusive() as held:
            held.begin_epoch(5)  # as by a process that is killed before the publication
        one.replica.require(3, all_in_sync=False)
        one.append(run_of(b"still in epoch 3"))
        lead(one, 5)
        assert one.replica.published()[1].epoch_start == 1
        assert content(one).epochs == [(3, 0), (5, 1)]


def test_the_epochs_stay_if_the_begin_of_one_fails(tmp_path: Path) -> None:
    with replica(tmp_path) as one:
        lead(one, 3)
        for call in range(1, 20):
            system.fault_arm(CHANGING, call, "fail", errno.EIO)
            try:
                one.replica.lead(LeaderDecision(0, 5, 4, 1, 1))
            except EmbedlogError:
                system.fault_off()
                assert content(one).epochs == [(3, 0)]
            else:
                break
            finally:
                system.fault_off()
        assert call > 1
        assert content(one).epochs == [(5, 0)]


def test_a_replica_that_begins_again_at_a_lower_log_start_has_no_purged_to_above_it(
    tmp_path: Path,
) -> None:
    """It would seem to have begun with that value, and miss a later compaction of its
    leader.
    """
    with replica(tmp_path / "one") as found:
        lead(found, 1)
        for _ in range(4):
            found.append(run_of(b"a", b"b"))
        found.replica.commit([], 1)
        found.delete_records(8)
        with found.replica.exclusive() as held:
            held.publish(held.published._replace(purged_to=20), held.replica)
        assert found.replica.follow(2, 3, lambda epoch: (-1, -1), start=3) == 3
        now = found.published()
        assert (now.log_start, now.log_end, now.purged_to) == (3, 3, 3)
