"""Defines all errors as one small tree, ordered by what a caller can do.

- Every error that embedlog raises descends from `EmbedlogError`, except `TypeError` for arguments
  of a wrong type.
- An error has its facts as attributes (`path`, `position`, `expected`, `found`), which its text
  contains.
- An error can be pickled with all its facts, for process pools and Spark executors.
- `retriable` is true if the same call can succeed later without a change by the caller.
- The text of an error is one printable line, because names and values in it may come from a file or
  a user.

    EmbedlogError > PlacedError (has topic, partition, offset; its subclasses are marked with *)
      the data          CorruptRecordError  UnsupportedFormatError
                        OffsetOutOfRangeError* > LogTruncationError*
      the names         UnknownTopicOrPartitionError  TopicExistsError > TopicMismatchError
                        InvalidTopicError  InvalidPartitionsError  InvalidReplicationFactorError
                        InvalidReplicaAssignmentError  NoOffsetForPartitionError*
                        UnknownSchemaError
      the input         RecordTooLargeError  InvalidRecordError  InvalidTimestampError
                        PolicyViolationError  SerializationError*  DeliveryError
                        ConfigError > UnknownOptionError (TypeError)  InvalidGroupIdError
                        OutOfOrderSequenceError  DuplicateSequenceError  OffsetMismatchError*
                        IncompatibleSchemaError
      the group         CommitFailedError > UnknownMemberError  IllegalGenerationError
                        RebalanceInProgressError  GroupNotFoundError  GroupNotEmptyError
                        GroupSubscribedError  GroupSizeError  InconsistentGroupProtocolError
                        RetriableCommitFailedError  ListenerError  AssignorError
      other processes   FencedError > FencedInstanceIdError  DirectoryInUseError
                        LockTimeoutError (TimeoutError)
      too slow          DeadlineError (TimeoutError) > BufferExhaustedError
      the storage       StorageError (OSError)  DurabilityError  ForeignDirectoryError
                        UnsupportedFilesystemError
      the replicas      NotEnoughReplicasError* > NotEnoughReplicasAfterAppendError*
                        LeaderNotAvailableError*  NotEnoughDirectoriesError  ReplicaSetError
                        ElectionNotNeededError  PreferredLeaderNotAvailableError
                        EligibleLeadersNotAvailableError  NoReassignmentInProgressError
      the handle        ClosedError > ForkedError
                        StateError > InvalidTransactionStateError  TransactionAbortedError
                        ConcurrentUseError  WakeupError  ReadOnlyError
      the installation  MissingExtraError (ImportError)  UnsupportedPlatformError
"""

from __future__ import annotations

import errno as errno_names
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

# ---- the root ------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """The text on one line: a character that is not printable (newline, ESC, lone surrogate)
    becomes its escape sequence.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


class EmbedlogError(Exception):
    """Root of all errors of this package.

    `message` is the sentence; the keywords are the facts: the file, the byte in it, the expected
    and the found value.
    """

    retriable = False
    remedy = ""  # the call that continues, where the message alone does not show it
    # the other facts of a class, which are keywords of its constructor, too
    _FACTS: ClassVar[tuple[str, ...]] = ()

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
        location = self.path or ""
        if self.position is not None:
            location = f"{location} at byte {self.position}".strip()
        facts = []
        if self.expected is not None:
            facts.append(f"expected {self.expected}")
        if self.found is not None:
            facts.append(f"found {self.found}")
        text = ": ".join(part for part in (location, self._text(), ", ".join(facts)) if part)
        return printable(f"{text}; {self.remedy}" if self.remedy else text)

    def __reduce__(self) -> tuple[Callable[..., EmbedlogError], tuple[Any, ...], dict[str, Any]]:
        return partial(type(self), **self._keywords()), (self.message,), dict(self.__dict__)

    def _text(self) -> str:
        """The message as it appears in `str()`."""
        return self.message

    def _keywords(self) -> dict[str, Any]:
        """The keywords of a copy of this error, for pickles."""
        facts = {
            "path": self.path,
            "position": self.position,
            "expected": self.expected,
            "found": self.found,
        }
        return facts | {name: getattr(self, name) for name in self._FACTS}


class PlacedError(EmbedlogError):
    """An error of one record or one offset, which `topic`, `partition` and `offset` name."""

    _FACTS: ClassVar[tuple[str, ...]] = ("topic", "partition", "offset")

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class CorruptRecordError(EmbedlogError):
    """Stored bytes differ from the written ones; no record of them is returned. Restore the file,
    or truncate it by a repair.
    """


class in_file:  # noqa: N801  (a context manager, read as a phrase)
    """Adds this file to each CorruptRecordError that is raised inside and has no path.

    `start` is the byte of the file at which the positions of such errors begin.
    """

    __slots__ = ("_path", "_start")

    def __init__(self, path: str | os.PathLike[str], start: int = 0) -> None:
        self._path = path
        self._start = start

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CorruptRecordError) and error.path is None:
            error.path = os.fspath(self._path)
            if error.position is not None:
                error.position += self._start


# ---- the data ------------------------------------------------------------------------------------


class UnsupportedFormatError(EmbedlogError):
    """The bytes are intact, but this version does not read their format: it is newer, or no longer
    supported.
    """


class OffsetOutOfRangeError(PlacedError):
    """The offset is below the log start or above the log end: seek, or set `auto.offset.reset`."""


class LogTruncationError(OffsetOutOfRangeError):
    """The log lost a tail that this reader had read: seek to the offset from which to continue.

    `diverging` is the first offset, as an `OffsetAndMetadata` with its epoch, from which the log
    may differ from what was read. It is None if that offset is not known.
    """

    _FACTS = (*PlacedError._FACTS, "diverging")

    def __init__(self, message: str, *, diverging: Any = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.diverging = diverging


# ---- the names -----------------------------------------------------------------------------------


class UnknownTopicOrPartitionError(EmbedlogError):
    """The topic or the partition does not exist; using a topic never creates it."""


class TopicExistsError(EmbedlogError):
    """A topic with this name, or with a colliding one (`.` and `_` count as equal), exists."""


class TopicMismatchError(TopicExistsError):
    """`exist_ok=True` found a topic that contradicts the call; nothing was changed.

    `differences` has (wanted, existing) for each setting by its dotted name, and for `partitions`.
    A call without these values accepts the topic; `create_partitions` and `alter_topic` change it.
    """

    _FACTS = ("differences",)

    def __init__(
        self,
        message: str,
        *,
        differences: Mapping[str, tuple[Any, Any]] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.differences = dict(differences or {})

    def _text(self) -> str:
        return "; ".join(
            [
                self.message,
                *(
                    f"{key}: wanted {new}, has {old}"
                    for key, (new, old) in self.differences.items()
                ),
            ]
        )


class InvalidTopicError(EmbedlogError):
    """The name is not allowed, or belongs to an internal topic."""


class InvalidPartitionsError(EmbedlogError):
    """The number of partitions is not positive, above 1,048,576, or not above the current one."""


class InvalidReplicationFactorError(EmbedlogError):
    """The number of replicas is not positive, or above the number of directories that take
    replicas.
    """


class InvalidReplicaAssignmentError(EmbedlogError):
    """The directories for a partition are none, unknown or named twice, or only some of them have a
    rack.
    """


class NoOffsetForPartitionError(PlacedError):
    """There is no start position, and `auto.offset.reset` is `none`."""


class UnknownSchemaError(EmbedlogError):
    """The registry does not have this subject, version, schema or id."""


# ---- the input -----------------------------------------------------------------------------------


class RecordTooLargeError(EmbedlogError):
    """A record or batch is larger than a configured limit, which the message names; nothing was
    written.
    """


class InvalidRecordError(EmbedlogError):
    """The topic does not allow the record, for example one without a key in a compacted topic;
    nothing was written.
    """


class InvalidTimestampError(EmbedlogError):
    """The timestamp is negative or outside `message.timestamp.before/after.max.ms`; nothing was
    written.
    """


class PolicyViolationError(EmbedlogError):
    """The policy of the topic forbids the call, for example `delete_records` for a topic that is
    only compacted.
    """


class SerializationError(PlacedError):
    """A serializer or deserializer raised; its exception is the cause. `field` is "key" or "value".

    A record that is not sent has no offset, and a partition only if one was given. To skip a record
    that cannot be read, call `seek(tp, offset + 1)`.
    """

    _FACTS = (*PlacedError._FACTS, "field")

    def __init__(self, message: str, *, field: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.field = field

    def _text(self) -> str:
        names = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "field": self.field,
        }
        facts = ", ".join(f"{name} {value}" for name, value in names.items() if value is not None)
        return f"{self.message} ({facts})" if facts else self.message


class OffsetMismatchError(PlacedError):
    """The record was sent with an `expected_offset`, but the log ends at another offset: `actual`.
    Nothing was written.

    To try again, read the records from `expected` on, decide again, and send with the new log end
    as `expected_offset`.
    """

    @classmethod
    def of(cls, topic: str, partition: int, expected: int, actual: int) -> OffsetMismatchError:
        """The error of a partition whose log ends at `actual`."""
        message = (
            f"the log end of {topic}-{partition} is not the expected offset; nothing was written"
        )
        return cls(
            message,
            topic=topic,
            partition=partition,
            offset=actual,
            expected=expected,
            found=actual,
        )

    @property
    def actual(self) -> int:
        """The log end offset at the time of the refusal: the offset of the next record, if no other
        is written before.
        """
        log_end: int = self.found  # type: ignore[assignment]  # `of` sets it
        return log_end


class DeliveryError(EmbedlogError):
    """Records were not written, and their futures were not read. Raised by flush(), close() and at
    the end of `with`.

    `count` is their number. `errors` has one (topic, partition or None, exception) for each
    partition and reason.
    """

    _FACTS = ("count", "errors")

    def __init__(
        self,
        message: str,
        *,
        count: int = 0,
        errors: Sequence[tuple[str, int | None, Any]] = (),
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.count = count
        self.errors = list(errors)


class IncompatibleSchemaError(EmbedlogError):
    """The subject's level of compatibility forbids the schema after an earlier `version` of
    `subject`; nothing was registered.
    """

    _FACTS = ("subject", "version")

    def __init__(
        self, message: str, *, subject: str | None = None, version: int | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.subject = subject
        self.version = version


class ConfigError(EmbedlogError):
    """An option is unknown, of a wrong type or out of range; the message names key, value and
    range.
    """


class UnknownOptionError(ConfigError, TypeError):
    """The option, or the keyword of the call, does not exist; the message contains the nearest
    name. Nothing was done.
    """


class InvalidGroupIdError(EmbedlogError):
    """The call needs a group id, but none was given or it is not allowed."""


class OutOfOrderSequenceError(EmbedlogError):
    """Records are missing between this batch of a producer and its previous one; nothing was
    written.
    """


class DuplicateSequenceError(EmbedlogError):
    """The records were appended before, and were deleted meanwhile: their offsets are not known.
    They were not written again.
    """


# ---- the group -----------------------------------------------------------------------------------


class CommitFailedError(EmbedlogError):
    """The group removed this member, and other members may have its partitions. Poll to join
    again.
    """


class UnknownMemberError(CommitFailedError):
    """The caller is not a member of the group, or no longer."""


class IllegalGenerationError(CommitFailedError):
    """The group has a newer generation than this member: poll to receive the current assignment."""


class RebalanceInProgressError(EmbedlogError):
    """The group is reassigning its partitions: poll until that is complete, then commit for the
    remaining partitions.
    """

    retriable = True


class RetriableCommitFailedError(EmbedlogError):
    """An asynchronous commit failed for a temporary reason: commit again, or rely on a later
    commit.
    """

    retriable = True


class ListenerError(EmbedlogError):
    """A rebalance listener raised; its exception is the cause. The assignment is valid: poll again
    to continue.
    """


class AssignorError(EmbedlogError):
    """An assignor raised, or its assignment is not allowed. No member received it; the next poll
    calls the assignor again.
    """


class GroupNotFoundError(EmbedlogError):
    """The group does not exist: it has no member and no committed offset."""


class GroupNotEmptyError(EmbedlogError):
    """The group has members; the call requires an empty group."""


class GroupSubscribedError(EmbedlogError):
    """Members of the group are subscribed to this topic, so its offsets cannot be deleted."""


class GroupSizeError(EmbedlogError):
    """The group has as many members as `group.max.size` allows."""


class InconsistentGroupProtocolError(EmbedlogError):
    """The group has another protocol type, or no common assignor: choose another group, or an
    assignor of its members.
    """


# ---- other processes -------------------------------------------------------------------------------


class FencedError(EmbedlogError):
    """A newer producer or member has replaced this one: close it, because every further call is
    refused.
    """


class FencedInstanceIdError(FencedError):
    """Another consumer has taken over this `group.instance.id`: close this one, and give each
    process an id of its own.
    """


class DirectoryInUseError(EmbedlogError):
    """Another program, for example a Kafka broker, has locked the log directory."""

    retriable = True


class LockTimeoutError(EmbedlogError, TimeoutError):
    """Another process or thread held a lock until the deadline. The message names the holder and
    the time, as far as they are known.
    """

    retriable = True


# ---- too slow ------------------------------------------------------------------------------------


class DeadlineError(EmbedlogError, TimeoutError):
    """The call did not complete before its deadline."""

    retriable = True


class BufferExhaustedError(DeadlineError):
    """The producer's `buffer.memory` stayed full for `max.block.ms`: records arrive faster than
    they are written.
    """


# ---- the storage ---------------------------------------------------------------------------------


class StorageError(EmbedlogError, OSError):
    """A file operation failed; `errno` and `path` are those of the operating system."""

    _FACTS = ("errno",)
    _REMEDIES: ClassVar = {
        errno_names.EMFILE: "raise the process's limit (ulimit -n), or lower max.open.files",
        errno_names.ENFILE: "raise the machine's limit (sysctl fs.file-max), or lower max.open.files",
    }

    def __init__(self, message: str, *, errno: int | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.errno = errno
        self.strerror = None if errno is None else os.strerror(errno)
        self.filename = self.path

    def _text(self) -> str:
        if self.errno is None:
            return self.message
        text = (
            f"{self.message}: {self.strerror} ({errno_names.errorcode.get(self.errno, self.errno)})"
        )
        return f"{text}; {self._REMEDIES[self.errno]}" if self.errno in self._REMEDIES else text


class DurabilityError(EmbedlogError):
    """A sync failed. Records that were acknowledged before are safe; those named here may not
    survive a power loss.
    """


class ForeignDirectoryError(EmbedlogError):
    """The directory is not a log directory, or its metadata cannot be read; nothing in it was
    changed.
    """


class UnsupportedFilesystemError(EmbedlogError):
    """Processes cannot share a log directory on this file system unless it is opened with
    `shared="locks"`.
    """


# ---- the replicas --------------------------------------------------------------------------------


class NotEnoughReplicasError(PlacedError):
    """`min.insync.replicas` is above the number of directories in sync; nothing was written.

    `isr` has the nodes in sync, `required` the setting, `away` the reason for each missing node. It
    is retriable only in a set: with one directory the number never rises. Lower the setting with
    `alter_topic`, or send with `acks=1`.
    """

    _FACTS = (*PlacedError._FACTS, "isr", "required", "away", "retriable")

    def __init__(
        self,
        message: str,
        *,
        isr: Sequence[int] = (),
        required: int = 0,
        away: Mapping[int, str] | None = None,
        retriable: bool = False,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.isr = list(isr)
        self.required = required
        self.away = dict(away or {})
        self.retriable = retriable


class NotEnoughReplicasAfterAppendError(NotEnoughReplicasError):
    """The record is in the log at `offset`, but not in enough directories: it may be committed
    later, or be lost.
    """


class LeaderNotAvailableError(PlacedError):
    """The partition has no leader. `waits_for` has the reason for each node that an election waits
    for.
    """

    _FACTS = (*PlacedError._FACTS, "waits_for")
    retriable = True

    def __init__(
        self, message: str, *, waits_for: Mapping[int, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.waits_for = dict(waits_for or {})


class NotEnoughDirectoriesError(EmbedlogError):
    """A decision needs a majority of the voting directories, and fewer were reached.

    `reached` and `voters` are nodes, `away` has the reason for each path. `undecided`: records were
    written, and may still count later; read the state before a repetition.
    """

    _FACTS = ("reached", "voters", "away", "undecided")
    retriable = True

    def __init__(
        self,
        message: str,
        *,
        reached: Sequence[int] = (),
        voters: Sequence[int] = (),
        away: Mapping[str, str] | None = None,
        undecided: bool = False,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.reached = list(reached)
        self.voters = list(voters)
        self.away = dict(away or {})
        self.undecided = undecided

    def _text(self) -> str:
        return "; ".join(
            [self.message, *(f"{path}: {reason}" for path, reason in self.away.items())]
        )


class ReplicaSetError(EmbedlogError):
    """The directories do not form a set: one is given twice, is a clone, belongs elsewhere, or was
    opened alone.

    `paths` has the directories that it concerns. Nothing was changed.
    """

    _FACTS = ("paths",)

    def __init__(self, message: str, *, paths: Sequence[str] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.paths = list(paths)

    def _text(self) -> str:
        return f"{self.message} ({', '.join(self.paths)})" if self.paths else self.message


class ElectionNotNeededError(EmbedlogError):
    """The wanted replica leads already."""


class PreferredLeaderNotAvailableError(EmbedlogError):
    """The first replica of the assignment is not in sync, or its directory is away."""

    retriable = True


class EligibleLeadersNotAvailableError(EmbedlogError):
    """No replica that may lead is available: bring a directory back, or allow an unclean
    election.
    """

    retriable = True


class NoReassignmentInProgressError(EmbedlogError):
    """The partition has no reassignment that could be cancelled."""


# ---- the handle ----------------------------------------------------------------------------------


class ClosedError(EmbedlogError):
    """The handle was closed."""


class ForkedError(ClosedError):
    """The handle belongs to the parent process: open the log again in the child."""


class StateError(EmbedlogError):
    """The state of the handle does not allow the call."""


class InvalidTransactionStateError(StateError):
    """The state of the producer's transaction does not allow the call: the message has the state
    and what it allows.
    """


class TransactionAbortedError(EmbedlogError):
    """The record was not written, because its transaction was aborted: send it in the next one."""


class ConcurrentUseError(EmbedlogError):
    """Two threads called a consumer at the same time; one thread at a time may use it."""


class WakeupError(EmbedlogError):
    """`consumer.wakeup()` ended a waiting call; the consumer remains usable."""


class ReadOnlyError(EmbedlogError):
    """The log was opened with `read_only=True`."""


# ---- the installation ----------------------------------------------------------------------------


class MissingExtraError(EmbedlogError, ImportError):
    """An optional dependency is not installed.

    `extra` is the name in `embedlog[extra]`; the text contains the pip command.
    """

    def __init__(self, message: str, *, extra: str) -> None:
        super().__init__(message)
        self.extra = extra

    def _text(self) -> str:
        return f'{self.message}: pip install "embedlog[{self.extra}]"'

    def _keywords(self) -> dict[str, Any]:
        return {"extra": self.extra}


class UnsupportedPlatformError(EmbedlogError):
    """embedlog runs on Linux, x86-64 and arm64, in one interpreter of a process."""


__all__ = sorted(
    name
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, EmbedlogError)
)
