"""Names of files in a partition directory: Kafka's and embedlog's (format.md 2.1;
`docs/layout.md`).

- A segment's base offset has twenty digits; its files differ only in the suffix.
- embedlog's own names neither start with a digit nor end in a suffix of Kafka's, so a broker ignores
  them.
- The names of both kinds of directory are listed here: another name shows a foreign directory, and a
  file of that name is never removed. A file that is set aside gets a suffix of `storage.files`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DAMAGED: Final = ".damaged"  # the end of the name of a file that is set aside
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)

LOCK: Final = "embedlog.lock"
PAGE: Final = "embedlog.page"
SYNC_LOCK: Final = "embedlog.sync"
DURABLE: Final = "embedlog.durable"
MANIFEST: Final = "embedlog.manifest"
DIRTY: Final = "embedlog.dirty"
DIGESTS: Final = "embedlog.digests-"  # of a segment, as a suffix is: see `file_name`
POISON: Final = "embedlog.poison-"
CUT: Final = "embedlog.cut-"
PROMISE: Final = "embedlog.promise"  # of the decision log: the highest promised term

EPOCHS: Final = "leader-epoch-checkpoint"
META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"

# in the log directory
TOPICS: Final = "embedlog.topics"
OPEN_LOCK: Final = "embedlog.door"
DIRECTORY_LOCK: Final = "embedlog.directory"
HOUSEKEEPER: Final = "embedlog.housekeeper"
CONTROL: Final = "embedlog.control"
SLOTS: Final = "embedlog.slots"  # process slots
REPLICAS: Final = "embedlog.replicas"  # the members of the set that the directory belongs to
VISIT: Final = "embedlog.visit"  # the number of the last visit of a broker to the directory
BROKER_LOCK: Final = ".lock"
CLEAN_MARK: Final = ".kafka_cleanshutdown"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER: Final = "cleaner-offset-checkpoint"
UNFINISHED: Final = "embedlog.backup"  # an incomplete copy
SERVER_PROPERTIES: Final = "embedlog.server.properties"

# Caches of the log directory: a damaged one counts as absent and is rebuilt. Its other files are
# authoritative.
CACHES: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, CLEANER)

_OF_PARTITION: Final = frozenset(
    (
        LOCK,
        PAGE,
        SYNC_LOCK,
        DURABLE,
        MANIFEST,
        DIRTY,
        PROMISE,
        EPOCHS,
        PARTITION_METADATA,
        PARTITION_METADATA + DAMAGED,  # a repair sets it aside
    )
)
_OF_DIRECTORY: Final = frozenset(
    (
        TOPICS,
        OPEN_LOCK,
        DIRECTORY_LOCK,
        HOUSEKEEPER,
        CONTROL,
        SLOTS,
        REPLICAS,
        VISIT,
        UNFINISHED,
        SERVER_PROPERTIES,
        META_PROPERTIES,
        CLEAN_MARK,
        RECOVERY_POINTS,
        LOG_STARTS,
        HIGH_WATERMARKS,
        CLEANER,
    )
)
_ASIDE: Final = (DELETED, CLEANED, SWAP)

_KEPT_FILE = re.compile(r"embedlog\.(?:(?:digests|poison)-[0-9]{1,20}|cut-[0-9]{1,20}-[0-9]{1,20})")
_SEGMENT_FILE = re.compile(r"([0-9]{20})(\.[a-z.]+)")
_NUMBER = re.compile(r"[0-9]{1,20}")
# temporaries of Kafka and of older embedlog versions have no number
_TEMPORARY = re.compile(r"(.+?)(?:\.[0-9a-f]{16})?\.tmp")
_OFFSET_MAX = 2**63 - 1
_PARTITION = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})")

INT_MAX: Final = 2**31 - 1
NAME_LENGTH_MAX: Final = 249  # of a topic: the directory's name also contains "-" and the partition


def file_name(base: int, suffix: str) -> str:
    """Name of a file of a segment, with a suffix of Kafka's or DIGESTS, which comes first: embedlog's
    names never start with a digit.
    """
    if suffix == DIGESTS:
        return f"{suffix}{base:020d}"
    return f"{base:020d}{suffix}"


def digests_base(name: str) -> int | None:
    """Base offset of the segment that a file of digests belongs to, None for any other name."""
    return base_after(DIGESTS, name)


def base_after(prefix: str, name: str) -> int | None:
    """The offset in a name of this prefix, None for any other name: a directory may contain foreign
    names.
    """
    number = name.removeprefix(prefix)
    if number == name or not _NUMBER.fullmatch(number) or int(number) > _OFFSET_MAX:
        return None
    return int(number)


def segment_name(directory: str, base: int, suffix: str = LOG) -> str:
    """As `segment_path`, for the calls that are made often: it costs a tenth."""
    return f"{directory}/{file_name(base, suffix)}"


def segment_path(directory: Path, base: int, suffix: str = LOG) -> Path:
    return directory / file_name(base, suffix)


def parse(name: str) -> tuple[int, str] | None:
    """Base offset and suffix of one of Kafka's files, None for any other name."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match[1]) > _OFFSET_MAX:
        return None
    return int(match[1]), match[2]


def target_of_temporary(name: str) -> str | None:
    """The name that a temporary would have replaced (`files.write_atomically`), None for any other
    name.
    """
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return None
    target = match[1]
    return target if _is_final_name_of_partition(target) or target in _OF_DIRECTORY else None


def is_of_partition(name: str) -> bool:
    """Whether a file of this name belongs to a partition, also a temporary and one that is set
    aside.
    """
    return _is_final_name_of_partition(target_of_temporary(name) or name)


def _is_final_name_of_partition(name: str) -> bool:
    if name in _OF_PARTITION or _KEPT_FILE.fullmatch(name):
        return True
    parsed = parse(name)
    if parsed is None:
        return False
    _, suffix = parsed
    for mark in _ASIDE:
        if suffix.endswith(mark):
            suffix = suffix.removesuffix(mark)
            break
    return suffix in (*SEGMENT_SUFFIXES, SNAPSHOT)


def is_of_directory(name: str) -> bool:
    """Whether only a log directory has a file of this name, or its temporary. Other programs
    have `.lock` too.
    """
    return (target_of_temporary(name) or name) in _OF_DIRECTORY


def bases(names: list[str], suffix: str = LOG) -> list[int]:
    """Base offsets of all files with exactly this suffix, rising."""
    offsets = []
    for name in names:
        parsed = parse(name)
        if parsed is not None and parsed[1] == suffix:
            offsets.append(parsed[0])
    return sorted(offsets)


def partition_name(topic: str, number: int) -> str:
    """The directory of a live partition."""
    return f"{topic}-{number}"


def parse_partition_name(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a live partition's directory, split at the last "-"; None for every
    other name.
    """
    match = _PARTITION.fullmatch(name)
    if match is None or match[1] in (".", "..") or len(match[1]) > NAME_LENGTH_MAX:
        return None
    number = int(match[2])
    if number > INT_MAX:
        return None
    return match[1], number
