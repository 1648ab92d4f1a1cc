"""Defines the options of a log that concern sets of directories (`docs/replicas.md`); a part of the
options of a log.

An option has no effect on a log of one directory.
"""

from __future__ import annotations

from embedlog.config.options import Options, configuration, option

INT_MAX = 2**31 - 1


@configuration
class SetOptions(Options):
    """The options of an open set."""

    default_replication_factor: int = option(
        1,
        "Directories with a copy of each partition of a topic that is created without a factor, "
        "in a set of directories.",
        unit="directories",
        low=1,
        high=64,
    )
    replica_lag_time_max_ms: int = option(
        30_000,
        "A replica of a set that does not catch up for this time leaves the ISR. No lock of a "
        "replica is awaited longer.",
        unit="ms",
        low=1,
        high=INT_MAX,
        differs="Kafka: also for a broker that fails; here that one leaves at once.",
    )
    replica_fetch_wait_max_ms: int = option(
        500,
        "Time between two looks of a set's housekeeping for records to copy.",
        unit="ms",
        low=1,
        high=INT_MAX,
    )
    replica_selector_class: str = option(
        "LeaderSelector",
        "Which replica of a set a consumer with `client.rack` reads: the leader, or one in its "
        "rack that is in sync.",
        "choice",
        choices=("LeaderSelector", "RackAwareReplicaSelector"),
        pattern=r"org\.apache\.kafka\.common\.replica\.(LeaderSelector|RackAwareReplicaSelector)",
        example="org.apache.kafka.common.replica.RackAwareReplicaSelector",
        differs="Kafka: any class of a Java program.",
    )
    auto_leader_rebalance_enable: bool = option(
        True,
        "Whether housekeeping of a set returns leaders to the first directory of their assignment.",
    )
    leader_imbalance_check_interval_seconds: int = option(
        300,
        "Time between two checks for leaders to return.",
        unit="seconds",
        low=1,
        high=INT_MAX,
    )
    leader_imbalance_per_broker_percentage: int = option(
        10,
        "How many of the partitions that a directory should lead may be led by others; above it "
        "their leaders return.",
        unit="percent",
        low=0,
        high=100,
        differs="Kafka 4 has removed it: its controller has no threshold.",
    )
    leader_replication_throttled_rate: int | None = option(
        None,
        "Limit for copies of throttled replicas out of each directory, of all processes together"
        " (`leader.replication.throttled.replicas`).",
        "int",
        unit="bytes per second",
        low=1,
        optional=True,
        differs="Kafka: changed while a broker runs. Here a setting of each open log.",
    )
    follower_replication_throttled_rate: int | None = option(
        None,
        "Limit for copies of throttled replicas into each directory, of all processes together"
        " (`follower.replication.throttled.replicas`).",
        "int",
        unit="bytes per second",
        low=1,
        optional=True,
        differs="As for `leader.replication.throttled.rate`.",
    )
