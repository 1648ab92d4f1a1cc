"""Checks the arguments and sizes of commits, makes their records, and maps refusals to errors. No
lock, no file.

- Invalid arguments raise an error of this package, or a TypeError, before a lock is taken.
- A refusal becomes an error by the caller's remedy: poll to join again, close, choose another
  group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from embedlog import group as machine
from embedlog._native import system
from embedlog.config.options import INT_MAX, LONG_MAX
from embedlog.coordination.groups.group_records import encode_offset, encode_offset_key
from embedlog.coordination.internal_topic import Record
from embedlog.errors import (
    ConfigError,
    EmbedlogError,
    FencedInstanceIdError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupSizeError,
    GroupSubscribedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    RecordTooLargeError,
    UnknownMemberError,
)
from embedlog.group import Group, Refusal
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition, by_partition

if TYPE_CHECKING:
    from embedlog.coordination.groups.kip848_groups import ModernGroup

NAME_BYTES_MAX: Final = 2**15 - 1  # of a text in Kafka's format
RECORD_BYTES: Final = 24  # upper bound for a record without key and value
HEADER_BYTES: Final = 61

KINDS: Final[Mapping[Refusal, type[EmbedlogError]]] = {
    Refusal.COORDINATOR_NOT_AVAILABLE: GroupNotFoundError,
    Refusal.UNKNOWN_MEMBER_ID: UnknownMemberError,
    Refusal.ILLEGAL_GENERATION: IllegalGenerationError,
    Refusal.REBALANCE_IN_PROGRESS: RebalanceInProgressError,
    Refusal.FENCED_INSTANCE_ID: FencedInstanceIdError,
    Refusal.INCONSISTENT_GROUP_PROTOCOL: InconsistentGroupProtocolError,
    Refusal.INVALID_SESSION_TIMEOUT: ConfigError,
    Refusal.GROUP_MAX_SIZE_REACHED: GroupSizeError,
    Refusal.NON_EMPTY_GROUP: GroupNotEmptyError,
    Refusal.GROUP_ID_NOT_FOUND: GroupNotFoundError,
    Refusal.GROUP_SUBSCRIBED_TO_TOPIC: GroupSubscribedError,
}


# ---- arguments -----------------------------------------------------------------------------------


def check_group_id(group_id: object) -> str:
    """The group id, if it is valid. Raises InvalidGroupIdError, TypeError."""
    if not isinstance(group_id, str):
        raise TypeError(f"a group id is a str, not {type(group_id).__name__}")
    size = _size(group_id)
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidGroupIdError(
            "group id", expected=f"1 to {NAME_BYTES_MAX} bytes of UTF-8", found=f"{group_id!r:.100}"
        )
    return group_id


def check_instance_ids(instance_ids: object) -> Collection[str]:
    """Names of static members. Raises TypeError."""
    if isinstance(instance_ids, str) or not isinstance(instance_ids, Collection):
        raise TypeError(f"instance ids are a list of str, not {instance_ids!r:.100}")
    for instance_id in instance_ids:
        if not isinstance(instance_id, str):
            raise TypeError(f"an instance id is a str, not {type(instance_id).__name__}")
    return instance_ids


def check_identity(group_id: str, identity: object) -> GroupMetadata:
    """The identity of the committing member. Raises TypeError, InvalidGroupIdError for a member of
    another group.
    """
    if not isinstance(identity, GroupMetadata):
        raise TypeError(f"the identity of a commit is a GroupMetadata, not {identity!r:.100}")
    if identity.group_id != group_id:
        raise InvalidGroupIdError(
            "a member of another group", expected=repr(group_id), found=repr(identity.group_id)
        )
    return identity


class CheckedOffsets(dict[TopicPartition, OffsetAndMetadata]):
    """Offsets that `check_offsets` has checked; it accepts them again as they are. Never passed
    to code of the user.
    """


def check_offsets(offsets: object) -> CheckedOffsets:
    """The offsets to commit, each with its metadata. Raises TypeError, OffsetOutOfRangeError."""
    if type(offsets) is CheckedOffsets:
        return offsets
    offsets_given: Mapping[TopicPartition, object] = by_partition("offsets", offsets)  # type: ignore[arg-type]
    return CheckedOffsets((tp, _check_offset(tp, offset)) for tp, offset in offsets_given.items())


def _check_offset(tp: Any, offset: object) -> OffsetAndMetadata:
    checked = OffsetAndMetadata(offset) if type(offset) is int else offset
    if isinstance(checked, tuple) and getattr(checked, "_fields", ())[:2] == ("offset", "metadata"):
        checked = OffsetAndMetadata(*checked[:3])  # of another client
    if (
        not isinstance(checked, OffsetAndMetadata)
        or type(checked.offset) is not int
        or type(checked.leader_epoch) is not int
    ):
        raise TypeError(f"an offset is an OffsetAndMetadata or an int, not {offset!r:.100}")
    if not isinstance(checked.metadata, str):
        raise TypeError(
            f"the metadata of an offset is a str, not {type(checked.metadata).__name__}"
        )
    if not 0 <= checked.offset <= LONG_MAX or not -1 <= checked.leader_epoch <= INT_MAX:
        raise OffsetOutOfRangeError(
            "an offset to commit",
            topic=tp[0],
            partition=tp[1],
            expected="0 to 2^63 - 1, with a leader epoch of -1 or more",
            found=f"{checked.offset}, {checked.leader_epoch}",
        )
    return checked


def _size(text: str) -> int:
    """Bytes of a text in UTF-8; -1 if it has no such form."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return -1


def check_notes(offsets: Mapping[TopicPartition, OffsetAndMetadata], limit: int) -> None:
    """Raises RecordTooLargeError for metadata of more than `limit` bytes."""
    for tp, offset in offsets.items():
        if not offset.metadata:
            continue
        size = _size(offset.metadata)
        if not 0 <= size <= limit:
            expected = f"at most {limit} bytes of UTF-8 (offset.metadata.max.bytes)"
            raise RecordTooLargeError(
                f"metadata of an offset for {tp[0]}-{tp[1]}", expected=expected, found=size
            )


# ---- refusals ------------------------------------------------------------------------------------


def refusal_error(group_id: str, refusal: Refusal, old: Group | None) -> EmbedlogError:
    """The error for a refused event."""
    state = "no such group"
    if old is not None:
        state = f"{old.state.label}, generation {old.generation}, {len(old.members)} members"
    return KINDS[refusal](f"group {group_id!r}: {refusal.value} ({refusal.name})", found=state)


def refuse_share(group_id: str, group: ModernGroup | None) -> None:
    """Raises InconsistentGroupProtocolError for a share group of a broker: it has no committed
    offsets.
    """
    if group is not None and group.type == "share":
        text = "is a share group, whose positions only a broker changes; choose another group id"
        raise InconsistentGroupProtocolError(f"{group_id!r} {text}")


def member_commit_refusal(
    old: Group | None, member: GroupMetadata, *, transactional: bool = False
) -> Refusal | None:
    """The reason to refuse a member's commit, or None."""
    refusal = machine.commit_refusal(
        old, member.member_id, member.generation, member.instance_id, transactional=transactional
    )
    return Refusal.UNKNOWN_MEMBER_ID if refusal is Refusal.GROUP_ID_NOT_FOUND else refusal


# ---- records -------------------------------------------------------------------------------------


def commit_records(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[Record]:
    """The records of a commit."""
    now_ms = system.wall_ms()
    return [
        (encode_offset_key(group_id, *tp), encode_offset(offset, now_ms))
        for tp, offset in offsets.items()
    ]


def batch_bytes(records: Iterable[Record]) -> int:
    """Upper bound of the size of a batch of these records."""
    return HEADER_BYTES + sum(map(record_bytes, records))


def record_bytes(record: Record) -> int:
    """Upper bound of the size of the record."""
    key, value = record
    return RECORD_BYTES + len(key) + len(value or b"")
