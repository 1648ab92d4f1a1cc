"""What can be wrong with what embedlog is given: a typed error with the facts, nothing written, nothing lost, usable after.

One table for calls on an open log, one for directories to be opened, one for handles that are closed, and full disks.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import xxhash

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.errors import (
    ClosedError,
    ConfigError,
    CorruptRecordError,
    EmbedlogError,
    ForeignDirectoryError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    RecordTooLargeError,
    SerializationError,
    StateError,
    StorageError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from tests.faults.processes import Nursery, RemoteError
from tests.faults.stage import FakeBroker

QUIET = {"housekeeping": False}
COUNT = 40  # records there before anything goes wrong
LIVE = {"embedlog.control", "embedlog.page", "embedlog.door", ".lock"}  # mapped, or notes of who looked last
TP = TopicPartition("t", 0)


def fill(log: embedlog.Log, topic: str = "t", count: int = COUNT) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send(topic, b"value %d" % number, b"k", partition=0)


def values(log: embedlog.Log, topic: str = "t") -> list[bytes]:
    return [record.value for record in log.scan(topic).records()]


def frozen(directory: Path) -> dict[str, bytes | None]:
    """Every name below a directory with its bytes."""
    found = sorted(path for path in directory.rglob("*") if path.name not in LIVE)
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in found}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedlog.Log]:
    """One open log for the whole table: each row must leave it as it was."""
    with embedlog.open(tmp_path_factory.mktemp("bad") / "log", config=QUIET) as log:
        log.create_topic("t", 2)
        log.create_topic("a.b")
        log.create_topic("kept", config={"cleanup.policy": "compact"})
        fill(log)
        log.flush()
        with log.producer() as producer:  # what a first use makes is there before
            producer.send_batch("kept", [b"v"], [b"k"]).result(10)
            producer.send("t", b"", partition=1).result(10)
        log.delete_records({TP: 5})
        values(log)
        yield log


def consuming(act: Callable[[embedlog.Consumer], Any], **config: Any) -> Callable[[embedlog.Log], Any]:
    def call(log: embedlog.Log) -> Any:
        with log.consumer(**config) as consumer:
            return act(consumer)

    return call


def seeking(offset: Any, **config: Any) -> Callable[[embedlog.Log], Any]:
    def act(consumer: embedlog.Consumer) -> Any:
        consumer.assign([TP])
        consumer.seek(TP, offset)
        return consumer.poll(timeout=1)

    return consuming(act, **config)


def sending(*arguments: Any, config: Any = None, **keywords: Any) -> Callable[[embedlog.Log], Any]:
    def call(log: embedlog.Log) -> Any:
        with log.producer(**(config or {})) as producer:
            return producer.send(*arguments, **keywords).result(10)

    return call


def sending_batch(*arguments: Any, **keywords: Any) -> Callable[[embedlog.Log], Any]:
    def call(log: embedlog.Log) -> Any:
        with log.producer() as producer:
            return producer.send_batch(*arguments, **keywords).result(10)

    return call


def after_close(kind: str, act: Callable[[Any], Any]) -> Callable[[embedlog.Log], Any]:
    def call(log: embedlog.Log) -> Any:
        made = log.producer() if kind == "producer" else log.consumer("t")
        made.close()
        return act(made)

    return call


def refuse(value: Any) -> bytes:
    raise ValueError("no")


Row = tuple[str, Callable[[embedlog.Log], Any], type[Exception], str]

TYPES: list[Row] = [
    ("topic no text", lambda log: log.create_topic(5), TypeError, "str"),
    ("partitions no number", lambda log: log.create_topic("x", "3"), TypeError, "int"),
    ("partitions a truth", lambda log: log.create_topic("x", True), TypeError, "int"),
    ("settings no mapping", lambda log: log.create_topic("x", config=5), TypeError, "mapping"),
    ("alter without mapping", lambda log: log.alter_topic("t", ["a"]), TypeError, "mapping"),
    ("delete records of a list", lambda log: log.delete_records([TP]), TypeError, "mapping"),
    ("delete records to a text", lambda log: log.delete_records({TP: "5"}), TypeError, "int"),
    ("delete records of a name", lambda log: log.delete_records({"t": 5}), TypeError, "TopicPartition"),
    ("send to no text", sending(b"t", b"v"), TypeError, "str"),
    ("value a text", sending("t", "v"), TypeError, "value_serializer"),
    ("key a number", sending("t", b"v", 5), TypeError, "key_serializer"),
    ("partition a text", sending("t", b"v", partition="0"), TypeError, "int"),
    ("time a float", sending("t", b"v", timestamp_ms=1.5), TypeError, "int"),
    ("headers a number", sending("t", b"v", headers=5), TypeError, "header"),
    ("header name bytes", sending("t", b"v", headers=[(b"h", b"v")]), TypeError, "str"),
    ("header value a text", sending("t", b"v", headers=[("h", "v")]), TypeError, "bytes"),
    ("batch one value", sending_batch("t", b"v"), TypeError, "many values"),
    ("batch a mapping", sending_batch("t", {"value": b"v"}), TypeError, "many values"),
    ("batch of numbers", sending_batch("t", [1, 2]), TypeError, "value_serializer"),
    ("assign a name", consuming(lambda c: c.assign(["t"])), TypeError, "TopicPartition"),
    ("subscribe to one text", consuming(lambda c: c.subscribe("t")), TypeError, "a list of names"),
    ("seek to a text", seeking("5"), TypeError, "int"),
    ("poll for a text", consuming(lambda c: (c.assign([TP]), c.poll(timeout="1"))), TypeError, "timeout"),
    ("times by name", consuming(lambda c: c.offsets_for_times({"t": 5})), TypeError, "TopicPartition"),
    ("scan of a number", lambda log: log.scan(5), TypeError, "str"),
    ("scan from a text", lambda log: log.scan("t", start_offset="5"), TypeError, "start_offset"),
    ("scan partitions a text", lambda log: log.scan("t", partitions="0"), TypeError, "partitions"),
    ("scan time without zone", lambda log: log.scan("t", start_time=datetime(2024, 1, 1)), TypeError, "time zone"),
    ("scan columns a text", lambda log: log.scan("t", columns="value"), TypeError, "columns"),
    ("topic consumer of a number", lambda log: log.consumer(5), TypeError, "str"),
    ("backup to a number", lambda log: log.backup(5), TypeError, "PathLike"),
    ("flush a number", lambda log: log.flush(5), TypeError, "str"),
    ("durable offset of a text", lambda log: log.durable_offset("t", "0"), TypeError, "int"),
]

NAMES: list[Row] = [
    *((f"topic {name[:9]!r}", lambda log, name=name: log.create_topic(name), InvalidTopicError, "1 to 249")
      for name in ("", ".", "..", "a/b", "a b", "ä", "x\0y", "x" * 250, "../t")),
    ("topic that exists", lambda log: log.create_topic("t"), TopicExistsError, "'t'"),
    ("topic that collides", lambda log: log.create_topic("a_b"), InvalidTopicError, "collides with the topic a.b"),
    ("internal topic", lambda log: log.create_topic("__consumer_offsets"), InvalidTopicError, "own topics"),
    ("metadata log", lambda log: log.create_topic("__cluster_metadata"), InvalidTopicError, "metadata"),
    *((f"unknown topic: {verb}", call, UnknownTopicOrPartitionError, "nowhere") for verb, call in {
        "describe": lambda log: log.describe_topic("nowhere"),
        "delete": lambda log: log.delete_topic("nowhere"),
        "alter": lambda log: log.alter_topic("nowhere", {}),
        "grow": lambda log: log.create_partitions("nowhere", 5),
        "delete records": lambda log: log.delete_records({TopicPartition("nowhere", 0): 0}),
        "flush": lambda log: log.flush("nowhere"),
        "durable offset": lambda log: log.durable_offset("nowhere", 0),
        "scan": lambda log: log.scan("nowhere"),
        "send": sending("nowhere", b"v"),
        "send batch": sending_batch("nowhere", [b"v"]),
        "assign": consuming(lambda c: (c.assign([TopicPartition("nowhere", 0)]), c.poll(timeout=1))),
        "consumer": lambda log: log.consumer("nowhere"),
        "ends": consuming(lambda c: c.end_offsets([TopicPartition("nowhere", 0)])),
        "times": consuming(lambda c: c.offsets_for_times({TopicPartition("nowhere", 0): 0})),
    }.items()),
    *((f"unknown partition: {verb}", call, UnknownTopicOrPartitionError, "9") for verb, call in {
        "delete records": lambda log: log.delete_records({TopicPartition("t", 9): 0}),
        "durable offset": lambda log: log.durable_offset("t", 9),
        "scan": lambda log: log.scan("t", partitions=9),
        "send": sending("t", b"v", partition=9),
        "send batch": sending_batch("t", [b"v"], partition=9),
        "assign": consuming(lambda c: (c.assign([TopicPartition("t", 9)]), c.poll(timeout=1))),
        "ends": consuming(lambda c: c.end_offsets([TopicPartition("t", 9)])),
    }.items()),
    ("no partitions", lambda log: log.create_topic("x", 0), InvalidPartitionsError, "1 to"),
    ("fewer partitions", lambda log: log.create_partitions("t", 1), InvalidPartitionsError, "more than"),
    ("partition below 0", sending("t", b"v", partition=-1), UnknownTopicOrPartitionError, "-1"),
    ("scan partition below 0", lambda log: log.scan("t", partitions=-1), UnknownTopicOrPartitionError, "-1"),
]  # fmt: skip

NUMBERS: list[Row] = [
    ("delete records above the end", lambda log: log.delete_records({TP: COUNT + 1}), OffsetOutOfRangeError, f"0 to {COUNT}"),
    ("delete records below -1", lambda log: log.delete_records({TP: -2}), OffsetOutOfRangeError, "-2"),
    ("seek below 0", seeking(-1), OffsetOutOfRangeError, "-1"),
    ("seek below the start", seeking(2, auto_offset_reset="none"), OffsetOutOfRangeError, f"5 to {COUNT}"),
    ("seek above the end", seeking(COUNT + 1, auto_offset_reset="none"), OffsetOutOfRangeError, str(COUNT + 1)),
    ("seek beyond 64 bits", seeking(2**64, auto_offset_reset="none"), OffsetOutOfRangeError, str(2**64)),
    ("no position at all", consuming(lambda c: (c.assign([TP]), c.poll(timeout=1)), auto_offset_reset="none"),
     NoOffsetForPartitionError, "auto.offset.reset"),
    ("record too large", sending("t", bytes(1 << 20)), RecordTooLargeError, "max.request.size"),
    ("batch too large", sending("t", bytes(1 << 20), config={"max_request_size": 1 << 21}), RecordTooLargeError,
     "max.message.bytes"),
    ("negative time", sending("t", b"v", timestamp_ms=-1), InvalidTimestampError, "negative"),
    ("time beyond 64 bits", sending("t", b"v", timestamp_ms=2**63), InvalidTimestampError, str(2**63)),
    ("time of next year", sending("t", b"v", timestamp_ms=2**45), InvalidTimestampError, "near enough"),
    ("negative time in a batch", sending_batch("t", [b"v"], timestamps_ms=[-1]), InvalidTimestampError, "-1"),
    ("null key in a compacted topic", sending("kept", b"v"), EmbedlogError, "key"),
    ("columns that differ", sending_batch("t", [b"v"], keys=[b"a", b"b"]), EmbedlogError, "as many"),
    ("serializer that raises", sending("t", 5, config={"value_serializer": refuse}), SerializationError, "value_serializer"),
]  # fmt: skip

SETTINGS: list[Row] = [
    ("unknown for a topic", lambda log: log.create_topic("x", config={"retention.msec": 5}), ConfigError, "retention.ms?"),
    ("unknown for alter", lambda log: log.alter_topic("t", {"segment_byte": 5}), ConfigError, "segment_bytes?"),
    ("unknown for a producer", lambda log: log.producer(linger=5), ConfigError, "linger_ms?"),
    ("unknown for a consumer", lambda log: log.consumer("t", auto_offset="x"), ConfigError, "auto_offset_reset?"),
    ("out of range", lambda log: log.create_topic("x", config={"segment.bytes": 13}), ConfigError, "from 14"),
    ("no number", lambda log: log.create_topic("x", config={"segment.bytes": "many"}), ConfigError, "many"),
    ("unknown choice", lambda log: log.producer(compression_type="rar"), ConfigError, "zstd"),
    ("given twice", lambda log: log.create_topic("x", config={"segment.bytes": 99, "segment_bytes": 99}), ConfigError, "twice"),
    ("of a server", lambda log: log.create_topic("x", config={"remote.storage.enable": True}), ConfigError, "tiered"),
    ("contradiction", lambda log: log.create_topic("x", config={"min.compaction.lag.ms": 9, "max.compaction.lag.ms": 5}),
     ConfigError, "max.compaction.lag.ms"),
    ("isolation level", lambda log: log.scan("t", isolation_level="none"), ConfigError, "read_committed"),
    ("unknown column", lambda log: log.scan("t", columns=["values"]), ConfigError, "value"),
]  # fmt: skip

STATES: list[Row] = [
    ("producer closed", after_close("producer", lambda made: made.send("t", b"v")), ClosedError, "closed"),
    ("producer closed, batch", after_close("producer", lambda made: made.send_batch("t", [b"v"])), ClosedError, "closed"),
    ("producer closed, flush", after_close("producer", lambda made: made.flush()), ClosedError, "closed"),
    ("consumer closed", after_close("consumer", lambda made: made.poll()), ClosedError, "closed"),
    ("consumer closed, seek", after_close("consumer", lambda made: made.seek(TP, 0)), ClosedError, "closed"),
    ("consumer without assignment", consuming(lambda c: c.poll()), StateError, "assign"),
    ("seek what is not assigned", consuming(lambda c: (c.assign([TP]), c.seek(TopicPartition("t", 1), 0))), StateError, "t"),
    ("commit without a group", consuming(lambda c: c.commit()), EmbedlogError, "group"),
]


@pytest.mark.parametrize(
    ("call", "error", "fact"),
    [pytest.param(*row[1:], id=row[0]) for row in (*TYPES, *NAMES, *NUMBERS, *SETTINGS, *STATES)],
)
def test_a_bad_call_is_a_typed_error_with_the_facts_and_changes_nothing(
    shared: embedlog.Log, call: Callable[[embedlog.Log], Any], error: type[Exception], fact: str
) -> None:
    before, held = frozen(shared.path), values(shared)
    with pytest.raises(error) as problem:
        call(shared)
    assert isinstance(problem.value, (EmbedlogError, TypeError, ValueError))
    assert fact in str(problem.value), str(problem.value)
    assert frozen(shared.path) == before
    assert values(shared) == held


def test_the_log_is_usable_after_all_of_that(shared: embedlog.Log) -> None:
    before = values(shared)
    with shared.producer() as producer:
        producer.send("t", b"after", partition=1).result(10)
    assert values(shared) == [*before, b"after"]
    assert sorted(shared.topics()) == ["a.b", "kept", "t"]


# ---- directories -----------------------------------------------------------------------------------------------------


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A log directory at rest."""
    directory = tmp_path / "log"
    with embedlog.open(directory, config=QUIET) as log:
        log.create_topic("t", config={"segment.bytes": 300})
        fill(log)
    return directory


def new(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a directory")


def somebody_elses(path: Path) -> None:
    shutil.rmtree(path)
    new(path / "letter.txt", b"Dear Sir")
    new(path / "photos" / "cat.jpg", b"cat")


def nothing(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def damaged_topics(path: Path) -> None:
    data = (path / "embedlog.topics").read_bytes()
    (path / "embedlog.topics").write_bytes(data.replace(b'"partitions": 1', b'"partitions": 2'))


def newer_topics(path: Path) -> None:
    document = json.loads((path / "embedlog.topics").read_text())
    document |= {"version": 2}
    del document["checksum"]
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = "xxh3:" + xxhash.xxh3_64_hexdigest(canonical.encode())
    (path / "embedlog.topics").write_text(json.dumps(document))


def newer_page(path: Path) -> None:
    """The version stands behind the magic, and once more in the identity."""
    data = bytearray(path.read_bytes())
    found = 0
    for at in range(8, 128, 4):
        if struct.unpack_from("<I", data, at)[0] == system.PAGE_VERSION and (at == 8 or at > 16):
            struct.pack_into("<I", data, at, system.PAGE_VERSION + 1)
            found += 1
    assert found >= 2
    path.write_bytes(data)


def changed(name: str, old: bytes, fresh: bytes) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        data = (path / name).read_bytes()
        assert old in data
        (path / name).write_bytes(data.replace(old, fresh, 1))

    return act


def rewritten(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(data) and None


def foreign_magic(path: Path) -> None:
    with (path / "t-0" / f"{0:020d}.log").open("r+b") as file:
        file.seek(16)
        file.write(b"\7")


MANIFEST, MANIFEST_HEAD = "t-0/embedlog.manifest", struct.pack(">8sI", b"ELOGMNFT", 1)

DIRECTORIES: list[tuple[str, Callable[[Path], None], type[Exception], str]] = [
    ("a file", a_file, ForeignDirectoryError, "not a directory"),
    ("other people's files", somebody_elses, ForeignDirectoryError, "letter.txt"),
    ("damaged file of topics", damaged_topics, ForeignDirectoryError, "checksum"),
    ("empty file of topics", rewritten("embedlog.topics", b""), ForeignDirectoryError, "embedlog.topics"),
    ("newer file of topics", newer_topics, UnsupportedFormatError, "expected 1, found 2"),
    ("newer control page", lambda path: newer_page(path / "embedlog.control"), UnsupportedFormatError, "newer embedlog"),
    ("newer manifest", changed(MANIFEST, MANIFEST_HEAD, MANIFEST_HEAD[:-1] + b"\2"), UnsupportedFormatError, "found 2"),
    ("newer page", lambda path: newer_page(path / "t-0" / "embedlog.page"), UnsupportedFormatError, "newer embedlog"),
    ("newer identity", changed("meta.properties", b"version=1", b"version=2"), UnsupportedFormatError, "0 or 1"),
    ("identity of rubbish", changed("meta.properties", b"node.id=1", b"node.id=x"), ForeignDirectoryError, "node.id"),
    ("newer topic id file", changed("t-0/partition.metadata", b"version: 0", b"version: 1"), UnsupportedFormatError, "metadata"),
    ("newer checkpoint", rewritten("recovery-point-offset-checkpoint", b"1\n0\n"), UnsupportedFormatError, "checkpoint"),
    ("malformed checkpoint", rewritten("log-start-offset-checkpoint", b"0\n1\nt 0\n"), ForeignDirectoryError, "line 3"),
    ("malformed epochs", rewritten("t-0/leader-epoch-checkpoint", b"0\n1\n0\n"), ForeignDirectoryError, "line 3"),
    ("a batch of another kind", foreign_magic, CorruptRecordError, "magic"),
    ("an unfinished backup", rewritten("embedlog.backup", b""), ForeignDirectoryError, "broken off"),
]


def use(directory: Path, read_only: bool) -> None:
    """Open, append if that is allowed, read: whatever is wrong must be said by then."""
    with embedlog.open(directory, read_only=read_only, config=QUIET) as log:
        if not read_only:
            with log.producer() as producer:
                producer.send("t", b"more").result(10)
        assert len(values(log)) >= COUNT


PAGES_OF_A_WRITER = {"newer control page", "newer page"}  # a reader of a directory at rest looks at no page
NOT_ASKED_BY_A_READER = {"newer identity", "identity of rubbish"}


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize(("spoil", "error", "fact"), [pytest.param(*row[1:], id=row[0]) for row in DIRECTORIES])
def test_a_directory_that_cannot_be_used_is_refused_and_left_alone(
    closed: Path, request: pytest.FixtureRequest, spoil: Callable[[Path], None], error: type[Exception], fact: str,
    read_only: bool,
) -> None:  # fmt: skip
    spoil(closed)
    row = request.node.callspec.id
    before = frozen(closed) if closed.is_dir() else {"": closed.read_bytes()}
    if read_only and any(each in row for each in PAGES_OF_A_WRITER | NOT_ASKED_BY_A_READER):
        use(closed, read_only)
    else:
        with pytest.raises(error) as problem:
            use(closed, read_only)
        assert fact in str(problem.value), str(problem.value)
        assert problem.value.path is not None
    after = frozen(closed) if closed.is_dir() else {"": closed.read_bytes()}
    if read_only or closed.is_file() or "other people" in row:
        assert after == before
    kept = {name for name in before if Path(name).suffix in (".log", ".topics", ".properties", ".txt", ".jpg")}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_what_was_put_right_can_be_used_again(closed: Path) -> None:
    """A refused opening has lost nothing: with the file restored everything is there."""
    for _, spoil, _, _ in DIRECTORIES[2:]:
        copy = closed.with_name("copy")
        shutil.copytree(closed, copy)
        spoil(copy)
        spoiled = frozen(copy).keys() - frozen(closed).keys()
        with pytest.raises(EmbedlogError):
            use(copy, read_only=False)
        for name in spoiled:
            (copy / name).unlink()
        for path in sorted(closed.rglob("*")):
            if path.is_file():
                shutil.copy(path, copy / path.relative_to(closed))
        use(copy, read_only=False)
        shutil.rmtree(copy)


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_a_path_where_nothing_is(tmp_path: Path, read_only: bool) -> None:
    with pytest.raises(StorageError) as problem:
        embedlog.open(tmp_path / "no" / "log", read_only=read_only, create=False)
    assert problem.value.errno == errno.ENOENT
    assert not list(tmp_path.iterdir())


def test_an_empty_directory_has_nothing_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(ForeignDirectoryError, match="not a log directory"):
        embedlog.open(tmp_path, read_only=True)
    assert not list(tmp_path.iterdir())
    with embedlog.open(tmp_path, config=QUIET) as log:  # a writer makes a log of it
        log.create_topic("t")


def test_lost_and_found_is_left_alone(tmp_path: Path) -> None:
    new(tmp_path / "log" / "lost+found" / "#12", b"x")
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t")
        fill(log)
        log.housekeep()
    use(tmp_path / "log", read_only=True)
    assert (tmp_path / "log" / "lost+found" / "#12").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("arguments", "error", "fact"),
    [
        ({"path": 5}, TypeError, "PathLike"),
        ({"config": {"log.segment.byte": 5}}, ConfigError, "log.segment.bytes?"),
        ({"config": {"listeners": "x"}}, ConfigError, "server"),
        ({"config": {"file.mode": "0o99"}}, ConfigError, "octal"),
        ({"config": 5}, TypeError, "mapping"),
        ({"read_only": True, "create": True, "path": "absent"}, StorageError, "no such log directory"),
    ],
    ids=repr,
)
def test_an_opening_that_is_wrong_makes_nothing(tmp_path: Path, arguments: Any, error: type[Exception], fact: str) -> None:
    given = {"path": tmp_path / "log"} | arguments
    given["path"] = tmp_path / given["path"] if isinstance(given["path"], (str, Path)) else given["path"]
    with pytest.raises(error) as problem:
        embedlog.open(**given)
    assert fact in str(problem.value), str(problem.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_a_directory_that_a_broker_holds(nursery: Nursery, closed: Path, read_only: bool) -> None:
    broker = FakeBroker(closed)
    assert broker.start()
    before = frozen(closed)
    victim = nursery.spawn()
    with pytest.raises(RemoteError) as refused:
        victim.call("open", str(closed), read_only=read_only, config=QUIET | {"lock.timeout.ms": 100})
    assert refused.value.kind == "DirectoryInUseError"
    assert "broker" in str(refused.value)
    assert frozen(closed) == before
    broker.mark_and_unlock()
    broker.unlink()
    use(closed, read_only=False)


# ---- handles that are closed or may not write ------------------------------------------------------------------------

VERBS: dict[str, Callable[[embedlog.Log], Any]] = {
    "create_topic": lambda log: log.create_topic("x"),
    "delete_topic": lambda log: log.delete_topic("t"),
    "alter_topic": lambda log: log.alter_topic("t", {}),
    "create_partitions": lambda log: log.create_partitions("t", 9),
    "delete_records": lambda log: log.delete_records({TP: 1}),
    "flush": lambda log: log.flush(),
    "housekeep": lambda log: log.housekeep(),
    "producer": lambda log: log.producer(),
}
LOOKS: dict[str, Callable[[embedlog.Log], Any]] = {
    "describe_topic": lambda log: log.describe_topic("t"),
    "topics": lambda log: log.topics(),
    "durable_offset": lambda log: log.durable_offset("t", 0),
    "consumer": lambda log: log.consumer("t"),
    "scan": lambda log: log.scan("t"),
}


@pytest.mark.parametrize("verb", [*VERBS, *LOOKS])
def test_a_closed_log_does_nothing(closed: Path, verb: str) -> None:
    log = embedlog.open(closed, config=QUIET)
    log.close()
    log.close()
    before = frozen(closed)
    with pytest.raises(ClosedError, match="closed"):
        (VERBS | LOOKS)[verb](log)
    assert frozen(closed) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_reader_changes_nothing(closed: Path, verb: str) -> None:
    before = frozen(closed)
    with embedlog.open(closed, read_only=True) as log:
        with pytest.raises(ReadOnlyError):
            VERBS[verb](log)
        assert len(values(log)) == COUNT
    assert frozen(closed) == before


def test_what_a_closed_log_made_is_closed_too(closed: Path) -> None:
    log = embedlog.open(closed, config=QUIET)
    producer, consumer, scan = log.producer(), log.consumer("t"), log.scan("t")
    rows = scan.records()
    next(rows)
    log.close()
    for call in (lambda: producer.send("t", b"v"), consumer.poll, lambda: list(scan.records()), lambda: list(rows)):
        with pytest.raises(ClosedError):
            call()
    use(closed, read_only=False)


# ---- full disks ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _disk_is_free_again() -> Iterator[None]:
    yield
    system.fault_off()


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("kinds", [["pwrite"], ["pwrite", "open", "fallocate", "mkdir", "link"]], ids=["writes", "names too"])
def test_a_disk_that_is_full_at_any_write_of_an_append(tmp_path: Path, kinds: list[str], sticky: bool) -> None:
    """With a roll in it: the append writes log, indexes, snapshot, manifest."""
    with embedlog.open(tmp_path / "log", config=QUIET) as log, log.producer(linger_ms=0) as producer:
        log.create_topic("t", config={"segment.bytes": 600, "index.interval.bytes": 0})
        kept: list[bytes] = []
        refused = nth = 0
        while True:
            nth += 1
            for number in range(3):
                value = b"%d before %d " % (number, nth) * 12
                producer.send("t", value).result(10)
                kept.append(value)
            value = b"at %d " % nth * 60
            system.fault_arm(kinds, nth, "fail", errno.ENOSPC, sticky=sticky)
            problem = producer.send("t", value).exception(10)
            struck = system.fault_counters()[1]
            system.fault_off()
            if problem is None:
                kept.append(value)
            else:
                refused += 1
                assert isinstance(problem, StorageError), problem
                assert problem.errno == errno.ENOSPC
                assert problem.path
            assert values(log) == kept, nth
            if not struck:
                break
        assert refused >= 2, "hardly any fault was felt"
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert values(log) == kept


def test_a_write_that_is_cut_short_is_finished_or_taken_back(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log, log.producer(linger_ms=0) as producer:
        log.create_topic("t")
        kept = []
        for nth in range(1, 6):
            system.fault_arm(["pwrite"], nth, "short", errno.ENOSPC)
            value = b"short %d " % nth * 50
            if producer.send("t", value).exception(10) is None:
                kept.append(value)
            system.fault_off()
            assert values(log) == kept
        assert kept
    assert os.stat(tmp_path / "log" / "t-0" / f"{0:020d}.log").st_size


def test_damage_in_what_a_stranger_left_is_an_error_and_never_cut_away(closed: Path) -> None:
    """A copy looks as if somebody else had used it: what lies there counts as durable all the same, as its mark says."""
    copy = closed.with_name("copy")
    shutil.copytree(closed, copy)
    foreign_magic(copy)
    before = frozen(copy)
    with embedlog.open(copy, config=QUIET) as log, log.producer() as producer:
        for number in range(3):
            producer.send("t", b"more %d" % number).result(10)
            log.flush()
        assert log._partition("t", 0).bounds().log_start == 0
        with pytest.raises(CorruptRecordError, match="magic"):
            values(log)
    assert {name: data for name, data in frozen(copy).items() if f"{0:020d}." in name} == {
        name: data for name, data in before.items() if f"{0:020d}." in name
    }
    assert not list(copy.glob("t-0/embedlog.cut-*"))


def test_a_first_segment_that_is_gone_is_missed_unless_retention_took_it(closed: Path) -> None:
    for suffix in ("log", "index", "timeindex"):
        (closed / "t-0" / f"{0:020d}.{suffix}").rename(closed / suffix)
    with pytest.raises(CorruptRecordError, match="missing"):
        use(closed, read_only=False)
    for suffix in ("log", "index", "timeindex"):
        (closed / suffix).rename(closed / "t-0" / f"{0:020d}.{suffix}")
    use(closed, read_only=False)
    with embedlog.open(closed, config=QUIET) as log:
        held = values(log)
        log.alter_topic("t", {"retention.bytes": 300, "file.delete.delay.ms": 0})
        log.housekeep()
        log.housekeep()
        kept = values(log)
    assert 0 < len(kept) < len(held)
    assert not (closed / "t-0" / f"{0:020d}.log").exists()
    for read_only in (False, True):
        with embedlog.open(closed, read_only=read_only, config=QUIET) as log:
            assert values(log) == kept
