"""All exceptions of the package, sorted by what a caller can do about them.

ERROR-1  each error that embedlog raises on purpose is an `EmbedlogError`, except `TypeError` for arguments of a wrong type
ERROR-2  an error has its facts as attributes: `path`, `position`, `expected`, `found`; its text contains them and `message`
ERROR-3  an error survives pickling with all facts: it crosses process pools and Spark executors
ERROR-4  `retriable` is true if the same call can succeed later without a change by the caller
ERROR-5  the text of an error is one printable line: names and values in it may come from a file or a user

    EmbedlogError > PlacedError (has topic, partition, offset: what is marked with *)
      the data          CorruptRecordError  UnsupportedFormatError  OffsetOutOfRangeError* > LogTruncationError*
      the names         UnknownTopicOrPartitionError  TopicExistsError  InvalidTopicError  InvalidPartitionsError
                        NoOffsetForPartitionError*
      the input         RecordTooLargeError  InvalidRecordError  InvalidTimestampError  PolicyViolationError
                        SerializationError*  DeliveryError  ConfigError > UnknownOptionError (TypeError)  InvalidGroupIdError
                        OutOfOrderSequenceError
      the group         CommitFailedError > UnknownMemberError  IllegalGenerationError   RebalanceInProgressError
                        GroupNotFoundError  GroupNotEmptyError  GroupSubscribedError  GroupSizeError
                        InconsistentGroupProtocolError  RetriableCommitFailedError  ListenerError  AssignorError
      other processes   FencedError > FencedInstanceIdError  DirectoryInUseError  LockTimeoutError (TimeoutError)
      too slow          DeadlineError (TimeoutError) > BufferExhaustedError
      the storage       StorageError (OSError)  DurabilityError  ForeignDirectoryError  UnsupportedFilesystemError
                        NotEnoughReplicasError
      the handle        ClosedError > ForkedError  StateError > InvalidTransactionStateError  TransactionAbortedError
                        ConcurrentUseError  WakeupError  ReadOnlyError
      the installation  MissingExtraError (ImportError)  UnsupportedPlatformError
"""

from __future__ import annotations

import errno as errno_names
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar


def printable(text: str) -> str:
    """The text on one line: whatever is no printable character (a newline, ESC, a lone surrogate) as its escape sequence."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


class EmbedlogError(Exception):
    """Root of all errors of this package.

    `message` says what is wrong in words; the keywords are the facts: the file, the byte in it, what should have been
    there and what was.
    """

    retriable = False

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        position: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.position = position
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        place = self.path or ""
        if self.position is not None:
            place = f"{place} at byte {self.position}".strip()
        facts = []
        if self.expected is not None:
            facts.append(f"expected {self.expected}")
        if self.found is not None:
            facts.append(f"found {self.found}")
        return printable(": ".join(part for part in (place, self._text(), ", ".join(facts)) if part))

    def __reduce__(self) -> tuple[Callable[..., EmbedlogError], tuple[Any, ...], dict[str, Any]]:
        return partial(type(self), **self._keywords()), (self.message,), dict(self.__dict__)

    def _text(self) -> str:
        """The message as it appears in `str()`."""
        return self.message

    def _keywords(self) -> dict[str, Any]:
        """The keywords that make this error again: what a pickle carries beside the message."""
        return {"path": self.path, "position": self.position, "expected": self.expected, "found": self.found}


class PlacedError(EmbedlogError):
    """An error that belongs to a record, or to a place in a partition: `topic`, `partition` and `offset` say which."""

    def __init__(
        self, message: str, *, topic: str | None = None, partition: int | None = None, offset: int | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"topic": self.topic, "partition": self.partition, "offset": self.offset}


class in_file:  # noqa: N801  (a context manager, read as a phrase)
    """What is found corrupt inside of it lies in this file: the error says so, and where. What has a path already keeps it.

    `start` is the byte of the file at which positions begin to count.
    """

    __slots__ = ("_path", "_start")

    def __init__(self, path: str | os.PathLike[str], start: int = 0) -> None:
        self._path, self._start = path, start

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CorruptRecordError) and error.path is None:
            error.path = os.fspath(self._path)
            if error.position is not None:
                error.position += self._start


# ---- the data ------------------------------------------------------------------------------------


class CorruptRecordError(EmbedlogError):
    """Stored bytes are not what was written: nothing of them is handed out. Restore the file, or let a repair cut it."""


class UnsupportedFormatError(EmbedlogError):
    """The bytes are whole, but of a format this version does not know (newer) or no longer reads (legacy)."""


class OffsetOutOfRangeError(PlacedError):
    """The offset lies below the log start or above the log end: seek, or set `auto.offset.reset`."""


class LogTruncationError(OffsetOutOfRangeError):
    """The log lost a tail that this reader had seen: decide where to go on.

    `diverging` is the first offset, as an `OffsetAndMetadata` with its epoch, from which the log may hold something else than
    the reader saw; None if that cannot be told.
    """

    def __init__(self, message: str, *, diverging: Any = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.diverging = diverging

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"diverging": self.diverging}


# ---- the names -----------------------------------------------------------------------------------


class UnknownTopicOrPartitionError(EmbedlogError):
    """No such topic, or no such partition of it; topics are never created by using them."""


class TopicExistsError(EmbedlogError):
    """A topic of this name, or of one that collides with it (`.` and `_` count as equal), is there already."""


class InvalidTopicError(EmbedlogError):
    """The name is not one a topic can have, or belongs to an internal topic."""


class InvalidPartitionsError(EmbedlogError):
    """The number of partitions is not positive, or not above the present one."""


class NoOffsetForPartitionError(PlacedError):
    """There is no position to start from and `auto.offset.reset` is `none`."""


# ---- the input -----------------------------------------------------------------------------------


class RecordTooLargeError(EmbedlogError):
    """A record or batch is larger than a configured limit, which the message names; nothing was written."""


class InvalidRecordError(EmbedlogError):
    """The record is not allowed here, such as one without a key in a compacted topic; nothing was written."""


class InvalidTimestampError(EmbedlogError):
    """The timestamp is negative or outside `message.timestamp.before/after.max.ms`; nothing was written."""


class PolicyViolationError(EmbedlogError):
    """The topic's policy forbids the call, such as deleting records of a topic that is only compacted."""


class SerializationError(PlacedError):
    """A serializer or deserializer raised; its exception is the cause.

    Before it is sent, a record has no offset, and a partition only if it was given. Behind a record that cannot be read, a
    consumer goes on with `seek(tp, offset + 1)`.
    """

    def _text(self) -> str:
        names = {"topic": self.topic, "partition": self.partition, "offset": self.offset}
        known = ", ".join(f"{name} {value}" for name, value in names.items() if value is not None)
        return f"{self.message} ({known})" if known else self.message


class DeliveryError(EmbedlogError):
    """Records are not in the log, and the program has not asked their futures: raised by flush(), close() and leaving `with`.

    `count` of them; `errors`: the first (topic, partition or None, exception), one for each partition and reason.
    """

    def __init__(self, message: str, *, count: int = 0, errors: Sequence[tuple[str, int | None, Any]] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.count = count
        self.errors = list(errors)

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"count": self.count, "errors": self.errors}


class ConfigError(EmbedlogError):
    """An option is unknown, of a wrong type or out of range; the message names key, value and range."""


class UnknownOptionError(ConfigError, TypeError):
    """There is no option, or no keyword of the call, of this name; the message has the nearest one. Nothing was done."""


class InvalidGroupIdError(EmbedlogError):
    """The call needs a group id, and there is none or an unusable one."""


class OutOfOrderSequenceError(EmbedlogError):
    """A producer's batch does not follow on its last one here: records in between are missing; nothing was written."""


# ---- the group -----------------------------------------------------------------------------------


class CommitFailedError(EmbedlogError):
    """The member has lost its place in the group: its partitions may belong to others; poll to join again."""


class UnknownMemberError(CommitFailedError):
    """The group has no such member (any more), or has members and the caller is none of them."""


class IllegalGenerationError(CommitFailedError):
    """The group has gone on to another generation without this member: poll to learn what is assigned now."""


class RebalanceInProgressError(EmbedlogError):
    """The group is sharing out its partitions anew: poll until that is done, then commit what is still assigned."""

    retriable = True


class RetriableCommitFailedError(EmbedlogError):
    """An asynchronous commit was not made, for a reason that passes: commit again, or leave it to a later commit."""

    retriable = True


class ListenerError(EmbedlogError):
    """A rebalance listener raised; its exception is the cause. The assignment stands: poll again to go on."""


class AssignorError(EmbedlogError):
    """An assignor raised, or assigned what it must not; nobody heard of it. The next poll asks it again."""


class GroupNotFoundError(EmbedlogError):
    """There is no group of this name: nobody has joined it, and nothing is committed."""


class GroupNotEmptyError(EmbedlogError):
    """The group has members: what was asked for needs them to have left."""


class GroupSubscribedError(EmbedlogError):
    """The group's members read this topic, so its offsets are not to be deleted under them."""


class GroupSizeError(EmbedlogError):
    """The group has as many members as `group.max.size` allows."""


class InconsistentGroupProtocolError(EmbedlogError):
    """The group is used for something else, or shares no assignor with its members: choose another group, or their assignors."""


# ---- somebody else -------------------------------------------------------------------------------


class FencedError(EmbedlogError):
    """A newer producer or member has taken this one's place: close it, nothing more will be accepted."""


class FencedInstanceIdError(FencedError):
    """Another consumer has taken over this `group.instance.id`: close this one; every live process needs its own."""


class DirectoryInUseError(EmbedlogError):
    """Another program holds the log directory for itself, such as a Kafka broker."""

    retriable = True


class LockTimeoutError(EmbedlogError, TimeoutError):
    """Another process held a lock until the deadline; the message says who and since when."""

    retriable = True


# ---- too slow ------------------------------------------------------------------------------------


class DeadlineError(EmbedlogError, TimeoutError):
    """The time allowed ran out before the call was through."""

    retriable = True


class BufferExhaustedError(DeadlineError):
    """The producer's `buffer.memory` stayed full for `max.block.ms`: the records come faster than they are written."""


# ---- the storage ---------------------------------------------------------------------------------


class StorageError(EmbedlogError, OSError):
    """The operating system refused a file operation; `errno` and `path` say which and where."""

    _WAYS: ClassVar = {
        errno_names.EMFILE: "raise the process's limit (ulimit -n), or lower max.open.files",
        errno_names.ENFILE: "raise the machine's limit (sysctl fs.file-max), or lower max.open.files",
    }

    def __init__(
        self,
        message: str,
        *,
        errno: int | None = None,
        path: str | os.PathLike[str] | None = None,
        position: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        super().__init__(message, path=path, position=position, expected=expected, found=found)
        self.errno = errno
        self.strerror = None if errno is None else os.strerror(errno)
        self.filename = self.path

    def _text(self) -> str:
        if self.errno is None:
            return self.message
        text = f"{self.message}: {self.strerror} ({errno_names.errorcode.get(self.errno, self.errno)})"
        return f"{text}; {self._WAYS[self.errno]}" if self.errno in self._WAYS else text

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"errno": self.errno}


class DurabilityError(EmbedlogError):
    """A sync failed: what was acknowledged before is safe, the records named here may not survive a power loss."""


class ForeignDirectoryError(EmbedlogError):
    """The directory is not a log directory, or its metadata cannot be read; nothing in it was touched."""


class NotEnoughReplicasError(EmbedlogError):
    """`min.insync.replicas` asks for more directories than hold the partition; nothing was written.

    Not retriable, in contrast to Kafka's: as long as there are no replicas, waiting brings no second directory. Lower the setting
    with `alter_topic`, or send with `acks=1`.
    """


class UnsupportedFilesystemError(EmbedlogError):
    """Processes cannot share a log directory on this file system unless it is opened with `shared="locks"`."""


# ---- the handle ----------------------------------------------------------------------------------


class ClosedError(EmbedlogError):
    """The handle was closed."""


class ForkedError(ClosedError):
    """The handle belongs to the parent process: open the log again in the child."""


class StateError(EmbedlogError):
    """The call is not allowed in the present state of the handle."""


class InvalidTransactionStateError(StateError):
    """The call does not fit the state of the producer's transaction: the message has the state and what it allows."""


class TransactionAbortedError(EmbedlogError):
    """The record was not written any more, because its transaction is aborted: send it in the next one."""


class ConcurrentUseError(EmbedlogError):
    """Two threads called a consumer at once: it serves one thread at a time."""


class WakeupError(EmbedlogError):
    """`consumer.wakeup()` ended a waiting call; the consumer can be used on."""


class ReadOnlyError(EmbedlogError):
    """The log was opened with `read_only=True`."""


# ---- the installation ----------------------------------------------------------------------------


class MissingExtraError(EmbedlogError, ImportError):
    """An optional dependency is not installed.

    `extra` is the name in `embedlog[extra]`; the text has the pip command.
    """

    def __init__(self, message: str, *, extra: str) -> None:
        super().__init__(message)
        self.extra = extra

    def _text(self) -> str:
        return f'{self.message}: pip install "embedlog[{self.extra}]"'

    def _keywords(self) -> dict[str, Any]:
        return {"extra": self.extra}


class UnsupportedPlatformError(EmbedlogError):
    """embedlog runs on Linux, x86-64 and arm64."""


__all__ = sorted(name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, EmbedlogError))
