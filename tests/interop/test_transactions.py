"""Transactions of embedlog at a real Kafka: dump-log decodes `__transaction_state`, a broker
completes open transactions.

It serves the topics as embedlog does, and embedlog continues after the broker.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import StorageError
from embedlog.transaction import Status, Transaction
from tests.faults.harness.processes import until
from tests.kafka import client, oracle
from tests.support.transactional_producers import (
    QUIET,
    TOPIC,
    Writer,
    begun,
    committed,
    everything,
    soon,
    state_of,
)

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]

PARTITIONS = 4
STATE = "__transaction_state"
CONFIG = QUIET | {"transaction.state.log.num.partitions": 1}


def interleaved(log: embedlog.Log) -> None:
    """Two ids over partitions 0 and 1: committed, aborted, and plain records in between; the
    segments roll.
    """
    one = begun(log, "one")
    two = begun(log, "two")
    with log.producer() as plain:
        for turn in range(12):
            for writer, name in ((one, b"one"), (two, b"two")):
                for partition in range(2):
                    writer.write(
                        *(b"%s %d.%d" % (name, turn, number) for number in range(3)),
                        partition=partition,
                    )
            plain.send(TOPIC, b"plain %d" % turn, partition=turn % 2).result(10)
            (one.commit if turn % 3 else one.abort)()
            (two.commit if turn % 4 else two.abort)()


def unfinished(log: embedlog.Log) -> None:
    """On partition 2 one that no process will decide, with a committed one after it; on partition 3
    one that is only decided.
    """
    left = begun(log, "left")
    behind = begun(log, "behind")
    decided = begun(log, "decided")
    left.write(b"never decided", partition=2)
    behind.write(b"behind", partition=2)
    behind.commit()
    decided.write(b"decided", partition=3)
    system.fault_arm(("pwrite",), 1, "fail", name=f"/{TOPIC}-3")
    try:
        with pytest.raises(StorageError):
            decided.commit()
    finally:
        system.fault_off()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("transactions") / "log"
    with embedlog.open(directory, config=CONFIG) as log:
        log.create_topic(TOPIC, PARTITIONS, config={"segment.bytes": 1500})
        interleaved(log)
        unfinished(log)
        last = Transaction(2**62 + 7, 32_765, 60_000)
        log._engine.transactions.decide("rolled", lambda _: last, soon())
        rolled = begun(log, "rolled")
        rolled.write(b"the last epoch", partition=0)
        rolled.commit()
    return directory


def values(rows: list[dict[str, object]]) -> list[object]:
    return [row["value"] for row in rows]


def shown(found: list[bytes | None]) -> list[object]:
    return [client.shown(value) for value in found]


@pytest.mark.slow
def test_dump_log_finds_nothing_wrong(kafka: None, written: Path) -> None:
    assert oracle.verify(written) > 8
    names = ",".join(
        str(path)
        for path in sorted(written.glob(f"{TOPIC}-*/*.txnindex"))
        + sorted(written.glob("*/*.snapshot"))
    )
    answer = oracle.tool("dump-log", "--files", names)
    assert oracle.complaints(answer.stdout + answer.stderr, False) == []
    assert answer.stdout.count("producerId") > 10


def test_dump_log_decodes_every_state_that_we_wrote(kafka: None, written: Path) -> None:
    (path,) = (written / f"{STATE}-0").glob("*.log")
    answer = oracle.tool("dump-log", "--transaction-log-decoder", "--files", path)
    assert oracle.complaints(answer.stdout + answer.stderr, False) == []
    keys = re.findall(r"key: .*?transactionalId\W+(\w+)", answer.stdout)
    assert {"one", "two", "left", "behind", "decided", "rolled"} <= set(keys), answer.stdout[:3000]
    assert "Ongoing" in answer.stdout or '"transactionStatus":1' in answer.stdout
    with embedlog.open(written, read_only=True) as log:
        topic = log._engine.transactions.topic
        assert len(keys) == topic.partition(0).bounds().log_end
        for name in topic.view(0).names():
            state = topic.view(0).get(name)
            assert state is not None
            assert f'"producerId":{state.producer_id}' in answer.stdout


@pytest.fixture(scope="module")
def serving(
    kafka: None, written: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[oracle.Broker]:
    """A broker of its own on a copy of embedlog's directory, `__transaction_state` included."""
    from confluent_kafka import Producer

    broker = oracle.Broker(tmp_path_factory.mktemp("broker") / "log")
    with broker:
        broker.create_topic(TOPIC, PARTITIONS)
        Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": "first"}
        ).init_transactions(60)
    oracle.move_in(broker, written, [TOPIC, STATE])
    broker.forget()
    with broker:
        yield broker


@pytest.mark.slow
def test_a_broker_takes_our_transactions_over_and_we_take_them_back(
    serving: oracle.Broker, written: Path, tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    with embedlog.open(written, read_only=True) as log:
        ours = shown(committed(log))
        all_of_it = shown(everything(log))
        left = state_of(log, "left")
        assert left is not None
        assert left.status is Status.ONGOING
    counts = {TOPIC: PARTITIONS}
    assert values(client.read(serving.bootstrap, counts)[TOPIC]) == all_of_it
    got = until_committed(serving, b"decided")
    assert got == [*ours, client.shown(b"decided")], (
        "a decided transaction is completed, an open one stays open"
    )
    heir = Producer(
        {"bootstrap.servers": serving.bootstrap, "transactional.id": "left", "log_level": 0}
    )
    heir.init_transactions(60)
    got = until_committed(serving, b"behind")
    assert got == [*ours, client.shown(b"behind"), client.shown(b"decided")]
    heir.begin_transaction()
    heir.produce(TOPIC, b"the broker's", partition=2)
    heir.commit_transaction(60)
    until_committed(serving, b"the broker's")
    last = serving.said()
    assert not [line for line in last.splitlines() if "ERROR" in line or "orrupt" in line]
    serving.stop()
    shutil.copytree(serving.log_dir, tmp_path / "log")
    with embedlog.open(tmp_path / "log", config=CONFIG) as log:
        found = committed(log)
        assert (
            found.count(b"decided") == found.count(b"behind") == found.count(b"the broker's") == 1
        )
        assert b"never decided" not in found
        writer = Writer(log, "left")
        writer.init()
        state = writer.state()
        assert state is not None
        assert (state.producer_id, state.epoch > left.epoch) == (left.producer_id, True), (
            "the same producer, further on"
        )
        writer.write(b"ours again", partition=2)
        writer.commit()
        assert committed(log).count(b"ours again") == 1


def until_committed(broker: oracle.Broker, value: bytes) -> list[Any]:
    """The records of a client once it sees this value: markers are written after the answer."""
    for _ in range(100):
        found = values(client.read(broker.bootstrap, {TOPIC: PARTITIONS}, "read_committed")[TOPIC])
        if client.shown(value) in found:
            return found
    raise AssertionError(f"{value!r} never came")


# ---- the same script, there and here -------------------------------------------------------------


class Step(NamedTuple):
    """One step of an owner: "write" (partition, count), "commit", "abort", or "heir", which takes
    the id over.
    """

    verb: str
    who: int
    partition: int = 0
    count: int = 0


def script(rng: random.Random, steps: int) -> Iterator[Step]:
    """Owners interleave; each writes before it decides, and the heir of one finds a transaction
    open or not.
    """
    open_: set[int] = set()
    for _ in range(steps):
        who = rng.randrange(3)
        verb = rng.choice(["write", "write", "write", "commit", "abort", "heir"])
        if verb == "write" or (verb != "heir" and who not in open_):
            open_.add(who)
            yield Step("write", who, rng.randrange(3), rng.randint(1, 4))
        else:
            open_.discard(who)
            yield Step(verb, who)
    for who in sorted(open_):
        yield Step("commit", who)


class Here:
    """Embedlog's side of a script."""

    def __init__(self, log: embedlog.Log, topic: str) -> None:
        self.log = log
        self.topic = topic
        self.writers = [begun(log, f"{topic}-{who}") for who in range(3)]

    def do(self, number: int, step: Step) -> None:
        writer = self.writers[step.who]
        if step.verb == "write":
            values = [b"%d.%d" % (number, each) for each in range(step.count)]
            writer.write(*values, partition=step.partition, topic=self.topic)
        elif step.verb == "heir":
            self.writers[step.who] = begun(self.log, f"{self.topic}-{step.who}")
        else:
            (writer.commit if step.verb == "commit" else writer.abort)()


class There:
    """A real client's: a step ends when its markers are there, as the order of markers is a matter
    of chance else.
    """

    def __init__(self, broker: oracle.Broker, topic: str) -> None:
        from confluent_kafka import Consumer

        self.broker = broker
        self.topic = topic
        # else the end is the last stable offset
        ends = {"group.id": "ends", "isolation.level": "read_uncommitted"}
        self.reader = Consumer({"bootstrap.servers": broker.bootstrap} | ends)
        self.owners = [self.owner(who) for who in range(3)]
        self.began = [False] * 3
        self.wrote: list[set[int]] = [set(), set(), set()]

    def owner(self, who: int) -> Any:
        from confluent_kafka import Producer

        config = {
            "transactional.id": f"{self.topic}-{who}",
            "linger.ms": 5,
            "log_level": 0,
            "max.in.flight": 1,
        }
        made = Producer({"bootstrap.servers": self.broker.bootstrap} | config)
        made.init_transactions(60)
        return made

    def end(self, partition: int) -> int:
        from confluent_kafka import TopicPartition

        return int(self.reader.get_watermark_offsets(TopicPartition(self.topic, partition), 10)[1])

    def do(self, number: int, step: Step) -> None:
        owner = self.owners[step.who]
        if step.verb == "write":
            if not self.began[step.who]:
                owner.begin_transaction()
            self.began[step.who] = True
            self.wrote[step.who].add(step.partition)
            for each in range(step.count):
                owner.produce(self.topic, b"%d.%d" % (number, each), partition=step.partition)
            assert owner.flush(30) == 0
            return
        before = {partition: self.end(partition) for partition in self.wrote[step.who]}
        if step.verb == "heir":
            self.owners[step.who] = self.owner(step.who)
        else:
            (owner.commit_transaction if step.verb == "commit" else owner.abort_transaction)(60)
        until(
            lambda: all(self.end(partition) > end for partition, end in before.items()),
            "the markers",
        )
        self.began[step.who], self.wrote[step.who] = False, set()


def test_the_same_script_gives_the_same_log_there_and_here(
    broker: oracle.Broker, tmp_path: Path, rng: random.Random
) -> None:
    """Offsets and values in both isolation levels, and the last state of every id."""
    topic = f"script-{rng.getrandbits(30)}"
    client.create_topics(broker.bootstrap, {topic: 3})
    steps = list(script(rng, 40))
    there = There(broker, topic)
    with embedlog.open(tmp_path / "log", config=CONFIG) as log:
        log.create_topic(topic, 3)
        here = Here(log, topic)
        for number, step in enumerate(steps):
            here.do(number, step)
            there.do(number, step)
        for isolation in ("read_uncommitted", "read_committed"):
            got = client.read(broker.bootstrap, {topic: 3}, isolation)[topic]
            rows = [
                client.told(each) for each in log.scan(topic, isolation_level=isolation).records()
            ]
            assert placed(rows) == placed(got), (isolation, steps)
        ours = {name: state_of(log, name) for name in (f"{topic}-{who}" for who in range(3))}
    names = {f"{topic}-{who}" for who in range(3)}
    (path,) = (broker.log_dir / f"{STATE}-0").glob("*.log")
    said = oracle.tool("dump-log", "--transaction-log-decoder", "--files", path).stdout
    for name in names:
        last = re.findall(rf'"transactionalId":"{name}".*?"transactionStatus":"?(\w+)', said)[-1]
        state = ours[name]
        assert state is not None
        # a number before 4.4
        assert last in (str(state.status.value), state.status.name.title().replace("_", "")), name


def placed(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)
