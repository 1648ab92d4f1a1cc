"""Scripts of consumer groups, as data, and the common part of all drivers that run them; results
are JSON.

A step is a tuple: a verb and its arguments. Partitions are spelled "t-0"; each scenario has topics
and a group of its own. The end of a call is a word that both sides share: "ok", "not empty", …
(`WORDS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WORDS = {
    "UNKNOWN_MEMBER_ID": "unknown member",
    "UnknownMemberError": "unknown member",
    "ILLEGAL_GENERATION": "illegal generation",
    "IllegalGenerationError": "illegal generation",
    "NON_EMPTY_GROUP": "not empty",
    "GroupNotEmptyError": "not empty",
    "GROUP_ID_NOT_FOUND": "not found",
    "GroupNotFoundError": "not found",
    "INCONSISTENT_GROUP_PROTOCOL": "inconsistent",
    "InconsistentGroupProtocolError": "inconsistent",
    "OFFSET_METADATA_TOO_LARGE": "metadata too large",
    "RecordTooLargeError": "metadata too large",
    "GROUP_SUBSCRIBED_TO_TOPIC": "subscribed",
    "GroupSubscribedError": "subscribed",
}
START_MS = 1_700_000_000_000
STEP_MS = 1000  # between the timestamps of two records
WAIT_S = 15.0

Step = tuple[Any, ...]
Name = tuple[str, int]


def record_count(number: int) -> int:
    """How many records lie in a partition when a script begins."""
    return 10 + 3 * number


@dataclass(frozen=True)
class GroupScenario:
    """The steps of one group. `defined`: assignments are compared as they are, else by sizes and by
    kept partitions.
    """

    name: str
    steps: Sequence[Step]
    topics: Mapping[str, int] = field(default_factory=lambda: {"t": 7, "u": 4})
    defined: bool = True


def how_ended(name: str, text: str = "") -> str:
    """The word for an error; one without a word is given as it is."""
    return WORDS.get(name, f"{name}: {text}")


# ---- verbs ---------------------------------------------------------------------------------------


def join(
    who: str,
    *topics: str,
    strategy: str = "range",
    instance: str | None = None,
    pattern: str | None = None,
) -> Step:
    """A member more, which subscribes; `strategy` may be several names with commas."""
    return ("join", who, topics, strategy, instance, pattern)


def settle() -> Step:
    """All poll until the group is stable and every partition has its member; returns the
    assignment.
    """
    return ("settle",)


def refused(who: str, *topics: str, strategy: str) -> Step:
    """One joins that the group does not accept; returns the error, and the others continue."""
    return ("refused", who, topics, strategy)


def drain() -> Step:
    """All read to the end of their partitions and commit; returns the first offsets and the number
    of records.
    """
    return ("drain",)


def commit(who: str, offsets: Mapping[str, tuple[int, str]]) -> Step:
    return ("commit", who, offsets)


def strange(offsets: Mapping[str, tuple[int, str]]) -> Step:
    """A commit by a client that is no member."""
    return ("strange", offsets)


def transact(who: str, offsets: Mapping[str, tuple[int, str]], end: str = "commit") -> Step:
    """Offsets in a transaction, in the name of a member; returns the committed offsets before and
    after its end.
    """
    return ("transact", who, offsets, end)


def leave(who: str) -> Step:
    return ("leave", who)


def describe() -> Step:
    """State, assignor, number of members, and of each partition: committed offset, note, end,
    lag.
    """
    return ("describe",)


def cut(tp: str, offset: int) -> Step:
    """Delete the records below an offset."""
    return ("cut", tp, offset)


def grow(topic: str, count: int) -> Step:
    return ("grow", topic, count)


def make(topic: str, count: int) -> Step:
    return ("make", topic, count)


def drop(topic: str) -> Step:
    """Delete a topic and wait until its offsets are gone; returns the remaining ones."""
    return ("drop", topic)


def reset(to: object, *scope: str, dry_run: bool = False) -> Step:
    """`scope`: topics, or "t-0"; nothing for all that have commits. Returns the new offsets."""
    return ("reset", to, scope, dry_run)


def delete() -> Step:
    return ("delete",)


def delete_offsets(*tps: str) -> Step:
    return ("delete_offsets", tps)


# ---- the common part of both drivers -------------------------------------------------------------


class Driver:
    """Plays a scenario. Below it a client; `members` holds its consumers by name."""

    def __init__(self, scenario: GroupScenario, prefix: str = "") -> None:
        self.group = f"{prefix}{scenario.name}"
        self.scenario = scenario
        self.counts = dict(scenario.topics)
        self.members: dict[str, Any] = {}
        self.subscribed: dict[str, tuple[str, ...]] = {}
        self.seen: dict[Name, set[int]] = {}
        for topic, count in self.counts.items():
            self.make_topic(topic, count)

    def play(self) -> list[Any]:
        """The result of each step."""
        try:
            return [self._told(*step) for step in self.scenario.steps]
        finally:
            self.close()

    def _told(self, verb: str, *arguments: Any) -> Any:
        act: Callable[..., Any] = getattr(self, f"do_{verb}")
        try:
            found = act(*arguments)
        except Exception as problem:  # noqa: BLE001  (whatever it is, the other side must say the same)
            return self.word_for(problem)
        return "ok" if found is None else found

    def close(self) -> None:
        for who in list(self.members):
            self.do_leave(who)

    # ---- names -----------------------------------------------------------------------------------

    def topic(self, short: str) -> str:
        return f"{self.group}.{short}"

    def place(self, text: str) -> Name:
        short, _, number = text.rpartition("-")
        return self.topic(short), int(number)

    def short(self, topic: str, number: int) -> str:
        return f"{topic.removeprefix(self.group + '.')}-{number}"

    # ---- steps that need only the client's few verbs ---------------------------------------------

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.group}: {what}: {self.assignments()} of {self.described()}"
                )

    def do_join(
        self,
        who: str,
        topics: tuple[str, ...],
        strategy: str,
        instance: str | None,
        pattern: str | None,
    ) -> None:
        self.members[who] = self.make_member(who, strategy, instance)
        self.subscribed[who] = topics
        self.subscribe(
            who, [self.topic(topic) for topic in topics], pattern and f"^{self.topic(pattern)}"
        )

    def do_settle(self) -> dict[str, list[str]]:
        self.wait(self.settled, "never settled")
        return self.assignments()

    def settled(self) -> bool:
        for who in self.members:
            self.see(who)
        state, _, given = self.described()
        wanted = {topic for topics in self.subscribed.values() for topic in topics or self.counts}
        own = self.assignments()
        return (
            state == "Stable"
            and own == given
            and sum(map(len, own.values())) == sum(self.counts[topic] for topic in wanted)
        )

    def assignments(self) -> dict[str, list[str]]:
        return {
            who: sorted(self.short(*tp) for tp in self.assigned(who))
            for who in sorted(self.members)
        }

    def do_leave(self, who: str) -> None:
        self.members.pop(who).close()
        self.subscribed.pop(who)

    def do_drain(self) -> dict[str, list[int]]:
        committed = self.committed()
        bounds = self.bounds()
        owner = {tp: who for who in self.members for tp in self.assigned(who)}
        start = {tp: committed[tp][0] if tp in committed else bounds[tp][0] for tp in owner}
        waiting = {tp for tp in owner if start[tp] < bounds[tp][1]}

        def through() -> bool:
            for who in self.members:
                self.see(who)
            return all(self.position(owner[tp], tp) == bounds[tp][1] for tp in waiting)

        self.wait(through, f"records that never came: {waiting}")
        for who in self.members:
            self.commit(who, None)
        for tp in waiting:
            assert self.seen.pop(tp) >= set(range(start[tp], bounds[tp][1])), tp
        return {self.short(*tp): [start[tp], bounds[tp][1] - start[tp]] for tp in sorted(waiting)}

    def see(self, who: str) -> None:
        """A short poll."""
        for tp, offset in self.poll(who):
            self.seen.setdefault(tp, set()).add(offset)

    def do_refused(self, who: str, topics: tuple[str, ...], strategy: str) -> str:
        self.do_join(who, topics, strategy, None, None)
        try:
            self.wait(lambda: bool(self.poll(who)), "was not refused")
        except Exception as problem:  # noqa: BLE001  (whatever it is, the other side must say the same)
            return self.word_for(problem)
        finally:
            self.do_leave(who)
        return "ok"

    def do_strange(self, offsets: Mapping[str, tuple[int, str]]) -> None:
        self.members["stranger"] = self.make_member("stranger", "range", None)
        try:
            self.do_commit("stranger", offsets)
        finally:
            self.members.pop("stranger").close()

    def do_commit(self, who: str, offsets: Mapping[str, tuple[int, str]]) -> None:
        self.commit(who, {self.place(tp): offset for tp, offset in offsets.items()})

    def do_describe(self) -> dict[str, Any]:
        state, assignor, given = self.described()
        committed = self.committed()
        bounds = self.bounds()
        rows = {
            self.short(*tp): [offset, note, bounds[tp][1], bounds[tp][1] - offset]
            for tp, (offset, note) in sorted(committed.items())
        }
        return {"state": state, "assignor": assignor, "members": sorted(given), "partitions": rows}

    def do_grow(self, topic: str, count: int) -> None:
        self.grow_topic(topic, count)
        self.counts[topic] = count

    def do_make(self, topic: str, count: int) -> None:
        self.make_topic(topic, count)
        self.counts[topic] = count

    def do_drop(self, topic: str) -> list[str]:
        del self.counts[topic]
        self.drop_topic(topic)
        self.wait(
            lambda: all(name != self.topic(topic) for name, _ in self.committed()),
            "offsets of a topic that is gone",
        )
        return sorted(self.short(*tp) for tp in self.committed())

    def do_transact(self, who: str, offsets: Mapping[str, tuple[int, str]], end: str) -> list[Any]:
        told = []
        for act in self.transaction(
            who, {self.place(tp): offset for tp, offset in offsets.items()}, end
        ):
            act()
            told.append(
                {self.short(*tp): list(found) for tp, found in sorted(self.committed().items())}
            )
        return told

    def times(self, number: int) -> Iterator[tuple[bytes, int]]:
        """Values and timestamps of a partition's first records."""
        yield from (
            (b"%d" % each, START_MS + each * STEP_MS) for each in range(record_count(number))
        )

    # ---- the steps of a client -------------------------------------------------------------------

    def make_topic(self, topic: str, count: int) -> None:
        raise NotImplementedError

    def grow_topic(self, topic: str, count: int) -> None:
        raise NotImplementedError

    def drop_topic(self, topic: str) -> None:
        raise NotImplementedError

    def make_member(self, who: str, strategy: str, instance: str | None) -> Any:
        raise NotImplementedError

    def subscribe(self, who: str, topics: list[str], pattern: str | None) -> None:
        raise NotImplementedError

    def poll(self, who: str) -> list[tuple[Name, int]]:
        """A short poll: partition and offset of the records that came."""
        raise NotImplementedError

    def assigned(self, who: str) -> list[Name]:
        raise NotImplementedError

    def position(self, who: str, tp: Name) -> int:
        raise NotImplementedError

    def commit(self, who: str, offsets: Mapping[Name, tuple[int, str]] | None) -> None:
        raise NotImplementedError

    def transaction(
        self, who: str, offsets: Mapping[Name, tuple[int, str]], end: str
    ) -> list[Callable[[], Any]]:
        """Acts that send the offsets, and that end the transaction so that all clients see it."""
        raise NotImplementedError

    def described(self) -> tuple[str, str, dict[str, list[str]]]:
        """State, assignor, and the assignment of each member."""
        raise NotImplementedError

    def committed(self) -> dict[Name, tuple[int, str]]:
        raise NotImplementedError

    def bounds(self) -> dict[Name, tuple[int, int]]:
        raise NotImplementedError

    def word_for(self, problem: Exception) -> str:
        raise NotImplementedError
