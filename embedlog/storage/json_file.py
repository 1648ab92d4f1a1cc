"""Small files of JSON that are replaced as a whole, with a version, a generation and a checksum.

JSONFILE-1  the checksum covers the canonical form of the content: whitespace and the order of keys
    are irrelevant
JSONFILE-2  the version is compared before the checksum: a newer one may be computed in another way
JSONFILE-3  the checksum protects the bytes, not their meaning: the caller checks every value
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from embedlog._native import codec
from embedlog.errors import ForeignDirectoryError, UnsupportedFormatError


class Encoded(NamedTuple):
    """A value in two forms: canonical for the checksum, and as in the file. Large values keep the
    forms of their parts.
    """

    canonical: str
    indented: str

    @classmethod
    def of(cls, value: object) -> Encoded:
        return cls(_canonical(value), _indented(value))

    def nested(self) -> Encoded:
        """The form of a value one level deeper."""
        return self._replace(indented=self.indented.replace("\n", "\n "))


class Entries:
    """An object of a file with many values, sorted by name. A change encodes only its own values.
    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._canonical: list[str] = []  # of each name with its value, as both lists
        self._indented: list[str] = []

    def put(self, name: str, value: object) -> None:
        """Add or replace a value."""
        text = json.dumps(name)
        encoded = Encoded.of(value).nested().nested()
        at, there = self._place(name)
        if not there:
            self._names.insert(at, name)
        self._canonical[at : at + there] = [f"{text}:{encoded.canonical}"]
        self._indented[at : at + there] = [f"  {text}: {encoded.indented}"]

    def remove(self, name: str) -> None:
        """Remove a value, if it is there."""
        at, there = self._place(name)
        if there:
            del self._names[at], self._canonical[at], self._indented[at]

    def _place(self, name: str) -> tuple[int, bool]:
        at = bisect_left(self._names, name)
        return at, at < len(self._names) and self._names[at] == name

    def encoded(self) -> Encoded:
        """The object as a field of a file."""
        if not self._names:
            return Encoded.of({})
        return Encoded(
            "{" + ",".join(self._canonical) + "}", "{\n" + ",\n".join(self._indented) + "\n }"
        )


class JsonFile(NamedTuple):
    """A kind of such files. `purpose` is the note in the file, `remedy` ends the message of an
    error.
    """

    kind: str
    purpose: str
    version: int
    remedy: str

    def encode(
        self, generation: int, content: Mapping[str, Any], others: Mapping[str, Any]
    ) -> bytes:
        """The bytes of a file. `others` are fields of a newer version, which are kept. A value may
        be `Encoded`.
        """
        document: dict[str, Any] = {
            **others,
            "what": self.purpose,
            "version": self.version,
            "generation": generation,
            **content,
        }
        canonical = {
            name: value.canonical if isinstance(value, Encoded) else _canonical(value)
            for name, value in document.items()
        }
        document["checksum"] = _sum(
            "{"
            + ",".join(f"{json.dumps(name)}:{canonical[name]}" for name in sorted(canonical))
            + "}"
        )
        lines = (
            f" {json.dumps(name)}: "
            + (
                value.indented
                if isinstance(value, Encoded)
                else _indented(value).replace("\n", "\n ")
            )
            for name, value in document.items()
        )
        # in ASCII: a name may not be valid UTF-8
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()

    def decode(self, path: Path, data: bytes) -> tuple[int, dict[str, Any]]:
        """Generation and other fields. Raises ForeignDirectoryError, UnsupportedFormatError."""
        try:
            document = json.loads(data)
            version = document["version"]
            stored = document.pop("checksum")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ForeignDirectoryError(
                f"not a file of {self.kind} ({problem}); {self.remedy}", path=path
            ) from None
        if version != self.version:
            raise UnsupportedFormatError(
                "written by a newer embedlog: version",
                path=path,
                expected=self.version,
                found=f"{version!s:.40}",
            )
        computed = checksum(document)
        if computed != stored:
            raise ForeignDirectoryError(
                f"damaged, or edited by hand; {self.remedy}",
                path=path,
                expected=f"checksum {computed}",
                found=f"{stored!s:.40}",
            )
        generation = document.pop("generation", None)
        if type(generation) is not int or generation < 0:
            raise ForeignDirectoryError(
                f"{self.kind} without a generation; {self.remedy}", path=path
            )
        return generation, {
            key: value for key, value in document.items() if key not in ("what", "version")
        }


def checksum(document: Mapping[str, Any]) -> str:
    """XXH3 of the canonical form of a document."""
    return _sum(_canonical(document))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _indented(value: object) -> str:
    return json.dumps(value, indent=1)


def _sum(canonical: str) -> str:
    return f"xxh3:{codec.xxh3_64(canonical.encode(), 0):016x}"
