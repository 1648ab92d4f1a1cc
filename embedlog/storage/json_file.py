"""Small files of JSON that are replaced as a whole, with a version, a generation and a checksum.

- The checksum covers the canonical form of the content: whitespace and the order of keys are
  irrelevant.
- The version is compared before the checksum: a newer one may be computed in another way.
- The checksum protects the bytes, not their meaning: the caller checks every value.
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
        return cls(_encode_canonical(value), _encode_indented(value))

    def nest(self) -> Encoded:
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
        encoded = Encoded.of(value).nest().nest()
        canonical = f"{text}:{encoded.canonical}"
        indented = f"  {text}: {encoded.indented}"
        row = bisect_left(self._names, name)
        if self._has_at(row, name):
            self._canonical[row] = canonical
            self._indented[row] = indented
        else:
            self._names.insert(row, name)
            self._canonical.insert(row, canonical)
            self._indented.insert(row, indented)

    def remove(self, name: str) -> None:
        """Remove a value, if it is there."""
        row = bisect_left(self._names, name)
        if self._has_at(row, name):
            del self._names[row], self._canonical[row], self._indented[row]

    def _has_at(self, row: int, name: str) -> bool:
        return row < len(self._names) and self._names[row] == name

    def encode(self) -> Encoded:
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
        fields: dict[str, Encoded] = {}
        for name, value in document.items():
            fields[name] = value if isinstance(value, Encoded) else Encoded.of(value).nest()
        canonical = ",".join(
            f"{json.dumps(name)}:{fields[name].canonical}" for name in sorted(fields)
        )
        fields["checksum"] = Encoded.of(_sum("{" + canonical + "}"))
        lines = (f" {json.dumps(name)}: {field.indented}" for name, field in fields.items())
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
    return _sum(_encode_canonical(document))


def _encode_canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _encode_indented(value: object) -> str:
    return json.dumps(value, indent=1)


def _sum(canonical: str) -> str:
    return f"xxh3:{codec.xxh3_64(canonical.encode(), 0):016x}"
