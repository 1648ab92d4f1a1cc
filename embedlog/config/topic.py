"""Defines the options of topics and of a log directory.

- Names, meanings, ranges and defaults are Kafka 4's, unless the field states a difference and its
  reason.
- The configuration of a topic is the defaults of the log, overlaid with the settings of the topic.
- Only the settings of a topic itself are stored, as texts, so that it follows a change of the
  defaults. A set stores `min.insync.replicas`, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from embedlog.config.options import (
    INT_MAX,
    LONG_MAX,
    PARTITIONS_MAX,
    Options,
    configuration,
    default_of,
    known_only,
    option,
    options_of,
    overlay,
    parse,
    underscored,
)
from embedlog.config.set_options import SetOptions
from embedlog.errors import ConfigError, RecordTooLargeError
from embedlog.types import CODECS

__all__ = ["LogConfig", "TopicConfig", "parse"]

DAY_MS = 86_400_000
CODEC_NAMES = ("uncompressed", *CODECS[1:])  # topics have another name for no codec, as in Kafka

_TIERED = "there is no tiered storage"
_LEGACY = "Kafka 4 removed it: only record format 2 is written"
_NO_SHARE = "there are no share groups"
_INTERNAL = "Kafka uses it in its own tests"
_NO_SERVER = "there is no server"
_REPLICAS = r"[0-9]{1,10}:[0-9]{1,10}(,[0-9]{1,10}:[0-9]{1,10})*"
_FIGURES = "the windows of metrics() are fixed: totals since the start, rates of the last minute"


@configuration
class TopicConfig(Options):
    """The options of one topic."""

    OWNER_NAME: ClassVar[str] = "a topic"
    REFUSED: ClassVar[Mapping[str, str]] = {
        r"remote\..*|local\.retention\..*": _TIERED,
        r"message\.(format\.version|downconversion\.enable|timestamp\.difference\.max\.ms)": _LEGACY,
        r"errors\.deadletterqueue\..*": _NO_SHARE,
        r"internal\..*": _INTERNAL,
        "partitions": "it is an argument of the creation; create_partitions(topic, total_count) adds partitions",
        r"config|exist\.ok": "it is an argument of the call, not a setting of the topic",
        r"replication\.factor": "it is an argument of the creation, not a setting of the topic",
    }
    RENAMED: ClassVar[Mapping[str, str]] = {
        "num.partitions": "partitions", "partition.count": "partitions", "if.not.exists": "exist_ok", "exists.ok": "exist_ok",
        "log.cleanup.policy": "cleanup.policy", "log.retention.ms": "retention.ms", "log.retention.bytes": "retention.bytes",
        "log.segment.bytes": "segment.bytes", "log.roll.ms": "segment.ms", "log.flush.interval.messages": "flush.messages",
        "log.flush.interval.ms": "flush.ms", "message.max.bytes": "max.message.bytes", "compression.codec": "compression.type",
    }
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("partitions", "config", "exist_ok")

    cleanup_policy: tuple[str, ...] = option(
        ("delete",), "Deletion of old segments, or compaction to the last record of every key, or both.",
        choices=("delete", "compact"),
    )
    retention_ms: int = option(
        -1, "A segment is deleted when its newest record is older than this; -1: never.", unit="ms", low=-1,
        differs="Kafka: 604800000 (seven days). A library must not delete data by default.",
    )
    retention_bytes: int = option(
        -1, "The oldest segments of a partition are deleted while the rest has at least this size; negative: never.",
        unit="bytes", low=-LONG_MAX - 1,
    )
    segment_bytes: int = option(
        1 << 30, "A segment that would exceed this size is closed, and the next one begins.", unit="bytes", low=14, high=INT_MAX,
        differs="Kafka 4: at least 1048576. Small segments are cheap here and useful in tests.",
    )
    segment_ms: int = option(7 * DAY_MS, "A segment is closed when it spans more time than this.", unit="ms", low=1)
    segment_jitter_ms: int = option(
        0, "`segment.ms` is reduced by a random time up to this, so that partitions do not roll at the same time.",
        unit="ms", low=0,
    )
    segment_index_bytes: int = option(
        10 << 20, "Size of an index file at which its segment is closed.", unit="bytes", low=4, high=INT_MAX
    )
    index_interval_bytes: int = option(
        4096, "Log bytes between two index entries: a smaller value makes lookups shorter and indexes larger.", unit="bytes",
        low=0, high=INT_MAX,
    )
    preallocate: bool = option(False, "Reserve the whole file when a segment is created.")
    max_message_bytes: int = option(
        1_048_588, "Largest batch that is accepted, in its stored size, after compression.", unit="bytes", low=0, high=INT_MAX
    )
    compression_type: str = option(
        "producer", "The codec of stored batches: that of the producer, or always this one.", "choice",
        choices=("producer", *CODEC_NAMES),
    )
    compression_gzip_level: int = option(-1, "Level for gzip; -1 is the default of zlib.", low=1, high=9, also=(-1,))
    compression_lz4_level: int = option(9, "Level for lz4.", low=1, high=17)
    compression_zstd_level: int = option(3, "Level for zstd.", low=-131072, high=22)
    message_timestamp_type: str = option(
        "CreateTime", "The timestamp of a record: that of the producer, or the time of the append.", "choice",
        choices=("CreateTime", "LogAppendTime"),
    )
    max_decompressed_message_bytes: int = option(
        INT_MAX - 8, "Largest record, before compression, in a compressed batch (else `InvalidRecordError`).",
        unit="bytes", low=1, high=INT_MAX - 8,
        differs="Kafka 4.4 then also fails to compact, and to look up by time, larger records in the log. Here both continue.",
    )
    message_timestamp_before_max_ms: int = option(
        LONG_MAX, "A record that is older than this at its append is refused (CreateTime only).", unit="ms", low=0
    )
    message_timestamp_after_max_ms: int = option(
        3_600_000, "A record that is this far in the future at its append is refused (CreateTime only).", unit="ms", low=0
    )
    flush_messages: int = option(
        LONG_MAX, "Sync after this many records; with 1, a record is acknowledged after it is on stable storage.",
        unit="records", low=1,
    )
    flush_ms: int = option(
        1000, "Sync records at this age: the maximum loss in a power failure.", unit="ms", low=0,
        differs="Kafka: never. A broker relies on its replicas; a directory has only its disk.",
    )
    file_delete_delay_ms: int = option(
        60_000, "Time between the renaming of an unneeded file and its removal, so that readers can finish.",
        unit="ms", low=0,
    )
    min_insync_replicas: int = option(
        1, "With `acks=all`, an append is refused if fewer directories are in sync (`NotEnoughReplicasError`). `acks=1` and"
        " `acks=0` are accepted. A log of one directory refuses all with 2 or more, and accepts appends of the log itself.",
        unit="directories", low=1, high=INT_MAX,
        differs="Kafka, as a set, repeats the attempt. One directory refuses at once, because no second one can appear.",
    )
    unclean_leader_election_enable: bool = option(
        False, "In a set, a replica outside the ISR leads after no eligible one has answered for 9 s: acknowledged records can be"
        " lost, which a warning states. Without it such an election is requested: `elect(…, unclean=True)`.",
        differs="Kafka elects as soon as the controller has noticed the loss (`broker.session.timeout.ms`, 9 s).",
    )
    min_cleanable_dirty_ratio: float = option(
        0.5, "Compaction begins if more than this part of the log is not compacted.", low=0, high=1
    )
    leader_replication_throttled_replicas: str = option(
        "none", "Replicas in a set whose copies to directories outside the ISR `leader.replication.throttled.rate` limits, while"
        " they lead: all, or partition:node.", "choice", choices=("none", "*"), pattern=_REPLICAS, example="0:1,1:2",
    )
    follower_replication_throttled_replicas: str = option(
        "none", "Replicas in a set whose copies `follower.replication.throttled.rate` limits, while they are outside the ISR.",
        "choice", choices=("none", "*"), pattern=_REPLICAS, example="0:1,1:2",
    )
    min_compaction_lag_ms: int = option(0, "A record that is younger than this is never removed by compaction.", unit="ms", low=0)
    max_compaction_lag_ms: int = option(
        LONG_MAX, "A record that is older than this is compacted regardless of the dirty ratio.", unit="ms", low=1
    )
    delete_retention_ms: int = option(
        DAY_MS, "How long a tombstone is readable after its compaction.", unit="ms", low=0
    )

    def _check_together(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms", expected=f"at most max.compaction.lag.ms ({self.max_compaction_lag_ms})",
                found=self.min_compaction_lag_ms,
            )

    @property
    def batch_limit(self) -> int:
        """Bytes of the largest batch that is accepted."""
        return min(self.max_message_bytes, self.segment_bytes)

    def check_batch(self, size: int, what: str) -> None:
        """Raises RecordTooLargeError, with the name of the limiting setting, for a batch of `size` bytes that contains `what`."""
        if size > self.batch_limit:
            name = "max.message.bytes" if self.max_message_bytes <= self.segment_bytes else "segment.bytes"
            expected = f"at most {self.batch_limit} bytes, which alter_topic() can raise"
            raise RecordTooLargeError(f"{what} is larger than {name}", expected=expected, found=size)

    @property
    def compacted(self) -> bool:
        """Whether only the last record of each key is kept, so that records need keys."""
        return "compact" in self.cleanup_policy

    @property
    def durable(self) -> bool:
        """Whether acknowledged records must survive a power loss: each append is synced."""
        return self.flush_messages == 1


@configuration
class LogConfig(SetOptions):
    """The options of an open log directory: defaults of its topics, and the behaviour of this process."""

    OWNER_NAME: ClassVar[str] = "a log"
    REFUSED: ClassVar[Mapping[str, str]] = {
        r"log\.dirs?": "the directory is the first argument of open()",
        r"(broker|node)\.id": "meta.properties contains the identity of the node",
        r"bootstrap\..*|metadata\.broker\.list": _NO_SERVER,
        r"(advertised\.)?listeners|listener\..*|inter\.broker\..*|num\.(network|io)\.threads|queued\..*|socket\..*"
        r"|connections?\..*|max\.connections.*|ssl\..*|sasl\..*|security\..*|authorizer\..*|quota\..*": _NO_SERVER,
        r"zookeeper\..*|controller\..*|process\.roles|metadata\.log\..*|broker\..*": "there is no server and no controller",
        r"remote\..*|log\.(remote|local)\..*|follower\.fetch\.last\.tiered.*": _TIERED,
        r"log\.message\.(format\.version|downconversion\.enable|timestamp\.difference\.max\.ms)": _LEGACY,
        r"unclean\.leader\.election\.interval\.ms": "it is checked at each use of the partition, and by the housekeeper",
        r"replica\.high\.watermark\.checkpoint\.interval\.ms|log\.flush\.start\.offset\.checkpoint\.interval\.ms":
            "all checkpoints are written together, every log.flush.offset.checkpoint.interval.ms",
        r"num\.recovery\.threads\.per\.data\.dir": "a partition is checked at its first use, by the calling thread",
        r"(replica|replication|num\.replica|leader|auto\.leader|alter\.log\.dirs)\..*|default\.replication\.factor"
        r"|(offsets\.topic|transaction\.state\.log)\.(replication\.factor|min\.isr)": "not implemented for a set",
        r"errors\.deadletterqueue\..*|share\..*|group\.share\..*": _NO_SHARE,
        r"group\.streams\..*": "there are no groups of Kafka Streams",
        r"group\.(consumer|coordinator)\..*|offsets\.load\..*|offsets\.commit\.timeout\.ms|transaction\.state\.log\.load\..*"
        r"|transaction\.partition\.verification\..*|add\.partitions\.to\.txn\..*": "there is no coordinator",
        r"transaction\.two\.phase\.commit\.enable": "a transaction that is open for longer than its timeout is aborted",
        r"offsets\.topic\.compression\.codec": "records of the log itself are small, and not compressed",
        r"producer\.id\.expiration\.check\.interval\.ms": "producers expire every log.retention.check.interval.ms",
        r"log\.cleaner\.(threads|io\..*)": "one thread compacts, at the speed of the disk",
        r"(delete|create)\.topic\..*|alter\.config\..*|delegation\..*|principal\..*|client\.quota\..*":
            "the permissions of the directory are the only access control",
        r"internal\..*|unstable\..*": _INTERNAL,
        r"(kafka\.metrics|metrics|metric|telemetry)\..*": _FIGURES,
        r".*purgatory.*|config\.providers.*|max\.(connection|incremental|request)\..*|fetch\.max\.bytes|metadata\.max\..*"
        r"|background\.threads|request\.timeout\.ms|controlled\..*|cordoned\..*|early\.start\..*|initial\.broker\..*"
        r"|server\..*|log\.dir\.failure\..*": _NO_SERVER,
    }
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("read_only", "create", "config")

    # Defaults of topics, with Kafka's names at this level.
    log_cleanup_policy: tuple[str, ...] = default_of(TopicConfig, "cleanup_policy")
    log_retention_ms: int = default_of(TopicConfig, "retention_ms")
    log_retention_minutes: int | None = option(
        None, "As `log.retention.ms`; used if it is not set.", "int", unit="minutes", low=-1, high=INT_MAX, optional=True
    )
    log_retention_hours: int | None = option(
        None, "As `log.retention.ms`; used if neither it nor the minutes are set.", "int", unit="hours", low=-1, high=INT_MAX,
        optional=True, differs="Kafka: 168. See `retention.ms`.",
    )
    log_retention_bytes: int = default_of(TopicConfig, "retention_bytes")
    log_segment_bytes: int = default_of(TopicConfig, "segment_bytes")
    log_roll_ms: int = default_of(TopicConfig, "segment_ms")
    log_roll_hours: int | None = option(
        None, "As `log.roll.ms`; used if it is not set.", "int", unit="hours", low=1, high=INT_MAX, optional=True
    )
    log_roll_jitter_ms: int = default_of(TopicConfig, "segment_jitter_ms")
    log_roll_jitter_hours: int | None = option(
        None, "As `log.roll.jitter.ms`; used if it is not set.", "int", unit="hours", low=0, high=INT_MAX, optional=True
    )
    log_index_size_max_bytes: int = default_of(TopicConfig, "segment_index_bytes")
    log_index_interval_bytes: int = default_of(TopicConfig, "index_interval_bytes")
    log_preallocate: bool = default_of(TopicConfig, "preallocate")
    message_max_bytes: int = default_of(TopicConfig, "max_message_bytes")
    max_decompressed_message_bytes: int = default_of(TopicConfig, "max_decompressed_message_bytes")
    compression_type: str = default_of(TopicConfig, "compression_type")
    compression_gzip_level: int = default_of(TopicConfig, "compression_gzip_level")
    compression_lz4_level: int = default_of(TopicConfig, "compression_lz4_level")
    compression_zstd_level: int = default_of(TopicConfig, "compression_zstd_level")
    log_message_timestamp_type: str = default_of(TopicConfig, "message_timestamp_type")
    log_message_timestamp_before_max_ms: int = default_of(TopicConfig, "message_timestamp_before_max_ms")
    log_message_timestamp_after_max_ms: int = default_of(TopicConfig, "message_timestamp_after_max_ms")
    log_flush_interval_messages: int = default_of(TopicConfig, "flush_messages")
    log_flush_interval_ms: int = default_of(TopicConfig, "flush_ms")
    log_segment_delete_delay_ms: int = default_of(TopicConfig, "file_delete_delay_ms")
    min_insync_replicas: int = default_of(
        TopicConfig, "min_insync_replicas",
        differs="Kafka does not store it. A set stores a value above 1 with each topic that this log creates. For a topic without"
        " a value it applies to this process. One directory refuses at once, because no second one can appear.",
    )
    unclean_leader_election_enable: bool = default_of(TopicConfig, "unclean_leader_election_enable")
    log_cleaner_min_cleanable_ratio: float = default_of(TopicConfig, "min_cleanable_dirty_ratio")
    log_cleaner_min_compaction_lag_ms: int = default_of(TopicConfig, "min_compaction_lag_ms")
    log_cleaner_max_compaction_lag_ms: int = default_of(TopicConfig, "max_compaction_lag_ms")
    log_cleaner_delete_retention_ms: int = default_of(TopicConfig, "delete_retention_ms")
    log_cleaner_enable: bool = option(True, "Whether housekeeping compacts topics with this `cleanup.policy`.")
    log_cleaner_backoff_ms: int = option(15_000, "Time between two checks for partitions to compact.", unit="ms", low=1)
    log_cleaner_dedupe_buffer_size: int = option(
        128 << 20, "Memory for the latest offsets of keys; further keys wait for the next pass.", unit="bytes", low=1 << 10,
    )

    # The directory as a whole.
    num_partitions: int = option(
        1, "Partitions of a topic that is created without a number of its own.", unit="partitions", low=1,
        high=PARTITIONS_MAX,
    )
    auto_create_topics_enable: bool = option(
        False, "Whether the use of a missing topic creates it.",
        differs="Kafka: true. A misspelt name must be an error, so only false is accepted.",
    )
    log_retention_check_interval_ms: int = option(300_000, "Time between two rounds of retention.", unit="ms", low=1)
    log_initial_task_delay_ms: int = option(30_000, "Time from opening to the first round of housekeeping.", unit="ms", low=0)
    log_flush_scheduler_interval_ms: int = option(
        250, "Time between two checks for records to sync by `flush.ms`.", unit="ms", low=1,
        differs="Kafka: never. It applies `flush.ms`, which is not `never` here either.",
    )
    log_flush_offset_checkpoint_interval_ms: int = option(
        60_000, "Time between two writings of the recovery-point, log-start-offset and replication-offset checkpoints;"
        " `delete_records` writes log starts at once.", unit="ms", low=0, high=INT_MAX,
    )
    producer_id_expiration_ms: int = option(
        DAY_MS, "A producer without appends for this time expires, unless it has an open transaction.", unit="ms", low=1,
        high=INT_MAX,
    )
    transaction_max_timeout_ms: int = option(
        900_000, "The maximum `transaction.timeout.ms` of a producer.", unit="ms", low=1, high=INT_MAX
    )
    transactional_id_expiration_ms: int = option(
        7 * DAY_MS, "A transactional id that is unused for this time expires.", unit="ms", low=1, high=INT_MAX
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = option(
        1000, "Time between two checks for transactions whose producer is gone.", unit="ms", low=1, high=INT_MAX,
        differs="Kafka: 10000. A check costs less here than in a broker with thousands of producers.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = option(
        3_600_000, "Time between two checks for expired transactional ids.", unit="ms", low=1, high=INT_MAX
    )
    transaction_state_log_num_partitions: int = option(
        50, "Partitions of `__transaction_state` at its creation; an existing topic is unchanged.", unit="partitions", low=1,
        high=PARTITIONS_MAX,
    )
    transaction_state_log_segment_bytes: int = option(
        104_857_600, "`segment.bytes` of `__transaction_state` at its creation.", unit="bytes", low=14, high=INT_MAX
    )
    transaction_state_log_replication_factor: int = option(
        3, "Directories with a copy of `__transaction_state` at its creation in a set; fewer if the set has fewer.",
        unit="directories", low=1, high=64, differs="Kafka refuses the creation with fewer brokers.",
    )
    transaction_state_log_min_isr: int = option(
        2, "`min.insync.replicas` of `__transaction_state` at its creation in a set; at most one less than its copies.",
        unit="directories", low=1, high=64,
    )
    offsets_topic_replication_factor: int = option(
        3, "Directories with a copy of `__consumer_offsets` at its creation in a set; fewer if the set has fewer.",
        unit="directories", low=1, high=64, differs="Kafka refuses the creation with fewer brokers.",
    )
    offsets_topic_num_partitions: int = option(
        50, "Partitions of `__consumer_offsets` at its creation; an existing topic is unchanged.", unit="partitions", low=1,
        high=PARTITIONS_MAX,
    )
    offsets_topic_segment_bytes: int = option(
        4 << 20, "`segment.bytes` of `__consumer_offsets` at its creation.", unit="bytes", low=14, high=INT_MAX,
        differs="Kafka: 104857600. A process that opens a group reads its partition, whose newest segment is never compacted.",
    )
    offsets_retention_minutes: int = option(
        10_080, "The offsets of a group expire this time after its last member left or committed.", unit="minutes", low=1,
        high=INT_MAX,
    )
    offsets_retention_check_interval_ms: int = option(
        600_000, "Time between two checks for expired offsets.", unit="ms", low=1
    )
    offset_metadata_max_bytes: int = option(
        4096, "The longest metadata of a committed offset, in UTF-8.", unit="bytes", low=0, high=32_767
    )
    group_min_session_timeout_ms: int = option(
        6_000, "The minimum `session.timeout.ms` of a member.", unit="ms", low=0, high=INT_MAX
    )
    group_max_session_timeout_ms: int = option(
        1_800_000, "The maximum `session.timeout.ms` of a member.", unit="ms", low=0, high=INT_MAX
    )
    group_max_size: int = option(INT_MAX, "Members that a group may have.", unit="members", low=1, high=INT_MAX)
    group_initial_rebalance_delay_ms: int = option(
        0, "How long a new group waits for further members.", unit="ms", low=0, high=INT_MAX,
        differs="Kafka: 3000. Members on one machine do not need three seconds to join.",
    )
    lock_timeout_ms: int = option(
        10_000, "How long a call waits for a lock of another process before it fails with the name of the holder.", unit="ms",
        low=0, differs="Not in Kafka: a broker has no other processes in its directory.",
    )
    file_mode: int = option(
        0o666, "Permission bits of new files, before the umask; directories also get the matching execute bits.",
        "mode", low=0o600, high=0o777, differs="Not in Kafka: a log directory may belong to several users.",
    )
    shared: str = option(
        "no",
        'Whether the directory may be on a file system with unreliable mappings, such as NFS. "locks": nothing is mapped, and'
        " positions are read under locks. It is slower, must be equal in all processes, and a lost lock can corrupt the log.",
        "choice", choices=("no", "locks"), differs="Not in Kafka: a broker never shares its directory.",
    )
    follow_links: bool = option(
        False,
        "Whether the directory of a partition may be a symbolic link. Only for a log directory whose links you created"
        " yourself: links of a received directory could point to any directory of yours.",
        differs="Not in Kafka: a broker follows them.",
    )
    housekeeping: bool = option(
        True, "Whether this process may run the housekeeping thread; `log.housekeep()` runs it once.",
        differs="Not in Kafka: a broker always runs these threads.",
    )
    max_decompressed_batch_bytes: int = option(
        1 << 30, "Largest uncompressed size of a batch that is read. Producers store larger batches uncompressed.",
        unit="bytes", low=1 << 20, high=INT_MAX,
        differs="Not in Kafka: Kafka limits single records and streams batches. Here a batch is in memory as a whole.",
    )
    max_open_files: int = option(
        400, "File descriptors that are kept open for reads, appends and syncs; the least used are closed. A process needs"
        " about 30 more.",
        unit="files", low=16, high=INT_MAX, differs="Not in Kafka: Kafka keeps every segment open.",
    )

    def _check_together(self) -> None:
        if self.auto_create_topics_enable:
            raise ConfigError("auto.create.topics.enable", expected="false: topics are created by create_topic()", found="true")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                "group.min.session.timeout.ms",
                expected=f"at most group.max.session.timeout.ms ({self.group_max_session_timeout_ms})",
                found=self.group_min_session_timeout_ms,
            )
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise ConfigError(
                "replica.fetch.wait.max.ms",
                expected=f"at most replica.lag.time.max.ms ({self.replica_lag_time_max_ms})",
                found=self.replica_fetch_wait_max_ms,
            )
        self.check_topic_config({})

    def topic_config(self, overrides: Mapping[str, Any]) -> TopicConfig:
        """The configuration of a topic that sets `overrides` itself; names of a newer version are ignored.

        A topic may have a `max.compaction.lag.ms` below its `min.compaction.lag.ms`: the defaults of this log differ, or an
        earlier version accepted both. Then no record is compacted before the minimum, and none must be after the maximum.
        Raises ConfigError for other invalid settings.
        """
        try:
            return self.check_topic_config(overrides)
        except ConfigError:
            return self.check_topic_config({**overrides, "max.compaction.lag.ms": str(LONG_MAX)})

    def check_topic_config(self, overrides: Mapping[str, Any]) -> TopicConfig:
        """As `topic_config`. Raises ConfigError for settings that are not valid together, too."""
        if all(isinstance(value, str) for value in overrides.values()):
            return _merge(self, self.given, tuple(sorted(overrides.items())))
        return self._merge(overrides)

    def _merge(self, overrides: Mapping[str, Any]) -> TopicConfig:
        return overlay(TopicConfig(**self._topic_defaults()), known_only(TopicConfig, overrides))

    def _topic_defaults(self) -> dict[str, Any]:
        values = {underscored(topic_option): getattr(self, name) for name, topic_option in _TOPIC_OPTIONS.items()}
        for name, coarser in _COARSER.items():
            for unit_name, unit_ms in coarser:
                value = getattr(self, unit_name)
                if name not in self.given and value is not None:
                    values[underscored(_TOPIC_OPTIONS[name])] = value * unit_ms if value >= 0 else -1
                    break
        return values


_TOPIC_OPTIONS = {
    name: option.topic_option for name, option in options_of(LogConfig).items() if option.topic_option
}

# Of several units, the finest one that is set applies, as in Kafka.
_COARSER = {
    "log_retention_ms": (("log_retention_minutes", 60_000), ("log_retention_hours", 3_600_000)),
    "log_roll_ms": (("log_roll_hours", 3_600_000),),
    "log_roll_jitter_ms": (("log_roll_jitter_hours", 3_600_000),),
}


@lru_cache(maxsize=4096)
def _merge(log: LogConfig, given: frozenset[str], overrides: tuple[tuple[str, str], ...]) -> TopicConfig:
    """One object for all topics with the same settings, because a merge takes as long as opening a partition.

    `given` is part of the key only: logs that differ in it alone are equal, and get other defaults (`_topic_defaults`).
    """
    return log._merge(dict(overrides))
