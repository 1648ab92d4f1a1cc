"""Kafka's dump-log prints a segment of the decision log as metadata records."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from embedlog.replicas.rules.records import (
    TOPIC,
    DecidedConfig,
    DecidedPartition,
    DecidedTopic,
    NoOp,
    Record,
    RegisterBroker,
    RemoveTopic,
    Tombstone,
    UnregisterBroker,
    encode,
    key_of,
)
from tests.kafka import oracle
from tests.support.batches import Row, batch

ID = UUID(int=7)
NODE = RegisterBroker(1, ID, 12, ID, "/disk1/log", rack="a", generation=2)
RECORDS: list[Record] = [
    NODE,
    RegisterBroker(2, ID, 12, ID, "/disk2/log", replicas=False),
    DecidedTopic("orders", ID),
    DecidedPartition(
        ID, 0, (1, 2, 3), (1,), 1, 4, 9, (ID, ID, ID), elr=(3,), leader_registration_id=ID
    ),
    DecidedConfig(TOPIC, "orders", "min.insync.replicas", "2"),
    RemoveTopic(ID),
    UnregisterBroker(1, 12),
    Tombstone(key_of(NODE)),
    NoOp(),
]
NAMES = [
    "REGISTER_BROKER",
    "TOPIC",
    "PARTITION",
    "CONFIG",
    "NO_OP",
    "REMOVE_TOPIC",
    "UNREGISTER_BROKER",
]


@pytest.mark.kafka
def test_dump_log_prints_the_decision_log(kafka: None, tmp_path: Path) -> None:
    """A tombstone has no metadata record; dump-log reports that and prints the records after it."""
    segment = tmp_path / "__replica_state-0" / "00000000000000000000.log"
    segment.parent.mkdir()
    rows = [Row(value, key) for key, value in map(encode, RECORDS)]
    segment.write_bytes(batch(0, rows))
    text = oracle.tool("dump-log", "--cluster-metadata-decoder", "--files", segment).stdout
    assert oracle.complaints(text, gaps=False) == []
    assert [name for name in NAMES if f'"type":"{name}_RECORD"' not in text] == []
    assert '"eligibleLeaderReplicas":[3]' in text
    assert [line for line in text.splitlines() if "Error at" in line] == [
        line for line in text.splitlines() if "valueSize: -1" in line
    ]
