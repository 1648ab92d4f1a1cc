"""Random histories of groups under the real rules: only an owner's commits count, nothing is
skipped, no member is stuck.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlog import group as rules
from embedlog.coordination.groups.group_records import decode_group, encode_group
from embedlog.group import Group, Limits, Refusal, Verdict
from tests.support.group_members import OTHER, SAID, member
from tests.support.group_world import Violation, World, check_group, check_step
from tests.support.mutants import mutated


def history(rng: random.Random) -> World:
    """Two to four processes, of which some are static, through a hundred steps and then to rest."""
    world = World(
        rng, limits=Limits(initial_delay_ms=rng.choice((0, 0, 3000)), max_size=rng.choice((3, 100)))
    )
    for number in range(rng.randint(2, 4)):
        world.start("ABCD"[number], "i" if number == 0 and rng.random() < 0.5 else None)
    try:
        for _ in range(120):
            world.step()
        world.settle()
    except Violation:
        print("\n".join(world.log[-40:]))
        raise
    return world


def test_no_random_history_breaks_an_invariant(rng: random.Random) -> None:
    worlds = [history(rng) for _ in range(150)]
    for what, least in (
        ("generations", 800),
        ("commits", 800),
        ("refusals", 80),
        ("evictions", 100),
    ):
        found = sum(world.counts[what] for world in worlds)
        print(f"{found} {what} in {len(worlds)} histories")
        assert found > least


@pytest.mark.parametrize(
    "mutant", ["commit_unfenced", "join_phase_ends_early", "static_member_dies"]
)
def test_without_a_rule_some_history_of_a_group_breaks_an_invariant(
    rng: random.Random, mutant: str
) -> None:
    with mutated(mutant):
        for _ in range(2000):
            try:
                history(rng)
            except Violation as problem:
                print(f"{mutant}: {problem}")
                return
    pytest.fail(f"{mutant} was not noticed")


# ---- any event whatever --------------------------------------------------------------------------------

NAMES = st.sampled_from("abcd")
PROTOCOLS = st.lists(
    st.tuples(st.sampled_from(("range", "sticky", "own")), st.sampled_from((SAID, OTHER))),
    max_size=3,
)
EVENTS = st.one_of(
    st.tuples(
        st.just("join"), NAMES, st.sampled_from((None, None, "i", "j")), PROTOCOLS, st.booleans()
    ),
    st.tuples(st.just("sync"), NAMES, st.integers(-2, 1)),
    st.tuples(st.just("leave"), NAMES),
    st.tuples(st.just("remove"), st.sampled_from("ij")),
    st.tuples(st.just("evict"), st.dictionaries(NAMES, st.sampled_from(Verdict))),
    st.tuples(st.just("end delay")),
)


@given(events=st.lists(EVENTS, max_size=25), delay_ms=st.sampled_from((0, 3000)))
@settings(max_examples=150, deadline=None)
def test_no_sequence_of_events_makes_a_group_that_cannot_be(
    events: list[tuple[object, ...]], delay_ms: int
) -> None:
    group: Group | None = None
    limits = Limits(initial_delay_ms=delay_ms, max_size=3)
    for now_ms, event in enumerate(events):
        outcome = happen(group, event, limits, now_ms)
        if isinstance(outcome, Group) and outcome is not group:
            check_step(group, outcome)
            check_group(outcome)
            assert decode_group(encode_group(outcome)) == outcome
            for each in "abcd":
                if each not in outcome.members:
                    for generation in range(-1, outcome.generation + 2):
                        taken = rules.commit_refusal(outcome, each, generation, None) is None
                        assert taken == (not outcome.members and generation < 0), (
                            "a process outside the group commits nothing"
                        )
            group = outcome


def happen(
    group: Group | None, event: tuple[object, ...], limits: Limits, now_ms: int
) -> Group | Refusal | None:
    match event:
        case "join", str(name), str() | None as instance, list(protocols), bool(rejoining):
            known = tuple(dict(protocols).items())
            return rules.join(
                group, member(name, instance, known), limits, now_ms, rejoining=rejoining
            )
        case "sync", str(name), int(difference):
            generation = 0 if group is None else group.generation + difference
            instance = (
                None
                if group is None or name not in group.members
                else group.members[name].instance_id
            )
            return rules.sync(group, name, generation, instance, {"a": b"a", "x": b"x"}, now_ms)
        case "leave", str(name):
            return rules.leave(group, name, now_ms)
        case "remove", str(instance):
            return rules.remove(group, [instance], now_ms)
        case "evict", dict(verdicts) if group is not None:
            return rules.evict(group, verdicts, now_ms)
        case ("end delay",) if group is not None:
            return rules.end_delay(group, now_ms)
    return group
