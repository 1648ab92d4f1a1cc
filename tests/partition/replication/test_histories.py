"""Random histories of three replicas, each used through two handles, compared after each step with
a small model of the rules.
"""

from __future__ import annotations

import errno
import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog._native.replication import ROLE_FOLLOWER, ROLE_LEADER
from embedlog.errors import EmbedlogError
from embedlog.format.record_batch import decode
from embedlog.format.record_columns import BytesColumn
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_log import LeaderDecision
from tests.support.replica_logs import replica
from tests.support.stamped_batches import run_of

SLOTS = range(3)
CHANGING = ["open", "pwrite", "ftruncate", "rename", "fsync"]
Record = tuple[int, bytes]  # leader epoch, value


@dataclass
class Modelled:
    """A replica in the model: the page and the log."""

    epoch: int = 0
    role: int = 0
    high_watermark: int = 0
    log: list[Record] = field(default_factory=list)


@dataclass
class Model:
    """The rules of REPLICA-1 to REPLICA-6 for one partition."""

    replicas: list[Modelled] = field(default_factory=lambda: [Modelled() for _ in SLOTS])
    leader: int = 0
    epoch: int = 0
    partition_epoch: int = 0
    decided: int = 0b111
    maximal: int = 0b111
    min_in_sync: int = 2
    shown: list[Record] = field(default_factory=list)  # what any leader has committed

    def commit(self) -> None:
        leader = self.replicas[self.leader]
        members = [
            self.replicas[slot]
            for slot in SLOTS
            if self.maximal >> slot & 1 and slot != self.leader
        ]
        if all(each.epoch == leader.epoch and each.role == ROLE_FOLLOWER for each in members):
            end = min([len(leader.log), *[len(each.log) for each in members]])
            if self.decided.bit_count() >= self.min_in_sync:
                leader.high_watermark = max(leader.high_watermark, end)

    def follow(self, slot: int) -> None:
        leader = self.replicas[self.leader]
        follower = self.replicas[slot]
        if follower.epoch < leader.epoch:
            same = next(
                (
                    at
                    for at, (a, b) in enumerate(zip(leader.log, follower.log, strict=False))
                    if a != b
                ),
                None,
            )
            end = min(len(leader.log), len(follower.log)) if same is None else same
            follower.log = follower.log[:end]
            follower.epoch = leader.epoch
            follower.role = ROLE_FOLLOWER
            follower.high_watermark = min(follower.high_watermark, end)

    def check(self) -> None:
        """The invariant: a member of the decided ISR has every record that was committed."""
        leader = self.replicas[self.leader]
        committed = leader.log[: leader.high_watermark]
        shorter = min(len(committed), len(self.shown))
        assert committed[:shorter] == self.shown[:shorter], "a committed record was replaced"
        self.shown = max(self.shown, committed, key=len)
        for slot in SLOTS:
            if self.decided >> slot & 1 and self.replicas[slot].epoch == leader.epoch:
                assert self.replicas[slot].log[: leader.high_watermark] == committed


def records(partition: Partition) -> list[Record]:
    """Epoch and value of each record up to the log end."""
    now = partition.published()
    found = []
    offset = 0
    while offset < now.log_end:
        fetched = partition.replica.read(offset)
        for row in fetched.batches:
            columns = decode(
                fetched.data, fetched.batches[fetched.batches["base_offset"] == row["base_offset"]]
            )
            values = columns.values
            assert isinstance(values, BytesColumn)
            found += [(int(row["leader_epoch"]), value or b"") for value in values]
        offset = fetched.next_offset
    return found


class History:
    """The steps of one history."""

    def __init__(self, handles: list[list[Partition]], rng: random.Random) -> None:
        self.handles = handles
        self.rng = rng
        self.model = Model()
        self.count = 0

    def use(self, slot: int) -> Partition:
        return self.rng.choice(self.handles[slot])

    def install(self, slot: int, epoch: int, isr: int) -> None:
        model = self.model
        for partition in [self.use(slot)]:
            assert partition.replica.lead(
                LeaderDecision(slot, epoch, model.partition_epoch + 1, isr, model.min_in_sync)
            )
        model.leader = slot
        model.epoch = epoch
        model.decided = isr
        model.maximal = isr
        model.partition_epoch += 1
        model.replicas[slot].epoch = epoch
        model.replicas[slot].role = ROLE_LEADER

    def append(self) -> None:
        leader = self.use(self.model.leader)
        leader.replica.require(self.model.epoch, all_in_sync=False)
        values = [b"%d-%d" % (self.count, each) for each in range(self.rng.randint(1, 3))]
        self.count += 1
        leader.append(run_of(*values))
        replica_of = self.model.replicas[self.model.leader]
        replica_of.log += [(self.model.epoch, value) for value in values]
        if (
            self.model.maximal == 1 << self.model.leader
            and self.model.decided.bit_count() >= self.model.min_in_sync
        ):
            replica_of.high_watermark = len(replica_of.log)

    def follow(self, slot: int, most: int) -> None:
        if slot == self.model.leader:
            return
        leader = self.use(self.model.leader)
        follower = self.use(slot)
        follower.replica.follow(self.model.leader, self.model.epoch, leader.epoch_end)
        self.model.follow(slot)
        now = leader.published()
        fetched = leader.replica.read(follower.published().log_end, most)
        end = follower.replica.take(fetched, self.model.epoch, now.high_watermark)
        ours = self.model.replicas[slot]
        theirs = self.model.replicas[self.model.leader]
        ours.log = theirs.log[:end]
        ours.high_watermark = max(ours.high_watermark, min(theirs.high_watermark, end))

    def commit(self) -> None:
        leader = self.use(model_leader := self.model.leader)
        model = self.model
        followers = [(slot, self.use(slot).replica) for slot in SLOTS if slot != model_leader]
        leader.replica.commit(followers, model.epoch)
        model.commit()

    def shrink(self) -> None:
        isr = self.model.decided & ~(1 << self.rng.choice(SLOTS)) | 1 << self.model.leader
        self.install(self.model.leader, self.model.epoch, isr)

    def grow(self) -> None:
        slot = self.rng.choice(SLOTS)
        model = self.model
        if slot == model.leader:
            return
        self.follow(slot, 1 << 20)
        # a read ends with its segment
        while len(model.replicas[slot].log) < len(model.replicas[model.leader].log):
            self.follow(slot, 1 << 20)
        joined = self.use(model.leader).replica.join(
            self.use(slot).replica, slot, model.epoch, model.partition_epoch
        )
        assert joined
        model.maximal |= 1 << slot
        if self.rng.random() < 0.8:
            self.install(model.leader, model.epoch, model.decided | 1 << slot)

    def elect(self) -> None:
        members = [slot for slot in SLOTS if self.model.decided >> slot & 1]
        self.install(self.rng.choice(members), self.model.epoch + 1, self.model.decided)

    def step(self) -> None:
        rng = self.rng
        chosen = rng.random()
        if chosen < 0.35:
            self.append()
        elif chosen < 0.65:
            self.follow(rng.choice(SLOTS), rng.choice((1, 200, 1 << 20)))
        elif chosen < 0.8:
            self.commit()
        elif chosen < 0.86:
            self.shrink()
        elif chosen < 0.93:
            self.grow()
        else:
            self.elect()

    def compare(self) -> None:
        for slot in SLOTS:
            partition = self.use(slot)
            expected = self.model.replicas[slot]
            now, state = partition.replica.published()
            assert (now.log_end, now.epoch, state.role) == (
                len(expected.log),
                expected.epoch,
                expected.role,
            ), slot
            assert now.high_watermark == expected.high_watermark, slot
            assert records(partition) == expected.log, slot
        self.model.check()

    def take_over(self) -> None:
        """After an interrupted step the model continues with what the replicas contain."""
        for slot in SLOTS:
            with self.use(slot).replica.exclusive() as held:
                now = held.published
                state = held.replica
            expected = self.model.replicas[slot]
            assert now.high_watermark >= min(expected.high_watermark, now.log_end), (
                "the high watermark fell"
            )
            found = records(self.use(slot))
            self.model.replicas[slot] = Modelled(now.epoch, state.role, now.high_watermark, found)
            if (
                state.role == ROLE_LEADER
                and now.epoch >= self.model.epoch
                and state.partition_epoch >= self.model.partition_epoch
            ):
                self.model.leader = slot
                self.model.epoch = now.epoch
                self.model.partition_epoch = state.partition_epoch
                self.model.decided = state.decided_isr
                self.model.maximal = state.maximal_isr
        self.model.check()


@pytest.mark.parametrize("interrupted", [False, True], ids=["whole steps", "interrupted steps"])
def test_three_replicas_agree_with_the_model_after_each_step(
    tmp_path: Path, interrupted: bool, seed: int
) -> None:
    rng = random.Random(seed)
    with ExitStack() as opened:
        handles = [
            [opened.enter_context(replica(tmp_path / str(slot), slot)) for _ in range(2)]
            for slot in SLOTS
        ]
        history = History(handles, rng)
        history.install(0, 1, 0b111)
        for _ in range(120):
            if not interrupted or rng.random() < 0.7:
                history.step()
                if rng.random() < 0.4:
                    history.compare()
                continue
            system.fault_arm(CHANGING, rng.randint(1, 12), "fail", errno.EIO)
            try:
                history.step()
            except EmbedlogError:
                pass
            finally:
                system.fault_off()
            history.take_over()
        for _ in range(1000):  # an ISR below the minimum can last until the end of the steps above
            if history.model.shown:
                break
            history.step()
        history.compare()
        assert history.model.shown, "nothing was committed"
