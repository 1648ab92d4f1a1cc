"""E16 and E18: zombies at every stop of a transaction, and crashes at every call of one.

E18: the owner dies at every call, and its helper, too. Invariant: readers of committed records get
whole transactions or none of their records, and the group has their offsets or none. An
acknowledged result is final; an unknown result is that of `init_transactions`. Nothing stays open.
E16 invariant: an owner whose place was taken while it was stopped gets an error and writes nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import embedlog
from embedlog.transaction import SETTLED, Outcome
from embedlog.types import OffsetAndMetadata
from tests.faults.harness.processes import Died, Nursery, RemoteError, Victim
from tests.faults.harness.transaction_tasks import CONFIG, GROUP, PARTITIONS, PLACE, TURNS, WRITES
from tests.faults.partition.crashes import KINDS, MODES, Point, count_calls_of
from tests.support.transactional_producers import (
    TOPIC,
    Writer,
    committed,
    everything,
    help_out,
    last_stable,
    soon,
    state_of,
)


@dataclass
class Notes:
    """The notes of the owner until its end."""

    stamps: dict[int, tuple[int, int]] = field(default_factory=dict)
    deciding: dict[int, bool] = field(default_factory=dict)
    ended: dict[int, bool] = field(default_factory=dict)

    def take(self, note: tuple) -> None:  # type: ignore[type-arg]
        what, turn, content = note
        content = tuple(content) if what == "began" else content
        {"began": self.stamps, "deciding": self.deciding, "ended": self.ended}[what][turn] = content


def count_calls(
    nursery: Nursery, directory: Path, seed: int, by_producer: bool = False
) -> dict[str, int]:
    return count_calls_of(nursery, directory, "transaction_script", seed, by_producer)


def points(counts: dict[str, int]) -> list[Point]:
    """Every place where the owner can die: each call, before and after it, and in the middle of
    each write.
    """
    torn = [Point(nth, "torn_kill", ("pwrite",)) for nth in range(1, counts["pwrite"] + 1)]
    return torn + [
        Point(nth, mode)
        for nth in range(1, sum(counts.values()) + 1)
        for mode in MODES
        if mode != "torn_kill"
    ]


def crash_at(
    nursery: Nursery,
    directory: Path,
    seed: int,
    point: Point,
    nested: Point | None,
    by_reader: bool,
    by_producer: bool = False,
) -> list[str]:
    """One run that dies at `point`, whose helper dies at `nested`; what is wrong afterwards."""
    notes = Notes()
    victim = nursery.spawn()
    victim.arm(point.kinds, point.mode, nth=point.nth)
    victim.start("transaction_script", str(directory), seed, by_producer)
    try:
        for note in victim.notes():
            notes.take(note)
    except RemoteError as problem:
        return [f"{point}: unexpected {problem}\n{problem.trace}"]
    finally:
        nursery.end(victim)
    if nested is not None:
        second = nursery.spawn()
        second.arm(nested.kinds, nested.mode, nth=nested.nth)
        try:
            second.call("help_everywhere", str(directory))
        except Died:
            pass
        except RemoteError as problem:
            return [f"{point}, {nested}: the helper failed: {problem}\n{problem.trace}"]
        finally:
            nursery.end(second)
    return [
        f"{point} nested {nested}, notes {notes}: {found}"
        for found in aftermath(directory, notes, by_reader)
    ]


def aftermath(directory: Path, notes: Notes, by_reader: bool) -> list[str]:
    """The next process completes the open work, as a reader or as the heir of the id, and reads."""
    wrong = []
    with embedlog.open(directory, config=CONFIG) as log:
        if TOPIC not in log.topics():
            return ["the topic is gone"] if notes.stamps else []
        if by_reader:
            for partition in range(PARTITIONS):
                help_out(log, partition)
            state = state_of(log, "id")
            # else it was registered, and nothing written
            settled = state is not None and state.status in SETTLED
            outcome = state.outcome if state is not None else None
        heir = Writer(log)
        told_now = heir.init()
        if by_reader and settled and outcome != told_now:
            wrong.append(f"the state has {outcome}, init returned {told_now}")
        for partition in range(PARTITIONS):
            stable, end = last_stable(log, partition)
            if stable != end:
                wrong.append(f"partition {partition} is stuck at {stable} of {end}")
        wrong += check(committed(log), notes, told_now)
        wrong += check_offset(log, committed(log))
        for partition in range(PARTITIONS):
            heir.write(b"heir", partition=partition)
        heir.commit()
        if committed(log).count(b"heir") != PARTITIONS:
            wrong.append("the heir cannot continue")
    return wrong


def check(rows: list[bytes | None], notes: Notes, outcome: Outcome | None) -> list[str]:
    wrong = []
    for turn in range(TURNS):
        found = sum(value is not None and value.startswith(b"%d." % turn) for value in rows)
        whole = WRITES * PARTITIONS
        if found not in (0, whole):
            wrong.append(f"{found} of {whole} records of transaction {turn}")
        expected = notes.ended.get(turn)
        if expected is None and outcome is not None and notes.stamps.get(turn) == outcome[1:]:
            expected = outcome.kind == "commit"
            if expected and not notes.deciding.get(turn):
                wrong.append(f"transaction {turn} was committed without a request")
        if (found > 0) != bool(expected):
            wrong.append(
                f"transaction {turn}: {found} records are seen, expected {expected}, outcome "
                f"{outcome}"
            )
    return wrong


def check_offset(log: embedlog.Log, rows: list[bytes | None]) -> list[str]:
    """The group's offset is that of the last committed transaction."""
    seen = [int(value.split(b".")[0]) + 1 for value in rows if value is not None]
    expected = {PLACE: OffsetAndMetadata(max(seen))} if seen else {}
    found = log._engine.groups.read_committed(GROUP.group_id, None, soon())
    return (
        [] if found == expected else [f"the group has committed {found} where {expected} was due"]
    )


def nested_point(rng: random.Random) -> Point:
    return Point(rng.randint(1, 200), rng.choice(MODES), KINDS)


# ---- E16 -----------------------------------------------------------------------------------------


class FreezePoint(NamedTuple):
    """Where the owner freezes: in which of its verbs, at which call or point, and whether it has
    decided by then.
    """

    verb: str
    kind: str
    name: str
    decided: bool = False


STATE_LOCK = "__transaction_state-"
DATA_LOCK = "t-0/embedlog.lock"
STOPS = (
    FreezePoint("first", "lock", STATE_LOCK),
    FreezePoint("later", "lock", DATA_LOCK),
    FreezePoint("commit", "lock", STATE_LOCK),
    FreezePoint("abort", "lock", STATE_LOCK),
    FreezePoint("commit", "point", "txn-decided", True),
    FreezePoint("commit", "point", "txn-marked", True),
    FreezePoint("commit", "point", "txn-completed", True),
)


def start(zombie: Victim, verb: str) -> None:
    if verb in ("first", "later"):
        zombie.start("transact", "id", [b"late"], 1 if verb == "first" else 0)
    else:
        zombie.start("end", "id", verb == "commit")


def trial(nursery: Nursery, log: embedlog.Log, stop: FreezePoint, by_timeout: bool) -> list[str]:
    """Freeze an owner at a stop, take its place, wake it up; what is wrong then."""
    wrong = []
    before = committed(log)
    zombie = nursery.spawn()
    zombie.call("open", str(log.path), config=CONFIG)
    zombie.call("owner", "id", 1 if by_timeout else 60_000)
    zombie.call("transact", "id", [b"zombie"], 0)
    zombie.arm([stop.kind], "stop_before", name=stop.name)
    start(zombie, stop.verb)
    zombie.wait_stopped()
    if by_timeout:
        for partition in range(PARTITIONS):
            help_out(log, partition)
    heir = Writer(log)
    outcome = heir.init()
    heir.write(b"heir")
    heir.commit()
    zombie.resume()
    fenced = ended(zombie)
    if fenced == stop.decided:
        wrong.append(f"{stop}: fenced {fenced}")
    for verb in ("first", "later", "commit", "abort"):
        start(zombie, verb)
        if not ended(zombie) and (verb in ("first", "later") or not stop.decided):
            wrong.append(f"{stop}: {verb} was let through")
    nursery.end(zombie)
    expected = [b"zombie", b"heir"] if stop.decided else [b"heir"]
    if committed(log)[len(before) :] != expected or b"late" in everything(log):
        wrong.append(
            f"{stop}: {committed(log)[len(before) :]} where {expected} was due, {everything(log)}"
        )
    if outcome is None or outcome.kind != ("commit" if stop.decided else "abort"):
        wrong.append(f"{stop}: the heir got {outcome}")
    if any(
        stable != end for stable, end in (last_stable(log, number) for number in range(PARTITIONS))
    ):
        wrong.append(f"{stop}: something stays open")
    return wrong


def ended(zombie: Victim) -> bool:
    """Whether its last call ended with a fencing error."""
    try:
        zombie.result()
    except RemoteError as problem:
        if problem.kind != "FencedError":
            raise
        return True
    return False
