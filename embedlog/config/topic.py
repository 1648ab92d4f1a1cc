"""The options of topics and of a log directory; those of producers and consumers come along from `client`.

TOPICCONFIG-1  names, meanings, ranges and defaults are Kafka 4's, unless the field says what differs and why
TOPICCONFIG-2  a topic's configuration is the log's defaults, overlaid with what the topic itself sets
TOPICCONFIG-3  what is stored for a topic are its own settings only, as texts, so that a change of the defaults reaches it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from embedlog.config.client import ConsumerConfig, ProducerConfig
from embedlog.config.options import INT_MAX, LONG_MAX, Options, known_only, option, options_of, overlay, parse, twin, underscored
from embedlog.errors import ConfigError, RecordTooLargeError

__all__ = ["ConsumerConfig", "LogConfig", "ProducerConfig", "TopicConfig", "parse"]

DAY_MS = 86_400_000
CODEC_NAMES = ("uncompressed", "gzip", "snappy", "lz4", "zstd")

_TIERED = "there is no tiered storage"
_LEGACY = "Kafka 4 has dropped it, only record format 2 is written"
_ONE_COPY = "there are no replicas yet: no other directory could take over"
_NO_SHARE = "there are no share groups"
_INTERNAL = "Kafka has it for its own tests"
_NO_SERVER = "there is no server"
_FIGURES = "the windows of metrics() are fixed: totals since the start, rates of the last minute"


@dataclass(frozen=True, kw_only=True)
class TopicConfig(Options):
    """What can be set for one topic."""

    WHOSE: ClassVar[str] = "a topic"
    REFUSED: ClassVar[Mapping[str, str]] = {
        r"remote\..*|local\.retention\..*": _TIERED,
        r"(leader|follower)\.replication\.throttled\.replicas": "there is no network to throttle",
        r"message\.(format\.version|downconversion\.enable|timestamp\.difference\.max\.ms)": _LEGACY,
        r"unclean\.leader\.election\.enable": _ONE_COPY,
        r"errors\.deadletterqueue\..*": _NO_SHARE,
        r"internal\..*": _INTERNAL,
        r"replication\.factor": "it is not a setting of a topic but of its creation",
    }
    RENAMED: ClassVar[Mapping[str, str]] = {
        "num.partitions": "partitions", "partition.count": "partitions", "if.not.exists": "exist_ok", "exists.ok": "exist_ok",
        "log.cleanup.policy": "cleanup.policy", "log.retention.ms": "retention.ms", "log.retention.bytes": "retention.bytes",
        "log.segment.bytes": "segment.bytes", "log.roll.ms": "segment.ms", "log.flush.interval.messages": "flush.messages",
        "log.flush.interval.ms": "flush.ms", "message.max.bytes": "max.message.bytes", "compression.codec": "compression.type",
    }
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("partitions", "config", "exist_ok")

    cleanup_policy: tuple[str, ...] = option(
        ("delete",), "What becomes of old segments: deleted, or compacted to the last record of every key, or both.",
        choices=("delete", "compact"),
    )
    retention_ms: int = option(
        -1, "A segment is deleted when its newest record is older than this; -1: never.", unit="ms", low=-1,
        differs="Kafka: 604800000 (seven days). A library must not delete what nobody asked it to delete.",
    )
    retention_bytes: int = option(
        -1, "Oldest segments of a partition are deleted while the rest still has this size; negative: never.", unit="bytes",
        low=-LONG_MAX - 1,
    )
    segment_bytes: int = option(
        1 << 30, "A segment that would grow beyond this is closed and the next one begun.", unit="bytes", low=14, high=INT_MAX,
        differs="Kafka 4: at least 1048576. Small segments are cheap here and make good tests.",
    )
    segment_ms: int = option(7 * DAY_MS, "A segment is closed when it spans more time than this.", unit="ms", low=1)
    segment_jitter_ms: int = option(
        0, "Up to this is taken off `segment.ms` at random, so that partitions do not roll all at once.", unit="ms", low=0
    )
    segment_index_bytes: int = option(
        10 << 20, "Size of an index file that is full and closes its segment.", unit="bytes", low=4, high=INT_MAX
    )
    index_interval_bytes: int = option(
        4096, "Log bytes between two index entries: a smaller value makes lookups shorter and indexes larger.", unit="bytes",
        low=0, high=INT_MAX,
    )
    preallocate: bool = option(False, "Reserve the whole file when a segment is created.")
    max_message_bytes: int = option(
        1_048_588, "Largest batch that is taken, as it is stored, that is after compression.", unit="bytes", low=0, high=INT_MAX
    )
    compression_type: str = option(
        "producer", "How batches are stored: as the producer compressed them, or in this codec always.", "choice",
        choices=("producer", *CODEC_NAMES),
    )
    compression_gzip_level: int = option(-1, "Level for gzip; -1 is zlib's own choice.", low=1, high=9, also=(-1,))
    compression_lz4_level: int = option(9, "Level for lz4.", low=1, high=17)
    compression_zstd_level: int = option(3, "Level for zstd.", low=-131072, high=22)
    message_timestamp_type: str = option(
        "CreateTime", "Whose time a record carries: the producer's, or that of the append.", "choice",
        choices=("CreateTime", "LogAppendTime"),
    )
    max_decompressed_message_bytes: int = option(
        INT_MAX - 8, "Largest record, before compression, that is taken into a compressed batch (`InvalidRecordError`).",
        unit="bytes", low=1, high=INT_MAX - 8,
        differs="Kafka 4.4 then also fails to compact, and to look up by time, what is larger already. Here both go on.",
    )
    message_timestamp_before_max_ms: int = option(
        LONG_MAX, "A record older than this when it is appended is refused (CreateTime only).", unit="ms", low=0
    )
    message_timestamp_after_max_ms: int = option(
        3_600_000, "A record this far in the future when it is appended is refused (CreateTime only).", unit="ms", low=0
    )
    flush_messages: int = option(
        LONG_MAX, "Sync after this many records; with 1, a record is acknowledged only when it is on stable storage.",
        unit="records", low=1,
    )
    flush_ms: int = option(
        1000, "Sync records at this age: what a power loss can cost at most.", unit="ms", low=0,
        differs="Kafka: never. A broker leans on its replicas, one directory has only its disk.",
    )
    file_delete_delay_ms: int = option(
        60_000, "Time between the renaming of a file that is no longer needed and its removal; readers finish meanwhile.",
        unit="ms", low=0,
    )
    min_insync_replicas: int = option(
        1, "With `acks=all`, fewer directories in sync than this refuse an append. There are no replicas yet, so 2 or more refuse"
        " every one (`NotEnoughReplicasError`); `acks=1`, `acks=0` and what the log itself writes are let in.",
        unit="directories", low=1, high=INT_MAX,
        differs="Kafka repeats the attempt until `delivery.timeout.ms`. Waiting brings no second directory.",
    )
    min_cleanable_dirty_ratio: float = option(
        0.5, "Compaction begins when more than this part of the log has not been compacted yet.", low=0, high=1
    )
    min_compaction_lag_ms: int = option(0, "A record younger than this is never compacted away.", unit="ms", low=0)
    max_compaction_lag_ms: int = option(
        LONG_MAX, "A record older than this is compacted whatever the dirty ratio is.", unit="ms", low=1
    )
    delete_retention_ms: int = option(
        DAY_MS, "How long a tombstone stays readable after compaction has reached it.", unit="ms", low=0
    )

    def _check_together(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms", expected=f"at most max.compaction.lag.ms ({self.max_compaction_lag_ms})",
                found=self.min_compaction_lag_ms,
            )

    @property
    def batch_limit(self) -> int:
        """Bytes of the largest batch that is taken."""
        return min(self.max_message_bytes, self.segment_bytes)

    def check_batch(self, size: int, what: str) -> None:
        """Raises RecordTooLargeError, which names the setting that limits, for a batch of `size` bytes that holds `what`."""
        if size > self.batch_limit:
            name = "max.message.bytes" if self.max_message_bytes <= self.segment_bytes else "segment.bytes"
            expected = f"at most {self.batch_limit} bytes, which alter_topic() can raise"
            raise RecordTooLargeError(f"{what} is larger than {name}", expected=expected, found=size)

    @property
    def compacted(self) -> bool:
        """Whether only the last record of each key is kept: records need keys then."""
        return "compact" in self.cleanup_policy


@dataclass(frozen=True, kw_only=True)
class LogConfig(Options):
    """What can be set when a log directory is opened: defaults of its topics, and how this process behaves in it."""

    WHOSE: ClassVar[str] = "a log"
    REFUSED: ClassVar[Mapping[str, str]] = {
        r"log\.dirs?": "the directory is the first argument of open()",
        r"(broker|node)\.id": "meta.properties has the node's identity",
        r"(advertised\.)?listeners|listener\..*|inter\.broker\..*|num\.(network|io)\.threads|queued\..*|socket\..*"
        r"|connections?\..*|max\.connections.*|ssl\..*|sasl\..*|security\..*|authorizer\..*|quota\..*": _NO_SERVER,
        r"zookeeper\..*|controller\..*|process\.roles|metadata\.log\..*|broker\..*": "there is no server and no controller",
        r"remote\..*|log\.(remote|local)\..*|follower\.fetch\.last\.tiered.*": _TIERED,
        r"log\.message\.(format\.version|downconversion\.enable|timestamp\.difference\.max\.ms)": _LEGACY,
        r"unclean\.leader\.election\..*": _ONE_COPY,
        r"replica\.high\.watermark\.checkpoint\.interval\.ms|log\.flush\.start\.offset\.checkpoint\.interval\.ms":
            "all checkpoints are written together, every log.flush.offset.checkpoint.interval.ms",
        r"num\.recovery\.threads\.per\.data\.dir": "a partition is checked when it is first used, by the thread that uses it",
        r"(replica|replication|num\.replica|leader|auto\.leader|alter\.log\.dirs)\..*|default\.replication\.factor"
        r"|(offsets\.topic|transaction\.state\.log)\.(replication\.factor|min\.isr)": "there are no replicas yet",
        r"errors\.deadletterqueue\..*|share\..*|group\.share\..*": _NO_SHARE,
        r"group\.streams\..*": "there are no groups of Kafka Streams",
        r"group\.(consumer|coordinator)\..*|offsets\.load\..*|offsets\.commit\.timeout\.ms|transaction\.state\.log\.load\..*"
        r"|transaction\.partition\.verification\..*|add\.partitions\.to\.txn\..*": "there is no coordinator",
        r"transaction\.two\.phase\.commit\.enable": "a transaction that is open for longer than its timeout is aborted",
        r"offsets\.topic\.compression\.codec": "what the log itself writes is small, and not compressed",
        r"producer\.id\.expiration\.check\.interval\.ms": "producers are forgotten every log.retention.check.interval.ms",
        r"log\.cleaner\.(threads|io\..*)": "one thread compacts, at the pace of the disk",
        r"(delete|create)\.topic\..*|alter\.config\..*|delegation\..*|principal\..*|client\.quota\..*":
            "access to the directory is all the access there is",
        r"internal\..*|unstable\..*": _INTERNAL,
        r"(kafka\.metrics|metrics|metric|telemetry)\..*": _FIGURES,
        r".*purgatory.*|config\.providers.*|max\.(connection|incremental|request)\..*|fetch\.max\.bytes|metadata\.max\..*"
        r"|background\.threads|request\.timeout\.ms|controlled\..*|cordoned\..*|early\.start\..*|initial\.broker\..*"
        r"|server\..*|log\.dir\.failure\..*": _NO_SERVER,
    }
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("read_only", "create", "config")

    # Defaults of topics: Kafka's names at this level, one for one.
    log_cleanup_policy: tuple[str, ...] = twin(TopicConfig, "cleanup_policy")
    log_retention_ms: int = twin(TopicConfig, "retention_ms")
    log_retention_minutes: int | None = option(
        None, "As `log.retention.ms`; used if that is not set.", "int", unit="minutes", low=-1, high=INT_MAX, optional=True
    )
    log_retention_hours: int | None = option(
        None, "As `log.retention.ms`; used if neither that nor the minutes are set.", "int", unit="hours", low=-1, high=INT_MAX,
        optional=True, differs="Kafka: 168. See `retention.ms`.",
    )
    log_retention_bytes: int = twin(TopicConfig, "retention_bytes")
    log_segment_bytes: int = twin(TopicConfig, "segment_bytes")
    log_roll_ms: int = twin(TopicConfig, "segment_ms")
    log_roll_hours: int | None = option(
        None, "As `log.roll.ms`; used if that is not set.", "int", unit="hours", low=1, high=INT_MAX, optional=True
    )
    log_roll_jitter_ms: int = twin(TopicConfig, "segment_jitter_ms")
    log_roll_jitter_hours: int | None = option(
        None, "As `log.roll.jitter.ms`; used if that is not set.", "int", unit="hours", low=0, high=INT_MAX, optional=True
    )
    log_index_size_max_bytes: int = twin(TopicConfig, "segment_index_bytes")
    log_index_interval_bytes: int = twin(TopicConfig, "index_interval_bytes")
    log_preallocate: bool = twin(TopicConfig, "preallocate")
    message_max_bytes: int = twin(TopicConfig, "max_message_bytes")
    max_decompressed_message_bytes: int = twin(TopicConfig, "max_decompressed_message_bytes")
    compression_type: str = twin(TopicConfig, "compression_type")
    compression_gzip_level: int = twin(TopicConfig, "compression_gzip_level")
    compression_lz4_level: int = twin(TopicConfig, "compression_lz4_level")
    compression_zstd_level: int = twin(TopicConfig, "compression_zstd_level")
    log_message_timestamp_type: str = twin(TopicConfig, "message_timestamp_type")
    log_message_timestamp_before_max_ms: int = twin(TopicConfig, "message_timestamp_before_max_ms")
    log_message_timestamp_after_max_ms: int = twin(TopicConfig, "message_timestamp_after_max_ms")
    log_flush_interval_messages: int = twin(TopicConfig, "flush_messages")
    log_flush_interval_ms: int = twin(TopicConfig, "flush_ms")
    log_segment_delete_delay_ms: int = twin(TopicConfig, "file_delete_delay_ms")
    min_insync_replicas: int = twin(TopicConfig, "min_insync_replicas")
    log_cleaner_min_cleanable_ratio: float = twin(TopicConfig, "min_cleanable_dirty_ratio")
    log_cleaner_min_compaction_lag_ms: int = twin(TopicConfig, "min_compaction_lag_ms")
    log_cleaner_max_compaction_lag_ms: int = twin(TopicConfig, "max_compaction_lag_ms")
    log_cleaner_delete_retention_ms: int = twin(TopicConfig, "delete_retention_ms")
    log_cleaner_enable: bool = option(True, "Whether housekeeping compacts the topics whose `cleanup.policy` says so.")
    log_cleaner_backoff_ms: int = option(15_000, "Time between two looks for something to compact.", unit="ms", low=1)
    log_cleaner_dedupe_buffer_size: int = option(
        128 << 20, "Memory for the latest offsets of keys; what does not fit waits for a next pass.", unit="bytes", low=1 << 10,
    )

    # The directory as a whole.
    num_partitions: int = option(
        1, "Partitions of a topic that is created without a number.", unit="partitions", low=1, high=INT_MAX
    )
    auto_create_topics_enable: bool = option(
        False, "Whether using a topic that is not there creates it.",
        differs="Kafka: true. A misspelt name must be an error, so only false is taken.",
    )
    log_retention_check_interval_ms: int = option(300_000, "Time between two rounds of retention.", unit="ms", low=1)
    log_initial_task_delay_ms: int = option(30_000, "Time from opening to the first round of housekeeping.", unit="ms", low=0)
    log_flush_scheduler_interval_ms: int = option(
        250, "How often the housekeeper looks for records that `flush.ms` wants synced.", unit="ms", low=1,
        differs="Kafka: never. It carries out `flush.ms`, which is not `never` here either.",
    )
    log_flush_offset_checkpoint_interval_ms: int = option(
        60_000, "Time between two writings of the recovery-point, log-start-offset and replication-offset checkpoints;"
        " `delete_records` writes log starts at once.", unit="ms", low=0, high=INT_MAX,
    )
    producer_id_expiration_ms: int = option(
        DAY_MS, "A producer that wrote nothing for so long is forgotten, unless it has an open transaction.", unit="ms", low=1,
        high=INT_MAX,
    )
    transaction_max_timeout_ms: int = option(
        900_000, "The longest `transaction.timeout.ms` that a producer may ask for.", unit="ms", low=1, high=INT_MAX
    )
    transactional_id_expiration_ms: int = option(
        7 * DAY_MS, "A transactional id that nobody used for so long is forgotten.", unit="ms", low=1, high=INT_MAX
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = option(
        1000, "How often the housekeeper looks for transactions that nobody will end.", unit="ms", low=1, high=INT_MAX,
        differs="Kafka: 10000. Looking costs a process less than it costs a broker of thousands of producers.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = option(
        3_600_000, "How often the housekeeper looks for transactional ids to forget.", unit="ms", low=1, high=INT_MAX
    )
    transaction_state_log_num_partitions: int = option(
        50, "Partitions of `__transaction_state` when it is made; one that is there stays as it is.", unit="partitions", low=1,
        high=INT_MAX,
    )
    transaction_state_log_segment_bytes: int = option(
        104_857_600, "`segment.bytes` of `__transaction_state` when it is made.", unit="bytes", low=14, high=INT_MAX
    )
    offsets_topic_num_partitions: int = option(
        50, "Partitions of `__consumer_offsets` when it is made; one that is there stays as it is.", unit="partitions", low=1,
        high=INT_MAX,
    )
    offsets_topic_segment_bytes: int = option(
        4 << 20, "`segment.bytes` of `__consumer_offsets` when it is made.", unit="bytes", low=14, high=INT_MAX,
        differs="Kafka: 104857600. Who opens a group reads its partition, of which the newest segment is never compacted.",
    )
    offsets_retention_minutes: int = option(
        10_080, "A group's offsets are forgotten so long after it has lost its last member or committed.", unit="minutes", low=1,
        high=INT_MAX,
    )
    offsets_retention_check_interval_ms: int = option(
        600_000, "Time between two looks for offsets to forget.", unit="ms", low=1
    )
    offset_metadata_max_bytes: int = option(
        4096, "The longest note that may be committed with an offset, in UTF-8.", unit="bytes", low=0, high=32_767
    )
    group_min_session_timeout_ms: int = option(
        6_000, "The shortest `session.timeout.ms` that a member may ask for.", unit="ms", low=0, high=INT_MAX
    )
    group_max_session_timeout_ms: int = option(
        1_800_000, "The longest `session.timeout.ms` that a member may ask for.", unit="ms", low=0, high=INT_MAX
    )
    group_max_size: int = option(INT_MAX, "Members that a group may have.", unit="members", low=1, high=INT_MAX)
    group_initial_rebalance_delay_ms: int = option(
        0, "How long a new group waits for further members.", unit="ms", low=0, high=INT_MAX,
        differs="Kafka: 3000. Members on one machine need no three seconds to find each other.",
    )
    lock_timeout_ms: int = option(
        10_000, "How long a call waits for a lock that another process holds before it fails and names the holder.", unit="ms",
        low=0, differs="Ours: a broker has no other processes in its directory.",
    )
    file_mode: int = option(
        0o666, "Permission bits of new files, before the umask; directories get the execute bits that go with them.",
        "mode", low=0o600, high=0o777, differs="Ours: a log directory may belong to several users.",
    )
    shared: str = option(
        "no",
        'Whether the directory may lie on a file system whose mappings are not to be trusted, such as NFS. "locks": nothing is'
        " mapped, positions are read again under locks: slower, the same for every process, and a lock that is lost can corrupt.",
        "choice", choices=("no", "locks"), differs="Ours: a broker never shares its directory.",
    )
    follow_links: bool = option(
        False,
        "Whether a partition's directory may be a symbolic link to one elsewhere. Only for a log directory whose links you made"
        " yourself: with one that you received, any directory of yours could be written to.",
        differs="Ours: a broker follows them.",
    )
    housekeeping: bool = option(
        True, "Whether this process may run the housekeeping thread; `log.housekeep()` does it by hand.",
        differs="Ours: a broker always has its own threads.",
    )
    max_decompressed_batch_bytes: int = option(
        1 << 30, "Uncompressed size of a batch up to which it is read. A producer stores what is larger uncompressed.",
        unit="bytes", low=1 << 20, high=INT_MAX,
        differs="Ours: Kafka bounds single records, and streams their batch. Here one batch is in memory as a whole.",
    )
    max_open_files: int = option(
        400, "File descriptors that are kept open for reading, appending and syncing; the least used are closed. A process needs"
        " about 30 more of its own.",
        unit="files", low=16, high=INT_MAX, differs="Ours: Kafka keeps every segment open.",
    )

    def _check_together(self) -> None:
        if self.auto_create_topics_enable:
            raise ConfigError("auto.create.topics.enable", expected="false: topics are made by create_topic()", found="true")
        least, most = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        if least > most:
            expected = f"at most group.max.session.timeout.ms ({most})"
            raise ConfigError("group.min.session.timeout.ms", expected=expected, found=least)
        self.topic_config({})

    def topic_config(self, overrides: Mapping[str, Any]) -> TopicConfig:
        """The configuration of a topic that sets `overrides` itself; names that only a newer version knows are left out."""
        if all(isinstance(value, str) for value in overrides.values()):
            return _merged(self, self.given, tuple(sorted(overrides.items())))
        return self._merged(overrides)

    def _merged(self, overrides: Mapping[str, Any]) -> TopicConfig:
        return overlay(TopicConfig(**self._topic_defaults()), known_only(TopicConfig, overrides))

    def _topic_defaults(self) -> dict[str, Any]:
        values = {underscored(twin_of): getattr(self, name) for name, twin_of in _TWINS.items()}
        for name, coarser in _COARSER.items():
            for unit_name, unit_ms in coarser:
                value = getattr(self, unit_name)
                if name not in self.given and value is not None:
                    values[underscored(_TWINS[name])] = value * unit_ms if value >= 0 else -1
                    break
        return values


_TWINS = {name: known.twin for name, known in options_of(LogConfig).items() if known.twin}

# Of several units the finest that was set wins, as in Kafka.
_COARSER = {
    "log_retention_ms": (("log_retention_minutes", 60_000), ("log_retention_hours", 3_600_000)),
    "log_roll_ms": (("log_roll_hours", 3_600_000),),
    "log_roll_jitter_ms": (("log_roll_jitter_hours", 3_600_000),),
}


@lru_cache(maxsize=4096)
def _merged(log: LogConfig, given: frozenset[str], overrides: tuple[tuple[str, str], ...]) -> TopicConfig:
    """One object for all partitions of all topics with the same settings: merging takes as long as opening a partition."""
    return log._merged(dict(overrides))
