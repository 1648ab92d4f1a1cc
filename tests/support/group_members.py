"""Groups in every state, made by words: `stable(A, B)`, `preparing(A, B)` …"""

from __future__ import annotations

from dataclasses import replace

from embedlog import group as rules
from embedlog.format.consumer_protocol import MemberSubscription, encode_subscription
from embedlog.format.process_slot import ProcessSlot
from embedlog.group import Group, Limits, Member, Refusal, State

NOW = 1_700_000_000_000
LATER = NOW + 1000
LIMITS = Limits()
SAID = encode_subscription(MemberSubscription(("t",)))
OTHER = encode_subscription(MemberSubscription(("t", "u")))
BOTH = (("range", SAID), ("cooperative-sticky", SAID))


def member(
    name: str,
    instance: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = BOTH,
    **fields: object,
) -> Member:
    process_slot = ProcessSlot(1, int.from_bytes(name.encode(), "big"))
    known = Member(
        name, instance, "client", "/host", 300_000, 45_000, protocols, process_slot=process_slot
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def taken(outcome: Group | Refusal | None) -> Group:
    assert isinstance(outcome, Group), outcome
    return outcome


def completing(*members: Member) -> Group:
    """A group whose first generations are over: all these have joined, and the leader's sync is
    awaited.
    """
    group: Group | None = None
    for each in members:
        group = taken(rules.join(group, each, LIMITS, NOW))
    while group is not None and group.state is State.PREPARING_REBALANCE:
        group = taken(rules.join(group, group.members[group.missing_members()[0]], LIMITS, NOW))
    assert group is not None
    assert group.state is State.COMPLETING_REBALANCE
    return group


def stable(*members: Member) -> Group:
    group = completing(*members)
    shares = {member_id: member_id.encode() for member_id in group.members}
    leader = group.members[group.leader or ""]
    return taken(
        rules.sync(group, leader.member_id, group.generation, leader.instance_id, shares, NOW)
    )


def preparing(*members: Member) -> Group:
    """The first of these has come again, the others are missing."""
    group = stable(*members)
    return taken(rules.join(group, group.members[group.leader or ""], LIMITS, NOW))


def emptied() -> Group:
    return taken(rules.leave(stable(member("a")), "a", NOW))


A = member("a")
B = member("b")
C = member("c")
