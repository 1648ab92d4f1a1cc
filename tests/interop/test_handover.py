"""The verb `handover` and a real broker: each serves the directory in its turn, with groups,
transactions and settings.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.tools.handover import metadata_image
from tests.faults.harness.processes import until
from tests.kafka import client, oracle

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.xdist_group("kafka")]
SETTINGS = {"retention.ms": "123456789", "segment.bytes": "4096", "min.insync.replicas": "1"}
OPEN_TRANSACTION = """
import os, sys, embedlog
log = embedlog.open(sys.argv[1])
producer = log.producer(transactional_id="open")
producer.init_transactions()
producer.begin_transaction()
producer.send("b", b"never").result(10)
os._exit(0)
"""


class Given:
    """A directory with the verb, and a broker that starts by the file that the verb writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = oracle.free_port()
        self.controller = oracle.free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._log = Path(f"{directory}-broker.txt")

    def verb(self, *arguments: str, status: int = 0) -> Any:
        command = [
            sys.executable,
            "-m",
            "embedlog",
            "handover",
            *arguments,
            "--json",
            "-d",
            str(self.directory),
        ]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert answer.returncode == status, answer.stderr
        return json.loads(answer.stdout) if status == 0 else answer.stderr

    def to_kafka(self, *arguments: str) -> Any:
        addresses = (
            "--listen",
            self.bootstrap,
            "--listen-controller",
            f"127.0.0.1:{self.controller}",
        )
        return self.verb("to-kafka", *addresses, *arguments)

    def _listens(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1),
        ):
            return True
        return False

    @contextlib.contextmanager
    def serving(self, properties: str, how: signal.Signals = signal.SIGTERM) -> Iterator[str]:
        """A broker, which finds nothing wrong in the directory."""
        self._log.write_text("")
        with self._log.open("ab") as log:
            line = oracle.command("broker", properties, heap="1g", log_level="INFO")
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(lambda: process.poll() is not None or self._listens(), "the broker listens", 120)
            assert process.poll() is None, self._log.read_text()[-4000:]
            yield self.bootstrap
            process.send_signal(how)
            process.wait(60)
        finally:
            process.kill()
            process.wait(10)
        lines = (
            line
            for line in self._log.read_text().splitlines()
            if "partition=__cluster_metadata-0" not in line
        )
        assert not [line for line in lines if re.search(r"stray|Recovering unflushed", line)]
        assert not list(self.directory.glob("*-stray"))


def values(bootstrap: str, topics: dict[str, int]) -> list[bytes]:
    return sorted(each.value() for each in client.messages(bootstrap, topics, "read_committed"))


def describe(bootstrap: str, topic: str) -> dict[str, str]:
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in found.result(30).items()}


def produce(bootstrap: str, topic: str, value: bytes, **options: Any) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            **{key.replace("_", "."): each for key, each in options.items()},
        }
    )
    transactional = "transactional_id" in options
    if transactional:
        producer.init_transactions(60)
        producer.begin_transaction()
    producer.produce(topic, value)
    if transactional:
        producer.commit_transaction(60)
    assert producer.flush(60) == 0


def continue_group(bootstrap: str, count: int) -> list[bytes]:
    """The next records of the group, which are committed."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["b"])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, found
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None
            found.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def alter_topic(bootstrap: str, round_number: int) -> None:
    """What an administrator does at the broker."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
    )

    client.create_topics(
        bootstrap, {f"new{round_number}": 2}, {f"new{round_number}": {"retention.bytes": "5000000"}}
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(
        "retention.ms", f"{987654320 + round_number}", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, "a", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    for future in admin.create_partitions([NewPartitions("a", 3 + round_number)]).values():
        future.result(30)


def continue_here(directory: Path, number: int) -> None:
    """The group, the transactional ids and the settings continue in embedlog."""
    with embedlog.open(directory) as log:
        kept = log.describe_topic("a")
        assert kept.config == SETTINGS | {"retention.ms": f"{987654320 + number}"}
        assert len(kept.partitions) == 3 + number
        assert log.describe_topic(f"new{number}").config == {"retention.bytes": "5000000"}
        with log.consumer(
            "b", group_id="g", auto_offset_reset="none", isolation_level="read_committed"
        ) as consumer:
            assert consumer.poll(timeout=0.2) == []
            for name, committed in (("t", True), ("open", False), ("t", True)):
                with log.producer(transactional_id=name) as producer:
                    producer.init_transactions()
                    producer.begin_transaction()
                    producer.send("b", b"here %s %d" % (name.encode(), number))
                    producer.commit_transaction() if committed else producer.abort_transaction()
            found: list[bytes] = []
            deadline = time.monotonic() + 30
            while len(found) < 2 and time.monotonic() < deadline:
                found += [record.value for record in consumer.poll(timeout=1)]
            assert found == [b"here t %d" % number] * 2
            consumer.commit()
        with log.producer() as producer:
            producer.send("a", b"here", partition=2 + number).result(10)


def test_a_directory_goes_to_a_broker_and_back_twice(kafka: None, tmp_path: Path) -> None:
    given = Given(tmp_path / "data")
    with embedlog.open(given.directory) as log:
        log.create_topic("a", 3, config=SETTINGS)
        log.create_topic("b")
        with log.producer(enable_idempotence=True) as producer:
            for number in range(200):
                producer.send("a", b"a%03d" % number, b"%d" % number)
            producer.send("b", b"read").result(10)
        with log.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("b", b"committed")
            producer.commit_transaction()
        with log.consumer(
            "b", group_id="g", auto_offset_reset="earliest", max_poll_records=1
        ) as consumer:
            assert [record.value for record in consumer.poll(timeout=10)] == [b"read"]
            consumer.commit()
    subprocess.run(
        [sys.executable, "-c", OPEN_TRANSACTION, str(given.directory)], check=True, timeout=60
    )
    expected = [b"a%03d" % number for number in range(200)]
    next_of_group = [b"committed"]
    partitions = 3
    for number in (1, 2):
        facts = given.to_kafka()
        assert [
            (each["topic"], each["name"])
            for each in facts["settings"]
            if each["outcome"] != "carried over"
        ] == [("a", "segment.bytes")]
        with given.serving(
            facts["properties"], signal.SIGTERM if number == 1 else signal.SIGKILL
        ) as bootstrap:
            assert "a Kafka broker is running" in given.verb("from-kafka", status=2)
            assert values(bootstrap, {"a": partitions}) == sorted(expected)
            settings = describe(bootstrap, "a")
            assert (settings["segment.bytes"], settings["retention.ms"]) == (
                "1048576",
                facts_of(facts, "a", "retention.ms"),
            )
            assert describe(bootstrap, "b")["retention.ms"] == "-1"
            produce(bootstrap, "b", b"there", transactional_id="t")
            # aborts the open transaction
            produce(bootstrap, "b", b"there, too", transactional_id="open")
            produce(bootstrap, "b", b"idempotent", enable_idempotence="true")
            assert continue_group(bootstrap, len(next_of_group) + 3) == [
                *next_of_group,
                b"there",
                b"there, too",
                b"idempotent",
            ]
            alter_topic(bootstrap, number)
            produce(bootstrap, f"new{number}", b"new")
        back = given.verb("from-kafka")
        assert (back["created"], back["deleted"], back["clean"]) == (
            [f"new{number}"],
            [],
            number == 1,
        )
        continue_here(given.directory, number)
        partitions = partitions + 1
        next_of_group = []
        expected.append(b"here")
    with embedlog.open(given.directory, read_only=True) as log:
        assert sorted(record.value for record in log.scan("a").records()) == sorted(expected)
        assert b"never" not in [
            record.value for record in log.scan("b", isolation_level="read_committed").records()
        ]
        assert log.describe_group("g").lag == 0


def facts_of(facts: Any, topic: str, name: str) -> str:
    return next(
        each["value"]
        for each in facts["settings"]
        if (each["topic"], each["name"]) == (topic, name)
    )


@pytest.mark.parametrize("quorum", ["static", "dynamic"])
def test_a_directory_of_a_broker_comes_and_goes_with_its_cluster(
    kafka: None, tmp_path: Path, quorum: str
) -> None:
    """The cluster has the newest features, such as eligible leader replicas, and with `dynamic` its
    voters in the log.
    """
    given = Given(tmp_path / "data")
    metadata = tmp_path / "data-metadata"
    config: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
    first = oracle.Broker(given.directory, config)
    if quorum == "dynamic":
        controller = str(first.config.pop("controller.quorum.voters")).partition("@")[2]
        first.config["controller.quorum.bootstrap.servers"] = controller
        file = tmp_path / "first.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in first.config.items()))
        oracle.tool("storage", "format", "--standalone", "-t", "embedlogoracle000000AA", "-c", file)
    with first:
        client.create_topics(
            first.bootstrap, {"t": 2}, {"t": {"retention.ms": "777", "compression.type": "lz4"}}
        )
        for number in range(5):
            produce(first.bootstrap, "t", b"%d" % number)
        features = metadata_image.read(metadata)[0].features
        produce(first.bootstrap, "t", b"transactional", transactional_id="x")
    assert "no metadata log" in given.verb("from-kafka", status=2)
    found = given.verb("from-kafka", "--metadata-dir", str(metadata))
    assert "t" in found["created"]
    with embedlog.open(given.directory) as log:
        assert log.describe_topic("t").config == {"retention.ms": "777", "compression.type": "lz4"}
        with log.producer() as producer:
            producer.send("t", b"here", partition=1).result(10)
        log.create_topic("more", config={"retention.ms": "5"})
    facts = given.to_kafka("--metadata-dir", str(metadata))
    with given.serving(facts["properties"]) as bootstrap:
        assert len(values(bootstrap, {"t": 2, "more": 1})) == 7
        produce(bootstrap, "t", b"again", transactional_id="x")
        assert describe(bootstrap, "more")["retention.ms"] == "5"
    image, log_of = metadata_image.read(metadata)
    assert image.features == features
    assert bool(log_of.raft) is (quorum == "dynamic")
    given.verb("from-kafka")
    with embedlog.open(given.directory, read_only=True) as log:
        assert sum(1 for _ in log.scan("t").records()) == 8
        assert set(log.topics()) == {"more", "t"}


def test_kafkas_own_tool_reads_the_written_snapshot(kafka: None, tmp_path: Path) -> None:
    given = Given(tmp_path / "data")
    with embedlog.open(given.directory) as log:
        log.create_topic("t", 2, config=SETTINGS)
    given.to_kafka()
    (snapshot,) = (given.directory / "__cluster_metadata-0").glob("*.checkpoint")
    printed = oracle.tool("dump-log", "--cluster-metadata-decoder", "--files", snapshot).stdout
    assert "isvalid: false" not in printed
    records = [
        json.loads(each) for each in re.findall(r"payload: (\{.*\})$", printed, re.MULTILINE)
    ]
    kinds = [each["type"] for each in records]
    assert (
        kinds
        == ["FEATURE_LEVEL_RECORD"] * 3
        + ["TOPIC_RECORD"]
        + ["PARTITION_RECORD"] * 2
        + ["CONFIG_RECORD"] * 3
    )
    assert printed.count("SnapshotHeader") == printed.count("SnapshotFooter") == 1
    assert {each["data"]["name"]: each["data"]["value"] for each in records[-3:]} == SETTINGS | {
        "segment.bytes": "1048576"
    }
