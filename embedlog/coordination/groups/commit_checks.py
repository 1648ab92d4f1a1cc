"""Checks the arguments and sizes of commits, makes their records, and maps refusals to errors. No
lock, no file.

COMMITCHECK-1  invalid arguments raise an error of this package, or a TypeError, before a lock is
    taken
COMMITCHECK-2  a refusal becomes an error by the caller's remedy: poll to join again, close, choose
    another group
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


def checked_group_id(group_id: object) -> str:
    """The group id, if it is valid. Raises InvalidGroupIdError, TypeError."""
    if not isinstance(group_id, str):
        raise TypeError(f"a group id is a str, not {type(group_id).__name__}")
    size = _size(group_id)
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidGroupIdError(
            "group id", expected=f"1 to {NAME_BYTES_MAX} bytes of UTF-8", found=f"{group_id!r:.100}"
        )
    return group_id


def checked_instances(instance_ids: object) -> Collection[str]:
    """Names of static members. Raises TypeError."""
    if isinstance(instance_ids, str) or not isinstance(instance_ids, Collection):
        raise TypeError(f"instance ids are a list of str, not {instance_ids!r:.100}")
    for each in instance_ids:
        if not isinstance(each, str):
            raise TypeError(f"an instance id is a str, not {type(each).__name__}")
    return instance_ids


def checked_identity(group_id: str, identity: object) -> GroupMetadata:
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
    """Offsets that `checked_offsets` has checked; it accepts them again as they are. Never passed
    to code of the user.
    """


def checked_offsets(offsets: object) -> CheckedOffsets:
    """The offsets to commit, each with its metadata. Raises TypeError, OffsetOutOfRangeError."""
    if type(offsets) is CheckedOffsets:
        return offsets
    given: Mapping[TopicPartition, object] = by_partition("offsets", offsets)  # type: ignore[arg-type]
    return CheckedOffsets(
        (place, _checked_offset(place, offset)) for place, offset in given.items()
    )


def _checked_offset(place: Any, offset: object) -> OffsetAndMetadata:
    made = OffsetAndMetadata(offset) if type(offset) is int else offset
    if isinstance(made, tuple) and getattr(made, "_fields", ())[:2] == ("offset", "metadata"):
        made = OffsetAndMetadata(*made[:3])  # of another client
    if not isinstance(made, OffsetAndMetadata) or (type(made.offset), type(made.leader_epoch)) != (
        int,
        int,
    ):
        raise TypeError(f"an offset is an OffsetAndMetadata or an int, not {offset!r:.100}")
    if not isinstance(made.metadata, str):
        raise TypeError(f"the metadata of an offset is a str, not {type(made.metadata).__name__}")
    if not 0 <= made.offset <= LONG_MAX or not -1 <= made.leader_epoch <= INT_MAX:
        raise OffsetOutOfRangeError(
            "an offset to commit",
            topic=place[0],
            partition=place[1],
            expected="0 to 2^63 - 1, with a leader epoch of -1 or more",
            found=f"{made.offset}, {made.leader_epoch}",
        )
    return made


def _size(text: str) -> int:
    """Bytes of a text in UTF-8; -1 if it has no such form."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return -1


def check_notes(wanted: Mapping[TopicPartition, OffsetAndMetadata], limit: int) -> None:
    """Raises RecordTooLargeError for metadata of more than `limit` bytes."""
    for place, offset in wanted.items():
        if offset.metadata and not 0 <= (size := _size(offset.metadata)) <= limit:
            expected = f"at most {limit} bytes of UTF-8 (offset.metadata.max.bytes)"
            raise RecordTooLargeError(
                f"metadata of an offset for {place[0]}-{place[1]}", expected=expected, found=size
            )


# ---- refusals ------------------------------------------------------------------------------------


def refused(group_id: str, refusal: Refusal, old: Group | None) -> EmbedlogError:
    """The error for a refused event."""
    found = (
        "no such group"
        if old is None
        else f"{old.state.label}, generation {old.generation}, {len(old.members)} members"
    )
    return KINDS[refusal](f"group {group_id!r}: {refusal.value} ({refusal.name})", found=found)


def refuse_share(group_id: str, group: ModernGroup | None) -> None:
    """Raises InconsistentGroupProtocolError for a share group of a broker: it has no committed
    offsets.
    """
    if group is not None and group.type == "share":
        text = "is a share group, whose positions only a broker changes; choose another group id"
        raise InconsistentGroupProtocolError(f"{group_id!r} {text}")


def admitted(
    old: Group | None, member: GroupMetadata, *, transactional: bool = False
) -> Refusal | None:
    """The reason to refuse a member's commit, or None."""
    refusal = machine.may_commit(
        old, member.member_id, member.generation, member.instance_id, transactional=transactional
    )
    return Refusal.UNKNOWN_MEMBER_ID if refusal is Refusal.GROUP_ID_NOT_FOUND else refusal


# ---- records -------------------------------------------------------------------------------------


def commit_records(
    group_id: str, wanted: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[Record]:
    """The records of a commit."""
    now_ms = system.wall_ms()
    return [
        (encode_offset_key(group_id, *place), encode_offset(each, now_ms))
        for place, each in wanted.items()
    ]


def batch_bytes(records: Iterable[Record]) -> int:
    """Upper bound of the size of a batch of these records."""
    return HEADER_BYTES + sum(map(record_bytes, records))


def record_bytes(record: Record) -> int:
    """Upper bound of the size of the record."""
    key, value = record
    return RECORD_BYTES + len(key) + len(value or b"")
