"""Groups of embedlog at a real Kafka: dump-log decodes `__consumer_offsets`, a broker continues the
groups, and embedlog continues the groups of the broker.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from tests.faults.harness.processes import until
from tests.kafka import client, oracle
from tests.support.joining import commit, joined, left

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]

TOPIC = "read"
OFFSETS = "__consumer_offsets"
PARTITIONS = 4
# a broker finds a group only in the partition that is the group's
CONFIG = {"offsets.topic.num.partitions": 3}
TPS = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def filled(directory: Path) -> None:
    """A group of two, one that is in the midst of a join, empty ones, one by hand, a deleted one,
    deleted offsets.
    """
    with embedlog.open(directory, config=CONFIG) as log:
        log.create_topic(TOPIC, PARTITIONS)
        with log.producer() as producer:
            for number in range(PARTITIONS):
                producer.send_batch(
                    TOPIC, [b"%d" % each for each in range(20)], partition=number
                ).result(10)
        commit(
            log,
            "by hand",
            dict(
                zip(
                    TPS,
                    (1, OffsetAndMetadata(2, "nöte"), OffsetAndMetadata(3, "", 0)),
                    strict=False,
                )
            ),
        )
        joined(log, "emptied", {"one": TPS}, TOPIC)
        left(log, "emptied", "one")
        commit(log, "emptied", {TPS[0]: 20, TPS[3]: 0})
        for name in ("stable", "preparing"):
            commit(log, name, {TPS[0]: 4, TPS[2]: 5})
            joined(log, name, {"one": TPS[:2], "two": TPS[2:]}, TOPIC)
        left(log, "preparing", "one")
        commit(log, "deleted", {TPS[1]: 1})
        log.delete_group("deleted")
        commit(log, "partly", {TPS[1]: 1, TPS[2]: 1})
        log.delete_group_offsets("partly", [TPS[2]])
        log.reset_group_offsets("partly", TPS[3], to="latest")
        static(log, "static", "one", "two")


def static(log: embedlog.Log, group_id: str, *names: str) -> None:
    """Members that read everything, commit and end; they are static, so their places stay."""
    config = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    readers = [
        log.consumer(
            TOPIC, group_id=group_id, client_id=f"client-{name}", group_instance_id=name, **config
        )
        for name in names
    ]

    def through() -> bool:
        for reader in readers:
            reader.poll(0.01)
        shares = [[reader.position(tp) for tp in reader.assignment()] for reader in readers]
        return shares == [[20] * (PARTITIONS // len(names))] * len(names)

    until(through, "all is shared out and read")
    for reader in readers:
        reader.commit()
        reader.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("groups") / "log"
    filled(directory)
    return directory


def test_dump_log_decodes_all_that_our_groups_wrote(kafka: None, written: Path) -> None:
    assert oracle.verify(written) > 5
    paths = sorted(written.glob(f"{OFFSETS}-*/*.log"))
    answer = oracle.tool("dump-log", "--offsets-decoder", "--files", ",".join(map(str, paths)))
    assert oracle.complaints(answer.stdout + answer.stderr, False) == []
    with embedlog.open(written, read_only=True) as log:
        record_count = sum(each.log_end_offset for each in log.describe_topic(OFFSETS).partitions)
        expected = {name: log.group_offsets(name) for name in log.groups()}
    rows = [json.loads(text) for text in re.findall(r" key: (\{.*?\}) payload:", answer.stdout)]
    assert len(rows) == record_count, answer.stdout[-2000:]
    decoded: dict[tuple[str, str, int], Any] = {}
    metadata: dict[str, Any] = {}
    for key, payload in re.findall(r" key: (\{.*?\}) payload: ?(.*)$", answer.stdout, re.MULTILINE):
        about = json.loads(key)
        told = json.loads(payload) if payload.startswith("{") else None
        data = about["data"]
        if "topic" in data:
            decoded[data["group"], data["topic"], data["partition"]] = told
        else:
            metadata[data["group"]] = told
    found = {
        place: value["data"]["offset"] for place, value in decoded.items() if value is not None
    }
    assert found == {
        (name, *tp): each.offset
        for name, offsets in expected.items()
        for tp, each in offsets.items()
    }
    assert {name for name, value in metadata.items() if value is not None} == {
        "emptied",
        "stable",
        "preparing",
        "static",
    }
    members = metadata["stable"]["data"]["members"]
    assert [(each["memberId"], each["clientId"], each["clientHost"]) for each in members] == [
        ("one", "client-one", "/here"),
        ("two", "client-two", "/here"),
    ]


@pytest.fixture(scope="module")
def serving(
    kafka: None, written: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[oracle.Broker]:
    """A broker of its own on a copy of embedlog's directory, `__consumer_offsets` included."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    broker = oracle.Broker(tmp_path_factory.mktemp("broker") / "log", CONFIG)
    with broker:
        broker.create_topic(TOPIC, PARTITIONS)
        first = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "first"})
        first.commit(offsets=[Place(TOPIC, 0, 1)], asynchronous=False)
        first.close()
    oracle.move_in(broker, written, [TOPIC, OFFSETS])
    broker.forget()
    with broker:
        yield broker


def listed(text: str) -> dict[tuple[str, str, str], list[str]]:
    """The offsets in the tool's output: by group, topic, partition."""
    heads = ("by hand ", "emptied ", "stable ", "preparing ", "partly ", "static ")
    found = {}
    for line in text.splitlines():
        if line.startswith(heads):
            group = next(head.strip() for head in heads if line.startswith(head))
            topic, number, *rest = line.removeprefix(group).split()
            found[group, topic, number] = rest
    return found


@pytest.mark.slow
def test_a_broker_lists_our_groups_as_we_do_and_we_go_on_with_what_it_leaves(
    serving: oracle.Broker, written: Path, tmp_path: Path
) -> None:
    said = serving.tool("consumer-groups", "--describe", "--all-groups", "--offsets").stdout
    states = serving.tool("consumer-groups", "--list", "--state").stdout
    told = listed(said)
    with embedlog.open(written, read_only=True) as log:
        described = {name: log.describe_group(name) for name in log.groups()}
    assert sorted(described) == ["by hand", "emptied", "partly", "preparing", "stable", "static"]
    for name, group in described.items():
        for each in group.partitions:
            if each.committed is not None:
                assert told[name, TOPIC, str(each.partition)][:3] == [
                    str(each.position),
                    "20",
                    str(each.lag),
                ], said
    # there the broker continues at once
    stable = {name: group for name, group in described.items() if name != "preparing"}
    assert {place for place in told if place[0] in stable} == {
        (name, TOPIC, str(each.partition))
        for name, group in stable.items()
        for each in group.partitions
    }
    assert told["stable", TOPIC, "2"][3:] == ["two", "/here", "client-two"], said
    assert {tuple(told["static", TOPIC, str(number)][:3]) for number in range(PARTITIONS)} == {
        ("20", "20", "0")
    }
    members = serving.tool(
        "consumer-groups", "--describe", "--group", "static", "--members", "--verbose"
    ).stdout
    for member in described["static"].members:
        numbers = ",".join(str(tp.partition) for tp in member.assignment)
        assert re.search(
            rf"{member.member_id} .*{member.client_id} .* 2 .*{TOPIC}:{numbers} ", members
        ), members
    for name, state in (
        ("by hand", "Empty"),
        ("emptied", "Empty"),
        ("partly", "Empty"),
        ("static", "Stable"),
    ):
        assert re.search(rf"^{name} .*{state}", states, re.MULTILINE), states
    assert "deleted" not in states
    goes_on(serving)
    assert not [line for line in serving.said().splitlines() if "ERROR" in line or "orrupt" in line]
    serving.stop()
    shutil.copytree(serving.log_dir, tmp_path / "log")
    with embedlog.open(tmp_path / "log", config=CONFIG) as log:
        assert {"by hand", "emptied", "partly", "stable"} <= set(log.groups())
        found = log.describe_group("emptied")
        assert {each.position for each in found.partitions} == {20}
        assert (found.state, found.lag) == ("Empty", 0)
        assert log.group_offsets("by hand")[TPS[1]] == OffsetAndMetadata(2, "nöte")
        log.reset_group_offsets("emptied", to={"shift": -5})
        log.delete_group("by hand")
        assert {each.offset for each in log.group_offsets("emptied").values()} == {15}
        assert "by hand" not in log.groups()


def goes_on(broker: oracle.Broker) -> None:
    """A real consumer begins where ours have stopped, and commits the end."""
    from confluent_kafka import Consumer

    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "emptied",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    reader.subscribe([TOPIC])
    found: list[tuple[int, int]] = []

    def all_there() -> bool:
        found.extend(
            (each.partition(), each.offset())
            for each in reader.consume(1000, 0.05)
            if not each.error()
        )
        return len(found) >= 60

    until(all_there, "records after the committed offsets")
    assert {partition for partition, _ in found} == {1, 2, 3}, "partition 0 was read to its end"
    reader.commit(asynchronous=False)
    reader.close()


def test_groups_of_a_broker_are_shown_with_their_members(
    broker: oracle.Broker, tmp_path: Path
) -> None:
    """Of both protocols, as they stand in the files of a broker that is in the midst of serving
    them.
    """
    from confluent_kafka import Consumer

    if broker.process is None:
        broker.start()
    client.create_topics(broker.bootstrap, {"shown": 4})
    config = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    older = {
        "partition.assignment.strategy": "roundrobin",
        "heartbeat.interval.ms": 50,
        "session.timeout.ms": 6000,
    }
    readers = {
        who: Consumer(config | {"group.id": group, "client.id": who} | rest)
        for who, group, rest in (
            ("a", "older", older),
            ("b", "older", older | {"group.instance.id": "two"}),
            ("c", "newer", {"group.protocol": "consumer"}),
        )
    }

    def settled() -> bool:
        return [
            len(reader.assignment()) for reader in readers.values() if not reader.poll(0.02)
        ] == [2, 2, 4]

    for reader in readers.values():
        reader.subscribe(["shown"])
    until(settled, "the partitions are shared out", 60)
    for name in ("shown-0", "shown-1", "shown-2", "shown-3", f"{OFFSETS}-0"):
        shutil.copytree(broker.log_dir / name, tmp_path / "log" / name)
    shutil.copy(broker.log_dir / "meta.properties", tmp_path / "log")
    assigned = {who: sorted(reader.assignment()) for who, reader in readers.items()}
    expected = {
        who: [TopicPartition(tp.topic, tp.partition) for tp in tps] for who, tps in assigned.items()
    }
    for reader in readers.values():
        reader.close()
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        groups = {name: log.describe_group(name) for name in ("older", "newer")}
    assert {name: (each.state, each.type) for name, each in groups.items()} == {
        "older": ("Stable", "classic"),
        "newer": ("Stable", "consumer"),
    }
    members = [member for group in groups.values() for member in group.members]
    assert {member.client_id: list(member.assignment) for member in members} == expected
    assert {member.client_id: (member.topics, member.instance_id) for member in members} == {
        "a": (("shown",), None),
        "b": (("shown",), "two"),
        "c": (("shown",), None),
    }
    assert groups["older"].assignor == "roundrobin"
    assert [
        each.member_id is not None for group in groups.values() for each in group.partitions
    ] == [True] * 8
    with embedlog.open(tmp_path / "log", config=CONFIG) as log:
        heir = log.consumer(
            group_id="older", client_id="heir", partition_assignment_strategy=["roundrobin"]
        )
        heir.subscribe(["shown"])

        def clients() -> set[str]:
            assert not heir.poll(0.01)
            return {each.client_id for each in log.describe_group("older").members}

        until(
            lambda: clients() == {"heir", "b"},
            "the end of all members without heartbeats, except the static one",
        )
        assert log.describe_group("older").state == "PreparingRebalance"
        heir.close()
