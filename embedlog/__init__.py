"""embedlog: Kafka's log as an embedded library.

    with embedlog.open("data") as log:
        log.create_topic("events")
        with log.producer() as producer:
            producer.send("events", b"value", key=b"key")

This is the front door: everything public is named in `__all__`, and every other name is ours to change.
"""

from __future__ import annotations

from embedlog import _platform as _platform  # refuses where embedlog cannot run, before anything native is loaded
from embedlog import assignors, partitioners, serializers
from embedlog._native._rows import Future, Record
from embedlog.batch import Batch
from embedlog.consumer import Consumer
from embedlog.errors import (
    BufferExhaustedError,
    ClosedError,
    CommitFailedError,
    ConcurrentUseError,
    ConfigError,
    CorruptRecordError,
    DeadlineError,
    DirectoryInUseError,
    DurabilityError,
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
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTransactionStateError,
    LockTimeoutError,
    LogTruncationError,
    MissingExtraError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PolicyViolationError,
    ReadOnlyError,
    RebalanceInProgressError,
    RecordTooLargeError,
    SerializationError,
    StateError,
    StorageError,
    TopicExistsError,
    TransactionAbortedError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
    UnsupportedFilesystemError,
    UnsupportedFormatError,
    UnsupportedPlatformError,
    WakeupError,
)
from embedlog.front import Log, open
from embedlog.producer import Producer
from embedlog.scan import Scan
from embedlog.splitting import Split
from embedlog.values import (
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionDescription,
    ProducerRecord,
    RecordMetadata,
    TopicDescription,
    TopicPartition,
)

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BufferExhaustedError",
    "ClosedError",
    "CommitFailedError",
    "ConcurrentUseError",
    "ConfigError",
    "Consumer",
    "CorruptRecordError",
    "DeadlineError",
    "DirectoryInUseError",
    "DurabilityError",
    "EmbedlogError",
    "FencedError",
    "FencedInstanceIdError",
    "ForeignDirectoryError",
    "ForkedError",
    "Future",
    "GroupMetadata",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "GroupSizeError",
    "GroupSubscribedError",
    "IllegalGenerationError",
    "InconsistentGroupProtocolError",
    "InvalidGroupIdError",
    "InvalidPartitionsError",
    "InvalidRecordError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionStateError",
    "LockTimeoutError",
    "Log",
    "LogTruncationError",
    "MissingExtraError",
    "NoOffsetForPartitionError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "PartitionDescription",
    "PolicyViolationError",
    "Producer",
    "ProducerRecord",
    "ReadOnlyError",
    "RebalanceInProgressError",
    "Record",
    "RecordMetadata",
    "RecordTooLargeError",
    "Scan",
    "SerializationError",
    "Split",
    "StateError",
    "StorageError",
    "TopicDescription",
    "TopicExistsError",
    "TopicPartition",
    "TransactionAbortedError",
    "UnknownMemberError",
    "UnknownTopicOrPartitionError",
    "UnsupportedFilesystemError",
    "UnsupportedFormatError",
    "UnsupportedPlatformError",
    "WakeupError",
    "__version__",
    "assignors",
    "open",
    "partitioners",
    "serializers",
]
