"""Two partitions and one transactional id in memory, under the library's own rules of transactions
and their recovery.

The steps and invariants are those of `tests/model/transactions.py`; there every interleaving of a
small world is visited, here random ones of the real rules. A process is a generator: the code
between two `yield`s happens under a lock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from embedlog import transaction as rules
from embedlog.coordination.transactions import recovery
from embedlog.errors import FencedError
from embedlog.format.process_slot import ProcessSlot
from embedlog.transaction import PREPARED, SETTLED, Moment, Outcome, Refusal, Status, Transaction
from tests.support.mutants import is_mutated

PARTITIONS = (("t", 0), ("t", 1))


class Entry(NamedTuple):
    """`txn` is known to the checker and not to the rules: the true transaction of the record."""

    kind: str
    producer_id: int
    epoch: int
    txn: int


class Known(NamedTuple):
    """One record of the state topic, with the checker's facts about it."""

    state: Transaction
    txn: int
    outcome: tuple[int, str] | tuple[()] = ()


@dataclass
class FakePartition:
    """A data partition with the checks of the engine: it fences, opens, and skips a marker where
    the stored epoch is as high.
    """

    topic: str
    number: int
    entries: list[Entry] = field(default_factory=list)
    synced: int = 0
    known_from: int = 0
    txn_of_marker: int = 0

    def stored_epoch(self, producer_id: int) -> int:
        return max(
            (e.epoch for e in self.entries[self.known_from :] if e.producer_id == producer_id),
            default=-1,
        )

    def open_data(self, producer_id: int) -> list[Entry]:
        own = [e for e in self.entries if e.producer_id == producer_id]
        last = max((at for at, e in enumerate(own) if e.kind != "data"), default=-1)
        return own[last + 1 :]

    def open_transactions(self) -> list[tuple[int, int, int]]:
        found = []
        for producer_id in {e.producer_id for e in self.entries}:
            data = self.open_data(producer_id)
            if data:
                found.append((producer_id, data[-1].epoch, self.entries.index(data[0])))
        return found

    def write(self, producer_id: int, epoch: int, txn: int, opens: bool) -> None:
        if epoch < self.stored_epoch(producer_id):
            raise FencedError("epoch")
        if not opens and not any(e.epoch == epoch for e in self.open_data(producer_id)):
            raise FencedError("not open")
        self.entries.append(Entry("data", producer_id, epoch, txn))

    def append_marker(
        self, producer_id: int, epoch: int, *, commit: bool, deadline_ns: int = 0
    ) -> int | None:
        if self.stored_epoch(producer_id) >= epoch:
            return None
        data = self.open_data(producer_id)
        txn = self.txn_of_marker or (data[-1].txn if data else 0)
        self.entries.append(Entry("commit" if commit else "abort", producer_id, epoch, txn))
        return len(self.entries) - 1


class Violation(AssertionError):
    """An invariant of the model does not hold."""


Steps = Iterator[None]


class World:
    """One directory: the state topic's log, two partitions, processes that come and go."""

    def __init__(self, rng: random.Random, *, first_epoch: int = 0) -> None:
        self.rng = rng
        self.log: list[Known] = []
        self.synced = 0
        self.partitions = [FakePartition(*each) for each in PARTITIONS]
        self.alive: set[ProcessSlot] = set()
        self.clock_ns = 1
        self.boot = 1
        self.decided: set[tuple[int, str]] = set()
        self.wrote: set[tuple[int, int]] = set()
        self.last: tuple[int, str] | tuple[()] = ()
        self.txns = 0
        self.ids = self.lives = 0
        self.steps: list[str] = []
        if first_epoch:
            self._record(Known(Transaction(self._new_id(), first_epoch, 60_000), 0))

    # ---- small words -----------------------------------------------------------------------------

    @property
    def now(self) -> Moment:
        return Moment(self.clock_ns // 1_000_000, self.clock_ns, self.boot)

    @property
    def known(self) -> Known:
        return self.log[-1] if self.log else Known(None, 0)  # type: ignore[arg-type]

    def _new_id(self) -> int:
        self.ids += 1
        return 4000 + self.ids

    def _record(self, known: Known) -> None:
        self.log.append(known)

    def _note(self, what: str) -> None:
        self.steps.append(what)

    # ---- steps of processes ----------------------------------------------------------------------

    def producer(self, name: str, txns: int) -> tuple[ProcessSlot, Steps]:
        self.lives += 1
        process_slot = ProcessSlot(self.lives, self.lives)
        self.alive.add(process_slot)
        return process_slot, self._producer(name, process_slot, txns)

    def _producer(self, name: str, process_slot: ProcessSlot, txns: int) -> Steps:
        while True:
            state = self.known.state
            if state is not None and state.status is Status.ONGOING:
                yield from self._finish(name, self._give_up(name, state))
            elif state is not None and state.status in PREPARED:
                yield from self._finish(name, self.known)
            else:
                break
        mine = self._initialize(name, process_slot)
        yield
        for _ in range(txns):
            self.txns += 1
            outcome = yield from self._transaction(name, process_slot, mine, self.txns)
            if outcome is None:
                self._note(f"{name} is fenced")
                return
            mine = outcome

    def _initialize(self, name: str, process_slot: ProcessSlot) -> tuple[int, int]:
        before = self.known
        new = rules.initialize(before.state, process_slot, 60_000, self._new_id(), self.now)
        assert isinstance(new, Transaction)
        self._record(Known(new, 0, before.outcome))
        told = () if new.outcome is None else new.outcome.kind
        expected = () if not self.last else self.last[1]
        if told != expected:
            raise Violation(f"T4 {name} got {told} where the last transaction became {expected}")
        self._note(f"{name} begins with {new.producer_id}/{new.epoch}")
        return new.producer_id, new.epoch

    def _transaction(
        self, name: str, process_slot: ProcessSlot, mine: tuple[int, int], txn: int
    ) -> Iterator[None]:
        for where in self.rng.sample(range(2), self.rng.randint(1, 2)):
            while True:
                before = self.known
                new = rules.register(before.state, *mine, (PARTITIONS[where],), self.now)
                if new is Refusal.CONCURRENT_TRANSACTIONS:
                    yield from self._finish(name, before)
                    continue
                if isinstance(new, Refusal) or not self._write(name, where, mine, txn, new, before):
                    return None
                break
            yield
            if self.rng.random() < 0.5 and not self._write(name, where, mine, txn):
                return None
            yield
        commit = self.rng.random() < 0.5
        if commit:
            for partition in self.partitions:
                partition.synced = len(partition.entries)
            yield
        return (yield from self._end(name, process_slot, mine, commit))  # type: ignore[return-value]

    def _write(
        self,
        name: str,
        where: int,
        mine: tuple[int, int],
        txn: int,
        new: Transaction | None = None,
        before: Known | None = None,
    ) -> bool:
        if new is not None and before is not None:
            joined = before.state.status is Status.ONGOING
            self._record(Known(new, before.txn if joined else txn, before.outcome))
        try:
            self.partitions[where].write(*mine, txn, opens=new is not None)
        except FencedError:
            return False
        self.wrote.add((txn, where))
        self._note(f"{name} writes {txn} to {where} as {mine}")
        return True

    def _end(
        self, name: str, process_slot: ProcessSlot, mine: tuple[int, int], commit: bool
    ) -> Iterator[None]:
        while True:
            before = self.known
            new = rules.end(before.state, *mine, process_slot, commit, self._new_id(), self.now)
            if new is Refusal.CONCURRENT_TRANSACTIONS:
                yield from self._finish(name, before)
                continue
            if isinstance(new, Refusal):
                return None
            break
        decided = self._decide(new, before)
        self._note(f"{name} decides {decided.outcome}")
        yield
        again = rules.end(self.known.state, *mine, process_slot, commit, self._new_id(), self.now)
        if again is not self.known.state and not isinstance(again, Refusal):
            raise Violation("an end that was repeated has decided once more")
        if self.rng.random() < 0.7:  # else it leaves the rest to others
            yield from self._finish(name, decided)
        return rules.producer_identity_of(decided.state)  # type: ignore[return-value]

    def _give_up(self, name: str, seen: Transaction) -> Known:
        before = self.known
        new = rules.abort_abandoned(before.state, seen, self._new_id(), self.now)
        assert new is not None
        decided = self._decide(new, before)
        self._note(f"{name} abandons {decided.txn}")
        return decided

    def _decide(self, new: Transaction, before: Known) -> Known:
        outcome = (before.txn, new.decision)
        self.decided.add(outcome)
        self.last = outcome
        self._record(Known(new, before.txn, outcome))
        return self.known

    def _finish(self, name: str, seen: Known) -> Steps:
        self.synced = max(self.synced, len(self.log))
        yield
        for where in sorted(seen.state.partitions):
            partition = self.partitions[where[1]]
            partition.txn_of_marker = seen.txn
            done = partition.append_marker(
                seen.state.producer_id, seen.state.epoch, commit=seen.state.decision == "commit"
            )
            partition.txn_of_marker = 0
            self._note(
                f"{name} marks {where[1]} with {seen.outcome}: "
                f"{'written' if done is not None else 'skipped'}"
            )
            yield
        for _, number in seen.state.partitions:
            self.partitions[number].synced = len(self.partitions[number].entries)
        after = rules.complete(self.known.state, seen.state, self.now)
        if after is not None:
            self._record(Known(after, seen.txn, seen.outcome))
            self._note(f"{name} completes {seen.outcome}")
        yield

    def helper(self, name: str) -> Steps:
        while True:
            state = self.known.state
            if state is not None and state.status in PREPARED:
                yield from self._finish(name, self.known)
            elif state is not None and rules.is_abandoned(
                state, state.owner in self.alive, self.now
            ):
                yield from self._finish(name, self._give_up(name, state))
            else:
                yield

    # ---- faults ----------------------------------------------------------------------------------

    def power_loss(self) -> None:
        """Every log keeps its synced entries, and by chance later ones. All processes die;
        transaction recovery is due.
        """

        def keep(entries: Any, low: int) -> Any:
            return entries[: self.rng.randint(min(low, len(entries)), len(entries))]

        self.log = keep(self.log, self.synced)
        self.synced = len(self.log)
        for partition in self.partitions:
            partition.entries = keep(partition.entries, partition.synced)
            partition.synced = len(partition.entries)
            partition.known_from = 0
        self.alive.clear()
        self.boot += 1
        marks = [e for p in self.partitions for e in p.entries if e.kind != "data"]
        self.decided = {k.outcome for k in self.log if k.outcome} | {(e.txn, e.kind) for e in marks}
        self.last = self.known.outcome
        self._note(
            f"power loss, left: {len(self.log)}, {[len(p.entries) for p in self.partitions]}"
        )
        state = self.known.state
        newest = lambda producer_id: (  # noqa: E731
            state if state is not None and state.producer_id == producer_id else None
        )
        raised_to = recovery.recover(
            {} if state is None else {"id": state}, newest, self.partitions, 0
        )  # type: ignore[arg-type]
        for to in raised_to.values():
            if not is_mutated("lift_settled_only"):
                self._settle("recovery")
            self._record(
                self.known._replace(state=rules.raise_epoch(self.known.state, *to, self.now))
            )

    def _settle(self, name: str) -> None:
        state = self.known.state
        decided = self._give_up(name, state) if state.status is Status.ONGOING else self.known
        if decided.state.status in PREPARED:
            for _ in self._finish(name, decided):
                pass

    def check(self) -> None:
        """T1 to T3 and T5 of the model."""
        for partition in self.partitions:
            for at, entry in enumerate(partition.entries):
                later = (
                    e
                    for e in partition.entries[at:]
                    if e.kind != "data" and e.producer_id == entry.producer_id
                )
                closing = next(later, None)
                if closing is not None and closing.txn != entry.txn:
                    raise Violation(
                        f"T1 a record of {entry.txn} is closed by the marker of {closing.txn}"
                    )
        for txn in range(1, self.txns + 1):
            marks = {e.kind for p in self.partitions for e in p.entries if e.txn == txn} - {"data"}
            if len(marks | {kind for known, kind in self.decided if known == txn}) > 1:
                raise Violation(f"T2 transaction {txn} is both committed and aborted")
            for known, where in self.wrote:
                present = any(
                    e.kind == "data" and e.txn == txn for e in self.partitions[where].entries
                )
                if known == txn and "commit" in marks and not present:
                    raise Violation(f"T3 half of transaction {txn} is visible")
        state = self.known.state
        if state is not None and state.status in SETTLED:
            stored = max(partition.stored_epoch(state.producer_id) for partition in self.partitions)
            if stored > state.epoch:
                raise Violation(
                    f"T5 an id would continue with epoch {state.epoch}, a partition has stored "
                    f"{stored}"
                )

    def check_end(self) -> None:
        """Once all processes except a helper have gone, nothing stays open."""
        self.alive.clear()
        self.clock_ns += 10**15
        last = self.helper("helper at the end")
        for _ in range(20):
            next(last)
        self.check()
        state = self.known.state
        if any(p.open_transactions() for p in self.partitions) or (
            state is not None and state.status not in SETTLED
        ):
            raise Violation("something never ends")


def run(rng: random.Random, *, cuts: bool = False, first_epoch: int = 0, steps: int = 70) -> World:
    """One random history. Raises Violation with its steps."""
    world = World(rng, first_epoch=first_epoch)
    living: dict[str, tuple[ProcessSlot | None, Steps]] = {"helper": (None, world.helper("helper"))}
    names = iter("ABCDEFGHIJ")
    frozen: Callable[[str], bool] = lambda name: rng.random() < 0.3  # noqa: E731
    try:
        for _ in range(steps):
            if len(living) < 3 and rng.random() < 0.3 and (name := next(names, None)) is not None:
                living[name] = world.producer(name, rng.randint(1, 3))
            chosen = rng.choice([name for name in living if not frozen(name)] or list(living))
            process_slot, process = living[chosen]
            world.clock_ns += rng.choice([1, 10**7, 10**11 if rng.random() < 0.1 else 1])
            if next(process, "over") == "over":
                del living[chosen]
            world.check()
            if chosen != "helper" and rng.random() < 0.05:
                world.steps.append(f"{chosen} is killed")
                living.pop(chosen, None)
                world.alive.discard(process_slot)  # type: ignore[arg-type]
            if cuts and rng.random() < 0.03:
                world.power_loss()
                living = {"helper": (None, world.helper("helper"))}
                world.check()
        world.check_end()
    except Violation as problem:
        problem.add_note("\n".join(world.steps))
        raise
    return world


__all__ = ["Outcome", "Violation", "World", "run"]
