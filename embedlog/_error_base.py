"""The root of the errors: its text is made of facts, and it crosses processes with all of them
(ERROR-2, ERROR-3).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar


def printable(text: str) -> str:
    """The text on one line: a character that is not printable (newline, ESC, lone surrogate)
    becomes its escape sequence.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


class EmbedlogError(Exception):
    """Root of all errors of this package.

    `message` is the sentence; the keywords are the facts: the file, the byte in it, the expected
    and the found value.
    """

    __module__ = "embedlog.errors"

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
        place = self.path or ""
        if self.position is not None:
            place = f"{place} at byte {self.position}".strip()
        facts = []
        if self.expected is not None:
            facts.append(f"expected {self.expected}")
        if self.found is not None:
            facts.append(f"found {self.found}")
        text = ": ".join(part for part in (place, self._text(), ", ".join(facts)) if part)
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

    __module__ = "embedlog.errors"

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

    __module__ = "embedlog.errors"


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
