"""Contains `Mirror`: topics of one log, with their records and groups, copied to another one
exactly once.

- A side is a log directory, a set of them, an open log, or `kafka://HOST:PORT[,HOST:PORT]`.
- Confluent-kafka is imported only if a side is a Kafka cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import embedlog
from embedlog import ConfigError, MissingExtraError
from embedlog.mirror.copying import Advance, Copying, MirrorPlan
from embedlog.mirror.directory_sides import DirectorySource, DirectoryTarget
from embedlog.mirror.sides import MirrorSource, MirrorTarget
from embedlog.mirror.topics import Selection

KAFKA = "kafka://"
NAME_CHARACTERS = 100

Location: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | embedlog.Log


class MirroredTopic(NamedTuple):
    """A topic of a mirror, with the number of records that this run copied."""

    topic: str
    target: str
    records: int


class MirroredOffset(NamedTuple):
    """A translated offset that this run committed at the target."""

    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class MirrorReport:
    """What a run of a mirror did. `size_bytes` is the size of keys and values."""

    topics: tuple[MirroredTopic, ...]
    offsets: tuple[MirroredOffset, ...]
    size_bytes: int

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)


class Mirror:
    """Copies topics from one log to another; used in `with`, or closed by `close`.

    `topics` are names, `pattern` is a regular expression for whole names: a topic is copied if one
    of the two selects it. Without both, all topics are copied. `groups` are ids, or None for all;
    without it, no group is copied. A topic keeps its name, after `prefix`. `name`
    distinguishes mirrors that run at the same time. `append` permits targets that have other
    records, `skip_deleted` the loss of records that were deleted before their copy. `source_config`
    and `target_config` are settings of the clients of a side.

    Raises ConfigError, MissingExtraError, and what `embedlog.open` raises.

    Examples:
        >>> with Mirror("data", "kafka://localhost:9092", topics=["events"]) as mirror:
        ...     report = mirror.run()                                      # doctest: +SKIP
    """

    def __init__(
        self,
        source: Location,
        target: Location,
        *,
        topics: Iterable[str] = (),
        pattern: str | None = None,
        groups: Iterable[str] | None = (),
        name: str = "",
        prefix: str = "",
        append: bool = False,
        skip_deleted: bool = False,
        replication_factor: int | None = None,
        source_config: Mapping[str, Any] | None = None,
        target_config: Mapping[str, Any] | None = None,
        notice: Callable[[str], object] = lambda text: None,
    ) -> None:
        plan = MirrorPlan(
            Selection(tuple(topics), pattern),
            groups=None if groups is None else tuple(groups),
            name=_check_name(name),
            prefix=prefix,
            append=append,
            skip_deleted=skip_deleted,
            replication_factor=replication_factor,
        )
        self._resources = ExitStack()
        try:
            reading = _open_source(source, source_config or {}, self._resources)
            writing = _open_target(target, target_config or {}, self._resources)
            if reading.identity == writing.identity:
                raise ConfigError(
                    "the source and the target are the same log",
                    expected="two logs",
                    found=reading.label,
                )
            self._copying = Copying(reading, writing, plan, notice)
        except BaseException:
            self._resources.close()
            raise
        self._prefix = prefix

    def run(self, *, follow: bool = False, progress: Advance | None = None) -> MirrorReport:
        """Copy up to the current ends, or with `follow` until `end`; call it once.

        `progress(offsets copied, all offsets)` is called repeatedly. Raises FencedError if another
        mirror took over, OffsetOutOfRangeError for deleted records, StateError for topics that were
        created again, and errors of both sides.
        """
        self._copying.run(follow=follow, progress=progress or (lambda done, total: None))
        return self.report()

    def end(self) -> None:
        """End `run` after the current transaction. From any thread, and from signal handlers."""
        self._copying.end()

    def report(self) -> MirrorReport:
        """What was copied up to now."""
        counts = self._copying.counts
        topics = [
            MirroredTopic(name, self._prefix + name, counts.records.get(name, 0))
            for name in sorted(self._copying.topics())
        ]
        offsets = [
            MirroredOffset(group, topic, number, offset)
            for (group, (topic, number)), offset in sorted(self._copying.groups.offsets.items())
        ]
        return MirrorReport(tuple(topics), tuple(offsets), counts.size_bytes)

    def close(self) -> None:
        """Close both sides, except logs that were given open. Idempotent."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_name(name: str) -> str:
    is_plain = all(
        character.isascii() and (character.isalnum() or character in ".-") for character in name
    )
    if len(name) > NAME_CHARACTERS:
        raise ConfigError(
            "name of a mirror",
            expected=f"at most {NAME_CHARACTERS} characters",
            found=f"{len(name)} characters",
        )
    if not is_plain:
        raise ConfigError("name of a mirror", expected="letters, digits, . and -", found=repr(name))
    return name


# ---- sides ---------------------------------------------------------------------------------------


def _open_source(
    location: Location, settings: Mapping[str, Any], resources: ExitStack
) -> MirrorSource:
    bootstrap = _bootstrap_of(location)
    if bootstrap is not None:
        from embedlog.mirror.kafka_source import KafkaSource

        source: MirrorSource = KafkaSource(bootstrap, settings)
    else:
        source = DirectorySource(
            _open_log(location, resources, read_only=True), _label_of(location), settings
        )
    resources.callback(source.close)
    return source


def _open_target(
    location: Location, settings: Mapping[str, Any], resources: ExitStack
) -> MirrorTarget:
    bootstrap = _bootstrap_of(location)
    if bootstrap is not None:
        from embedlog.mirror.kafka_target import KafkaTarget

        target: MirrorTarget = KafkaTarget(bootstrap, settings)
    else:
        target = DirectoryTarget(
            _open_log(location, resources, read_only=False), _label_of(location), settings
        )
    resources.callback(target.close)
    return target


def _bootstrap_of(location: Location) -> str | None:
    """The addresses of a Kafka cluster; None for a log. Raises ConfigError, MissingExtraError."""
    if not isinstance(location, str) or not location.startswith(KAFKA):
        return None
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as missing:
        raise MissingExtraError(
            "a Kafka cluster as a side of a mirror needs confluent-kafka", extra="kafka"
        ) from missing
    addresses = location.removeprefix(KAFKA).rstrip("/")
    if not addresses or "/" in addresses:
        raise ConfigError(
            "place of a mirror", expected="kafka://HOST:PORT[,HOST:PORT]", found=location
        )
    return addresses


def _open_log(location: Location, resources: ExitStack, *, read_only: bool) -> embedlog.Log:
    if isinstance(location, embedlog.Log):
        return location
    return resources.enter_context(
        embedlog.open(location, read_only=read_only, create=not read_only)
    )


def _label_of(location: Location) -> str:
    if isinstance(location, embedlog.Log):
        return str(location.path)
    if isinstance(location, str | os.PathLike):
        return os.fspath(location)
    return os.pathsep.join(os.fspath(path) for path in location)
