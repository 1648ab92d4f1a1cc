"""The state machine: rules that call the public API through three users, and compare everything
visible with the model.

The users are two handles of this process and one in another process, which may be killed at any of
its system calls. Names come from small fixed sets, so that each rule applies in each state: a call
that must be refused is as much a test as any other. What a rule draws never depends on what the log
answered, so a failing run can be repeated and shrunk.

A chance of the log's own (the partition of a record without a key, the point of a kill) is taken
from its answer, and judged.
"""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import embedlog
from tests.faults.harness.processes import Died, Nursery, Victim
from tests.faults.partition.crashes import KINDS, MODES
from tests.machine.actor import LOG_CONFIG, Actor, Outcome, seen
from tests.machine.model import (
    HOUR_MS,
    SETTINGS,
    Housekept,
    Model,
    Row,
    Transaction,
    Violation,
    compare_records,
    demand,
    is_committed,
    judge_housekeeping,
    offset_for_time,
    partition_of,
)
from tests.machine.shrink import FAILURES, Program

ACTORS = ("first", "second", "child")
TOPICS = ("a", "b", "c")
PLAIN = ("plain", "other")
TRANSACTIONAL = {"x": "id-x", "y": "id-y"}
KEYS = (b"k0", b"k1", b"k0", b"a longer key", None)
AGES_MS = (0, 2 * HOUR_MS, 48 * HOUR_MS, -HOUR_MS // 2, -3 * HOUR_MS)
LEVELS = ("read_uncommitted", "read_committed")
WHOLE_LOOK_STEPS = 8  # so many steps between two comparisons of the whole log
MAX_BUFFERED = 20  # records, less than a batch: nothing is sent before it is asked for

actors = st.sampled_from(ACTORS)
topics = st.sampled_from(("a", "a", "a", "b", "b", "c"))
plain_producers = st.sampled_from(PLAIN)
transactional_producers = st.sampled_from(sorted(TRANSACTIONAL))
producers = st.sampled_from((*PLAIN, *PLAIN, *sorted(TRANSACTIONAL)))
partitions = st.sampled_from((None, None, None, 0, 0, 0, 1, 3))
groups = st.sampled_from(("g", "h"))
keys = st.sampled_from(KEYS)
ages = st.sampled_from((None,) * 8 + AGES_MS)
values = st.sampled_from(
    ("small",) * 6 + ("empty", "text", "text", "tombstone", "tombstone", "big")
)
headers = st.sampled_from(((), (), (("h", b"1"),), (("h", None), ("h", b"")), (("ü", b"x" * 40),)))
codecs = st.sampled_from(("none", "gzip", "snappy", "lz4", "zstd"))
setting_names = st.lists(st.sampled_from(sorted(SETTINGS)), max_size=2, unique=True)
setting_choices = st.integers(0, 5)


@st.composite
def settings_of_topic(draw: Any) -> dict[str, str]:
    return {name: draw(st.sampled_from(SETTINGS[name])) for name in draw(setting_names)}


rows = st.fixed_dictionaries({"key": keys, "value": values, "headers": headers, "age_ms": ages})


def step(**strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule whose calls are noted, so that a failing program can be printed and repeated."""
    decorate: Any = rule(**strategies)
    return lambda function: decorate(noted(function))


def first_step(**strategies: Any) -> Callable[[Callable[..., None]], Any]:
    decorate: Any = initialize(**strategies)
    return lambda function: decorate(noted(function))


def noted(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def call(self: LogMachine, **given: Any) -> None:
        self.program.append((function.__name__, given))
        with self.watched():
            function(self, **given)

    return call


def now_ms() -> int:
    return int(time.time() * 1000)


@dataclass
class Buffered:
    """A record that was given to a producer, which may not have written it yet."""

    topic: str
    uid: int
    partition: int | None
    row: Row
    refusals: set[str]  # at the time of its send


@dataclass
class Sender:
    """What the model knows of a producer."""

    options: dict[str, Any]
    buffered: list[Buffered] = field(default_factory=list)
    state: str = "plain"  # or, with a transactional id: fresh, ready, open, failed, fenced
    # the uids of the topics of each name to which it has sent
    met: dict[str, set[int]] = field(default_factory=dict)
    # another producer has its id; its state is "fenced" as soon as a call has told it so
    is_fenced: bool = False
    transaction: Transaction | None = None

    @property
    def acks(self) -> str:
        return str(self.options.get("acks", "all"))


class Child:
    """An actor in a process of its own."""

    def __init__(self, nursery: Nursery, paths: list[str]) -> None:
        self._nursery = nursery
        self._paths = paths
        self._victim: Victim = nursery.spawn()
        self._victim.call("machine_begin", paths)

    def call(self, verb: str, *arguments: Any) -> Outcome:
        outcome: Outcome = self._victim.call("machine_call", verb, *arguments)
        return outcome

    def arm(self, nth: int, mode: str) -> None:
        """Die at the nth system call from now on."""
        self._victim.arm(KINDS, mode, nth=nth)

    def disarm(self) -> None:
        self._victim.call("disarm")

    def end(self) -> None:
        self._nursery.end(self._victim)


class LogMachine(RuleBasedStateMachine):
    """Runs on one directory, or on a set of `directory_count` directories."""

    nursery: ClassVar[Nursery]
    directory_count: ClassVar[int] = 1
    counts: ClassVar[Counter[str]] = Counter()  # over all examples: steps and kinds of calls
    failing: ClassVar[Program] = []  # the calls of the last example that failed
    failure: ClassVar[BaseException | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="machine-"))
        self.paths = [str(self.root / f"log{number}") for number in range(self.directory_count)]
        self.model = Model(replica_count=self.directory_count)
        self.program: Program = []
        self.steps = 0
        self.serial = 0
        self.backups = 0
        self.touched: set[str] = set()
        self.senders: dict[tuple[str, str], Sender] = {}
        self.transactions: list[Transaction] = []
        # records of a killed process, which may become visible later
        self.uncertain: list[tuple[Sender, Buffered]] = []
        self.users: dict[str, Any] = {}
        for name in ACTORS:
            self.start(name)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        try:
            yield
        except FAILURES as problem:
            type(self).failing = self.program
            type(self).failure = problem
            raise

    # ---- users ---------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        user = Child(self.nursery, self.paths) if name == "child" else Actor(self.paths)
        self.users[name] = user
        opened = user.call("open")
        demand(opened.error is None, f"{name}: open: {opened.text}")

    def call(self, actor: str, verb: str, *arguments: Any) -> Outcome:
        self.counts["calls"] += 1
        outcome: Outcome = self.users[actor].call(verb, *arguments)
        self.counts["refused calls"] += outcome.error is not None
        return outcome

    def must(self, actor: str, verb: str, *arguments: Any) -> Any:
        """The value of a call that must succeed."""
        outcome = self.call(actor, verb, *arguments)
        demand(
            outcome.error is None, f"{actor}: {verb}{arguments}: {outcome.error}: {outcome.text}"
        )
        return outcome.value

    def expect(self, actor: str, errors: Iterable[str], verb: str, *arguments: Any) -> Outcome:
        """Call; it must fail with one of these errors, or succeed if there are none."""
        outcome = self.call(actor, verb, *arguments)
        judge(outcome, errors, f"{actor}: {verb}{arguments}")
        return outcome

    def teardown(self) -> None:
        try:
            for name, user in self.users.items():
                if name != "child":
                    user.call("close")
        finally:
            self.users["child"].end()
            shutil.rmtree(self.root, ignore_errors=True)

    # ---- topics --------------------------------------------------------------------------------

    @first_step(settings=settings_of_topic(), others=settings_of_topic(), count=st.integers(1, 3))
    def begin(self, settings: dict[str, str], others: dict[str, str], count: int) -> None:
        for name, given in (("a", settings), ("b", others)):
            self.must("first", "create_topic", name, count, given, False)
            self.model.create(name, count, given)

    @step(
        actor=actors,
        name=topics,
        count=st.integers(1, 4),
        settings=settings_of_topic(),
        exist_ok=st.booleans(),
    )
    def create_topic(
        self, actor: str, name: str, count: int, settings: dict[str, str], exist_ok: bool
    ) -> None:
        topic = self.model.topics.get(name)
        if topic is None:
            self.create_topic_now(actor, name, count, settings)
        elif not exist_ok:
            self.expect(
                actor, ("TopicExistsError",), "create_topic", name, count, settings, exist_ok
            )
        else:
            fits = count <= len(topic.partitions) and all(
                topic.setting(key) == value for key, value in settings.items()
            )
            self.expect(
                actor,
                () if fits else ("TopicMismatchError",),
                "create_topic",
                name,
                count,
                settings,
                exist_ok,
            )
        self.touched.add(name)

    @step(
        actor=actors,
        name=topics,
        again=st.booleans(),
        count=st.integers(1, 3),
        settings=settings_of_topic(),
    )
    def delete_topic(
        self, actor: str, name: str, again: bool, count: int, settings: dict[str, str]
    ) -> None:
        """Delete a topic; mostly, make another one of its name."""
        self.expect(actor, self.unknown(name), "delete_topic", name)
        if name in self.model.topics:
            self.model.delete(name, self.transactions)
        if again:
            self.create_topic_now(actor, name, count, settings)

    def create_topic_now(self, actor: str, name: str, count: int, settings: dict[str, str]) -> None:
        self.expect(actor, (), "create_topic", name, count, settings, False)
        self.model.create(name, count, settings)
        self.touched.add(name)

    @step(actor=actors, name=topics, changes=settings_of_topic(), reset=st.booleans())
    def alter_topic(self, actor: str, name: str, changes: dict[str, str], reset: bool) -> None:
        given: dict[str, str | None] = {
            key: None if reset else value for key, value in changes.items()
        }
        self.expect(actor, self.unknown(name), "alter_topic", name, given)
        if name in self.model.topics:
            self.model.alter(name, given)
            self.touched.add(name)

    @step(actor=actors, name=topics, total=st.integers(1, 4))
    def create_partitions(self, actor: str, name: str, total: int) -> None:
        topic = self.model.topics.get(name)
        errors = self.unknown(name)
        if topic is not None and total <= len(topic.partitions):
            errors = {"InvalidPartitionsError"}
        self.expect(actor, errors, "create_partitions", name, total)
        if not errors:
            self.model.grow(name, total)
            self.touched.add(name)

    def unknown(self, name: str) -> set[str]:
        return set() if name in self.model.topics else {"UnknownTopicOrPartitionError"}

    @step(
        actor=actors,
        name=topics,
        number=st.integers(0, 3),
        part=st.sampled_from((0.0, 0.3, 0.7, 1.0, 2.0, -1.0)),
    )
    def delete_records(self, actor: str, name: str, number: int, part: float) -> None:
        topic = self.model.topics.get(name)
        partition = self.model.partition(name, number)
        if topic is None or partition is None:
            self.expect(
                actor, ("UnknownTopicOrPartitionError",), "delete_records", {(name, number): 0}
            )
            return
        self.take_hidden(actor, name)
        offset = -1 if part < 0 else int(partition.end * part) if part <= 1 else partition.end + 1
        errors = set()
        if offset > partition.end:
            errors.add("OffsetOutOfRangeError")
        if not topic.is_deleted_by_age:
            errors.add("PolicyViolationError")
        outcome = self.expect(actor, errors, "delete_records", {(name, number): offset})
        if not errors:
            partition.delete_before(partition.end if offset < 0 else offset)
            demand(
                outcome.value == {(name, number): partition.start},
                f"delete_records: {outcome.value}, not {partition.start}",
            )
        self.touched.add(name)

    # ---- producers -----------------------------------------------------------------------------

    @step(
        actor=actors,
        name=plain_producers,
        acks=st.sampled_from(("all", "all", "1")),
        codec=codecs,
        linger=st.sampled_from((0, 5, 60_000)),
    )
    def reopen_producer(self, actor: str, name: str, acks: str, codec: str, linger: int) -> None:
        """Close a producer, and open it with other options."""
        self.close_sender(actor, name)
        if self.directory_count > 1:
            acks = "all"  # a record with acks=1 is acknowledged before readers of a set see it
        options = {"acks": acks, "compression.type": codec, "linger.ms": linger}
        self.must(actor, "open_producer", name, options)
        self.senders[actor, name] = Sender(options)

    @step(
        actor=actors,
        name=transactional_producers,
        codec=codecs,
        linger=st.sampled_from((0, 60_000)),
    )
    def reopen_transactional(self, actor: str, name: str, codec: str, linger: int) -> None:
        self.close_sender(actor, name)
        self.open_transactional(actor, name, {"compression.type": codec, "linger.ms": linger})

    def open_transactional(self, actor: str, name: str, options: dict[str, Any]) -> None:
        given = {**options, "transactional.id": TRANSACTIONAL[name]}
        self.must(actor, "open_producer", name, given)
        self.senders[actor, name] = Sender(given, state="fresh")

    def sender(self, actor: str, name: str) -> Sender:
        if (actor, name) not in self.senders:
            if name in TRANSACTIONAL:
                self.open_transactional(actor, name, {"linger.ms": 60_000})
            else:
                self.must(actor, "open_producer", name, {"linger.ms": 0})
                self.senders[actor, name] = Sender({"linger.ms": 0})
        return self.senders[actor, name]

    def close_sender(self, actor: str, name: str) -> None:
        sender = self.senders.pop((actor, name), None)
        if sender is not None:
            outcomes = self.must(actor, "close_producer", name)
            self.sender_has_ended(sender, outcomes)

    def sender_has_ended(self, sender: Sender, outcomes: list[Outcome]) -> None:
        """Its buffered records were written, and its open transaction was aborted."""
        since = now_ms()
        self.take_buffered(sender, outcomes, since - 60_000)
        if sender.transaction is not None and sender.transaction.state == "open":
            self.decide(sender.transaction, "aborted")

    def new_row(self, drawn: Mapping[str, Any]) -> Row:
        self.serial += 1
        value = {
            "small": b"%d" % self.serial,
            "empty": b"",
            "text": b"%d " % self.serial * 20,
            "big": b"%d " % self.serial + random.Random(self.serial).randbytes(500),
            "tombstone": None if drawn["key"] is not None else b"%d" % self.serial,
        }[drawn["value"]]
        age = drawn["age_ms"]
        since = now_ms()
        timestamp = None if age is None else since - age
        return Row(drawn["key"], value, tuple(drawn["headers"]), timestamp, oldest_ms=since)

    @step(
        actor=actors,
        name=producers,
        topic=topics,
        partition=partitions,
        drawn=rows,
        how=st.sampled_from(("result", "flush", "buffer")),
    )
    def send(
        self,
        actor: str,
        name: str,
        topic: str,
        partition: int | None,
        drawn: dict[str, Any],
        how: str,
    ) -> None:
        self.send_one(actor, name, topic, partition, drawn, how)

    def send_one(
        self,
        actor: str,
        name: str,
        topic: str,
        partition: int | None,
        drawn: Mapping[str, Any],
        how: str,
    ) -> None:
        sender = self.sender(actor, name)
        if how == "buffer" and (
            sender.options["linger.ms"] < 1000 or self.fills_a_batch(sender, topic)
        ):
            how = "result"
        row = self.new_row(drawn)
        if how != "buffer":
            self.flush_sender(actor, name)
        outcome = self.call(actor, "send", name, topic, arguments_of(row, partition), how)
        self.after_send(sender, topic, partition, row, outcome, buffered=how == "buffer")

    def fills_a_batch(self, sender: Sender, topic: str) -> bool:
        """Whether one more record may be written, with earlier ones, before the producer is asked
        to.
        """
        found = self.model.topics.get(topic)
        is_small = found is not None and found.number("max.message.bytes") < 100_000
        return is_small or len(sender.buffered) >= MAX_BUFFERED

    def after_send(
        self,
        sender: Sender,
        topic: str,
        partition: int | None,
        row: Row,
        outcome: Outcome,
        *,
        buffered: bool = False,
    ) -> None:
        row.newest_ms = now_ms() + 1
        self.touched.add(topic)
        sender.met.setdefault(topic, set()).add(self.uid(topic))
        if sender.state in ("fresh", "ready", "fenced"):
            errors = (
                ("FencedError",) if sender.state == "fenced" else ("InvalidTransactionStateError",)
            )
            if outcome.error is None and outcome.value is not None:
                outcome = outcome.value
            if not buffered or outcome.error is not None:
                judge(outcome, errors, f"send in the state {sender.state}")
                return
        refusals = self.model.refusals(topic, partition, row, now_ms(), sender.acks)
        found = self.model.topics.get(topic)
        mine = Buffered(topic, found.uid if found else 0, partition, row, refusals)
        if buffered and outcome.error is None:
            sender.buffered.append(mine)
            return
        if outcome.error is None:
            outcome = outcome.value
        self.take_records(sender, [mine], [outcome], row.oldest_ms)

    def flush_sender(self, actor: str, name: str) -> None:
        sender = self.sender(actor, name)
        if sender.buffered:
            since = now_ms()
            self.take_buffered(sender, self.must(actor, "flush", name), since)

    @step(
        actor=actors,
        name=producers,
        topic=topics,
        partition=partitions,
        drawn=st.lists(rows, min_size=2, max_size=8),
        how=st.sampled_from(("result", "buffer")),
    )
    def send_many(
        self,
        actor: str,
        name: str,
        topic: str,
        partition: int | None,
        drawn: list[dict[str, Any]],
        how: str,
    ) -> None:
        for each in drawn:
            self.send_one(actor, name, topic, partition, each, how)

    @step(
        actor=actors,
        name=transactional_producers,
        topic=topics,
        other=topics,
        drawn=st.lists(rows, min_size=1, max_size=5),
        partition=partitions,
        end=st.sampled_from(("commit", "commit", "commit", "abort", "", "")),
    )
    def run_transaction(
        self,
        actor: str,
        name: str,
        topic: str,
        other: str,
        drawn: list[dict[str, Any]],
        partition: int | None,
        end: str,
    ) -> None:
        """A transaction as programs write it, or the rest of an open one; it may stay open."""
        state = self.sender(actor, name).state
        if state == "fenced" or self.sender(actor, name).is_fenced:
            self.close_sender(actor, name)
            state = self.sender(actor, name).state
        if state == "failed":
            self.transact_once(actor, name, "abort")
        if state == "fresh":
            self.transact_once(actor, name, "init")
        if self.sender(actor, name).state == "ready":
            self.transact_once(actor, name, "begin")
        for position, each in enumerate(drawn):
            self.send_one(actor, name, other if position % 2 else topic, partition, each, "buffer")
        if end:
            self.transact_once(actor, name, end)

    @step(actor=actors, name=producers)
    def flush(self, actor: str, name: str) -> None:
        self.flush_sender(actor, name)

    def take_buffered(self, sender: Sender, outcomes: list[Outcome], since_ms: int) -> None:
        given = sender.buffered
        sender.buffered = []
        demand(
            len(given) == len(outcomes),
            f"{len(outcomes)} outcomes of {len(given)} buffered records",
        )
        self.take_records(sender, given, outcomes, since_ms)

    def take_records(
        self, sender: Sender, given: list[Buffered], outcomes: list[Outcome], since_ms: int
    ) -> None:
        """Judge the outcomes of records that were sent together, and append those that are in the
        log.
        """
        until = now_ms() + 1
        present = [
            self.model.refusals(each.topic, each.partition, each.row, until, sender.acks)
            for each in given
        ]
        mates: dict[str, set[str]] = {}
        for each, refusals in zip(
            [*given, *sender.buffered],
            [*present, *(each.refusals for each in sender.buffered)],
            strict=True,
        ):
            mates.setdefault(each.topic, set()).update(refusals)
        appended: dict[tuple[str, int], list[tuple[int, Row]]] = {}
        for each, refusals, outcome in zip(given, present, outcomes, strict=True):
            where = (
                f"a record for {each.topic}, partition {each.partition}, key {each.row.key!r}, "
                f"value {each.row.value!r:.40}"
            )
            if outcome.error is None:
                demand(not refusals, f"{where}: was appended, expected {sorted(refusals)}")
                demand(not sender.is_fenced, f"{where}: was appended by a fenced producer")
                topic, number, offset, timestamp = outcome.value
                self.judge_partition(each, number)
                self.stamp(each.row, self.model.topics[topic].has_append_time, since_ms, until)
                demand(
                    each.row.timestamp_ms in (None, timestamp),
                    f"{where}: its metadata have the time {timestamp}",
                )
                appended.setdefault((topic, number), []).append((offset, each.row))
                continue
            allowed = refusals | each.refusals | mates[each.topic]
            if self.was_made_anew(sender, each.topic) or self.uid(each.topic) != each.uid:
                allowed = allowed | {"UnknownTopicOrPartitionError"}
            if sender.transaction is not None:
                allowed = allowed | {"TransactionAbortedError"}
                self.touch(sender.transaction, each.topic)
            if sender.state == "failed" or (sender.transaction is not None and any(mates.values())):
                # the transaction cannot be committed: its other records may be refused
                allowed = allowed | {"EmbedlogError"}
            if sender.is_fenced:
                allowed = {"FencedError", "TransactionAbortedError"} | allowed
                sender.state = "fenced" if outcome.error == "FencedError" else sender.state
            demand(
                outcome.is_error(allowed),
                f"{where}: {outcome.error}: {outcome.text}, expected "
                f"{sorted(allowed) or 'no error'}",
            )
            if sender.state == "open" and outcome.error != "TransactionAbortedError":
                sender.state = "failed"
        for (topic, number), found in appended.items():
            demand(
                found == sorted(found, key=lambda pair: pair[0]),
                f"{topic}-{number}: records are not in the order of their sends",
            )
            for offset, row in found:
                self.append(sender, topic, number, row, offset)

    def was_made_anew(self, sender: Sender, topic: str) -> bool:
        """Whether a producer has sent to an earlier topic of this name: it may have chosen a
        partition of that one.
        """
        return bool(sender.met.get(topic, set()) - {self.uid(topic)})

    def append(self, sender: Sender, topic: str, number: int, row: Row, offset: int) -> None:
        self.counts["records"] += 1
        partition = self.model.topics[topic].partitions[number]
        if offset > partition.end and self.uncertain:
            self.absorb_uncertain(topic, offset)
        if partition.end < offset <= partition.end + partition.possible_markers:
            self.model.take_end(topic, number, offset)
        if sender.transaction is not None and sender.state in ("open", "failed"):
            row.transaction = sender.transaction
            sender.transaction.partitions.add((self.model.topics[topic].uid, number))
            sender.transaction.touched.add((topic, number))
        partition.append(row, offset)
        self.touched.add(topic)

    def judge_partition(self, each: Buffered, number: int) -> None:
        if each.partition is not None:
            demand(
                number == each.partition, f"a record for partition {each.partition} is in {number}"
            )
        elif each.row.key is not None:
            count = len(self.model.topics[each.topic].partitions)
            possible = {partition_of(each.row.key, total) for total in range(1, count + 1)}
            demand(
                number in possible,
                f"the key {each.row.key!r} is in partition {number}, expected {possible}",
            )

    @staticmethod
    def stamp(row: Row, has_append_time: bool, since_ms: int, until_ms: int) -> None:
        if has_append_time:
            row.timestamp_ms = None
            row.timestamp_type = 1
            row.oldest_ms = since_ms
            row.newest_ms = until_ms

    def uid(self, name: str) -> int:
        topic = self.model.topics.get(name)
        return topic.uid if topic is not None else 0

    def touch(self, transaction: Transaction, name: str) -> None:
        topic = self.model.topics.get(name)
        if topic is not None:
            transaction.touched.update((name, number) for number in range(len(topic.partitions)))

    @step(
        actor=actors,
        name=producers,
        topic=topics,
        partition=partitions,
        drawn=st.lists(rows, min_size=1, max_size=5),
        form=st.sampled_from(("list", "numpy", "arrow", "table")),
        columns=st.sampled_from(("", "k", "kt", "kh", "t")),
    )
    def send_batch(
        self,
        actor: str,
        name: str,
        topic: str,
        partition: int | None,
        drawn: list[dict[str, Any]],
        form: str,
        columns: str,
    ) -> None:
        """Many records as columns: without keys, with keys, times, headers."""
        sender = self.sender(actor, name)
        sender.met.setdefault(topic, set()).add(self.uid(topic))
        self.flush_sender(actor, name)
        batch = [self.new_row(each) for each in drawn]
        for row in batch:
            row.key = row.key if "k" in columns else None
            row.headers = row.headers if "h" in columns else ()
            row.value = b"%d" % self.serial if row.value is None and row.key is None else row.value
            if "t" not in columns:
                row.timestamp_ms = None
            elif row.timestamp_ms is None:
                row.timestamp_ms = row.oldest_ms
        given: dict[str, Any] = {
            "values": [row.value for row in batch],
            "keys": [row.key for row in batch] if "k" in columns else None,
            "headers": [list(row.headers) for row in batch] if "h" in columns else None,
            "timestamps_ms": [row.timestamp_ms for row in batch] if "t" in columns else None,
            "partition": partition,
        }
        if given["headers"] is not None:
            form = "list"
        outcome = self.call(actor, "send_batch", name, topic, given, form)
        self.after_batch(sender, topic, partition, batch, outcome)

    def after_batch(
        self, sender: Sender, topic: str, partition: int | None, batch: list[Row], outcome: Outcome
    ) -> None:
        self.touched.add(topic)
        until = now_ms() + 1
        for row in batch:
            row.newest_ms = until
        if outcome.error is None:
            outcome = outcome.value
        if sender.state in ("fresh", "ready", "fenced"):
            judge(
                outcome,
                ("FencedError",) if sender.state == "fenced" else ("InvalidTransactionStateError",),
                "send_batch",
            )
            return
        refusals = set().union(
            *(self.model.refusals(topic, partition, row, until, sender.acks) for row in batch)
        )
        found = self.model.topics.get(topic)
        size = 61 + sum(row.plain_bytes for row in batch)
        may_be_large = found is not None and size > found.number("max.message.bytes")
        if outcome.error is None:
            demand(not refusals, f"send_batch({topic!r}) succeeded, expected {sorted(refusals)}")
            demand(not sender.is_fenced, f"send_batch({topic!r}) of a fenced producer succeeded")
            self.take_runs(sender, topic, partition, batch, outcome.value)
            return
        allowed = refusals | ({"RecordTooLargeError"} if may_be_large else set())
        if self.was_made_anew(sender, topic):
            allowed = allowed | {"UnknownTopicOrPartitionError"}
        if sender.state == "failed":
            allowed = allowed | {"EmbedlogError"}
        if sender.is_fenced:
            allowed = allowed | {"FencedError"}
            sender.state = "fenced" if outcome.error == "FencedError" else sender.state
        judge(outcome, allowed, f"send_batch({topic!r})")
        if sender.state == "open":
            assert sender.transaction is not None
            sender.state = "failed"
            self.touch(sender.transaction, topic)
        self.absorb(
            sender, [Buffered(topic, self.uid(topic), partition, row, set()) for row in batch]
        )

    def take_runs(
        self,
        sender: Sender,
        topic: str,
        partition: int | None,
        batch: list[Row],
        runs: list[tuple[str, int, int, int]],
    ) -> None:
        """The runs name partitions, offsets and counts; the rows of one partition are in the order
        of the input.
        """
        demand(sum(count for *_, count in runs) == len(batch), f"{runs} for {len(batch)} rows")
        count = len(self.model.topics[topic].partitions)
        left = list(batch)
        for _, number, base, length in sorted(runs, key=lambda run: run[2]):
            for offset in range(base, base + length):
                fitting = [
                    row
                    for row in left
                    if row.key is None
                    or partition is not None
                    or partition_of(row.key, count) == number
                ]
                seen_row = self.row_at(topic, number, offset)
                row = next(
                    (row for row in fitting if seen_row is not None and row.is_same(seen_row)), None
                )
                demand(
                    row is not None,
                    f"{topic}-{number} has at offset {offset} {seen_row}, which is no row of the "
                    "batch",
                )
                assert row is not None
                left.remove(row)
                self.stamp(
                    row, self.model.topics[topic].has_append_time, row.oldest_ms, now_ms() + 1
                )
                self.append(sender, topic, number, row, offset)

    def row_at(self, topic: str, number: int, offset: int) -> Any:
        bounds = {"partitions": number, "start_offset": offset, "end_offset": offset + 1}
        found = self.must("first", "read", topic, number + 1, "read_uncommitted", bounds)[number]
        return found[0] if found else None

    @step(
        actor=actors,
        name=plain_producers,
        topic=topics,
        drawn=rows,
        shift=st.sampled_from((0, 0, 1, -1)),
    )
    def send_expecting(
        self, actor: str, name: str, topic: str, drawn: dict[str, Any], shift: int
    ) -> None:
        """An optimistic append to partition 0."""
        sender = self.sender(actor, name)
        self.flush_sender(actor, name)
        partition = self.model.partition(topic, 0)
        end = 0 if partition is None else partition.end
        expected = max(0, end + shift)
        row = self.new_row(drawn)
        arguments = {**arguments_of(row, 0), "expected_offset": expected}
        outcome = self.call(actor, "send", name, topic, arguments, "result")
        if sender.acks != "all":
            judge(outcome, ("ConfigError",), "expected_offset without idempotence")
            return
        hidden = sum(
            each.topic == topic and each.uid == self.uid(topic) for _, each in self.uncertain
        )
        if outcome.error is None and outcome.value.error == "OffsetMismatchError":
            actual = outcome.value.actual
            is_true = end <= actual <= end + hidden and actual != expected
            demand(is_true, f"{topic}-0: {outcome.value.text}, and the log end is {end}")
            return
        if not end <= expected <= end + hidden:
            refusals = self.model.refusals(topic, 0, row, now_ms(), sender.acks)
            judge(
                outcome.value if outcome.error is None else outcome,
                refusals | {"OffsetMismatchError"},
                "expected_offset",
            )
            return
        self.after_send(sender, topic, 0, row, outcome)

    # ---- transactions --------------------------------------------------------------------------

    @step(
        actor=actors,
        name=transactional_producers,
        action=st.sampled_from(("init", "begin", "begin", "commit", "commit", "abort")),
    )
    def transact(self, actor: str, name: str, action: str) -> None:
        """One call; and `init` before `begin` where that is missing, as programs do."""
        sender = self.sender(actor, name)
        if sender.state == "fresh" and action == "begin":
            self.transact_once(actor, name, "init")
        self.transact_once(actor, name, action)

    def transact_once(self, actor: str, name: str, action: str) -> None:
        sender = self.sender(actor, name)
        allowed_in = {
            "init": ("fresh",),
            "begin": ("ready",),
            "commit": ("open", "failed"),
            "abort": ("open", "failed"),
        }[action]
        since = now_ms()
        done, outcomes = self.must(actor, "transact", name, action)
        where = f"{actor}: {action} of {name} in the state {sender.state}"
        if sender.state not in allowed_in:
            judge(done, ("FencedError", "InvalidTransactionStateError"), where)
            if sender.state == "fenced" and outcomes:
                self.take_buffered(sender, outcomes, since)
            return
        self.counts[action] += 1
        if done.error == "FencedError" and sender.is_fenced:
            sender.state = "fenced"
            self.take_buffered(sender, outcomes, since)
            return
        if action == "init":
            judge(done, (), where)
            self.take_over(TRANSACTIONAL[name], sender)
            sender.state = "ready"
        elif action == "begin":
            judge(done, (), where)
            sender.state = "open"
            sender.transaction = Transaction(TRANSACTIONAL[name])
            self.transactions.append(sender.transaction)
        else:
            self.end_transaction(sender, action, done, outcomes, since, where)

    def take_over(self, transactional_id: str, owner: Sender) -> None:
        """A producer begins with this id: earlier ones are fenced, and their transactions are
        aborted.
        """
        for other in self.senders.values():
            if (
                other is not owner
                and other.options.get("transactional.id") == transactional_id
                and other.state != "fresh"
            ):
                other.is_fenced = True
        for transaction in list(self.transactions):
            if transaction.transactional_id == transactional_id:
                self.decide(transaction, "aborted")

    def end_transaction(
        self,
        sender: Sender,
        action: str,
        done: Outcome,
        outcomes: list[Outcome],
        since: int,
        where: str,
    ) -> None:
        assert sender.transaction is not None
        self.take_buffered(sender, outcomes, since)
        is_lost = sender.is_fenced and bool(
            sender.transaction.partitions or sender.transaction.offsets
        )
        if action == "commit" and is_lost and sender.state != "failed":
            judge(done, ("FencedError",), where)
        if action == "commit" and sender.state in ("failed", "fenced"):
            demand(done.error is not None, f"{where}: committed, although a record has failed")
            return
        judge(done, (), where)
        if sender.transaction.is_open:
            self.decide(sender.transaction, "committed" if action == "commit" else "aborted")
        sender.transaction = None
        sender.state = "ready"

    def decide(self, transaction: Transaction, state: str) -> None:
        """The end of a transaction. What a killed process has written before its markers lies
        before them.
        """
        for name in list(self.model.topics) if self.uncertain else ():
            self.absorb_uncertain(name, 2**62)
        if transaction in self.transactions:
            self.transactions.remove(transaction)
        self.model.end_transaction(transaction, state)
        self.touched.update(self.model.topics)

    @step(
        actor=actors,
        name=transactional_producers,
        group=groups,
        topic=topics,
        number=st.integers(0, 3),
        offset=st.integers(0, 9),
    )
    def send_offsets(
        self, actor: str, name: str, group: str, topic: str, number: int, offset: int
    ) -> None:
        """Offsets of a group as a part of the transaction."""
        sender = self.sender(actor, name)
        if (
            sender.state != "open"
            or sender.transaction is None
            or self.model.partition(topic, number) is None
        ):
            return
        if not sender.is_fenced and self.is_pending(group):
            # offsets of a partition would be committed by two transactions in an order of the log's
            # own
            return
        self.flush_sender(actor, name)
        if sender.state != "open":
            return
        self.expect(
            actor,
            ("FencedError",) if sender.is_fenced else (),
            "send_offsets",
            name,
            group,
            {(topic, number): offset},
        )
        if sender.is_fenced:
            sender.state = "fenced"
        else:
            sender.transaction.offsets.setdefault(group, {})[topic, number] = offset

    def is_pending(self, group: str) -> bool:
        """Whether a transaction that is not decided has offsets of the group: who asks for them
        waits for its end.
        """
        return any(
            transaction.is_open and group in transaction.offsets
            for transaction in self.transactions
        )

    # ---- consumers and groups ------------------------------------------------------------------

    @step(
        actor=actors,
        topic=topics,
        group=groups,
        level=st.sampled_from(LEVELS),
        pause=st.booleans(),
        seek=st.sampled_from((None, None, 0.0, 0.6, 1.0, 3.0)),
        commit=st.sampled_from(("", "positions", "positions", "offsets")),
    )
    def consume(
        self,
        actor: str,
        topic: str,
        group: str,
        level: str,
        seek: float | None,
        pause: bool,
        commit: str,
    ) -> None:
        """A consumer from the committed offsets to the end: it seeks in one partition, pauses
        another one, and commits.
        """
        found = self.model.topics.get(topic)
        if found is None or self.is_pending(group):
            return
        self.compare_topic(actor, topic)
        self.counts["consumers"] += 1
        given = {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": level,
        }
        self.must(actor, "open_consumer", "reader", given)
        places = [(topic, number) for number in range(len(found.partitions))]
        committed = self.model.groups.get(group, {})
        starts = {place: committed.get(place) for place in places}
        self.must(actor, "consume", "reader", "assign", places)
        seen_offsets = self.must(actor, "consume", "reader", "committed", places)
        demand(
            seen_offsets == starts,
            f"the group {group} has committed {seen_offsets}, expected {starts}",
        )
        if seek is not None:
            starts[places[0]] = int(found.partitions[0].end * seek)
            self.must(actor, "consume", "reader", "seek", places[0], starts[places[0]])
        paused = places[-1:] if pause else []
        self.must(actor, "consume", "reader", "pause", paused)
        read: dict[tuple[str, int], list[Any]] = {place: [] for place in places}
        while records := self.must(actor, "consume", "reader", "poll", 0):
            for place, of_place in records.items():
                read[place] += of_place
        is_committed_level = level == "read_committed"
        positions = {}
        for place, partition in zip(places, found.partitions, strict=True):
            start = starts[place]
            if start is None or not partition.start <= start <= partition.end:
                start = partition.start  # auto.offset.reset
            end = partition.end_for(committed=is_committed_level)
            expected = (
                []
                if place in paused
                else partition.visible(committed=is_committed_level, start=start)
            )
            compare_records(f"a consumer of {group}, {place}, {level}", expected, read[place])
            if place not in paused:
                positions[place] = max(start, end)
                position = self.must(actor, "consume", "reader", "position", place)
                demand(
                    position == positions[place],
                    f"the position of {place} is {position}, expected {positions[place]}",
                )
        self.must(actor, "consume", "reader", "resume", paused)
        if commit == "offsets" or (commit and paused):
            positions = {places[0]: found.partitions[0].end // 2}
            self.must(actor, "consume", "reader", "commit", positions)
        elif commit:
            self.must(actor, "consume", "reader", "commit", None)
        if commit:
            self.model.groups.setdefault(group, {}).update(positions)
        self.must(actor, "close_consumer", "reader")

    @step(
        actor=actors,
        group=groups,
        topic=topics,
        number=st.integers(0, 3),
        action=st.sampled_from(
            ("describe", "describe", "earliest", "latest", "delete", "delete offsets")
        ),
    )
    def administer_group(
        self, actor: str, group: str, topic: str, number: int, action: str
    ) -> None:
        if self.is_pending(group):
            return
        offsets = self.model.groups.get(group, {})
        if action == "describe":
            found = self.must(actor, "group_offsets", group) if offsets else {}
            demand(
                found == offsets, f"the group {group} has the offsets {found}, expected {offsets}"
            )
        elif action in ("earliest", "latest"):
            topic_now = self.model.topics.get(topic)
            outcome = self.expect(
                actor, self.unknown(topic), "reset_group_offsets", group, topic, action
            )
            if topic_now is not None:
                self.compare_topic(actor, topic)
                expected = {
                    (topic, each): partition.start if action == "earliest" else partition.end
                    for each, partition in enumerate(topic_now.partitions)
                }
                demand(
                    outcome.value == expected,
                    f"reset to {action}: {outcome.value}, expected {expected}",
                )
                self.model.groups.setdefault(group, {}).update(expected)
        elif action == "delete" and offsets:
            self.must(actor, "delete_group", group)
            self.model.groups.pop(group)
        elif action == "delete offsets" and offsets:
            self.must(actor, "delete_group_offsets", group, [(topic, number)])
            offsets.pop((topic, number), None)

    # ---- processes -----------------------------------------------------------------------------

    def reopen(self, actor: str) -> None:
        """Close a handle with all its clients, and open it again."""
        ended = self.must(actor, "close")
        self.must(actor, "open")
        for (owner, name), sender in list(self.senders.items()):
            if owner == actor:
                del self.senders[owner, name]
                self.sender_has_ended(sender, ended.get(name, []))
        self.touched.update(self.model.topics)

    def kill(self, _: str) -> None:
        """SIGKILL of the other process between two calls."""
        self.child_has_died()

    def child_has_died(self) -> None:
        self.counts["kills"] += 1
        self.users["child"].end()
        for (owner, name), sender in list(self.senders.items()):
            if owner == "child":
                del self.senders[owner, name]
                if sender.transaction is not None and sender.transaction.state == "open":
                    sender.transaction.state = "orphaned"
                    for each in sender.buffered:
                        self.touch(sender.transaction, each.topic)
        self.start("child")
        self.touched.update(self.model.topics)

    @step(
        topic=topics,
        partition=partitions,
        drawn=st.lists(rows, min_size=1, max_size=4),
        name=plain_producers,
        nth=st.integers(1, 30),
        mode=st.sampled_from(MODES),
        batch=st.booleans(),
    )
    def kill_inside_send(
        self,
        topic: str,
        partition: int | None,
        drawn: list[dict[str, Any]],
        name: str,
        nth: int,
        mode: str,
        batch: bool,
    ) -> None:
        """The other process dies at one of its system calls while it writes records."""
        sender = self.sender("child", name)
        self.flush_sender("child", name)
        pending = []
        self.users["child"].arm(nth, mode)
        try:
            if batch:
                rows_of_batch = [self.new_row(each) for each in drawn]
                for row in rows_of_batch:
                    row.timestamp_ms = None
                    row.headers = ()
                    row.newest_ms = row.oldest_ms + 60_000
                    row.value = (
                        b"%d" % self.serial if row.value is None and row.key is None else row.value
                    )
                given = {
                    "values": [row.value for row in rows_of_batch],
                    "keys": [row.key for row in rows_of_batch],
                    "partition": partition,
                }
                pending = [
                    Buffered(topic, self.uid(topic), partition, row, set()) for row in rows_of_batch
                ]
                outcome = self.call("child", "send_batch", name, topic, given, "list")
                self.users["child"].disarm()
                self.after_batch(sender, topic, partition, rows_of_batch, outcome)
                return
            for each in drawn:
                row = self.new_row(each)
                row.newest_ms = row.oldest_ms + 60_000
                pending = [Buffered(topic, self.uid(topic), partition, row, set())]
                outcome = self.call(
                    "child", "send", name, topic, arguments_of(row, partition), "result"
                )
                self.after_send(sender, topic, partition, row, outcome)
            self.users["child"].disarm()
        except Died:
            self.counts["kills inside calls"] += 1
            self.child_has_died()
            self.absorb(sender, pending)
            self.uncertain += [(sender, each) for each in pending if each.row.offset < 0]

    def absorb_uncertain(self, topic: str, end: int) -> None:
        """Records of a killed process that are in the log, or at the leader of a set, become
        visible with a later append.
        """
        for sender, each in list(self.uncertain):
            if each.topic == topic and each.uid == self.uid(topic):
                self.absorb(sender, [each], end)
        self.uncertain = [(sender, each) for sender, each in self.uncertain if each.row.offset < 0]

    def absorb(self, sender: Sender, pending: list[Buffered], end: int | None = None) -> None:
        """Records of a call without an answer: each may be in the log, in the order of the call,
        unchanged, and without gaps.
        """
        if end is None and self.uncertain:  # those of earlier calls come first
            for name in {each.topic for each in pending}:
                self.absorb_uncertain(name, 2**62)
        left = list(pending)
        until = now_ms() + 1
        for name in {each.topic for each in pending} & set(self.model.topics):
            topic = self.model.topics[name]
            found = self.must("first", "read", name, len(topic.partitions), "read_uncommitted")
            for number, records in enumerate(found):
                for record in records:
                    if record.offset < topic.partitions[number].end or (
                        end is not None and record.offset >= end
                    ):
                        continue
                    position = next(
                        (index for index, each in enumerate(left) if each.row.is_same(record)), None
                    )
                    if position is None and end is not None:
                        break
                    demand(
                        position is not None, f"{name}-{number}: the record {record} was never sent"
                    )
                    assert position is not None
                    each = left.pop(position)
                    refusals = self.model.refusals(
                        name, each.partition, each.row, until, sender.acks
                    )
                    demand(
                        not refusals, f"{name}-{number}: {record} was appended, expected {refusals}"
                    )
                    self.judge_partition(each, number)
                    self.stamp(each.row, topic.has_append_time, each.row.oldest_ms, until)
                    self.append(sender, name, number, each.row, record.offset)

    # ---- administration ------------------------------------------------------------------------

    @step(
        actor=actors,
        task=st.sampled_from(("housekeep",) * 6 + ("check", "backup", "sync", "reopen", "kill")),
    )
    def administer(self, actor: str, task: str) -> None:
        getattr(self, task)(actor)

    def housekeep(self, actor: str) -> None:
        """Retention, compaction, removal of old files, and the end of abandoned transactions."""
        before = now_ms()
        self.must(actor, "housekeep")
        self.counts["housekeeping"] += 1
        for transaction in list(self.transactions):
            if transaction.state == "orphaned":
                self.decide(transaction, "aborted")
        for name, topic in self.model.topics.items():
            count = len(topic.partitions)
            starts, _ = self.must(actor, "ends", name, count)
            self.absorb_uncertain(name, 2**62)
            found = self.must(actor, "read", name, count, "read_uncommitted")
            for number, partition in enumerate(topic.partitions):
                left = partition_size(self.paths, name, number)
                after = Housekept(
                    starts[number], frozenset(record.offset for record in found[number]), left
                )
                kept_before = len(partition.rows)
                judge_housekeeping(f"{name}-{number}", topic, partition, after, before)
                self.counts["removed records"] += kept_before - len(partition.rows)
        self.touched.update(self.model.topics)

    def sync(self, actor: str) -> None:
        self.must(actor, "flush_log")

    def check(self, actor: str) -> None:
        findings = self.must(actor, "check")
        demand(not findings, f"check: {findings}")

    def backup(self, actor: str) -> None:
        """The copy has what its original has. Transactions that were open can be aborted in it:
        then all others are visible.
        """
        self.backups += 1
        target = self.root / f"backup{self.backups}"
        self.must(actor, "backup", str(target))
        for name in sorted(self.model.topics):
            self.take_ends(actor, name)
        with embedlog.open(target, read_only=True) as copy:
            demand(
                copy.topics() == sorted(self.model.topics),
                f"the backup has the topics {copy.topics()}",
            )
            for level in LEVELS:
                self.compare_copy(copy, level, are_open=True)
        with embedlog.open(target, config=LOG_CONFIG) as copy:
            for transactional_id in TRANSACTIONAL.values():
                with copy.producer(transactional_id=transactional_id) as producer:
                    producer.init_transactions()
            self.compare_copy(copy, "read_committed", are_open=False)
        shutil.rmtree(target)

    def compare_copy(self, copy: embedlog.Log, level: Any, *, are_open: bool) -> None:
        for name, topic in self.model.topics.items():
            found: list[list[Any]] = [[] for _ in topic.partitions]
            for record in copy.scan(name, isolation_level=level).records():
                found[record.partition].extend(seen([record]))
            for number, partition in enumerate(topic.partitions):
                expected = partition.visible(committed=level == "read_committed" and are_open)
                if not are_open:
                    expected = [row for row in expected if is_committed(row)]
                compare_records(f"backup of {name}-{number}, {level}", expected, found[number])

    @step(actor=actors, name=topics, number=st.integers(0, 3), age=st.sampled_from(AGES_MS))
    def look_up_time(self, actor: str, name: str, number: int, age: int) -> None:
        partition = self.model.partition(name, number)
        if partition is None:
            self.expect(
                actor, ("UnknownTopicOrPartitionError",), "offset_for_time", name, number, 0
            )
            return
        self.take_hidden(actor, name)
        moment = now_ms() - age - 60_000
        found = self.must(actor, "offset_for_time", name, number, moment)
        expected = offset_for_time(partition, moment, committed=False)
        demand(
            found == expected,
            f"{name}-{number}: the first record since {moment} is {found}, expected {expected}",
        )

    @step(actor=actors, name=topics, number=st.integers(0, 3), level=st.sampled_from(LEVELS))
    def read_last(self, actor: str, name: str, number: int, level: str) -> None:
        partition = self.model.partition(name, number)
        if partition is None:
            self.expect(
                actor, ("UnknownTopicOrPartitionError",), "last_record", name, number, level
            )
            return
        self.take_hidden(actor, name)
        found = self.must(actor, "last_record", name, number, level)
        expected = partition.visible(committed=level == "read_committed")[-1:]
        compare_records(
            f"last_record of {name}-{number}", expected, [] if found is None else [found]
        )

    # ---- comparison ----------------------------------------------------------------------------

    @invariant()
    def compare(self) -> None:
        with self.watched():
            self.compare_what_is_due()

    def compare_what_is_due(self) -> None:
        """After each step: what it has touched; from time to time everything. The users take
        turns.
        """
        self.steps += 1
        self.counts["steps"] += 1
        actor = ACTORS[self.steps % len(ACTORS)]
        whole = self.steps % WHOLE_LOOK_STEPS == 0
        names = set(self.model.topics) if whole else self.touched & set(self.model.topics)
        self.touched = set()
        for name in sorted(names):
            self.compare_topic(actor, name)
        if whole:
            found = self.must(actor, "topics")
            expected = {
                name: (len(topic.partitions), topic.settings)
                for name, topic in self.model.topics.items()
            }
            demand(found == expected, f"topics are {found}, expected {expected}")

    def compare_topic(self, actor: str, name: str) -> None:
        topic = self.model.topics[name]
        count = len(topic.partitions)
        starts = self.take_ends(actor, name)
        for number, partition in enumerate(topic.partitions):
            demand(
                starts[number] == partition.start,
                f"{name}-{number}: the log start is {starts[number]}, expected {partition.start}",
            )
        for level in LEVELS:
            found = self.must(actor, "read", name, count, level)
            for number, partition in enumerate(topic.partitions):
                expected = partition.visible(committed=level == "read_committed")
                compare_records(f"{actor}: {name}-{number}, {level}", expected, found[number])

    def take_hidden(self, actor: str, name: str) -> None:
        """Take over the records of killed processes that have become visible since the last
        comparison.
        """
        if self.uncertain:
            self.compare_topic(actor, name)

    def take_ends(self, actor: str, name: str) -> list[int]:
        """Take over what others may have appended: records of a killed process, markers. Returns
        the log starts.
        """
        partitions = self.model.topics[name].partitions
        starts: list[int]
        starts, ends = self.must(actor, "ends", name, len(partitions))
        if self.uncertain and any(
            end > partition.end for end, partition in zip(ends, partitions, strict=True)
        ):
            self.absorb_uncertain(name, 2**62)
        self.take_orphans(actor, name, ends)
        for number, end in enumerate(ends):
            self.model.take_end(name, number, end)
        return starts

    def take_orphans(self, actor: str, name: str, ends: list[int]) -> None:
        """Transactions of dead processes may have been aborted by any call."""
        topic = self.model.topics[name]
        orphaned = [
            transaction for transaction in self.transactions if transaction.state == "orphaned"
        ]
        if not orphaned or all(
            end == partition.end for end, partition in zip(ends, topic.partitions, strict=True)
        ):
            return
        still_open = set(self.must(actor, "open_transactions"))
        for transaction in orphaned:
            places = [
                (each, number, partition.first_offset_of(transaction))
                for each, found in self.model.topics.items()
                for number, partition in enumerate(found.partitions)
                if (found.uid, number) in transaction.partitions
            ]
            if not still_open.intersection(places):
                self.decide(transaction, "aborted")


def judge(outcome: Outcome, errors: Iterable[str], where: str) -> None:
    allowed = sorted(errors)
    if outcome.error is None:
        demand(not allowed, f"{where}: succeeded, expected {allowed}")
    else:
        demand(
            outcome.is_error(allowed),
            f"{where}: {outcome.error}: {outcome.text}, expected {allowed or 'no error'}",
        )


def arguments_of(row: Row, partition: int | None) -> dict[str, Any]:
    """The arguments of `send` for a record."""
    found: dict[str, Any] = {
        "value": row.value,
        "key": row.key,
        "headers": row.headers,
        "partition": partition,
    }
    if row.timestamp_ms is not None:
        found["timestamp_ms"] = row.timestamp_ms
    return found


def partition_size(paths: list[str], topic: str, number: int) -> int:
    """The bytes of the segments of a partition, in the directory that has most of them."""
    sizes = [
        sum(file.stat().st_size for file in (Path(path) / f"{topic}-{number}").glob("*.log"))
        for path in paths
    ]
    return max(sizes)


__all__ = ["LogMachine", "Violation"]
