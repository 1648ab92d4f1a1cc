"""Contains the verbs of `Log` and of scans."""

from __future__ import annotations

import itertools
import shutil
from importlib import import_module
from importlib.util import find_spec

import embedlog
from embedlog import NewTopic, OffsetAndMetadata, TopicPartition
from tests.interrupts.consumer_verbs import COUNT, READ, READ_TPS, filled
from tests.interrupts.runner import Use
from tests.interrupts.verbs import verb
from tests.interrupts.world import TPS, World
from tests.interrupts.writers import PATIENCE_S, SETTINGS, TOPIC

GROUP = "administered"


# ---- opening and closing -------------------------------------------------------------------------


@verb("Log.__enter__", "Log.__exit__", "Log.close", fresh=True)
def open_and_close(world: World) -> Use:
    """A second opening of the directory in this process."""
    path = world.paths if len(world.paths) > 1 else world.paths[0]
    made: list[embedlog.Log] = []

    def call() -> None:
        value = world.value()
        with embedlog.open(path, config=SETTINGS) as log:
            made.append(log)
            with log.producer() as producer:
                producer.send(TOPIC, value)
        world.acknowledge(value)

    def close() -> None:
        for log in made:
            log.close()

    return Use(call, close=close)


@verb("Log.close", fresh=True)
def open_alone(world: World) -> Use:
    """The first and only opening of a directory: its end marks that the directory is in order."""
    path = world.root / f"alone-{world.value().decode()}"
    values: set[bytes] = set()
    numbers = itertools.count()
    made: list[embedlog.Log] = []

    def call() -> None:
        value = b"%d" % next(numbers)
        log = embedlog.open(path, config=SETTINGS)
        made.append(log)
        log.create_topic("only", exist_ok=True)
        with log.producer() as producer:
            producer.send("only", value).result(PATIENCE_S)
            values.add(value)
        log.close()

    def again() -> None:
        for log in made:
            log.close()
        call()

    def judge() -> None:
        with embedlog.open(path, config=SETTINGS) as log:
            found = [record.value for record in log.scan("only").records()]
        assert len(found) == len(set(found))
        assert values <= set(found)
        assert embedlog.check(path).good

    def close() -> None:
        for log in made:
            log.close()
        shutil.rmtree(path, ignore_errors=True)

    return Use(call, again, judge=judge, close=close)


# ---- descriptions --------------------------------------------------------------------------------


@verb(
    "Log.topics",
    "Log.describe_topic",
    "Log.groups",
    "Log.metrics",
    "Log.durable_offset",
    "Log.last_record",
    "Log.open_transactions",
    "Log.transactions",
)
def descriptions(world: World) -> Use:
    log = world.log

    def call() -> None:
        assert TOPIC in log.topics()
        assert len(log.describe_topic(TOPIC).partitions) == len(TPS)
        assert log.groups() is not None
        assert log.metrics()
        assert log.durable_offset(TOPIC, 0) >= 0
        assert log.last_record(TOPIC, 0) is not None
        assert log.open_transactions() is not None
        assert log.transactions()

    return Use(call)


# ---- topics --------------------------------------------------------------------------------------


@verb(
    "Log.create_topic",
    "Log.create_topics",
    "Log.alter_topic",
    "Log.create_partitions",
    "Log.delete_topic",
    topics=True,
)
def topics(world: World) -> Use:
    log = world.log
    names = ("changing", "other")

    def clear() -> None:
        for name in names:
            if name in log.topics():
                log.delete_topic(name)

    def call() -> None:
        log.create_topic(names[0], partitions=1)
        log.create_topics([NewTopic(names[1])])
        log.alter_topic(names[0], {"retention.ms": 1000})
        log.create_partitions(names[0], 2)
        with log.producer() as producer:
            producer.send(names[0], b"v", partition=1).result(PATIENCE_S)
        for name in names:
            log.delete_topic(name)

    def again() -> None:
        clear()
        call()

    return Use(call, again, close=clear)


@verb("Log.alter_topic")
def settings_of_a_live_topic(world: World) -> Use:
    """The settings of the topic to which the others write: each append ends before it returns."""
    numbers = itertools.count(3_600_000)

    def call() -> None:
        world.log.alter_topic(TOPIC, {"retention.ms": next(numbers)})

    return Use(call)


@verb("Log.create_partitions", "Log.delete_topic", fresh=True, topics=True, stride=8)
def growth_of_a_live_topic(world: World) -> Use:
    """A topic with open partitions grows, and is deleted."""
    log = world.log
    name = f"growing-{world.value().decode().replace(' ', '-')}"
    log.create_topic(name, partitions=1)
    producer = log.producer()
    producer.send(name, b"v").result(PATIENCE_S)

    def call() -> None:
        log.create_partitions(name, 2)
        producer.send(name, b"v", partition=1).result(PATIENCE_S)
        log.delete_topic(name)

    def again() -> None:
        if name in log.topics():
            log.delete_topic(name)
        log.create_topic(name, partitions=1)
        producer.send(name, b"v").result(PATIENCE_S)
        log.delete_topic(name)

    return Use(call, again, close=producer.close)


@verb("Log.delete_records", "Log.flush")
def delete_records(world: World) -> Use:
    name = "shortened"
    log = world.log
    log.create_topic(name, config={"segment.bytes": 2000}, exist_ok=True)
    tp = TopicPartition(name, 0)
    producer = log.producer(linger_ms=0)

    def call() -> None:
        end = producer.send(name, b"v" * 600).result(PATIENCE_S).offset
        log.flush(name)
        assert log.durable_offset(name, 0) > end
        assert log.delete_records({tp: end}) == {tp: end}

    def judge() -> None:
        bounds = log.scan(name).bounds[0]
        assert bounds[1] - bounds[0] == 1
        assert [record.offset for record in log.scan(name).records()] == [bounds[0]]

    return Use(call, share=call, judge=judge, close=producer.close)


@verb("Log.housekeep")
def housekeep(world: World) -> Use:
    """Compaction and retention."""
    name = "compacted"
    log = world.log
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": 2000,
        "min.cleanable.dirty.ratio": 0.01,
    }
    log.create_topic(name, config=settings, exist_ok=True)
    producer = log.producer(linger_ms=0)
    numbers = itertools.count()
    newest: dict[bytes, bytes] = {}

    def send() -> None:
        for key in (b"a", b"b", b"c", b"d"):
            value = b"%d" % next(numbers) * 100
            producer.send(name, value, key=key).result(PATIENCE_S)
            newest[key] = value

    def call() -> None:
        log.housekeep()

    def again() -> None:
        send()
        log.housekeep()

    def judge() -> None:
        found = {record.key: record.value for record in log.scan(name).records()}
        assert found == newest
        send()

    send()
    return Use(call, again, judge=judge, close=producer.close)


# ---- groups --------------------------------------------------------------------------------------


@verb(
    "Log.describe_group",
    "Log.group_offsets",
    "Log.reset_group_offsets",
    "Log.delete_group_offsets",
    "Log.delete_group",
    "Log.keep_group",
    "Log.remove_group_members",
)
def groups(world: World) -> Use:
    filled(world)
    log = world.log

    def prepare() -> None:
        with log.consumer(group_id=GROUP) as consumer:
            consumer.commit({tp: OffsetAndMetadata(5) for tp in READ_TPS})

    def call() -> None:
        log.keep_group(GROUP)
        log.remove_group_members(GROUP)
        log.reset_group_offsets(GROUP, {READ: [0]}, to=3)
        assert log.group_offsets(GROUP)[READ_TPS[0]].offset == 3
        log.delete_group_offsets(GROUP, [READ_TPS[1]])
        assert set(log.group_offsets(GROUP)) == {READ_TPS[0]}
        assert log.describe_group(GROUP).partitions
        log.delete_group(GROUP)

    def again() -> None:
        prepare()
        call()

    prepare()
    return Use(call, again, judge=prepare)


# ---- checks and copies ---------------------------------------------------------------------------


@verb("Log.check", "Log.repair")
def check(world: World) -> Use:
    def call() -> None:
        assert world.log.check().good
        world.log.check(repair=True)

    return Use(call)


@verb("Log.backup", fresh=True)
def backup(world: World) -> Use:
    target = world.root / f"backup-{world.value().decode()}"
    count = len(world.log.scan(TOPIC).head(10**6))

    def call() -> None:
        world.log.backup(target)

    def again() -> None:
        shutil.rmtree(target, ignore_errors=True)
        world.log.backup(target)
        with embedlog.open(target, config=SETTINGS) as copy:
            assert copy.scan(TOPIC).num_rows >= count

    return Use(call, again, close=lambda: shutil.rmtree(target, ignore_errors=True))


# ---- scans ---------------------------------------------------------------------------------------


@verb("Log.scan")
def scan(world: World) -> Use:
    filled(world)

    def call() -> None:
        found = world.log.scan(READ, start_offset=10)
        assert found.num_rows == 2 * (COUNT - 10)
        assert sum(1 for _ in found.records()) == 2 * (COUNT - 10)
        assert sum(len(batch) for batch in found.batches()) == 2 * (COUNT - 10)
        assert len(found.head(7)) == 7
        assert found.splits()

    return Use(call)


@verb("Log.scan")
def scan_ahead(world: World) -> Use:
    """Several pieces, which a second thread prepares."""
    name = "scanned"
    log = world.log
    if name not in log.topics():
        log.create_topic(name)
        with log.producer(compression_type="gzip", batch_size=2**20) as producer:
            for _ in range(6):
                producer.send_batch(name, [b"%d" % number * 300 for number in range(4000)]).result(
                    PATIENCE_S
                )

    def call() -> None:
        assert log.scan(name).to_arrow().num_rows == 24_000
        assert log.scan(name).search(b"39993999").count() == 6

    return Use(call)


@verb("Log.sql")
def sql(world: World) -> Use:
    """DuckDB calls back into a scan, and makes an error of its own of an interrupt there. Its
    modules were imported before.
    """
    filled(world)
    if find_spec("duckdb") is None or find_spec("pyarrow") is None:
        return Use(lambda: None)  # the extra is not installed
    duckdb = import_module("duckdb")
    import_module("pyarrow.dataset")

    def call() -> None:
        try:
            found = world.log.sql(f'select count(*) as count from "{READ}" where "offset" >= 10')
        except duckdb.Error as problem:
            if "KeyboardInterrupt" not in str(problem):
                raise
            raise KeyboardInterrupt from problem
        assert found.to_pydict() == {"count": [2 * (COUNT - 10)]}

    return Use(call)
