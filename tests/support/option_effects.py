"""Helpers for experiments with one setting: it is given in its place, and its visible effect is
compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import embedlog
from embedlog.config.client import ConsumerConfig, ProducerConfig
from embedlog.config.options import Options, dotted, options_of, underscored
from embedlog.config.topic import LogConfig, TopicConfig
from tests.support.transactional_producers import QUIET

Key = tuple[type[Options], str]
OLD_MS = 1_000_000  # 1970: older than any limit of a test
TESTS = Path(__file__).resolve().parent.parent


class World:
    """A log directory in which one setting has one value. Everything is closed with it."""

    def __init__(self, path: Path, key: Key, value: Any) -> None:
        self.path = path
        self.value = value
        self._kind = key[0]
        self.setting = {dotted(key[1]): value}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _of(self, kind: type[Options], more: Mapping[str, Any]) -> dict[str, Any]:
        return {dotted(name): value for name, value in more.items()} | (
            self.setting if kind is self._kind else {}
        )

    def open(self, **config: Any) -> embedlog.Log:
        return self._open.enter_context(
            embedlog.open(self.path, config=QUIET | self._of(LogConfig, config))
        )

    @cached_property
    def log(self) -> embedlog.Log:
        return self.open()

    def topic(self, name: str = "t", partitions: int | None = None, **config: Any) -> None:
        self.log.create_topic(name, partitions, config=self._of(TopicConfig, config))

    def producer(self, **options: Any) -> embedlog.Producer:
        given = {
            underscored(name): value for name, value in self._of(ProducerConfig, options).items()
        }
        return self._open.enter_context(self.log.producer(**given))

    def consumer(self, *topics: str, **options: Any) -> embedlog.Consumer:
        given = {
            underscored(name): value for name, value in self._of(ConsumerConfig, options).items()
        }
        return self._open.enter_context(self.log.consumer(*topics, **given))

    def send(
        self,
        *values: bytes | None,
        key: bytes | None = b"k",
        time_ms: int | None = None,
        **options: Any,
    ) -> str | None:
        """Each value as a record and a batch of its own, of `t`'s partition 0; the name of the
        first error.
        """
        producer = self.producer(**{"linger_ms": 0, **options})
        found = None
        for value in values:
            error = producer.send("t", value, key, partition=0, timestamp_ms=time_ms).exception(60)
            found = found or error_name(error)
        return found

    # ---- visible facts of partition 0 of the topic `t` -------

    @property
    def partition(self) -> Any:
        return self.log._engine.partition("t", 0)

    @property
    def directory(self) -> Path:
        return Path(self.log.path) / "t-0"

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.directory.glob(pattern))

    def values(self, **options: Any) -> list[Any]:
        return [record.value for record in self.log.scan("t", **options).records()]


@dataclass(frozen=True)
class Seen:
    """The effect of each of some values of a setting: [(value, effect)]."""

    observe: Callable[[World], object]
    cases: Sequence[tuple[Any, object]]


@dataclass(frozen=True)
class Differ:
    """The effect of each of these values differs from all others."""

    observe: Callable[[World], object]
    values: Sequence[Any]


@dataclass(frozen=True)
class Elsewhere:
    """A test of its own shows the effect, since `why`: "test_file.py::test_name"."""

    where: str
    why: str


Effect = Seen | Differ | Elsewhere


def check(effect: Effect, key: Key, directory: Path) -> None:
    """The effect is that of the table. Raises AssertionError."""
    if isinstance(effect, Elsewhere):
        file, _, test = effect.where.partition("::")
        assert f"def {test}(" in (TESTS / file).read_text(), effect
        assert effect.why
        return
    values = [case[0] for case in effect.cases] if isinstance(effect, Seen) else effect.values
    found = []
    for number, value in enumerate(values):
        with World(directory / str(number), key, value) as world:
            found.append(effect.observe(world))
    if isinstance(effect, Seen):
        assert list(zip(values, found, strict=True)) == list(effect.cases), found
        assert len({repr(each) for each in found}) > 1, "nothing depends on the setting"
    else:
        assert len({repr(each) for each in found}) == len(found), found


def keys_of(kind: type[Options]) -> list[str]:
    """The settings of one kind that are no defaults of another kind's."""
    return [name for name, known in options_of(kind).items() if not known.topic_option]


def error_name(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__


def name_of(call: Callable[[], object]) -> str | None:
    """The name of the error that a call raises."""
    try:
        call()
    except embedlog.EmbedlogError as error:
        return error_name(error)
    return None
