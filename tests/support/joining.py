"""Groups made by their rules alone, with members that do nothing but live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import embedlog
from embedlog import TopicPartition
from embedlog import group as machine
from embedlog._native import system
from embedlog.format.consumer_protocol import (
    MemberSubscription,
    encode_assignment,
    encode_subscription,
)
from embedlog.group import Limits, Member


def commit(log: embedlog.Log, group_id: str, offsets: Mapping[TopicPartition, Any]) -> None:
    log._engine.groups.commit(group_id, offsets)


def joined(
    log: embedlog.Log, group_id: str, assignments: Mapping[str, list[TopicPartition]], *topics: str
) -> None:
    """A stable group with these members, which live as long as the log is open, and never poll."""
    said = (("range", encode_subscription(MemberSubscription(topics or ("t",)))),)
    lives = {name: log._engine.transactions.liveness.begin() for name in assignments}
    for name in [*assignments, *assignments]:  # a member has to join again when the next one joins
        member = Member(
            name, None, f"client-{name}", "/here", 60_000, 10_000, said, process_slot=lives[name]
        )
        log._engine.groups.decide(
            group_id,
            lambda old, member=member: machine.join(old, member, Limits(), system.wall_ms()),
        )
    shares = {name: encode_assignment(tps) for name, tps in assignments.items()}
    group = log._engine.groups.read_group(group_id)
    assert group is not None
    assert group.leader is not None
    leader = group.leader
    generation = group.generation
    log._engine.groups.decide(
        group_id, lambda old: machine.sync(old, leader, generation, None, shares, system.wall_ms())
    )


def left(log: embedlog.Log, group_id: str, *names: str) -> None:
    for name in names:
        log._engine.groups.decide(
            group_id, lambda old, name=name: machine.leave(old, name, system.wall_ms())
        )
