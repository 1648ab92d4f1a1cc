"""Observes the members of a group and decides which of them have ended.

MEMBERWATCH-1  a heartbeat counts as stopped after the member's session timeout on this observer's
    own monotonic clock. The time counts from the first probe that read the same heartbeat. Clocks
    of a suspended machine or of other hosts prove nothing
MEMBERWATCH-2  an observer that was suspended itself counts at most half a timeout for that time:
    members that were suspended with it send heartbeats again
MEMBERWATCH-3  before a member is evicted its slot is probed again, under the lock of the group's
    partition
MEMBERWATCH-4  the end of its process removes a dynamic member at once, a static member only after
    its session timeout
MEMBERWATCH-5  at every check a member probes the next RING members in a ring, and all others less
    often. The cost is almost constant for groups of any size
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from embedlog.format.process_slot import ProcessSlot
from embedlog.group import Group, Member, State, Verdict
from embedlog.storage.liveness import Liveness, SlotState

CHECK_NS: Final = 100_000_000  # between two checks
RING: Final = 8  # members that one member probes at every check
FAR_PROBES: Final = 8  # probes of every other member within its session timeout
MILLISECOND_NS: Final = 1_000_000


class _Timer:
    """The time for which a state has been observed unchanged (MEMBERWATCH-2)."""

    def __init__(self, now_ns: int) -> None:
        self._since_ns = self.probed_ns = now_ns

    def age_ns(self, now_ns: int, limit_ns: int) -> int:
        away_ns = now_ns - self.probed_ns - limit_ns // 2
        if away_ns > 0:
            self._since_ns += away_ns
        self.probed_ns = now_ns
        return now_ns - self._since_ns


class _ObservedHeartbeat:
    """The observed heartbeat of one member."""

    def __init__(self, process_slot: ProcessSlot | None, heartbeat: int, now_ns: int) -> None:
        self.process_slot = process_slot
        self.heartbeat = heartbeat
        self.timer = _Timer(now_ns)


class _Round(NamedTuple):
    """One phase of a group, distinguishable from others by an observer."""

    round: int
    generation: int
    state: State


class Watch:
    """The observations of one group. Threads: one at a time."""

    def __init__(self, liveness: Liveness, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._liveness = liveness
        self._clock = clock
        self._checked_ns = -CHECK_NS
        self._heartbeats: dict[str, _ObservedHeartbeat] = {}
        self._round: _Round | None = None
        self._timer = _Timer(0)

    def due(self, now_ns: int | None = None) -> bool:
        """Whether a check is due; then it counts as done."""
        now_ns = self._clock() if now_ns is None else now_ns
        if now_ns - self._checked_ns < CHECK_NS:
            return False
        self._checked_ns = now_ns
        return True

    def verdicts(self, group: Group, own_id: str | None, whole: bool = False) -> dict[str, Verdict]:
        """Members that seem to have ended, with reasons: those after `own_id`; all with `whole`, or
        if `own_id` is no member.

        Raises StorageError.
        """
        now_ns = self._clock()
        for member_id in self._heartbeats.keys() - group.members.keys():
            del self._heartbeats[member_id]
        near = set(group.members) if whole else set(next_members(group, own_id))
        found = {}
        for member in group.members.values():
            if member.member_id != own_id and self._is_due(
                member, member.member_id in near, now_ns
            ):
                verdict = self._verdict(member, now_ns)
                if verdict is not None:
                    found[member.member_id] = verdict
        for member_id in self._late(group, now_ns):
            if member_id != own_id:
                found.setdefault(member_id, Verdict.LATE)
        return found

    def confirm(self, group: Group, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """The verdicts that still hold. REQUIRES the lock of the group's partition, and the present
        group.
        """
        found = {}
        for member_id, verdict in verdicts.items():
            member = group.members.get(member_id)
            if member is None:
                continue
            if verdict is Verdict.LATE:
                holds = _round_of(group) == self._round and member_id in _awaited(group)
            else:
                holds = self._still_holds(member, verdict)
            if holds:
                found[member_id] = verdict
        return found

    def round_age_ms(self, group: Group) -> int:
        """The time for which this observer has seen the group in its present phase."""
        now_ns = self._clock()
        return self._age_ns(group, now_ns) // MILLISECOND_NS

    # ---- heartbeats ------------------------------------------------------------------------------

    def _is_due(self, member: Member, near: bool, now_ns: int) -> bool:
        known = self._heartbeats.get(member.member_id)
        if near or known is None or known.process_slot != member.process_slot:
            return True
        return now_ns - known.timer.probed_ns >= _session_ns(member) // FAR_PROBES

    def _verdict(self, member: Member, now_ns: int) -> Verdict | None:
        slot_state = self._slot_state(member)
        session_ns = _session_ns(member)
        known = self._heartbeats.get(member.member_id)
        if (
            known is None
            or known.process_slot != member.process_slot
            or (slot_state.held and slot_state.heartbeat != known.heartbeat)
        ):
            known = self._heartbeats[member.member_id] = _ObservedHeartbeat(
                member.process_slot, slot_state.heartbeat, now_ns
            )
        if known.timer.age_ns(now_ns, session_ns) >= session_ns:
            return Verdict.EXPIRED
        if member.instance_id is not None:
            return None
        if not slot_state.held:
            return Verdict.DEAD
        return Verdict.LEFT if slot_state.left else None

    def _still_holds(self, member: Member, verdict: Verdict) -> bool:
        known = self._heartbeats.get(member.member_id)
        slot_state = self._slot_state(member)
        if known is None or known.process_slot != member.process_slot:
            return False
        if verdict is Verdict.EXPIRED:
            return not slot_state.held or slot_state.heartbeat == known.heartbeat
        return slot_state.left if verdict is Verdict.LEFT else not slot_state.held

    def _slot_state(self, member: Member) -> SlotState:
        """A member without a process slot was written by a broker; its clients cannot reach this
        log.
        """
        return (
            SlotState(False)
            if member.process_slot is None
            else self._liveness.slot_state(member.process_slot)
        )

    # ---- rounds ----------------------------------------------------------------------------------

    def _age_ns(self, group: Group, now_ns: int) -> int:
        if self._round != _round_of(group):
            self._round = _round_of(group)
            self._timer = _Timer(now_ns)
        return self._timer.age_ns(now_ns, group.rebalance_timeout_ms * MILLISECOND_NS)

    def _late(self, group: Group, now_ns: int) -> Iterator[str]:
        age_ns = self._age_ns(group, now_ns)
        if age_ns >= group.rebalance_timeout_ms * MILLISECOND_NS:
            yield from _awaited(group)


def _awaited(group: Group) -> list[str]:
    """The members that the present phase waits for."""
    if group.state is State.PREPARING_REBALANCE:
        return [] if group.delayed else group.missing()
    return (
        [group.leader]
        if group.state is State.COMPLETING_REBALANCE and group.leader is not None
        else []
    )


def next_members(group: Group, own_id: str | None) -> list[str]:
    """The members after `own_id` that it probes; all members if `own_id` is not one."""
    names = sorted(group.members)
    if own_id is None or own_id not in group.members:
        return names
    at = names.index(own_id) + 1
    return (names[at:] + names[: at - 1])[:RING]


def _round_of(group: Group) -> _Round:
    return _Round(group.round, group.generation, group.state)


def _session_ns(member: Member) -> int:
    return member.session_timeout_ms * MILLISECOND_NS
