"""Named topics with their partitions and settings, stored in one small file.

- Names are valid in Kafka, and no two names collide in its metrics (where "." and "_" are equal).
- The file is replaced as a whole, and is on disk when `put` and `remove` return; their caller holds
  the directory lock.
- A topic is `creating` on disk before its first directory is made, `deleting` before its first
  directory is renamed. The next process completes an interrupted change (`topic_directories`).
- Additions of a newer version are kept in the file; an incompatible newer version has a higher
  version number and is refused.
- Memory follows disk: the registry changes only after the bytes are safe.
- A file that was read and is gone is an error, not a log without topics: the directory was moved,
  or its disk is absent.
- What cannot be read is not written: one bad topic would make the directory unusable for every
  process.
"""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from embedlog._native.scope import Guard
from embedlog.config.options import PARTITIONS_MAX, nearest
from embedlog.errors import (
    ForeignDirectoryError,
    InvalidPartitionsError,
    InvalidTopicError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.storage import files
from embedlog.storage.file_names import INT_MAX, NAME_LENGTH_MAX, TOPICS
from embedlog.storage.identity import id_bytes
from embedlog.storage.json_file import Entries, JsonFile

VERSION = 1
WORD_TRUST_NS = 100_000_000  # limits the trust in a control page that may have been replaced
STATES = ("creating", "live", "deleting")
INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__replica_state"}
)
# shared by all topics; can be copied, in contrast to a mapping proxy
NO_FIELDS: Final[Mapping[str, Any]] = {}
RESERVED_TOPICS = frozenset({"__cluster_metadata"})  # the log of KRaft, not a topic

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_REBUILD = (
    "if it cannot be restored, remove the file, or let `embedlog repair --execute` set it aside: "
    "topics are found again by their directories, without their settings"
)
_FILE = JsonFile(
    "topics",
    "the topics of this log directory; written by embedlog, change them through it",
    VERSION,
    _REBUILD,
)


# ---- names ---------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """The name, if it is valid for a topic. Raises InvalidTopicError, TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a topic is a str, not {type(name).__name__}")
    if name in ("", ".", "..") or len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        expected = f"1 to {NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ -, and neither . nor .."
        raise InvalidTopicError("not a valid topic name", expected=expected, found=repr(name[:300]))
    if name in RESERVED_TOPICS:
        raise InvalidTopicError(f"{name} is the metadata log of a Kafka cluster, not a topic")
    return name


def check_collision(name: str, others: Iterable[str]) -> None:
    """Raises InvalidTopicError if a different name would have the same metrics in Kafka."""
    plain = name.replace(".", "_")
    if "_" not in plain:
        return  # another name with the same metrics would contain one of both
    for topic in others:
        if topic != name and topic.replace(".", "_") == plain:
            raise InvalidTopicError(
                f"{name} collides with the topic {topic}: Kafka's metrics treat . and _ as equal"
            )


def is_internal(name: str) -> bool:
    """Whether the topic is internal, and hidden unless requested."""
    return name in INTERNAL_TOPICS


# ---- one topic -----------------------------------------------------------------------------------


class Topic(NamedTuple):
    """One topic as stored in the file.

    `partitions` is visible to users; `growing`, which is higher, is the intended number while
    directories are made. `only` has the local numbers, if not all are local: other brokers of a
    cluster hold the rest.
    """

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str] = NO_FIELDS
    state: str = "live"
    growing: int = 0
    only: tuple[int, ...] = ()
    others: Mapping[str, Any] = NO_FIELDS  # unknown fields of a newer version

    @property
    def id_bytes(self) -> bytes:
        """The topic id's 16 bytes."""
        return id_bytes(self.topic_id)

    @property
    def numbers(self) -> Sequence[int]:
        """The partitions that have, or will have, a local directory, rising."""
        if not self.only:
            return range(max(self.partitions, self.growing))
        return sorted({*self.only, *range(self.partitions, self.growing)})

    @property
    def usable_numbers(self) -> Sequence[int]:
        """The usable partitions, rising: without those being made, and those of other brokers."""
        if not self.only:
            return range(self.partitions)
        return [number for number in self.numbers if number < self.partitions]

    @property
    def is_finished(self) -> bool:
        """Whether no change of it is incomplete."""
        return self.state == "live" and not self.growing


def _encode_topic(topic: Topic) -> dict[str, Any]:
    fields = {
        **topic.others,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "state": topic.state,
        "config": dict(topic.config),
    }
    if topic.growing:
        fields["growing"] = topic.growing
    if topic.only:
        fields["only"] = list(topic.only)
    return fields


def _decode_topic(path: Path, name: str, entry: object) -> Topic:
    """Decode and check an entry: the checksum protects the bytes, not the meaning."""
    try:
        fields = dict(entry)  # type: ignore[call-overload]
        topic = Topic(
            name=check_name(name),
            topic_id=fields.pop("topic_id"),
            partitions=fields.pop("partitions"),
            config={str(key): str(value) for key, value in fields.pop("config").items()},
            state=fields.pop("state"),
            growing=fields.pop("growing", 0),
            only=tuple(sorted(fields.pop("only", ()))),
            others=fields,
        )
        _check_topic(topic)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        InvalidPartitionsError,
        InvalidTopicError,
    ) as problem:
        raise ForeignDirectoryError(
            f"the entry of {name!r} cannot be read ({problem!r}); {_REBUILD}", path=path
        ) from problem
    return topic


def check_count(count: int) -> int:
    """The number of partitions of a topic that has them all, if it is allowed. Raises
    InvalidPartitionsError.
    """
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitionsError(
            "number of partitions", expected=f"1 to {PARTITIONS_MAX}", found=count
        )
    return count


def _check_topic(topic: Topic) -> None:
    """Raises InvalidTopicError, InvalidPartitionsError, TypeError, ValueError for a topic that the
    file must not have.

    A topic without `only` has all its partitions here, so it may have PARTITIONS_MAX at most.
    """
    check_name(topic.name)
    numbers = (topic.partitions, topic.growing, *topic.only)
    if not all(type(number) is int for number in numbers):
        raise TypeError(f"numbers of partitions are ints: {numbers}")
    limit = INT_MAX + 1 if topic.only else PARTITIONS_MAX
    are_rising = all(before < after for before, after in pairwise((*topic.only, topic.partitions)))
    if not are_rising or topic.partitions < 1 or min(numbers) < 0 or max(numbers) > limit:
        found = f"partitions {topic.partitions}, growing {topic.growing}, only {topic.only}"
        raise InvalidPartitionsError(
            f"partitions of the topic {topic.name!r}", expected=f"1 to {limit}", found=found
        )
    if topic.state not in STATES:
        raise ValueError(f"state {topic.state!r}")
    id_bytes(topic.topic_id)


# ---- the file ------------------------------------------------------------------------------------


class _Content(NamedTuple):
    """The content of the file at one read."""

    generation: int = 0
    topics: Mapping[str, Topic] = MappingProxyType({})
    others: Mapping[str, Any] = MappingProxyType({})
    unfinished: frozenset[str] = frozenset()  # names of topics with an incomplete change


class TopicRegistry:
    """All topics of one log directory, kept in `embedlog.topics`.

    **Threads**: any may read at any time; `put` and `remove` are for the holder of the directory
    lock. A mutex orders the threads that replace the content: a slow one would take an older one
    over.

    | call | topics of which states |
    | --- | --- |
    | `live`, `names` | live ones: usable, while they grow, too |
    | `get`, `all`, `every_name` | all |
    | `list_unfinished` | those that are created or deleted, or grow |
    """

    def __init__(self, directory: Path, mode: int = 0o666) -> None:
        self.path = Path(directory, TOPICS)
        self._name = str(self.path)
        self._mode = mode
        self._signature: tuple[int, ...] | None = None
        # another object after each change and each read, whoever caused it
        self.content = _Content()
        self._mutex = threading.RLock()
        # of the topics that were encoded last, so that a change encodes only its topics
        self._entries = Entries()
        self._encoded: Mapping[str, Topic] | None = {}  # those topics; None after a failure
        # the version at the last check of the file, and the end of its validity
        self._word = 1
        self._trusted_ns = 0
        # the owner assigns these two. The first changes with each change of the file; odd: unknown
        self.word: Callable[[], int] = lambda: 1
        # called before (False) and after (True) each change of the file
        self.moving: Callable[[bool], None] = lambda done: None

    @property
    def generation(self) -> int:
        """The number of changes of the file; 0 without a file."""
        return self.content.generation

    def load(self) -> None:
        """Read the file; if there was never one, there are no topics.

        Raises ForeignDirectoryError for a damaged file, UnsupportedFormatError for a newer one,
        StorageError for one that is gone; then the registry is unchanged.
        """
        # before the read: a change in between is detected by the next refresh
        signature = self._sign()
        data = files.read_bytes(self.path)
        if data is None and self._signature:
            text = (
                "the file of the topics is gone while the log is open: the directory was removed "
                "or renamed"
            )
            raise StorageError(text, errno=errno.ENOENT, path=self.path)
        self.content = _Content() if data is None else _decode(self.path, data)
        self._signature = signature

    def refresh(self) -> bool:
        """Read the file if another process changed it; True if it was read.

        Needs one `stat`, unless the version in the control page is unchanged, which is valid for
        WORD_TRUST_NS.
        """
        word = self.word()
        now_ns = time.monotonic_ns()
        if word == self._word and not word & 1 and now_ns < self._trusted_ns:
            return False
        with Guard(self._mutex.release, self._mutex.acquire):
            # before the read: what changes in between is noticed by the next refresh
            word = self.word()
            was_read = self._refresh_by_file()
            self._word = word
            self._trusted_ns = now_ns + WORD_TRUST_NS
        return was_read

    def _refresh_by_file(self) -> bool:
        if not self.has_changed():
            return False
        self.load()
        return True

    def has_changed(self) -> bool:
        """Whether another process changed the file since it was read here (one `stat`)."""
        return self._sign() != self._signature

    def get(self, name: str) -> Topic | None:
        """The topic in any state; None if there is none with this name."""
        return self.content.topics.get(name)

    def live(self, name: str) -> Topic:
        """The topic, if it is usable. Raises UnknownTopicOrPartitionError, with similar names."""
        try:
            topic = self.content.topics.get(name)
        except TypeError:  # not hashable: a list of names
            topic = None
        if topic is not None and topic.state == "live":
            return topic
        if topic is None and not isinstance(name, str):
            raise TypeError(f"the name of a topic is a str, not {type(name).__name__}: {name!r}")
        if topic is None:
            reason = f"is unknown; {self._hint_for(name)}"
        elif topic.state == "creating":
            reason = "is being created"
        else:
            reason = "is being deleted"
        raise UnknownTopicOrPartitionError(f"topic {name!r} {reason}", path=self.path.parent)

    def _hint_for(self, name: str) -> str:
        """A hint for an unknown topic: a similar name, or how to create a topic."""
        if not _NAME.fullmatch(name):
            return "this name is not valid: for a pattern use consumer().subscribe(pattern=…)"
        similar = nearest(name, self.names())
        if similar:
            return f"did you mean {similar[0]!r}?"
        return "create_topic() creates it"

    def names(self) -> list[str]:
        """Names of all usable topics, sorted, including internal ones."""
        return sorted(name for name, topic in self.content.topics.items() if topic.state == "live")

    def all(self) -> list[Topic]:
        """Every topic in every state, by name."""
        return [topic for _, topic in sorted(self.content.topics.items())]

    def list_unfinished(self) -> list[Topic]:
        """Topics whose creation, growth or deletion was interrupted, or is in progress under the
        directory lock.
        """
        content = self.content
        return [content.topics[name] for name in sorted(content.unfinished)]

    def every_name(self) -> Iterable[str]:
        """Names of all topics in every state, without an order."""
        return self.content.topics.keys()

    def put(self, *topics: Topic, beside: Sequence[Path] = ()) -> None:
        """Add or replace topics, durably; the directories `beside` are on disk before the file. The
        caller holds the directory lock.
        """
        self._change({topic.name: topic for topic in topics}, (), beside)

    def remove(self, *names: str) -> None:
        """Remove topics, durably; unknown names are ignored. The caller holds the directory
        lock.
        """
        self._change({}, names)

    def change(self, topics: Iterable[Topic], removed: Iterable[str]) -> None:
        """`put` and `remove` in one step. The caller holds the directory lock."""
        self._change({topic.name: topic for topic in topics}, tuple(removed))

    def change_in_memory(self, topics: Iterable[Topic], removed: Iterable[str]) -> None:
        """As `change`, for a reader that must write nothing: the file does not change."""
        with Guard(self._mutex.release, self._mutex.acquire):
            self.content = self._content_with(
                {topic.name: topic for topic in topics}, tuple(removed)
            )

    def _change(
        self, topics: dict[str, Topic], removed: tuple[str, ...], beside: Sequence[Path] = ()
    ) -> None:
        for topic in topics.values():
            _check_topic(topic)
        # a thread that has read an older file must not replace the content in between
        with Guard(self._mutex.release, self._mutex.acquire):
            self._refresh_by_file()
            content = self._content_with(topics, removed)
        self.moving(False)
        try:
            data = self._encode(content, {*topics, *removed})
            files.write_atomically(self.path, data, self._mode, beside=beside)
        finally:
            self.moving(True)
        with Guard(self._mutex.release, self._mutex.acquire):
            self._signature = self._sign()
            self.content = content

    def _encode(self, content: _Content, changed: Iterable[str]) -> bytes:
        """The file with this content, which differs from the current one by the changed topics."""
        before = self._encoded
        self._encoded = None
        if before is None:
            before = {}
            self._entries = Entries()
        if before is not self.content.topics:  # the file was read again: compare all topics
            changed = before.keys() | content.topics.keys()
        for name in changed:
            old = before.get(name)
            new = content.topics.get(name)
            if new is None:
                self._entries.remove(name)
            elif old is not new and old != new:
                self._entries.put(name, _encode_topic(new))
        self._encoded = content.topics
        return _FILE.encode(content.generation, {"topics": self._entries.encode()}, content.others)

    def _content_with(self, topics: dict[str, Topic], removed: tuple[str, ...]) -> _Content:
        content = self.content
        new_topics = dict(content.topics)
        for name in removed:
            new_topics.pop(name, None)
        new_topics.update(topics)
        unfinished = content.unfinished.difference(removed, topics) | _unfinished_names(topics)
        return _Content(
            content.generation + 1, MappingProxyType(new_topics), content.others, unfinished
        )

    def _sign(self) -> tuple[int, ...]:
        facts = files.facts_of(self._name)
        if facts is None:
            return ()
        return facts.device, facts.inode, facts.modified_ns, facts.size


def _decode(path: Path, data: bytes) -> _Content:
    generation, others = _FILE.decode(path, data)
    entries = others.pop("topics", None)
    if not isinstance(entries, dict):
        raise ForeignDirectoryError(f"topics are missing; {_REBUILD}", path=path)
    topics = {name: _decode_topic(path, name, entry) for name, entry in entries.items()}
    return _Content(generation, MappingProxyType(topics), others, _unfinished_names(topics))


def _unfinished_names(topics: Mapping[str, Topic]) -> frozenset[str]:
    return frozenset(name for name, topic in topics.items() if not topic.is_finished)
