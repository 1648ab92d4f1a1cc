"""embedlog: Kafka's log as an embedded library.

    with embedlog.open("data") as log:
        log.create_topic("events")
        with log.producer() as producer:
            producer.send("events", b"value", key=b"key")

Everything public is named in `__all__`. Every other name may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedlog import _platform as _platform  # refuses where embedlog cannot run, before anything native is loaded
from embedlog import assignors, partitioners, serializers
from embedlog._native._rows import Future, Record
from embedlog.columns.batch import Batch
from embedlog.columns.scan import Scan
from embedlog.columns.scan_bounds import OffsetBound
from embedlog.columns.search import Search
from embedlog.columns.splits import Split
from embedlog.config.typed_options import ConsumerOptions, LogOptions, ProducerOptions, TopicOptions
from embedlog.consumer.consumer import Consumer
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
    TransactionAbortedError,
    UnknownMemberError,
    UnknownOptionError,
    UnknownTopicOrPartitionError,
    UnsupportedFilesystemError,
    UnsupportedFormatError,
    UnsupportedPlatformError,
    WakeupError,
)
from embedlog.format.visibility import Isolation as IsolationLevel
from embedlog.log import Log, open
from embedlog.producer.producer import Producer
from embedlog.replica_description import (
    DecisionDescription,
    DirectoryDescription,
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)
from embedlog.storage.process_list import LockDescription, ProcessDescription, WaitDescription, processes
from embedlog.types import (
    GroupDescription,
    GroupMetadata,
    GroupPartition,
    MemberDescription,
    NewTopic,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OpenTransaction,
    PartitionDescription,
    ProducerRecord,
    Reassignment,
    RecordMetadata,
    RepairedReplica,
    RepairReport,
    ReplicaDifference,
    TopicDescription,
    TopicPartition,
    TransactionDescription,
)

if TYPE_CHECKING:
    from embedlog.aio.consumer import AsyncConsumer
    from embedlog.aio.producer import AsyncProducer

__version__ = "0.1.0"

__all__ = [
    "AssignorError",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "BufferExhaustedError",
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
    "DurabilityError",
    "ElectionNotNeededError",
    "EligibleLeadersNotAvailableError",
    "EmbedlogError",
    "FencedError",
    "FencedInstanceIdError",
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
    "TopicOptions",
    "TopicPartition",
    "TransactionAbortedError",
    "TransactionDescription",
    "UnknownMemberError",
    "UnknownOptionError",
    "UnknownTopicOrPartitionError",
    "UnsupportedFilesystemError",
    "UnsupportedFormatError",
    "UnsupportedPlatformError",
    "WaitDescription",
    "WakeupError",
    "__version__",
    "assignors",
    "open",
    "partitioners",
    "processes",
    "serializers",
]

_ASYNC = {"AsyncConsumer": "aio.consumer", "AsyncProducer": "aio.producer"}  # their import brings asyncio along


def __getattr__(name: str) -> Any:
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"embedlog.{_ASYNC[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ASYNC})
