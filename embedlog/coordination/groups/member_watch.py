"""Observes the members of a group and decides which of them have ended.

- A heartbeat counts as stopped after the member's session timeout on this observer's own monotonic
  clock. The time counts from the first probe that read the same heartbeat. Clocks of a suspended
  machine or of other hosts prove nothing.
- An observer that was suspended itself counts at most half a timeout for that time: members that
  were suspended with it send heartbeats again.
- Before a member is evicted its slot is probed again, under the lock of the group's partition.
- The end of its process removes a dynamic member at once, a static member only after its session
  timeout.
- At every check a member probes the next RING members in a ring, and all others less often. The
  cost is almost constant for groups of any size.
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
    """The time for which a state has been observed unchanged."""

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

    def begin_check_if_due(self, now_ns: int | None = None) -> bool:
        """Whether a check is due; then it counts as done."""
        now_ns = self._clock() if now_ns is None else now_ns
        if now_ns - self._checked_ns < CHECK_NS:
            return False
        self._checked_ns = now_ns
        return True

    def find_verdicts(
        self, group: Group, own_id: str | None, covers_all: bool = False
    ) -> dict[str, Verdict]:
        """Members that seem to have ended, with reasons: those after `own_id`; all with
        `covers_all`, or if `own_id` is no member.

        Raises StorageError.
        """
        now_ns = self._clock()
        for member_id in self._heartbeats.keys() - group.members.keys():
            del self._heartbeats[member_id]
        near_ids = set(group.members) if covers_all else set(next_members(group, own_id))
        verdicts = {}
        for member in group.members.values():
            is_near = member.member_id in near_ids
            if member.member_id == own_id or not self._is_due(member, is_near, now_ns):
                continue
            verdict = self._judge(member, now_ns)
            if verdict is not None:
                verdicts[member.member_id] = verdict
        for member_id in self._find_late(group, now_ns):
            if member_id != own_id:
                verdicts.setdefault(member_id, Verdict.LATE)
        return verdicts

    def confirm(self, group: Group, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """The verdicts that still hold. REQUIRES the lock of the group's partition, and the present
        group.
        """
        confirmed = {}
        for member_id, verdict in verdicts.items():
            member = group.members.get(member_id)
            if member is None:
                continue
            if verdict is Verdict.LATE:
                holds = _round_of(group) == self._round and member_id in _awaited_members(group)
            else:
                holds = self._still_holds(member, verdict)
            if holds:
                confirmed[member_id] = verdict
        return confirmed

    def round_age_ms(self, group: Group) -> int:
        """The time for which this observer has seen the group in its current phase."""
        now_ns = self._clock()
        return self._age_ns(group, now_ns) // MILLISECOND_NS

    # ---- heartbeats ------------------------------------------------------------------------------

    def _is_due(self, member: Member, is_near: bool, now_ns: int) -> bool:
        observed = self._heartbeats.get(member.member_id)
        if is_near or observed is None or observed.process_slot != member.process_slot:
            return True
        return now_ns - observed.timer.probed_ns >= _session_ns(member) // FAR_PROBES

    def _judge(self, member: Member, now_ns: int) -> Verdict | None:
        slot_state = self._slot_state(member)
        session_ns = _session_ns(member)
        observed = self._heartbeats.get(member.member_id)
        if (
            observed is None
            or observed.process_slot != member.process_slot
            or (slot_state.is_held and slot_state.heartbeat != observed.heartbeat)
        ):
            observed = self._heartbeats[member.member_id] = _ObservedHeartbeat(
                member.process_slot, slot_state.heartbeat, now_ns
            )
        if observed.timer.age_ns(now_ns, session_ns) >= session_ns:
            return Verdict.EXPIRED
        if member.instance_id is not None:
            return None
        if not slot_state.is_held:
            return Verdict.DEAD
        return Verdict.LEFT if slot_state.has_left else None

    def _still_holds(self, member: Member, verdict: Verdict) -> bool:
        observed = self._heartbeats.get(member.member_id)
        slot_state = self._slot_state(member)
        if observed is None or observed.process_slot != member.process_slot:
            return False
        if verdict is Verdict.EXPIRED:
            return not slot_state.is_held or slot_state.heartbeat == observed.heartbeat
        return slot_state.has_left if verdict is Verdict.LEFT else not slot_state.is_held

    def _slot_state(self, member: Member) -> SlotState:
        """A member without a process slot was written by a broker; its clients cannot reach this
        log.
        """
        if member.process_slot is None:
            return SlotState(False)
        return self._liveness.slot_state(member.process_slot)

    # ---- rounds ----------------------------------------------------------------------------------

    def _age_ns(self, group: Group, now_ns: int) -> int:
        if self._round != _round_of(group):
            self._round = _round_of(group)
            self._timer = _Timer(now_ns)
        return self._timer.age_ns(now_ns, group.rebalance_timeout_ms * MILLISECOND_NS)

    def _find_late(self, group: Group, now_ns: int) -> Iterator[str]:
        age_ns = self._age_ns(group, now_ns)
        if age_ns >= group.rebalance_timeout_ms * MILLISECOND_NS:
            yield from _awaited_members(group)


def _awaited_members(group: Group) -> list[str]:
    """The members that the current phase waits for."""
    if group.state is State.PREPARING_REBALANCE:
        return [] if group.delayed else group.missing_members()
    if group.state is State.COMPLETING_REBALANCE and group.leader is not None:
        return [group.leader]
    return []


def next_members(group: Group, own_id: str | None) -> list[str]:
    """The members after `own_id` that it probes; all members if `own_id` is not one."""
    names = sorted(group.members)
    if own_id is None or own_id not in group.members:
        return names
    next_index = names.index(own_id) + 1
    return (names[next_index:] + names[: next_index - 1])[:RING]


def _round_of(group: Group) -> _Round:
    return _Round(group.round, group.generation, group.state)


def _session_ns(member: Member) -> int:
    return member.session_timeout_ms * MILLISECOND_NS
