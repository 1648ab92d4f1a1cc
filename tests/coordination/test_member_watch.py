"""The verdicts of an observer on the process slots of members, and the times when it must have
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedlog import group as rules
from embedlog._native import system
from embedlog.coordination.groups import member_watch
from embedlog.coordination.groups.member_watch import CHECK_NS, Watch
from embedlog.format.process_slot import ProcessSlot
from embedlog.group import Group, Member, Verdict
from embedlog.storage.liveness import Liveness, SlotState
from tests.faults.harness.processes import Nursery, until
from tests.support.group_members import NOW, completing, member, preparing, stable
from tests.support.mutants import apply_mutant, undo_mutants

MS = 1_000_000
SESSION_MS = 45_000  # of `member`


class Slots:
    """The layer below: signs as a test sets them, and how often each was read."""

    def __init__(self) -> None:
        self.signs: dict[int, SlotState] = {}
        self.looks: dict[int, int] = {}

    def slot_state(self, process_slot: ProcessSlot) -> SlotState:
        self.looks[process_slot.slot] = self.looks.get(process_slot.slot, 0) + 1
        return self.signs.get(process_slot.slot, SlotState(True, 1))


class Clock:
    def __init__(self) -> None:
        self.now_ns = 10**15

    def __call__(self) -> int:
        return self.now_ns

    def passes(self, ms: int) -> None:
        self.now_ns += ms * MS


class Stage:
    """One observer, `me`, among others named by letters; the slot of a letter is its number in the
    alphabet.
    """

    def __init__(self) -> None:
        self.slots = Slots()
        self.clock = Clock()
        self.watch = self.another()

    def another(self) -> Watch:
        slots: Any = self.slots
        return Watch(slots, self.clock)

    def see(
        self, group: Group, me: str | None = "a", watch: Watch | None = None
    ) -> dict[str, Verdict]:
        return (watch or self.watch).find_verdicts(group, me)

    def look_for(self, group: Group, ms: int, step_ms: int = 1000) -> dict[str, Verdict]:
        """Repeated looks; the result of the last one."""
        found = self.see(group)
        for _ in range(ms // step_ms):
            self.clock.passes(step_ms)
            found = self.see(group)
        return found

    def show(self, name: str, *sign: Any) -> None:
        self.slots.signs[slot_of(name)] = SlotState(*sign)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def switched_off() -> Iterator[Callable[[str], None]]:
    yield apply_mutant
    undo_mutants()


def slot_of(name: str) -> int:
    return ord(name) - ord("a")


def someone(name: str, **fields: Any) -> Member:
    process_slot = fields.pop("process_slot", ProcessSlot(slot_of(name), 100 + slot_of(name)))
    return member(name, fields.pop("instance", None), process_slot=process_slot, **fields)


def trio(**fields: Any) -> Group:
    """A stable group of `a`, `b` and `c`; the fields are those of `b`."""
    return stable(someone("a"), someone("b", **fields), someone("c"))


# ---- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", ["", "look_always"])
def test_member_5_others_are_looked_at_every_100_ms_at_most(
    stage: Stage, mutant: str, switched_off: Callable[[str], None]
) -> None:
    switched_off(mutant)
    looks = 0
    for _ in range(1000):
        looks += stage.watch.begin_check_if_due()
        stage.clock.passes(1)
    assert (looks <= 11) == (not mutant)
    assert stage.watch.begin_check_if_due(stage.clock() + CHECK_NS)


# ---- death -----------------------------------------------------------------------------------------------------------


def test_who_lives_is_nothing_to_tell_of(stage: Stage) -> None:
    assert stage.see(trio()) == {}
    assert stage.see(stable(someone("a"))) == {}


def test_who_is_gone_or_has_left_is_told_at_the_first_look(stage: Stage) -> None:
    stage.show("b", False)
    stage.show("c", True, 7, True)
    assert stage.see(trio()) == {"b": Verdict.DEAD, "c": Verdict.LEFT}
    assert stage.see(trio(), "b") == {"c": Verdict.LEFT}, "no member judges itself"


def test_a_brokers_member_is_nobody_who_could_be_alive(stage: Stage) -> None:
    assert stage.see(trio(process_slot=None)) == {"b": Verdict.DEAD}
    assert stage.see(trio(process_slot=None, instance="i")) == {}


@pytest.mark.parametrize("mutant", ["", "static_member_dies"])
def test_member_5_death_never_evicts_a_static_member(
    stage: Stage, mutant: str, switched_off: Callable[[str], None]
) -> None:
    """Its place is kept for the process that comes after it, until its session is over."""
    group = trio(instance="i")
    switched_off(mutant)
    stage.show("b", True, 7)
    stage.see(group)
    stage.show("b", False, 7)
    verdicts = stage.see(group)
    after = rules.evict(group, stage.watch.confirm(group, verdicts), NOW)
    assert ("b" not in after.members) == bool(mutant)
    stage.show("b", True, 7, True)  # its polls stopped, and its heartbeats with them
    assert ("b" in stage.see(group)) == bool(mutant)
    verdicts = stage.look_for(group, SESSION_MS)
    assert verdicts["b"] is Verdict.EXPIRED
    assert "b" not in rules.evict(group, stage.watch.confirm(group, verdicts), NOW).members


# ---- heartbeats ------------------------------------------------------------------------------------------------------


def test_a_heart_that_stands_still_for_a_session_has_stopped(stage: Stage) -> None:
    group = trio(session_timeout_ms=10_000)
    stage.see(group)
    stage.clock.passes(4_000)
    stage.show("b", True, 2)
    assert stage.look_for(group, 9_000) == {}
    assert stage.look_for(group, 1_000) == {"b": Verdict.EXPIRED}
    stage.show("b", True, 3)
    assert stage.see(group) == {}


def test_a_session_is_counted_from_this_observers_first_look(stage: Stage) -> None:
    group = trio(session_timeout_ms=10_000)
    stage.look_for(group, 9_000)
    other = stage.another()
    assert stage.see(group, watch=other) == {}
    assert stage.look_for(group, 1_000) == {"b": Verdict.EXPIRED}
    assert stage.see(group, watch=other) == {}


def test_a_new_life_in_a_members_place_begins_with_a_whole_session(stage: Stage) -> None:
    group = trio(session_timeout_ms=10_000)
    stage.look_for(group, 9_000)
    again = trio(session_timeout_ms=10_000, process_slot=ProcessSlot(1, 9))
    assert stage.look_for(again, 9_000) == {}
    assert stage.look_for(again, 1_000) == {"b": Verdict.EXPIRED}


def test_who_left_and_came_again_begins_with_a_whole_session(stage: Stage) -> None:
    group = trio(session_timeout_ms=10_000)
    stage.look_for(group, 9_000)
    stage.see(stable(someone("a"), someone("c")))
    assert stage.look_for(group, 9_000) == {}


def test_an_observer_that_was_away_itself_evicts_nobody_at_once(stage: Stage) -> None:
    """Frozen together, as a container or a shell's job is: the others write heartbeats again a
    moment later.
    """
    group = trio(session_timeout_ms=10_000)
    stage.see(group)
    stage.clock.passes(3_600_000)
    assert stage.see(group) == {}
    assert stage.look_for(group, 4_000) == {}
    assert stage.look_for(group, 1_000) == {"b": Verdict.EXPIRED}, (
        "but its count does not restart each time"
    )


def test_who_looks_seldom_finds_out_in_the_end(stage: Stage) -> None:
    group = trio(session_timeout_ms=10_000)
    assert stage.look_for(group, 20_000, step_ms=20_000) == {}
    assert stage.look_for(group, 20_000, step_ms=20_000) == {"b": Verdict.EXPIRED}


@pytest.mark.parametrize("mutant", ["", "boot_clock"])
def test_member_3_a_suspended_machine_evicts_nobody(
    stage: Stage, mutant: str, switched_off: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time on the boot clock passes while no process can write a heartbeat; on the monotonic clock
    none does.
    """
    asleep_ms = 0
    monkeypatch.setattr(system, "boot_ns", lambda: stage.clock() + asleep_ms * MS)
    group = trio(session_timeout_ms=10_000)
    switched_off(mutant)
    watch = stage.another()
    for _ in range(3):  # a lid that is closed for a while now and then
        assert stage.see(group, watch=watch) == {}
        asleep_ms += 4_000
        stage.clock.passes(100)
    assert (stage.see(group, watch=watch) == {"b": Verdict.EXPIRED}) == bool(mutant)


def test_the_clock_of_a_watch_is_the_monotonic_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "boot_ns", lambda: 1 / 0)
    watch = Watch(Liveness(tmp_path))
    assert watch.begin_check_if_due()
    assert watch.find_verdicts(stable(someone("a")), "a") == {}


# ---- under the lock --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", ["", "no_second_look"])
def test_member_3_a_beat_that_comes_before_the_lock_is_had_saves(
    stage: Stage, mutant: str, switched_off: Callable[[str], None]
) -> None:
    group = trio(session_timeout_ms=10_000)
    stage.look_for(group, 9_000)
    verdicts = stage.look_for(group, 1_000)
    assert stage.watch.confirm(group, verdicts) == verdicts == {"b": Verdict.EXPIRED}
    switched_off(mutant)
    stage.show("b", True, 2)
    assert (stage.watch.confirm(group, verdicts) == verdicts) == bool(mutant)


def test_what_is_no_longer_so_is_not_confirmed(stage: Stage) -> None:
    group = trio()
    stage.show("b", False)
    stage.show("c", True, 7, True)
    verdicts = stage.see(group)
    assert stage.watch.confirm(group, verdicts) == verdicts
    stage.show("b", True, 1)
    assert stage.watch.confirm(group, verdicts) == {"c": Verdict.LEFT}
    stage.show("c", True, 8, False)
    assert stage.watch.confirm(group, verdicts) == {}
    assert stage.watch.confirm(stable(someone("a")), verdicts) == {}, "gone already"


def test_another_life_under_the_same_name_is_somebody_else(stage: Stage) -> None:
    group = trio()
    stage.show("b", False)
    verdicts = stage.see(group)
    assert stage.watch.confirm(trio(process_slot=ProcessSlot(1, 5)), verdicts) == {}


# ---- rounds ----------------------------------------------------------------------------------------------------------


def test_whom_a_round_waits_for_is_late_after_its_timeout(stage: Stage) -> None:
    group = preparing(*(someone(name, rebalance_timeout_ms=60_000) for name in "abc"))
    for name in "abc":
        assert stage.see(group, name) == {}
    for heartbeat in range(60):
        stage.clock.passes(1_000)
        for name in "abc":
            stage.show(name, True, heartbeat)
        assert heartbeat == 59 or stage.see(group) == {}
    verdicts = stage.see(group)
    assert verdicts == {"b": Verdict.LATE, "c": Verdict.LATE}
    assert stage.watch.confirm(group, verdicts) == verdicts
    assert stage.see(group, "b") == {"c": Verdict.LATE}, "no member judges itself"
    came = rules.join(group, group.members["b"], rules.Limits(), NOW)
    assert isinstance(came, Group)
    assert stage.watch.confirm(came, verdicts) == {"c": Verdict.LATE}
    assert stage.watch.confirm(replace(group, round=group.round + 2), verdicts) == {}, (
        "that was another round"
    )


def test_a_leader_without_a_sync_is_late(stage: Stage) -> None:
    group = completing(*(someone(name, rebalance_timeout_ms=10_000) for name in "abc"))
    assert group.leader == "a"
    assert stage.see(group, "c") == {}
    for _ in range(10):
        stage.clock.passes(1_000)
        verdicts = stage.see(group, "c")
    assert verdicts == {"a": Verdict.LATE}


def test_each_phase_has_a_timeout_of_its_own(stage: Stage) -> None:
    names = [someone(name, rebalance_timeout_ms=10_000) for name in "abc"]
    stage.look_for(preparing(*names), 9_000)
    assert stage.look_for(replace(preparing(*names), round=99), 9_000) == {}
    assert stage.watch.round_age_ms(replace(preparing(*names), round=99)) == 9_000
    assert stage.watch.round_age_ms(preparing(*names)) == 0


def test_while_newcomers_are_waited_for_nobody_is_late(stage: Stage) -> None:
    group = replace(
        preparing(*(someone(name, rebalance_timeout_ms=10_000) for name in "abc")), delayed=True
    )
    assert stage.look_for(group, 30_000) == {}


# ---- many ------------------------------------------------------------------------------------------------------------


def crowd(count: int) -> Group:
    members = {
        each.member_id: each
        for each in (
            replace(someone("a"), member_id=f"{n:03}", process_slot=ProcessSlot(n, n))
            for n in range(count)
        )
    }
    return replace(stable(someone("a")), members=members, leader="000")


def test_a_large_group_costs_a_member_no_more_than_a_small_one(stage: Stage) -> None:
    group = crowd(100)
    stage.see(group, "098")
    stage.slots.looks.clear()
    for _ in range(20):
        stage.clock.passes(100)
        stage.see(group, "098")
    assert sorted(stage.slots.looks) == [*range(member_watch.RING - 1), 99]
    stage.slots.looks.clear()
    stage.clock.passes(SESSION_MS // member_watch.FAR_PROBES)
    stage.see(group, "098")
    assert len(stage.slots.looks) == 99


def test_everybody_is_looked_after_by_somebody_whoever_dies(stage: Stage) -> None:
    group = crowd(30)
    alive = {"007"}
    for number in range(30):
        stage.slots.signs[number] = SlotState(f"{number:03}" in alive, 1)
    for _ in range(5):
        stage.clock.passes(100)
        gone = stage.see(group, "007")
        group = replace(
            group, members={name: each for name, each in group.members.items() if name not in gone}
        )
    assert set(group.members) == alive


def test_a_stranger_and_whoever_wants_the_whole_look_at_all(stage: Stage) -> None:
    group = crowd(30)
    for number in range(30):
        stage.slots.signs[number] = SlotState(False)
    assert len(stage.another().find_verdicts(group, None)) == 30
    assert len(stage.another().find_verdicts(group, "another")) == 30
    watch = stage.another()
    watch.find_verdicts(group, "000")  # the first look covers all members
    assert len(watch.find_verdicts(group, "000")) == member_watch.RING
    assert len(watch.find_verdicts(group, "000", covers_all=True)) == 29


# ---- with real slots -------------------------------------------------------------------------------------------------


def test_killed_frozen_and_late_processes_are_told_apart(
    until_end: ExitStack, nursery: Nursery, tmp_path: Path
) -> None:
    here = until_end.enter_context(closing(Liveness(tmp_path)))
    lives = {}
    for name, poll_ms in (("b", 1 << 30), ("c", 1 << 30), ("d", 1), ("e", 1 << 30)):
        victim = nursery.spawn()
        lives[name] = victim, ProcessSlot(*victim.call("lease", str(tmp_path), 400, 20, poll_ms))
    lives["d"][0].call("lease_do", "end_poll")
    members = [
        replace(member(name, process_slot=process_slot), session_timeout_ms=400)
        for name, (_, process_slot) in lives.items()
    ]
    group = replace(
        stable(someone("a")), members={each.member_id: each for each in (someone("a"), *members)}
    )
    watch = Watch(here)
    until(
        lambda: watch.find_verdicts(group, "a") == {"d": Verdict.LEFT},
        "the verdict on the late member",
    )
    lives["b"][0].kill()
    lives["c"][0].stop()
    assert watch.find_verdicts(group, "a") == {"b": Verdict.DEAD, "d": Verdict.LEFT}
    wanted = {"b", "c", "d"}
    until(
        lambda: watch.find_verdicts(group, "a").keys() == wanted,
        "the frozen one's session to be over",
    )
    verdicts = watch.find_verdicts(group, "a")
    assert verdicts["c"] is Verdict.EXPIRED
    assert watch.confirm(group, verdicts) == verdicts
    lives["c"][0].resume()
    until(lambda: "c" not in watch.confirm(group, verdicts), "its next heartbeat")
    assert set(rules.evict(group, watch.confirm(group, verdicts), NOW).members) == {"a", "c", "e"}
