"""Contains names of kafka-python, aiokafka and confluent-kafka that do not exist here, with the
calls that do the same.

- A name is absent here: `hasattr` is false, type checkers refuse it, and its AttributeError states
  the right call.
- A name that can mean the same here is not in this module: it is an alias at its class
  (docs/porting).
- Lookups of other names cost nothing: a class has a descriptor for each absent name, and no
  `__getattr__`, which would make each look at an attribute slower. Its metaclass hides the
  descriptors.

An object that is used as a container is refused with the calls that return what it contains.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeVar

Class = TypeVar("Class", bound=type)

_NO_SERVER = "there is no server to connect to"
_CONTEXT = "use `with`, or close()"
_TOPICS = "topics are listed by log.topics() and log.describe_topic(name)"
_PARTITIONS = "partitions are listed by log.describe_topic(name).partitions"
_END = "the end is end_offsets([partition])[partition]"
_STORE = "commit({partition: offset}) commits any offsets"
_POLL = "poll(timeout=seconds, max_records=…) returns a list of records"
_ONE = "next(consumer) returns the next record, or iterate"
_CALLBACKS = "callbacks run on the producer's thread, without a call"
_CALLBACK = "add_done_callback(callable) calls callable(future) after success and failure"
_ASSIGN = "assign(partitions) takes the complete list; other partitions keep their positions"

_CONSUMER = {
    "bootstrap": _NO_SERVER,
    "bootstrap_connected": _NO_SERVER,
    "consume": _POLL,
    "consumer_group_metadata": "the call is group_metadata()",
    "get_watermark_offsets": "beginning_offsets([partition]) and end_offsets([partition]) return both",
    "getmany": _POLL,
    "getone": _ONE,
    "highwater": _END,
    "incremental_assign": _ASSIGN,
    "incremental_unassign": _ASSIGN,
    "lag": "current_lag(partition) is the lag of one partition; log.describe_group(group_id) has "
    "those of the group",
    "last_poll_timestamp": "metrics() has last-poll-seconds-ago",
    "last_stable_offset": "log.describe_topic(name) has it for each partition",
    "list_topics": _TOPICS,
    "memberid": "group_metadata().member_id",
    "partitions_for_topic": _PARTITIONS,
    "seek_to_committed": "committed(partition) returns the offset for seek(partition, offset)",
    "set_sasl_credentials": _NO_SERVER,
    "store_offsets": _STORE,
    "topics": _TOPICS,
    "unassign": "the call is unsubscribe()",
}
_PRODUCER = {
    "bootstrap_connected": _NO_SERVER,
    "create_batch": "send_batch(topic, values, keys) sends many records at once",
    "list_topics": _TOPICS,
    "poll": _CALLBACKS,
    "produce": "send(topic, value, key) returns a future with add_done_callback()",
    "produce_batch": "send_batch(topic, values, keys) sends many records at once",
    "purge": "close(timeout=0) discards what is not written, or abort_transaction()",
    "set_sasl_credentials": _NO_SERVER,
}
_ACLS = "the permissions of the directory are the only access control"
_REASSIGN = "reassign({partition: nodes}), and reassignments() lists those in progress"
_TRANSACTIONS = (
    "transactions() describes all transactional ids, open_transactions() those that hold readers "
    "back"
)
_LOG = {
    "abort_transaction": "a transaction of a dead process is aborted by itself; close the producer of a living one",
    "alter_configs": "alter_topic(name, config) changes one topic",
    "alter_group_offsets": "reset_group_offsets(group_id, topics, to=…)",
    "alter_partition_reassignments": _REASSIGN,
    "alter_replica_log_dirs": _REASSIGN,
    "alter_user_scram_credentials": _ACLS,
    "api_versions": _NO_SERVER,
    "compact": "housekeeping compacts by itself, and housekeep() does at once what is due",
    "consume": "records are read by log.consumer(…).poll()",
    "append": "records are written by log.producer().send()",
    "create_acls": _ACLS,
    "delete_acls": _ACLS,
    "delete_consumer_group_offsets": "delete_group_offsets(group_id, partitions)",
    "delete_consumer_groups": "delete_group(group_id) deletes one group",
    "delete_groups": "delete_group(group_id) deletes one group",
    "delete_topics": "delete_topic(name) deletes one topic",
    "describe_acls": _ACLS,
    "describe_cluster": "identity, and replicas() of a set",
    "describe_configs": "describe_topic(name).config, and log.config",
    "describe_consumer_groups": "describe_group(group_id) describes one group",
    "describe_features": _NO_SERVER,
    "describe_groups": "describe_group(group_id) describes one group",
    "describe_log_dirs": "describe_topic(name) has the size of each partition; `embedlog du` sums them",
    "describe_metadata_quorum": "replicas() has the voters of a set and its decisions",
    "describe_producers": _TRANSACTIONS,
    "describe_topic_partitions": "describe_topic(name).partitions",
    "describe_topics": "describe_topic(name) describes one topic",
    "describe_transactions": _TRANSACTIONS,
    "describe_user_scram_credentials": _ACLS,
    "elect_leaders": "elect(topic, partition) elects leaders of a set",
    "find_hanging_transactions": _TRANSACTIONS,
    "get_broker_version_data": _NO_SERVER,
    "incremental_alter_configs": "alter_topic(name, config) changes one topic",
    "lag": "describe_group(group_id).partitions have the lag of each partition",
    "list_config_resources": "describe_topic(name).config, and log.config",
    "list_consumer_group_offsets": "group_offsets(group_id)",
    "list_consumer_groups": "groups() returns the names",
    "list_group_offsets": "group_offsets(group_id)",
    "list_groups": "groups() returns the names",
    "list_offsets": "describe_topic(name), or beginning_offsets, end_offsets and offsets_for_times of a "
    "consumer",
    "list_partition_offsets": "describe_topic(name), or beginning_offsets, end_offsets and offsets_for_times of a "
    "consumer",
    "list_partition_reassignments": _REASSIGN,
    "list_topics": "topics() returns the names",
    "list_transactions": _TRANSACTIONS,
    "perform_leader_election": "elect(topic, partition) elects leaders of a set",
    "poll": "records are read by log.consumer(…).poll()",
    "read": "scan(topic).records() reads what is there, and log.consumer(topic).poll(timeout) waits "
    "for more",
    "produce": "records are sent by log.producer().send()",
    "publish": "records are sent by log.producer().send()",
    "reset_configs": "alter_topic(name, {setting: None}) resets a setting",
    "send": "records are sent by log.producer().send()",
    "subscribe": "log.consumer(*topics, …) returns a subscribed consumer",
    "tail": "log.consumer(topic) reads from the end on, and scan(topic).head() returns the first "
    "records",
    "transaction": "the producer has it: log.producer(transactional_id=…).transaction()",
    "update_features": _NO_SERVER,
    "wait_for_topics": "create_topic() returns when the topic is usable by every process",
    "write": "records are sent by log.producer().send()",
}
ABSENT: Mapping[str, Mapping[str, str]] = {
    "AsyncConsumer": _CONSUMER
    | {"getone": "anext(aiter(consumer)) returns the next record, or iterate with `async for`"},
    "AsyncProducer": _PRODUCER,
    "Consumer": _CONSUMER | {"start": _CONTEXT, "stop": _CONTEXT},
    "Log": _LOG,
    "Producer": _PRODUCER
    | {"send_and_wait": "send(…).result()", "start": _CONTEXT, "stop": _CONTEXT},
    "Batch": {
        "key": "keys[i] is that of row i, and records() returns Record objects",
        "timestamp": "timestamps_ms[i] is that of row i, and records() returns Record objects",
        "offset": "offsets[i] is that of row i, and records() returns Record objects",
        "value": "values[i] is that of row i, and records() returns Record objects",
    },
    "Scan": {
        "count": "num_rows is the number of records",
        "read": "records() iterates over them",
        "to_list": "list(scan.records())",
    },
}
_READ = "poll() returns a list of records, seek() sets the position"
_SEND = "send() writes a record, send_batch() a list, and log.scan(topic).records() reads"
CONTAINERS: Mapping[str, str] = {  # classes whose objects are no containers → what has the contents
    "AsyncConsumer": _READ,
    "AsyncProducer": _SEND,
    "Consumer": _READ,
    "Log": "topics() is the list of topics, describe_topic(name) describes one, and "
    "scan(name).records() reads one",
    "Producer": _SEND,
    "Scan": "records() iterates over records, head(n) is a list of the first, num_rows their number, "
    "search(pattern) finds some",
}
SUBMODULES = (
    "aio",
    "duckdb",
    "exporters",
    "mirror",
    "plot",
    "polars",
    "progress",
    "schemas",
    "spark",
    "testing",
)
_OPENED = "embedlog.open(path) returns the log"
MODULE: Mapping[str, str] = {  # names of packages, which `embedlog` itself does not have
    "AIOKafkaConsumer": f"{_OPENED}, log.async_consumer(*topics, …) the consumer",
    "AIOKafkaProducer": f"{_OPENED}, log.async_producer(…) the producer",
    "AdminClient": f"{_OPENED}, and its methods administrate it",
    "AvroDeserializer": "the module embedlog.schemas has it",
    "AvroSerializer": "the module embedlog.schemas has it",
    "ConsumerRebalanceListener": "any object with on_partitions_assigned() and on_partitions_revoked() is a listener",
    "DeserializingConsumer": f"{_OPENED}, log.consumer(*topics, value_deserializer=…) the consumer",
    "IllegalStateError": "the class is StateError",
    "KafkaAdminClient": f"{_OPENED}, and its methods administrate it",
    "KafkaConsumer": f"{_OPENED}, log.consumer(*topics, …) the consumer",
    "KafkaError": "the class is EmbedlogError",
    "KafkaException": "the class is EmbedlogError",
    "KafkaProducer": f"{_OPENED}, log.producer(…) the producer",
    "KafkaTimeoutError": "the class is DeadlineError, a TimeoutError",
    "Message": "the class is Record, and its fields are no methods",
    "NoBrokersAvailable": "there is no server, so nothing raises it",
    "NoBrokersAvailableError": "there is no server, so nothing raises it",
    "ProducerFencedError": "the class is FencedError",
    "ProducerFenced": "the class is FencedError",
    "SerializingProducer": f"{_OPENED}, log.producer(value_serializer=…) the producer",
    "TopicAlreadyExistsError": "the class is TopicExistsError",
    "connect": f"{_OPENED}; there is no server",
    "UnknownTopicOrPartition": "the class is UnknownTopicOrPartitionError",
} | {name: f"it is a module of its own: import embedlog.{name}" for name in SUBMODULES}


class _Absent:
    """A name of other clients at a class. Threads: any."""

    def __init__(self, owner: str, name: str, hint: str) -> None:
        self._owner = owner
        self._name = name
        self._hint = hint

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        message = f"{self._owner!r} has no attribute {self._name!r}; {self._hint}"
        raise AttributeError(
            message, name=self._name, obj=instance if instance is not None else owner
        )


class ContainerError(TypeError, AttributeError):
    """An object was used as a container: a TypeError as Python's own, and an AttributeError, so
    that `hasattr` is false.
    """


class _NoContainer(_Absent):
    """A method of containers at a class whose objects are none. Threads: any."""

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise ContainerError(f"{self._owner!r} is no container: {self._hint}")


class Hinting(ABCMeta):
    """The class of public classes: `dir` of one, and so completion and `Mock(spec=…)`, has only the
    names that exist.

    It extends ABCMeta, so that a program can derive from such a class and from an abstract one.
    """

    def __dir__(cls) -> list[str]:
        return _existing(cls, super().__dir__())


def _existing(cls: type, names: Iterable[str]) -> list[str]:
    """The names without absent ones; a subclass may have defined one of those."""
    absent = set()
    for owner in reversed(cls.__mro__):
        for name, value in vars(owner).items():
            if isinstance(value, _Absent):
                absent.add(name)
            else:
                absent.discard(name)
    return sorted(set(names) - absent)


def check_maker(call: str, arguments: tuple[object, ...]) -> None:
    """Raise TypeError for the constructor of a client whose arguments are those of other clients.
    `call` is the right one.
    """
    if not arguments or isinstance(arguments[0], str | bytes | Mapping):
        raise TypeError(
            f"it is made by {call}, where log = embedlog.open(path); it has no constructor for "
            "programs"
        )


def with_hints(cls: Class) -> Class:
    """The class with an explained AttributeError for each name in ABSENT, which `dir` lists neither
    of it nor of its objects.
    """
    absent = ABSENT.get(cls.__name__, {})
    for name, hint in absent.items():
        if name in dir(cls):
            raise TypeError(f"{cls.__name__}.{name} exists, so it is not absent")
        setattr(cls, name, _Absent(cls.__name__, name, hint))
    contents = CONTAINERS.get(cls.__name__)
    if contents is not None:
        refuse_as_container(cls, contents)
    if absent:
        setattr(cls, "__dir__", lambda self: _existing(type(self), object.__dir__(self)))  # noqa: B010
    return cls


def refuse_as_container(cls: type, contents: str) -> None:
    """Let `object[index]`, `len(object)`, `x in object`, and iteration unless the class has it,
    raise TypeError with `contents`.

    Without `__iter__`, Python iterates by `__getitem__`, and searches by iteration.
    """
    names = ["__getitem__", "__len__"]
    if hasattr(cls, "__iter__"):
        names.append("__contains__")  # the search would read what the iteration reads
    for name in names:
        setattr(cls, name, _NoContainer(cls.__name__, name, contents))
    setattr(cls, "__bool__", lambda self: True)  # noqa: B010  (Python would ask `__len__`)
