"""embedlog: Kafka's log as an embedded library.

    with embedlog.open("data") as log:
        log.create_topic("events")
        with log.producer() as producer:
            producer.send("events", b"value", key=b"key")

Everything public of this package is named in `__all__`; docs/architecture.md names the public modules.
Every other name may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# refuses where embedlog cannot run, before anything native is loaded
from embedlog import _platform as _platform
from embedlog.errors import (
    AssignorError,
    BufferExhaustedError,
    ClosedError,
    CommitFailedError,
    ConcurrentUseError,
    ConfigError,
    CorruptRecordError,
    DeadlineError,
    DeliveryError,
    DirectoryInUseError,
    DuplicateSequenceError,
    DurabilityError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    EmbedlogError,
    FencedError,
    FencedInstanceIdError,
    ForeignDirectoryError,
    ForkedError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupSizeError,
    GroupSubscribedError,
    IllegalGenerationError,
    IncompatibleSchemaError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTransactionStateError,
    LeaderNotAvailableError,
    ListenerError,
    LockTimeoutError,
    LogTruncationError,
    MissingExtraError,
    NoOffsetForPartitionError,
    NoReassignmentInProgressError,
    NotEnoughDirectoriesError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PolicyViolationError,
    PreferredLeaderNotAvailableError,
    ReadOnlyError,
    RebalanceInProgressError,
    RecordTooLargeError,
    ReplicaSetError,
    RetriableCommitFailedError,
    SerializationError,
    StateError,
    StorageError,
    TopicExistsError,
    TopicMismatchError,
    TransactionAbortedError,
    UnknownMemberError,
    UnknownOptionError,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
    UnsupportedFilesystemError,
    UnsupportedFormatError,
    UnsupportedPlatformError,
    WakeupError,
)

if TYPE_CHECKING:
    from embedlog import assignors, partitioners, serializers
    from embedlog._native._rows import Future, Record
    from embedlog.aio.consumer import AsyncConsumer
    from embedlog.aio.producer import AsyncProducer
    from embedlog.columns.batch import Batch
    from embedlog.columns.scan import Scan, Split
    from embedlog.columns.scan_bounds import OffsetBound
    from embedlog.columns.search import Search
    from embedlog.config.typed_options import (
        ConsumerOptions,
        LogOptions,
        ProducerOptions,
        TopicOptions,
    )
    from embedlog.consumer.consumer import Consumer
    from embedlog.descriptions.directories import (
        DecisionDescription,
        DirectoryDescription,
        ReplicaDescription,
        ReplicasDescription,
        ReplicatedPartitionDescription,
    )
    from embedlog.descriptions.groups import (
        GroupDescription,
        GroupPartition,
        MemberDescription,
        OpenTransaction,
        TransactionDescription,
    )
    from embedlog.descriptions.replicas import (
        Reassignment,
        RepairedReplica,
        RepairReport,
        ReplicaDifference,
    )
    from embedlog.descriptions.topics import PartitionDescription, TopicDescription
    from embedlog.format.visibility import Isolation as IsolationLevel
    from embedlog.integrity.report import CheckReport, Finding
    from embedlog.log import Log, check, open, repair
    from embedlog.producer.producer import Producer
    from embedlog.storage.process_list import (
        LockDescription,
        ProcessDescription,
        WaitDescription,
        processes,
    )
    from embedlog.types import (
        CODECS,
        GroupMetadata,
        NewTopic,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        ProducerRecord,
        RecordMetadata,
        TopicPartition,
    )

__version__ = "0.1.0"

__all__ = [
    "AssignorError",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "BufferExhaustedError",
    "CODECS",
    "CheckReport",
    "ClosedError",
    "CommitFailedError",
    "ConcurrentUseError",
    "ConfigError",
    "Consumer",
    "ConsumerOptions",
    "CorruptRecordError",
    "DeadlineError",
    "DecisionDescription",
    "DeliveryError",
    "DirectoryDescription",
    "DirectoryInUseError",
    "DuplicateSequenceError",
    "DurabilityError",
    "ElectionNotNeededError",
    "EligibleLeadersNotAvailableError",
    "EmbedlogError",
    "FencedError",
    "FencedInstanceIdError",
    "Finding",
    "ForeignDirectoryError",
    "ForkedError",
    "Future",
    "GroupDescription",
    "GroupMetadata",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "GroupPartition",
    "GroupSizeError",
    "GroupSubscribedError",
    "IllegalGenerationError",
    "IncompatibleSchemaError",
    "InconsistentGroupProtocolError",
    "InvalidGroupIdError",
    "InvalidPartitionsError",
    "InvalidRecordError",
    "InvalidReplicaAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionStateError",
    "IsolationLevel",
    "LeaderNotAvailableError",
    "ListenerError",
    "LockDescription",
    "LockTimeoutError",
    "Log",
    "LogOptions",
    "LogTruncationError",
    "MemberDescription",
    "MissingExtraError",
    "NewTopic",
    "NoOffsetForPartitionError",
    "NoReassignmentInProgressError",
    "NotEnoughDirectoriesError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetBound",
    "OffsetMismatchError",
    "OffsetOutOfRangeError",
    "OpenTransaction",
    "OutOfOrderSequenceError",
    "PartitionDescription",
    "PolicyViolationError",
    "PreferredLeaderNotAvailableError",
    "ProcessDescription",
    "Producer",
    "ProducerOptions",
    "ProducerRecord",
    "ReadOnlyError",
    "Reassignment",
    "RebalanceInProgressError",
    "Record",
    "RecordMetadata",
    "RecordTooLargeError",
    "RepairReport",
    "RepairedReplica",
    "ReplicaDescription",
    "ReplicaDifference",
    "ReplicaSetError",
    "ReplicasDescription",
    "ReplicatedPartitionDescription",
    "RetriableCommitFailedError",
    "Scan",
    "Search",
    "SerializationError",
    "Split",
    "StateError",
    "StorageError",
    "TopicDescription",
    "TopicExistsError",
    "TopicMismatchError",
    "TopicOptions",
    "TopicPartition",
    "TransactionAbortedError",
    "TransactionDescription",
    "UnknownMemberError",
    "UnknownOptionError",
    "UnknownSchemaError",
    "UnknownTopicOrPartitionError",
    "UnsupportedFilesystemError",
    "UnsupportedFormatError",
    "UnsupportedPlatformError",
    "WaitDescription",
    "WakeupError",
    "__version__",
    "assignors",
    "check",
    "open",
    "partitioners",
    "processes",
    "repair",
    "serializers",
]

_HOMES = {  # names by the module that is imported when one of them is used first
    "_native._rows": (
        "Future",
        "Record",
    ),
    "aio.consumer": ("AsyncConsumer",),
    "aio.producer": ("AsyncProducer",),
    "columns.batch": ("Batch",),
    "columns.scan": (
        "Scan",
        "Split",
    ),
    "columns.scan_bounds": ("OffsetBound",),
    "columns.search": ("Search",),
    "config.typed_options": (
        "ConsumerOptions",
        "LogOptions",
        "ProducerOptions",
        "TopicOptions",
    ),
    "consumer.consumer": ("Consumer",),
    "descriptions.directories": (
        "DecisionDescription",
        "DirectoryDescription",
        "ReplicaDescription",
        "ReplicasDescription",
        "ReplicatedPartitionDescription",
    ),
    "descriptions.groups": (
        "GroupDescription",
        "GroupPartition",
        "MemberDescription",
        "OpenTransaction",
        "TransactionDescription",
    ),
    "descriptions.replicas": (
        "Reassignment",
        "RepairReport",
        "RepairedReplica",
        "ReplicaDifference",
    ),
    "descriptions.topics": (
        "PartitionDescription",
        "TopicDescription",
    ),
    "format.visibility": ("IsolationLevel",),
    "integrity.report": (
        "CheckReport",
        "Finding",
    ),
    "log": (
        "Log",
        "check",
        "open",
        "repair",
    ),
    "producer.producer": ("Producer",),
    "storage.process_list": (
        "LockDescription",
        "ProcessDescription",
        "WaitDescription",
        "processes",
    ),
    "types": (
        "CODECS",
        "GroupMetadata",
        "NewTopic",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "ProducerRecord",
        "RecordMetadata",
        "TopicPartition",
    ),
}
_MODULES = ("assignors", "partitioners", "serializers")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_OTHER_NAMES = {"IsolationLevel": "Isolation"}  # the name there, where it differs


def __getattr__(name: str) -> Any:
    """Import the module of a public name on first use: `import embedlog` imports none of them (PEP
    562).
    """
    from importlib import import_module

    if name not in _HOME_OF and name not in _MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        if not name.startswith("_"):
            hint = import_module("embedlog.config.other_clients").MODULE.get(name, "")
            if hint:
                message += f"; {hint}"
        raise AttributeError(message)

    module = import_module(f"embedlog.{_HOME_OF.get(name, name)}")
    value = module if name in _MODULES else getattr(module, _OTHER_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
