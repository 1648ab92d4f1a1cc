"""What is proposed to the decision log, and what is decided: events, and the records that follow
from them in one state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from embedlog.errors import EmbedlogError
from embedlog.replicas.rules.decide import decide
from embedlog.replicas.rules.events import Event, Refusal
from embedlog.replicas.rules.records import Record
from embedlog.replicas.rules.state import Draft, State

logger = logging.getLogger("embedlog")

# the state, and the offset of the first record of the event
MakeEvent: TypeAlias = Callable[[State, int], Event]


class Steps(NamedTuple):
    """The events that must be decided, and others: one that is refused, or that cannot be derived,
    is left out.
    """

    needed: Sequence[MakeEvent]
    others: Sequence[MakeEvent] = ()
    others_max: int = 0  # of the others that are decided


class Decision(NamedTuple):
    """The state after a decision, and its records: none if nothing had to change."""

    state: State
    records: tuple[Record, ...]
    others: tuple[int, ...] = ()  # the numbers of the other events that are decided


class Proposal(NamedTuple):
    """What was proposed, and its outcome. `before` is the state from which the events were
    derived.
    """

    events: tuple[Event, ...]
    before: State
    outcome: Decision | Refusal
    reason: str
    spent_s: float


class Derivation(NamedTuple):
    """The events of some steps, and their records. After a refusal of a needed event it is the last
    one.
    """

    events: tuple[Event, ...]
    records: tuple[Record, ...] | Refusal
    others: tuple[int, ...] = ()


def derive(steps: Steps, state: State, position: int) -> Derivation:
    """What is to be decided at a position of the log: each event is derived from the state after
    the earlier ones.
    """
    draft = Draft(state)
    events = list[Event]()
    records = list[Record]()
    others = list[int]()
    # the others are numbered from 0 on, and the needed ones below that
    for number, make_event in enumerate((*steps.needed, *steps.others), -len(steps.needed)):
        is_needed = number < 0
        if not is_needed and len(others) == steps.others_max:
            break
        try:
            event = make_event(state, position + len(records))
        except EmbedlogError as problem:
            if is_needed:
                raise
            logger.info("an event is not decided together with another one: %s", problem)
            continue
        event_records = decide(state, event)
        if isinstance(event_records, Refusal):
            if is_needed:
                return Derivation((*events, event), event_records)
            continue
        if not is_needed:
            others.append(number)
        events.append(event)
        records += event_records
        for record in event_records:
            draft.apply(record)
        state = draft.state()
    return Derivation(tuple(events), tuple(records), tuple(others))
