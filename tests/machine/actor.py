"""One user of a log: a handle with its producers and consumers, driven by verbs with plain
arguments and plain results.

A verb returns an `Outcome` and never raises an error of embedlog, so that it can run in this
process or in another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy
import pyarrow

import embedlog
from embedlog import EmbedlogError, TopicPartition
from tests.faults.harness.tasks import Stage, task
from tests.machine.model import Seen

LOG_CONFIG = {
    "housekeeping": False,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    # of 1 GiB, `preallocate` fills the memory in which tests have their files
    "log.segment.bytes": 1 << 20,
}
WAIT_S = 30.0


class Outcome(NamedTuple):
    """What a call returned, or the class of its error (with the classes above it), its text."""

    value: Any = None
    error: str | None = None
    kinds: tuple[str, ...] = ()
    text: str = ""
    actual: int | None = None  # of an offset that was expected in vain

    def is_error(self, names: Iterable[str]) -> bool:
        return any(name in self.kinds for name in names)


def failed(problem: BaseException) -> Outcome:
    kinds = tuple(kind.__name__ for kind in type(problem).__mro__)
    return Outcome(None, kinds[0], kinds, str(problem), getattr(problem, "actual", None))


def outcome_of(call: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(call())
    except EmbedlogError as problem:
        return failed(problem)


def seen(records: Iterable[Any]) -> list[Seen]:
    return [
        Seen(
            record.offset,
            record.key,
            record.value,
            tuple((name, content) for name, content in record.headers),
            record.timestamp_ms,
            record.timestamp_type,
        )
        for record in records
    ]


class Actor:
    """A handle and its clients, by name. REQUIRES: one call at a time."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self.log: Any = None
        self._producers: dict[str, Any] = {}
        self._buffered: dict[str, list[Any]] = {}
        self._consumers: dict[str, Any] = {}
        self._probe: Any = None

    def call(self, verb: str, *arguments: Any) -> Outcome:
        return outcome_of(lambda: getattr(self, verb)(*arguments))

    # ---- life ----------------------------------------------------------------------------------

    def open(self) -> None:
        place: Any = self._paths[0] if len(self._paths) == 1 else self._paths
        self.log = embedlog.open(place, config=LOG_CONFIG)
        self._probe = self.log.consumer()

    def close(self) -> dict[str, list[Outcome]]:
        """Close the log with all clients; the outcomes of buffered records, by producer."""
        log = self.log
        self.log = None
        with contextlib.suppress(embedlog.DeliveryError):
            log.close()
        ended = {name: self._take_buffered(name) for name in list(self._producers)}
        self._producers.clear()
        self._consumers.clear()
        return ended

    # ---- topics --------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int, settings: dict[str, str], exist_ok: bool
    ) -> bool:
        copies = {"replication_factor": len(self._paths)} if len(self._paths) > 1 else {}
        created: bool = self.log.create_topic(
            name, partitions, settings, exist_ok=exist_ok, **copies
        )
        return created

    def delete_topic(self, name: str) -> None:
        self.log.delete_topic(name)

    def alter_topic(self, name: str, changes: dict[str, str | None]) -> None:
        self.log.alter_topic(name, changes)

    def create_partitions(self, name: str, total: int) -> None:
        self.log.create_partitions(name, total)

    def delete_records(self, offsets: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        given = {TopicPartition(*place): offset for place, offset in offsets.items()}
        return {tuple(tp): offset for tp, offset in self.log.delete_records(given).items()}

    # ---- producers -----------------------------------------------------------------------------

    def open_producer(self, name: str, options: dict[str, Any]) -> None:
        self._producers[name] = self.log.producer(config=options)
        self._buffered[name] = []

    def close_producer(self, name: str) -> list[Outcome]:
        with contextlib.suppress(embedlog.DeliveryError):
            self._producers[name].close(WAIT_S)
        del_outcomes = self._take_buffered(name)
        del self._producers[name]
        return del_outcomes

    def send(self, name: str, topic: str, row: dict[str, Any], how: str) -> Outcome | None:
        """`how`: "result" waits for the record, "flush" flushes the producer, "buffer" waits for
        nothing.
        """
        future = self._producers[name].send(topic, **row)
        if how == "buffer":
            self._buffered[name].append(future)
            return None
        if how == "flush":
            with contextlib.suppress(embedlog.DeliveryError):
                self._producers[name].flush(WAIT_S)
        return outcome_of(lambda: tuple(future.result(WAIT_S)))

    def send_batch(self, name: str, topic: str, columns: dict[str, Any], form: str) -> Outcome:
        """`form`: "list", "numpy", "arrow" (columns) or "table" (one Arrow table)."""
        future = self._producers[name].send_batch(topic, **in_form(columns, form))
        return outcome_of(lambda: [tuple(run) for run in future.result(WAIT_S)])

    def flush(self, name: str) -> list[Outcome]:
        """Flush, and the outcomes of the buffered records in the order of their sends."""
        with contextlib.suppress(embedlog.DeliveryError):
            self._producers[name].flush(WAIT_S)
        return self._take_buffered(name)

    def _take_buffered(self, name: str) -> list[Outcome]:
        futures = self._buffered.pop(name, [])
        self._buffered[name] = []
        return [
            outcome_of(lambda future=future: tuple(future.result(WAIT_S))) for future in futures
        ]  # type: ignore[misc]

    # ---- transactions --------------------------------------------------------------------------

    def transact(self, name: str, action: str) -> tuple[Outcome, list[Outcome]]:
        """init, begin, commit or abort; and the outcomes of buffered records, which commit and
        abort decide.
        """
        producer = self._producers[name]
        verb = "init_transactions" if action == "init" else f"{action}_transaction"
        done = outcome_of(lambda: None if getattr(producer, verb)() is None else "outcome")
        ends = action in ("commit", "abort") and done.error != "InvalidTransactionStateError"
        return (done, self._take_buffered(name) if ends else [])

    def send_offsets(self, name: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
        given = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._producers[name].send_offsets_to_transaction(given, embedlog.GroupMetadata(group))

    def open_transactions(self) -> list[tuple[str, int, int]]:
        return [
            (each.topic, each.partition, each.first_offset) for each in self.log.open_transactions()
        ]

    # ---- consumers -----------------------------------------------------------------------------

    def open_consumer(self, name: str, options: dict[str, Any]) -> None:
        self._consumers[name] = self.log.consumer(config=options)

    def close_consumer(self, name: str) -> None:
        self._consumers.pop(name).close(WAIT_S)

    def consume(self, name: str, verb: str, *arguments: Any) -> Any:
        """One verb of a consumer; partitions are pairs."""
        consumer = self._consumers[name]
        if verb == "poll":
            by_place: dict[tuple[str, int], list[Seen]] = {}
            for record in consumer.poll(*arguments):
                by_place.setdefault((record.topic, record.partition), []).extend(seen([record]))
            return by_place
        if verb == "assign":
            return consumer.assign([TopicPartition(*place) for place in arguments[0]])
        if verb in ("subscribe", "unsubscribe"):
            return getattr(consumer, verb)(*arguments)
        if verb == "assignment":
            return {tuple(tp) for tp in consumer.assignment()}
        if verb in ("pause", "resume", "seek_to_beginning", "seek_to_end"):
            return getattr(consumer, verb)(*[TopicPartition(*place) for place in arguments[0]])
        if verb == "position":
            return consumer.position(TopicPartition(*arguments[0]))
        if verb == "seek":
            return consumer.seek(TopicPartition(*arguments[0]), arguments[1])
        if verb == "commit":
            offsets = arguments[0]
            return consumer.commit(
                offsets and {TopicPartition(*place): offset for place, offset in offsets.items()}
            )
        assert verb == "committed", verb
        found = consumer.committed(*[TopicPartition(*place) for place in arguments[0]])
        return {
            tuple(tp): None if offset is None else offset.offset for tp, offset in found.items()
        }

    # ---- groups --------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        found: list[str] = self.log.groups()
        return found

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        return {tuple(tp): offset.offset for tp, offset in self.log.group_offsets(group).items()}

    def reset_group_offsets(
        self, group: str, topic: str | None, to: Any
    ) -> dict[tuple[str, int], int]:
        return {
            tuple(tp): found.offset
            for tp, found in self.log.reset_group_offsets(group, topic, to=to).items()
        }

    def delete_group(self, group: str) -> None:
        self.log.delete_group(group)

    def delete_group_offsets(self, group: str, places: list[tuple[str, int]]) -> None:
        self.log.delete_group_offsets(group, [TopicPartition(*place) for place in places])

    # ---- what is visible -----------------------------------------------------------------------

    def topics(self) -> dict[str, tuple[int, dict[str, str]]]:
        found = {}
        for name in self.log.topics():
            description = self.log.describe_topic(name)
            found[name] = (description.partition_count, dict(description.config))
        return found

    def ends(self, topic: str, count: int) -> tuple[list[int], list[int]]:
        """Starts and ends of a topic's partitions."""
        tps = [TopicPartition(topic, number) for number in range(count)]
        starts = self._probe.beginning_offsets(tps)
        ends = self._probe.end_offsets(tps)
        return ([starts[tp] for tp in tps], [ends[tp] for tp in tps])

    def read(
        self, topic: str, count: int, level: str, bounds: dict[str, Any] | None = None
    ) -> list[list[Seen]]:
        """The records of each partition by a scan."""
        found: list[list[Seen]] = [[] for _ in range(count)]
        for record in self.log.scan(topic, isolation_level=level, **(bounds or {})).records():
            found[record.partition].extend(seen([record]))
        return found

    def last_record(self, topic: str, number: int, level: str) -> Seen | None:
        record = self.log.last_record(topic, number, isolation_level=level)
        return None if record is None else seen([record])[0]

    def offset_for_time(self, topic: str, number: int, time_ms: int) -> tuple[int, int] | None:
        tp = TopicPartition(topic, number)
        found = self._probe.offsets_for_times({tp: time_ms})[tp]
        return None if found is None else (found.offset, found.timestamp_ms)

    # ---- administration ------------------------------------------------------------------------

    def housekeep(self) -> None:
        self.log.housekeep()

    def flush_log(self) -> None:
        self.log.flush()

    def check(self) -> list[str]:
        """What `check` finds that is no note."""
        report = self.log.check()
        return [str(found) for found in report.findings] if not report.good else []

    def backup(self, destination: str) -> None:
        self.log.backup(destination)


def in_form(columns: Mapping[str, Any], form: str) -> dict[str, Any]:
    """The columns as the kind of objects that a program may have."""
    given = {name: column for name, column in columns.items() if column is not None}
    if form == "numpy":
        for name in ("values", "keys"):
            if name in given:
                array = numpy.empty(len(given[name]), dtype=object)
                array[:] = given[name]
                given[name] = array
        if isinstance(given.get("timestamps_ms"), list):
            given["timestamps_ms"] = numpy.array(given["timestamps_ms"], dtype=numpy.int64)
    if form in ("arrow", "table"):
        for name in ("values", "keys"):
            if name in given:
                given[name] = pyarrow.array(given[name], pyarrow.binary())
    if form == "table":
        table = {"value": given.pop("values")}
        if "keys" in given:
            table["key"] = given.pop("keys")
        if isinstance(given.get("timestamps_ms"), list):
            table["timestamp"] = pyarrow.array(
                given.pop("timestamps_ms"), pyarrow.timestamp("ms", "UTC")
            )
        given["values"] = pyarrow.table(table)
    return given


@task
def machine_begin(stage: Stage, paths: list[str]) -> None:
    """A new actor in this process; an earlier one was closed."""
    stage.actor = Actor(paths)  # type: ignore[attr-defined]


@task
def machine_call(stage: Stage, verb: str, *arguments: Any) -> Outcome:
    return stage.actor.call(verb, *arguments)  # type: ignore[attr-defined, no-any-return]
