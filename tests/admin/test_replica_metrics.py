"""Metrics of a set, with the names of Kafka's brokers and controller."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.admin.replica_metrics import report
from embedlog.descriptions.directories import (
    DirectoryDescription,
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)
from embedlog.replicas.observation.replica_events import ReplicaEvents

QUIET = {"housekeeping": False}
PATIENT_S = 20.0
METERS = {
    "IsrShrinksPerSec",
    "IsrExpandsPerSec",
    "FailedIsrUpdatesPerSec",
    "UncleanLeaderElectionsPerSec",
    "LeaderElectionRateAndTimeMs",
    "ReplicationBytesInPerSec",
    "ReplicationBytesOutPerSec",
}

ORDER = ReplicatedPartitionDescription(
    "t",
    0,
    "OnlinePartition",
    1,
    0,
    0,
    (1, 2, 3),
    (1, 2, 3),
    min_in_sync=2,
    high_watermark=7,
    copies=tuple(ReplicaDescription(node, "OnlineReplica", lag=0) for node in (1, 2, 3)),
)
DIRECTORIES = tuple(DirectoryDescription(node, f"/d{node}", "live") for node in (1, 2, 3))


def metrics(
    *partitions: ReplicatedPartitionDescription, away: tuple[int, ...] = ()
) -> dict[str, Any]:
    directories = tuple(
        replace(each, state="failed" if each.node in away else "live") for each in DIRECTORIES
    )
    return report(ReplicasDescription(directories, partitions), ReplicaEvents())


def gauges(found: dict[str, Any]) -> dict[str, int]:
    """The gauges that are not 0, without the sizes of the set."""
    sizes = {
        "ActiveBrokerCount",
        "GlobalTopicCount",
        "GlobalPartitionCount",
        "PartitionCount",
        "LeaderCount",
    }
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int) and value and name not in sizes
    }


def test_a_set_in_order_has_no_alarm() -> None:
    found = metrics(ORDER, replace(ORDER, partition=1))
    assert gauges(found) == {}
    assert (
        found["GlobalPartitionCount"],
        found["GlobalTopicCount"],
        found["ActiveBrokerCount"],
    ) == (2, 1, 3)
    assert (found["PartitionCount"], found["LeaderCount"]) == (6, 2)
    assert "ActiveControllerCount" not in found
    assert set(found) >= METERS


@pytest.mark.parametrize(
    ("facts", "away", "wanted"),
    [
        ({"isr": (1, 2)}, (), {"UnderReplicatedPartitions": 1, "AtMinIsrPartitionCount": 1}),
        ({"isr": (1,)}, (), {"UnderReplicatedPartitions": 1, "UnderMinIsrPartitionCount": 1}),
        (
            {"isr": (1, 2)},
            (3,),
            {
                "UnderReplicatedPartitions": 1,
                "AtMinIsrPartitionCount": 1,
                "OfflineReplicaCount": 1,
                "FencedBrokerCount": 1,
            },
        ),
        ({"leader": 2, "isr": (2, 3, 1)}, (), {"PreferredReplicaImbalanceCount": 1}),
        (
            {"leader": -1, "state": "OfflinePartition"},
            (),
            {
                "OfflinePartitionsCount": 1,
                "UnderMinIsrPartitionCount": 1,
                "PreferredReplicaImbalanceCount": 1,
            },
        ),
        (
            {"replicas": (1, 2, 3, 4), "adding": (4,), "removing": (1,)},
            (),
            {"ReassigningPartitions": 1},
        ),
    ],
)
def test_each_gauge_counts_its_condition(
    facts: dict[str, Any], away: tuple[int, ...], wanted: dict[str, int]
) -> None:
    assert (
        gauges(
            metrics(
                replace(ORDER, **facts),
                replace(ORDER, partition=1, replicas=(1, 2), isr=(1, 2), min_in_sync=1),
                away=away,
            )
        )
        == wanted
    )


def test_a_directory_has_the_gauges_of_a_broker() -> None:
    lagging = replace(ORDER.copies[2], lag=40, lag_bytes=4000, lag_seconds=1.5)
    found = metrics(
        replace(ORDER, isr=(1, 2), copies=(*ORDER.copies[:2], lagging)),
        replace(ORDER, partition=1, leader=2),
        away=(3,),
    )
    assert found["directories"][1]["LeaderCount"] == found["directories"][2]["LeaderCount"] == 1
    assert [found["directories"][node]["UnderReplicatedPartitions"] for node in (1, 2, 3)] == [
        1,
        0,
        0,
    ]
    assert [found["directories"][node]["OfflineReplicaCount"] for node in (1, 2, 3)] == [0, 0, 2]
    assert [found["directories"][node]["MaxLag"] for node in (1, 2, 3)] == [0, 0, 40]
    first = found["partitions"][TopicPartition("t", 0)]
    assert (
        first["InSyncReplicasCount"],
        first["ReplicasCount"],
        first["UnderReplicated"],
        first["UnderMinIsr"],
        first["AtMinIsr"],
    ) == (2, 3, 1, 0, 1)
    assert first["replicas"][3] == {"ConsumerLag": 40, "lag-bytes": 4000, "lag-seconds": 1.5}


def test_the_metrics_of_open_directories(tmp_path: Path) -> None:
    with embedlog.open([tmp_path / f"d{node}" for node in (1, 2, 3)], config=QUIET) as log:
        log.create_topic(
            "t", assignment={0: [1, 2, 3], 1: [2, 3, 1]}, config={"min.insync.replicas": "2"}
        )
        assert gauges(log.metrics()) == {}
        with log.producer(linger_ms=0) as producer:
            (tmp_path / "d1").rename(tmp_path / "removed")
            for number in range(4):
                producer.send("t", b"x", partition=number % 2).result(PATIENT_S)
        found = log.metrics()
        assert gauges(found) == {
            "UnderReplicatedPartitions": 2,
            "AtMinIsrPartitionCount": 2,
            "OfflineReplicaCount": 2,
            "FencedBrokerCount": 1,
            "PreferredReplicaImbalanceCount": 1,
            "OfflineLogDirectoryCount": 1,
        }
        assert found["IsrShrinksPerSec"]["Count"] == 2
        assert found["LeaderElectionRateAndTimeMs"]["Count"] == 1
        assert found["IsrShrinksPerSec"]["OneMinuteRate"] > 0


def test_one_directory_has_the_same_names(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t", 2)
        found = log.metrics()
        assert gauges({**found, "AtMinIsrPartitionCount": 0}) == {}
        assert (found["PartitionCount"], found["LeaderCount"], found["ActiveBrokerCount"]) == (
            2,
            2,
            1,
        )
        assert set(found) >= METERS
