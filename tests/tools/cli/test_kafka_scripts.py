"""The verbs beside Kafka's own scripts: equal offsets, groups, sizes and records of one directory
of a broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.kafka import oracle

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.xdist_group("kafka")]

TOPIC = "command.line"
GROUP = "command-line"
COLUMNS = [
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
]


TIMES = ("-1", "-2", "-3", "60")
DESCRIBE = ("--describe", "--group", GROUP)
EXPORT = ("--reset-offsets", "--group", GROUP, "--topic", f"{TOPIC}:0", "--to-latest", "--export")
FIELDS = [
    f"--formatter-property=print.{name}=true"
    for name in ("key", "offset", "partition", "timestamp", "headers")
]
CONSUME = ("--topic", TOPIC, "--from-beginning", "--max-messages", "4", *FIELDS)


def fill(broker: oracle.Broker) -> None:
    """A topic with four records in its first partition, and a group at offset 1 of both
    partitions.
    """
    from confluent_kafka import Producer

    broker.create_topic(TOPIC, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, time in enumerate((50, 90, 90, 70)):
        producer.produce(
            TOPIC,
            b"value %d" % number,
            key=b"key",
            partition=0,
            timestamp=time,
            headers=[("h", b"x")],
        )
        producer.flush(30)
    scope = ("--group", GROUP, "--topic", TOPIC, "--to-offset", "1", "--execute")
    broker.tool("consumer-groups", "--reset-offsets", *scope)


def rows(text: str) -> list[str]:
    """The rows of a table as text, with the columns that both have."""
    header, *lines = [
        line.split()
        for line in text.splitlines()
        if line.strip() and not line.startswith("Consumer group")
    ]
    found = [dict(zip(header, line, strict=True)) for line in lines]
    return sorted(" ".join(row[name] for name in COLUMNS) for row in found)


def test_offsets_groups_and_records_are_those_of_kafkas_scripts(
    broker: oracle.Broker, run: Callable[..., Any]
) -> None:
    fill(broker)
    offsets = {
        time: broker.tool("get-offsets", "--topic", "command.*", "--time", time).stdout
        for time in TIMES
    }
    described, exported = (
        broker.tool("consumer-groups", *arguments).stdout for arguments in (DESCRIBE, EXPORT)
    )
    consumed = broker.tool("console-consumer", *CONSUME).stdout
    broker.stop()  # embedlog refuses a directory on which a broker is running
    try:
        here = ("-d", str(broker.log_dir))
        for time, expected in offsets.items():
            assert run(*here, "offsets", "--topic", "command.*", "--time", time) == (
                0,
                expected,
                "",
            ), time
        assert rows(run(*here, "groups", *DESCRIBE).out) == rows(described)
        assert run(*here, "groups", *EXPORT).out.split() == exported.replace('"', "").split()
        assert run(*here, "consume", *CONSUME).out == consumed
        (directory,) = json.loads(run(*here, "du", "--json").out)["brokers"][0]["logDirs"]
        sizes = {part["partition"]: part["size"] for part in directory["partitions"]}
        assert (
            sizes[f"{TOPIC}-0"] == (broker.log_dir / f"{TOPIC}-0" / f"{0:020}.log").stat().st_size
        )
    finally:
        broker.start()


# ---- measurement ---------------------------------------------------------------------------------

SENT = ("--topic", "measured", "--num-records", "20", "--record-size", "10", "--throughput", "-1")
READ = ("--topic", "measured", "--timeout", "20000")
VERIFIED = (
    "--topic",
    "verified",
    "--max-messages",
    "5",
    "--value-prefix",
    "3",
    "--repeating-keys",
    "2",
)
GROUPED = ("--topic", "verified", "--group-id", "verifiers", "--max-messages", "5", "--verbose")


def shape(text: str) -> list[str]:
    """Lines with every measured number replaced."""
    return [
        re.sub(r"\d+(?=[.]\d)|(?<=[.])\d+|\d+(?= ms)|(?<=, )\d+(?=,)|[-:\d]{8,}", "N", line)
        for line in text.splitlines()
    ]


def events_of(text: str) -> list[dict[str, Any]]:
    """The events without times and rates; JSON objects have no order."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [
        {key: value for key, value in each.items() if key not in ("timestamp", "avg_throughput")}
        for each in found
    ]


def test_measurements_have_the_lines_of_kafkas_scripts(
    broker: oracle.Broker, run: Callable[..., Any]
) -> None:
    for topic in ("measured", "verified"):
        broker.create_topic(topic, 1)
        assert run("topics", "--create", "--topic", topic, "--partitions", "1").status == 0
    server = ("--bootstrap-server", broker.bootstrap)
    sent = oracle.tool(
        "producer-perf", *SENT, "--producer-props", f"bootstrap.servers={broker.bootstrap}"
    ).stdout
    assert shape(run("perf", "producer", *SENT).out) == shape(sent)[-1:]
    read = oracle.tool("consumer-perf", *server, *READ, "--num-records", "20").stdout
    here = run("perf", "consumer", *READ, "--num-records", "20").out
    assert (here.splitlines()[0], shape(here)) == (read.splitlines()[0], shape(read))
    verified = oracle.tool("verifiable-producer", *server, *VERIFIED).stdout
    assert events_of(run("verifiable", "producer", *VERIFIED).out) == events_of(verified)
    consumed = oracle.tool("verifiable-consumer", *server, *GROUPED).stdout
    # Kafka's script prints that line at each end, also without a signal
    expected = [each for each in events_of(consumed) if each["name"] != "shutdown_requested"]
    assert sorted(map(str, events_of(run("verifiable", "consumer", *GROUPED).out))) == sorted(
        map(str, expected)
    )
