"""Defines the options of producers and consumers.

- Names, meanings, ranges and defaults are Kafka's; an option for the connection to a server is
  refused with that reason.
- If two options conflict, a default is changed, as in Kafka's client, but a value that was set is
  an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from embedlog.config.options import INT_MAX, Options, configuration, dotted, option
from embedlog.errors import ConfigError
from embedlog.types import CODECS

_EMPTY = (("", None),)  # Kafka's default for the name of a client or a rack
_NO_SERVER = "there is no server; a log directory is opened by its path"

if TYPE_CHECKING:  # type variables have defaults from Python 3.13 on; type checkers know them earlier
    from typing_extensions import TypeVar

    from embedlog.config.callables import Deserializer, Partitioner, Serializer

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")


_NETWORK = {
    r"bootstrap\..*|metadata\.broker\.list|zookeeper\..*|client\.dns\.lookup|connections?\..*|reconnect\.backoff\..*|socket\..*"
    r"|send\.buffer\.bytes|receive\.buffer\.bytes|security\..*|ssl\..*|sasl\..*|api\.version.*|broker\..*"
    r"|metadata\.(recovery|cluster\.check)\..*|enable\.metrics\.push|auto\.include\.jmx\.reporter|metric\.?reporters?"
    r"|config\.providers.*": _NO_SERVER,
    r"kafka\.client|selector|proxy\.url|socks5\.proxy|receive\.message\.max\.bytes|oauth.*|resolve\.cb"
    r"|topic\.metadata\.refresh\.(sparse|fast\.interval\.ms)": _NO_SERVER,
    r"metrics\.(recording\.level|enabled)|metric\.group\.prefix": "all metrics are always recorded",
    r"statistics\.interval\.ms": "metrics() returns the present values",
    r"loop": "the running event loop is used",
    r"(error|stats|throttle|log|background\.event)\.cb|logger|log\.(level|queue|thread\.name|connection\.close)|debug":
        "errors are raised, and the logger is logging.getLogger('embedlog')",
    r"internal\..*": "Kafka uses it in its own tests",
}


def _window_count() -> Any:
    return option(
        2, "The windows that rates, averages and maxima of `metrics()` cover; the newest one is not full.", unit="windows", low=1,
        high=1000, differs="Kafka has no upper limit.",
    )


def _window_ms() -> Any:
    return option(30_000, "Duration of a window of `metrics()`.", unit="ms", low=1, differs="Kafka also accepts 0.")


@configuration
class ProducerConfig(Options):
    """The options of a producer."""

    OWNER_NAME: ClassVar[str] = "a producer"
    REFUSED: ClassVar[Mapping[str, str]] = _NETWORK | {
        r"(key|value)\.serializer\.class": "key_serializer and value_serializer are callables",
        r"metadata\.max\.(age|idle)\.ms|topic\.metadata\.refresh\.interval\.ms":
            "a producer compares its topics with the file of topics at each append",
        r"partitioner\.class": "`partitioner` is a callable, an object with `partition`, or a class",
        r"client\.rack|partitioner\.rack\.aware": "the process writes every replica itself, so none is nearer",
        r"buffer\.memory\.allocation\.strategy": "memory is always allocated as records arrive (in Kafka: incremental)",
        r"transaction\.two\.phase\.commit\.enable": "a transaction that is open for longer than its timeout is aborted",
        r"producer\.type": "send() does not wait for the append; result() of its future does",
        r"compressed\.topics": "a topic has its own compression.type, which alter_topic() sets",
        r"on\.delivery|dr\.(msg\.)?cb|delivery\.callback": "a future has add_done_callback()",
        r"allow\.auto\.create\.topics": "topics are created by create_topic()",
    }
    RENAMED: ClassVar[Mapping[str, str]] = {  # Kafka's first producers, librdkafka, aiokafka
        "request.required.acks": "acks", "message.send.max.retries": "retries", "compression.codec": "compression.type",
        "queue.buffering.max.ms": "linger.ms", "queue.time": "linger.ms", "queue.enqueue.timeout.ms": "max.block.ms",
        "queue.buffering.max.messages": "buffer.memory", "queue.buffering.max.kbytes": "buffer.memory",
        "batch.num.messages": "batch.size", "max.batch.size": "batch.size", "block.on.buffer.full": "max.block.ms",
        "metadata.fetch.timeout.ms": "max.block.ms", "message.timeout.ms": "delivery.timeout.ms",
        "message.max.bytes": "max.request.size", "timeout.ms": "request.timeout.ms", "serializer": "value_serializer",
        "serializer.class": "value_serializer", "max.in.flight": "max.in.flight.requests.per.connection",
        "interceptors": "interceptor.classes",
    }
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("config",)

    client_id: str | None = option(
        None, "A name for logs and metrics; generated if not set.", "text", optional=True, spellings=_EMPTY
    )
    acks: str = option(
        "all", "When a record is acknowledged: 0 at once, 1 in the leading directory, all in every directory in sync.",
        "choice", choices=("all", "-1", "0", "1"),
    )
    enable_idempotence: bool = option(
        True, "Retries write nothing twice; needs acks=all, retries above 0 and at most 5 batches in flight."
    )
    transactional_id: str | None = option(
        None, "The name by which transactions continue after a restart; needs an idempotent producer.", "text", optional=True
    )
    transaction_timeout_ms: int = option(
        60_000, "A transaction that is open for longer is aborted by other processes.", unit="ms", low=1, high=INT_MAX
    )
    batch_size: int = option(
        16_384, "Bytes that `send()` collects into one batch of a partition; 0: one record per batch.", unit="bytes", low=0,
        high=INT_MAX,
    )
    linger_ms: float = option(
        5.0, "How long an incomplete batch waits for more records.", unit="ms", low=0, differs="Fractions are accepted."
    )
    buffer_memory: int = option(
        33_554_432, "Bytes of records that may wait to be written; beyond them `send()` waits.", unit="bytes", low=0
    )
    max_block_ms: int = option(
        60_000, "How long `send()` waits for `buffer.memory` before it fails; also the time for transaction calls.", unit="ms",
        low=0,
    )
    max_request_size: int = option(
        1_048_576, "Largest record, before compression, that `send()` accepts.", unit="bytes", low=0, high=INT_MAX
    )
    delivery_timeout_ms: int = option(
        120_000, "A batch that is not written this long after its first record fails; at least"
        " `linger.ms` + `request.timeout.ms`.", unit="ms", low=0, high=INT_MAX,
    )
    request_timeout_ms: int = option(
        30_000, "How long one attempt to write a batch may wait for locks.", unit="ms", low=0, high=INT_MAX
    )
    retries: int = option(
        INT_MAX, "Attempts after the first; `delivery.timeout.ms` is the practical limit.", unit="attempts", low=0, high=INT_MAX,
        spellings=((inf, INT_MAX),),
    )
    retry_backoff_ms: int = option(100, "Pause before the second attempt; it doubles each time.", unit="ms", low=0)
    retry_backoff_max_ms: int = option(1000, "Longest pause between two attempts.", unit="ms", low=0)
    max_in_flight_requests_per_connection: int = option(
        5, "Batches of one partition in flight. They are always written in order here.", unit="batches",
        low=1, high=INT_MAX, differs="Kafka: above 1, a retry without idempotence may reorder.",
    )
    compression_type: str = option(
        "none", "Codec of whole batches.", "choice", choices=CODECS,
        spellings=((None, "none"),),
    )
    compression_gzip_level: int = option(-1, "Level for gzip; -1 is the default of zlib.", low=1, high=9, also=(-1,))
    compression_lz4_level: int = option(9, "Level for lz4.", low=1, high=17)
    compression_zstd_level: int = option(3, "Level for zstd.", low=-131072, high=22)
    partitioner: Partitioner | None = option(
        None, "Chooses the partition: a callable of (key, all, available) or of (topic, key, key_bytes, value, value_bytes, all),"
        " an object with such a method `partition`, or a class. None: murmur2 of the key, and records without a key go to one"
        " partition for `batch.size` bytes.",
        "partitioner", optional=True,
        differs="Kafka: a class under `partitioner.class`.",
    )
    partitioner_ignore_keys: bool = option(False, "Choose partitions as if records had no keys.")
    partitioner_adaptive_partitioning_enable: bool = option(
        True, "Prefer partitions with short queues for records without keys."
    )
    partitioner_availability_timeout_ms: int = option(
        0, "Records without keys avoid a partition whose batches are this late after `linger.ms`; 0: never. Only with"
        " `partitioner.adaptive.partitioning.enable`.", unit="ms", low=0
    )
    interceptor_classes: tuple[Any, ...] = option(
        (), "Objects or classes whose `on_send` and `on_acknowledgement` are called for every record, in this order.",
        "objects"
    )
    on_delivery_error: str = option(
        "raise", "What flush() and close() do if records failed whose futures were not read: raise a DeliveryError,"
        " or log a warning for each topic and reason. With acks=0: log.", "choice", choices=("raise", "log"),
        differs="Kafka: failures reach futures and callbacks only.",
    )
    key_serializer: Serializer[Any] | None = option(
        None, "Converts keys to bytes; None: keys are bytes.", "serializer", optional=True
    )
    value_serializer: Serializer[Any] | None = option(
        None, "Converts values to bytes; None: values are bytes.", "serializer", optional=True
    )
    metrics_num_samples: int = _window_count()
    metrics_sample_window_ms: int = _window_ms()

    def _check_together(self) -> None:
        if self.acks == "-1":
            object.__setattr__(self, "acks", "all")
        self._check_idempotence()
        least = int(min(self.linger_ms + self.request_timeout_ms, INT_MAX))
        if self.delivery_timeout_ms < least:
            if "delivery_timeout_ms" in self.given:
                expected = f"at least linger.ms + request.timeout.ms ({least})"
                raise ConfigError("delivery.timeout.ms", expected=expected, found=self.delivery_timeout_ms)
            object.__setattr__(self, "delivery_timeout_ms", least)

    def _check_idempotence(self) -> None:
        """If a condition of idempotence is not met: an error if it was set, else the producer is not
        idempotent. With a `transactional_id` it counts as set.
        """
        conflicts = {
            "acks": (self.acks != "all", "all"),
            "retries": (self.retries == 0, "above 0"),
            "max_in_flight_requests_per_connection": (self.max_in_flight_requests_per_connection > 5, "at most 5"),
        }
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigError("enable.idempotence", expected="true, because transactional.id is set", found="false")
        for name, (broken, expected) in conflicts.items():
            if not (broken and self.enable_idempotence):
                continue
            if self.transactional_id is not None or "enable_idempotence" in self.given:
                raise ConfigError(dotted(name), expected=f"{expected}, because of idempotence", found=getattr(self, name))
            object.__setattr__(self, "enable_idempotence", False)


@configuration
class ConsumerConfig(Options):
    """The options of a consumer."""

    OWNER_NAME: ClassVar[str] = "a consumer"
    REFUSED: ClassVar[Mapping[str, str]] = _NETWORK | {
        r"(key|value)\.deserializer\.class": "key_deserializer and value_deserializer are callables",
        r"group": "the name of the group is group.id",
        r"topics?": "topics are given by position: log.consumer('a', 'b')",
        r"enable\.auto\.offset\.store": "commit() commits positions, or the offsets of its argument",
        r"enable\.partition\.eof": "poll() returns at the end, and current_lag() is the distance to it",
        r"(rebalance|offset\.commit)\.cb|listener": "subscribe() takes on_assigned, on_revoked and on_lost",
        r"group\.remote\.assignor": "there is no server; partition.assignment.strategy names the assignors of the members",
        r"request\.timeout\.ms": "there are no requests: default.api.timeout.ms bounds a call",
        r"share\..*": "there are no share groups",
        r"retry\.backoff\.max\.ms": "retries happen every retry.backoff.ms",
        r"enable\.incremental\.fetch\.sessions|max\.in\.flight(\.requests\.per\.connection)?|queued\.min\.messages"
        r"|queued\.max\.messages\.kbytes|fetch\.(error|queue)\.backoff\.ms": "the consumer reads files, without requests",
        r"default\.offset\.commit\.callback": "commit_async() has callback=",
        r"on\.(assigned|revoked|lost|assign|revoke)|on\.commit": "subscribe() takes on_assigned, on_revoked and on_lost",
        r"offset\.store\..*": "offsets are stored in the log",
    }
    RENAMED: ClassVar[Mapping[str, str]] = {  # Kafka's first consumers, librdkafka, aiokafka
        "auto.commit.enable": "enable.auto.commit", "autocommit.enable": "enable.auto.commit",
        "autocommit.interval.ms": "auto.commit.interval.ms", "autooffset.reset": "auto.offset.reset",
        "from.beginning": "auto.offset.reset", "offset.reset": "auto.offset.reset", "groupid": "group.id",
        "fetch.message.max.bytes": "max.partition.fetch.bytes", "fetch.wait.max.ms": "fetch.max.wait.ms",
        "fetch.size": "max.partition.fetch.bytes", "rebalance.timeout.ms": "max.poll.interval.ms",
        "deserializer": "value_deserializer", "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
        "instance.id": "group.instance.id", "timeout.ms": "consumer.timeout.ms", "interceptors": "interceptor.classes",
    }
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("config",)

    client_id: str | None = option(
        None, "A name for logs and metrics; generated if not set.", "text", optional=True, spellings=_EMPTY
    )
    client_rack: str | None = option(
        None, "The location of this consumer: it reads replicas in this rack, if the log's `replica.selector.class` allows it."
        " Assignors may use it, too.", "text", optional=True, spellings=_EMPTY,
    )
    group_id: str | None = option(
        None, "The group whose members share the partitions; required for commits.", "text", optional=True
    )
    group_instance_id: str | None = option(
        None, "The name by which a member rejoins after a restart without a rebalance.", "text", optional=True
    )
    group_protocol: str = option(
        "classic", "What assigns partitions: the leader of the members, or the group.", "choice", choices=("classic", "consumer")
    )
    partition_assignment_strategy: tuple[Any, ...] = option(
        ("range", "cooperative-sticky"), "Assignors in order of preference: names or callables.", "objects"
    )
    session_timeout_ms: int = option(
        45_000, "A member without a heartbeat for this time loses its partitions.", unit="ms", low=1, high=INT_MAX
    )
    heartbeat_interval_ms: int = option(
        3_000, "Time between two heartbeats; below `session.timeout.ms`.", unit="ms", low=1, high=INT_MAX
    )
    max_poll_interval_ms: int = option(
        300_000, "A member that does not poll for this time leaves its group.", unit="ms", low=1, high=INT_MAX
    )
    max_poll_records: int = option(
        500, "Maximum number of records of one poll.", unit="records", low=1, high=INT_MAX, spellings=((None, INT_MAX),)
    )
    enable_auto_commit: bool = option(True, "Commit the records of earlier polls periodically; needs a group.")
    auto_commit_interval_ms: int = option(5_000, "Time between two automatic commits.", unit="ms", low=0, high=INT_MAX)
    auto_offset_reset: str = option(
        "latest", "Where to begin without a valid position: at the start, at the end, this long ago, or with an error.", "choice",
        choices=("earliest", "latest", "none"), pattern=r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?",
        example="by_duration:P3DT12H",
    )
    fetch_min_bytes: int = option(
        1, "A poll with a timeout waits for this many bytes over all partitions …", unit="bytes", low=0, high=INT_MAX,
        differs="Only at the end of the log; a poll without a timeout returns the available records.",
    )
    fetch_max_wait_ms: int = option(500, "… or for at most this time.", unit="ms", low=0, high=INT_MAX)
    poll_spin_us: int = option(
        0, "A waiting poll checks for records without sleeping for this time, before it sleeps: it takes a processor meanwhile.",
        unit="us", low=0, high=INT_MAX,
        differs="Not in Kafka. For the lowest latency between processes on a machine with an idle core.",
    )
    fetch_max_bytes: int = option(
        52_428_800, "Bytes that one poll fetches over all partitions, at least one batch.", unit="bytes", low=0, high=INT_MAX
    )
    max_partition_fetch_bytes: int = option(
        1_048_576, "Bytes that are read from one partition at a time, at least one batch.", unit="bytes", low=0, high=INT_MAX
    )
    check_crcs: bool = option(
        True, "Check every batch before its records are returned.",
        differs="It costs very little here and is always done, so only true is accepted.",
    )
    isolation_level: str = option(
        "read_uncommitted", "Whether records of open and aborted transactions are returned.", "choice",
        choices=("read_uncommitted", "read_committed"),
    )
    exclude_internal_topics: bool = option(True, "Whether a pattern excludes internal topics.")
    allow_auto_create_topics: bool = option(
        False, "Whether subscribing creates a topic.", differs="Kafka: true. See `auto.create.topics.enable`."
    )
    default_api_timeout_ms: int = option(
        60_000, "Time for calls without a timeout of their own.", unit="ms", low=0, high=INT_MAX
    )
    consumer_timeout_ms: int | None = option(
        None, "Iteration ends if no record arrives for this time; None: it never ends.", "int", unit="ms", low=0,
        optional=True, spellings=((inf, None),), differs="kafka-python's name; Kafka's consumer has no iteration.",
    )
    interceptor_classes: tuple[Any, ...] = option(
        (), "Objects or classes whose `on_consume` gets the records and `on_commit` the committed offsets, in this order.",
        "objects"
    )
    key_deserializer: Deserializer[Any] | None = option(
        None, "Converts bytes to a key; None: keys are bytes.", "deserializer", optional=True
    )
    value_deserializer: Deserializer[Any] | None = option(
        None, "Converts bytes to a value; None: values are bytes.", "deserializer", optional=True
    )
    metadata_max_age_ms: int = option(
        300_000, "Longest time until a new topic or partition is known.", unit="ms", low=0,
        differs="A change of the topics notifies all consumers at once. This time applies if the notification is missing.",
    )
    retry_backoff_ms: int = option(
        100, "Pause before an automatic commit that failed temporarily is repeated.", unit="ms", low=0
    )
    metrics_num_samples: int = _window_count()
    metrics_sample_window_ms: int = _window_ms()

    def _check_together(self) -> None:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            expected = f"below session.timeout.ms ({self.session_timeout_ms})"
            raise ConfigError("heartbeat.interval.ms", expected=expected, found=self.heartbeat_interval_ms)
        if self.group_id is None and self.enable_auto_commit:
            if "enable_auto_commit" in self.given:
                raise ConfigError("enable.auto.commit", expected="false, because there is no group.id", found="true")
            object.__setattr__(self, "enable_auto_commit", False)
        if self.group_protocol == "consumer":
            raise ConfigError("group.protocol", expected="classic: in the other protocol a server computes the assignment",
                              found="'consumer'")
        if not self.check_crcs:
            raise ConfigError("check.crcs", expected="true: every batch is checked", found="false")
        if self.allow_auto_create_topics:
            raise ConfigError("allow.auto.create.topics", expected="false: topics are created by create_topic()", found="true")
