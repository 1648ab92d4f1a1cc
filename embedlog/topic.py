"""Named topics: which there are, with how many partitions and which settings. One small file holds them all.

TOPIC-1  a name is one that Kafka takes, and no two names collide in its metrics ("." and "_" count as equal there)
TOPIC-2  the file is replaced as a whole, and on disk when `put` and `remove` return; whoever calls them holds the directory lock
TOPIC-3  a topic is `creating` on disk before its first directory is made, `deleting` before its first directory is renamed:
    whoever finds it half done finishes it (`topic_directories`)
TOPIC-4  what a newer version added to the file stays in it; what a newer version changed has a higher version number and is
    refused
TOPIC-5  memory follows disk: the registry changes only after the bytes are safe
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from embedlog._native import codec
from embedlog.config.options import nearest
from embedlog.errors import ForeignDirectoryError, InvalidTopicError, UnknownTopicOrPartitionError, UnsupportedFormatError
from embedlog.storage import files
from embedlog.storage.file_names import INT_MAX, NAME_LENGTH_MAX
from embedlog.storage.identity import id_bytes

TOPICS = "embedlog.topics"
VERSION = 1
WORD_TRUST_NS = 100_000_000  # a page that was lost under us tells of nothing any more
PARTITIONS_MAX = 1 << 20  # of a topic that is all here: each has a directory
STATES = ("creating", "live", "deleting")
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
RESERVED_TOPICS = frozenset({"__cluster_metadata"})  # KRaft's own log, no topic

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_REBUILD = "if it cannot be restored, remove the file: topics are found again by their directories, without their settings"


# ---- names ---------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """The name, if a topic can have it. Raises InvalidTopicError, TypeError."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a topic is a str, not {type(name).__name__}")
    if name in ("", ".", "..") or len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        expected = f"1 to {NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ -, and neither . nor .."
        raise InvalidTopicError("not the name of a topic", expected=expected, found=repr(name[:300]))
    if name in RESERVED_TOPICS:
        raise InvalidTopicError(f"{name} is the metadata log of a Kafka cluster, not a topic")
    return name


def check_collision(name: str, others: Iterable[str]) -> None:
    """Raises InvalidTopicError if a different name would have the same metrics in Kafka."""
    plain = name.replace(".", "_")
    for other in others:
        if other != name and other.replace(".", "_") == plain:
            raise InvalidTopicError(f"{name} collides with the topic {other}: Kafka's metrics take . and _ for the same")


def is_internal(name: str) -> bool:
    """Whether the topic is one of the log's own, hidden unless asked for."""
    return name in INTERNAL_TOPICS


# ---- one topic -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Topic:
    """One topic as the file has it.

    `partitions` is what users see; `growing`, above it, how many there shall be once their directories are made. `only` names
    the numbers that are here, if not all of them are: other brokers of a cluster held the rest.
    """

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    state: str = "live"
    growing: int = 0
    only: tuple[int, ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict)  # what a newer version wrote beside

    @property
    def id_bytes(self) -> bytes:
        """The topic id's 16 bytes."""
        return id_bytes(self.topic_id)

    @property
    def numbers(self) -> Sequence[int]:
        """The partitions that have, or will have, a directory here, rising."""
        if not self.only:
            return range(max(self.partitions, self.growing))
        return sorted({*self.only, *range(self.partitions, self.growing)})

    @property
    def here(self) -> Sequence[int]:
        """The partitions that can be used, rising: all, but those being made, and those that other brokers hold."""
        if not self.only:
            return range(self.partitions)
        made = max(self.partitions, self.only[-1] + 1)
        return [number for number in self.numbers if number < made]

    @property
    def finished(self) -> bool:
        """Whether nothing about it is half done."""
        return self.state == "live" and not self.growing


def _encode_topic(topic: Topic) -> dict[str, Any]:
    return {
        **topic.others,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "state": topic.state,
        "config": dict(topic.config),
        **({"growing": topic.growing} if topic.growing else {}),
        **({"only": list(topic.only)} if topic.only else {}),
    }


def _decode_topic(path: Path, name: str, entry: object) -> Topic:
    """A topic out of its entry, every value checked: the checksum speaks for the bytes, not for who wrote them."""
    try:
        rest = dict(entry)  # type: ignore[call-overload]
        topic = Topic(
            name=check_name(name),
            topic_id=rest.pop("topic_id"),
            partitions=rest.pop("partitions"),
            config={str(key): str(value) for key, value in rest.pop("config").items()},
            state=rest.pop("state"),
            growing=rest.pop("growing", 0),
            only=tuple(sorted(rest.pop("only", ()))),
            others=rest,
        )
        numbers = (topic.partitions, topic.growing, *topic.only)
        if not all(type(each) is int for each in numbers) or topic.partitions < 1 or not _are_numbers(topic, numbers):
            raise ValueError(f"partitions {topic.partitions}, growing {topic.growing}, only {topic.only}")
        if topic.state not in STATES:
            raise ValueError(f"state {topic.state!r}")
        id_bytes(topic.topic_id)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidTopicError) as problem:
        raise ForeignDirectoryError(f"the entry of {name!r} cannot be read ({problem!r}); {_REBUILD}", path=path) from problem
    return topic


def _are_numbers(topic: Topic, numbers: Sequence[int]) -> bool:
    """Whether these can be numbers and counts of partitions; where nothing says which are here, all of them are looked for."""
    return min(numbers) >= 0 and max(numbers) <= (INT_MAX + 1 if topic.only else PARTITIONS_MAX)


# ---- the file ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Content:
    """What one reading of the file gave."""

    generation: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)


class TopicRegistry:
    """All topics of one log directory, kept in `embedlog.topics`.

    **Threads**: any may read at any time; `put` and `remove` are for the holder of the directory lock. No lock is taken here.
    """

    def __init__(self, directory: Path, mode: int = 0o666) -> None:
        self.path = Path(directory, TOPICS)
        self._mode = mode
        self._signature: tuple[int, ...] | None = None
        self._content = _Content()
        self._word, self._trusted_ns = 1, 0  # what the word was at the last look at the file, and until when it is believed
        self.word: Callable[[], int] = lambda: 1  # moves with each change of the file; odd where that cannot be told
        self.moving: Callable[[bool], None] = lambda done: None  # called before (False) and behind (True) each change of the file

    @property
    def generation(self) -> int:
        """Counts the changes of the file; 0 while there is none."""
        return self._content.generation

    def load(self) -> None:
        """Read the file; without one there are no topics.

        Raises ForeignDirectoryError for a damaged file, UnsupportedFormatError for a newer one; then nothing changes here.
        """
        signature = self._sign()  # before reading: a change in between is seen at the next refresh
        data = files.read_bytes(self.path)
        self._content = _Content() if data is None else _decode(self.path, data)
        self._signature = signature

    def refresh(self) -> bool:
        """Look whether another process changed the file, and read it if so; True if it was read.

        One `stat`, unless the word tells that there was no change since the last one, which is believed for WORD_TRUST_NS.
        """
        word, now = self.word(), time.monotonic_ns()
        if word == self._word and not word & 1 and now < self._trusted_ns:
            return False
        changed = self._refresh_by_file()
        self._word, self._trusted_ns = word, now + WORD_TRUST_NS
        return changed

    def _refresh_by_file(self) -> bool:
        if not self.has_changed():
            return False
        self.load()
        return True

    def has_changed(self) -> bool:
        """Whether another process changed the file since it was read here (one `stat`)."""
        return self._sign() != self._signature

    def get(self, name: str) -> Topic | None:
        """The topic, in whatever state it is; None if there is none of this name."""
        return self._content.topics.get(name)

    def live(self, name: str) -> Topic:
        """The topic, if it can be used. Raises UnknownTopicOrPartitionError, with what there is of similar name."""
        topic = self.get(name)
        if topic is None and not isinstance(name, str):
            raise TypeError(f"the name of a topic is a str, not {type(name).__name__}")
        if topic is None or topic.state != "live":
            why = "is being created" if topic and topic.state == "creating" else "is being deleted" if topic else "is unknown"
            hint = "" if topic else self._hint(name)
            raise UnknownTopicOrPartitionError(f"topic {name!r} {why}{hint}", path=self.path.parent)
        return topic

    def _hint(self, name: str) -> str:
        """What was probably meant by the name of a topic that is not there, and how to make one."""
        if not _NAME.fullmatch(name):
            return "; no topic can have this name: a pattern is for consumer().subscribe(pattern=…)"
        near = nearest(name, self.names())
        return f"; did you mean {near[0]!r}?" if near else "; create_topic() makes one"

    def names(self) -> list[str]:
        """Names of all topics that can be used, sorted, internal ones too."""
        return sorted(name for name, topic in self._content.topics.items() if topic.state == "live")

    def all(self) -> list[Topic]:
        """Every topic in every state, by name."""
        return [topic for _, topic in sorted(self._content.topics.items())]

    def unfinished(self) -> list[Topic]:
        """Topics whose creation, growth or deletion was interrupted (or is under way under the directory lock)."""
        return [topic for topic in self.all() if not topic.finished]

    def put(self, *topics: Topic) -> None:
        """Add or replace topics, durably. The caller holds the directory lock."""
        self._change({topic.name: topic for topic in topics}, ())

    def remove(self, *names: str) -> None:
        """Forget topics, durably; unknown names are nothing to forget. The caller holds the directory lock."""
        self._change({}, names)

    def change(self, topics: Iterable[Topic], gone: Iterable[str]) -> None:
        """`put` and `remove` in one step. The caller holds the directory lock."""
        self._change({topic.name: topic for topic in topics}, tuple(gone))

    def adopt_in_memory(self, topics: Iterable[Topic], gone: Iterable[str]) -> None:
        """As `change`, but for a reader that must write nothing: the file stays as it is."""
        self._content = self._changed({topic.name: topic for topic in topics}, tuple(gone))

    def _change(self, topics: dict[str, Topic], gone: tuple[str, ...]) -> None:
        self._refresh_by_file()
        content = self._changed(topics, gone)
        self.moving(False)
        try:
            files.write_atomically(self.path, _encode(content), self._mode)
        finally:
            self.moving(True)
        self._signature, self._content = self._sign(), content

    def _changed(self, topics: dict[str, Topic], gone: tuple[str, ...]) -> _Content:
        kept = {name: topic for name, topic in self._content.topics.items() if name not in gone}
        return _Content(self._content.generation + 1, MappingProxyType(kept | topics), self._content.others)

    def _sign(self) -> tuple[int, ...]:
        found = files.facts_of(self.path)
        return () if found is None else (found.device, found.inode, found.modified_ns, found.size)


def _encode(content: _Content) -> bytes:
    document: dict[str, Any] = {
        **content.others,
        "what": "the topics of this log directory; written by embedlog, change them through it",
        "version": VERSION,
        "generation": content.generation,
        "topics": {name: _encode_topic(topic) for name, topic in sorted(content.topics.items())},
    }
    document["checksum"] = _checksum(document)
    return (json.dumps(document, indent=1) + "\n").encode()  # in ASCII: a name in it may be no UTF-8


def _decode(path: Path, data: bytes) -> _Content:
    try:
        document = json.loads(data)
        version = document["version"]
        stored = document.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ForeignDirectoryError(f"not a file of topics ({problem}); {_REBUILD}", path=path) from None
    if version != VERSION:
        raise UnsupportedFormatError("written by a newer embedlog: version", path=path, expected=VERSION, found=version)
    computed = _checksum(document)
    if computed != stored:
        raise ForeignDirectoryError(
            f"damaged, or edited by hand; {_REBUILD}", path=path, expected=f"checksum {computed}", found=f"{stored!s:.40}"
        )
    entries, generation = document.pop("topics", None), document.pop("generation", None)
    if not isinstance(entries, dict) or type(generation) is not int:
        raise ForeignDirectoryError(f"topics or generation are missing; {_REBUILD}", path=path)
    topics = {name: _decode_topic(path, name, entry) for name, entry in entries.items()}
    return _Content(generation, MappingProxyType(topics), {key: document[key] for key in document.keys() - {"what", "version"}})


def _checksum(document: Mapping[str, Any]) -> str:
    """XXH3 over the canonical form of the content: spaces and order do not matter."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"xxh3:{codec.xxh3_64(canonical.encode(), 0):016x}"
