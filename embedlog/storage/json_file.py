"""Small files of JSON that are replaced as a whole, with a version, a generation and a checksum.

JSONFILE-1  the checksum covers the canonical form of the content: whitespace and the order of keys are irrelevant
JSONFILE-2  the version is compared before the checksum: a newer one may be computed in another way
JSONFILE-3  the checksum protects the bytes, not their meaning: the caller checks every value
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from embedlog._native import codec
from embedlog.errors import ForeignDirectoryError, UnsupportedFormatError


class JsonFile(NamedTuple):
    """A kind of such files. `purpose` is the note in the file, `remedy` ends the message of an error."""

    kind: str
    purpose: str
    version: int
    remedy: str

    def encode(self, generation: int, content: Mapping[str, Any], others: Mapping[str, Any]) -> bytes:
        """The bytes of a file. `others` are fields of a newer version, which are kept."""
        document: dict[str, Any] = {
            **others,
            "what": self.purpose,
            "version": self.version,
            "generation": generation,
            **content,
        }
        document["checksum"] = checksum(document)
        return (json.dumps(document, indent=1) + "\n").encode()  # in ASCII: a name may not be valid UTF-8

    def decode(self, path: Path, data: bytes) -> tuple[int, dict[str, Any]]:
        """Generation and other fields. Raises ForeignDirectoryError, UnsupportedFormatError."""
        try:
            document = json.loads(data)
            version = document["version"]
            stored = document.pop("checksum")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ForeignDirectoryError(f"not a file of {self.kind} ({problem}); {self.remedy}", path=path) from None
        if version != self.version:
            raise UnsupportedFormatError(
                "written by a newer embedlog: version", path=path, expected=self.version, found=f"{version!s:.40}"
            )
        computed = checksum(document)
        if computed != stored:
            raise ForeignDirectoryError(
                f"damaged, or edited by hand; {self.remedy}", path=path, expected=f"checksum {computed}", found=f"{stored!s:.40}"
            )
        generation = document.pop("generation", None)
        if type(generation) is not int or generation < 0:
            raise ForeignDirectoryError(f"{self.kind} without a generation; {self.remedy}", path=path)
        return generation, {key: value for key, value in document.items() if key not in ("what", "version")}


def checksum(document: Mapping[str, Any]) -> str:
    """XXH3 of the canonical form of a document."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"xxh3:{codec.xxh3_64(canonical.encode(), 0):016x}"
