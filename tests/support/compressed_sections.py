"""Records sections in every form that the codecs allow, and in broken ones: input for Kafka's
decoders and for ours.

`tests/data/compressed-sections.jsonl` has them with what Kafka's decoders read
(`tests/kafka/Sections.java`). They are made by the libraries of the codecs, without the package.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.kafka import oracle

DATA = Path(__file__).parent.parent / "data" / "compressed-sections.jsonl"
PROGRAM = Path(oracle.__file__).parent / "Sections.java"
ONE = b"the first part " * 9
TWO = b"and the second one " * 7
XERIAL = b"\x82SNAPPY\0" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
SKIPPABLE = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"skips"


class Section(NamedTuple):
    """A section, and what Kafka makes of it: None for an error."""

    name: str
    codec: str
    data: bytes
    plain: bytes | None = None


def _gzips() -> Iterator[tuple[str, bytes]]:
    one = gzip.compress(ONE, mtime=0)
    two = gzip.compress(TWO, mtime=0)
    empty = gzip.compress(b"", mtime=0)
    named = b"\x1f\x8b\x08\x1e\0\0\0\0\0\3" + b"\3\0abc" + b"name\0" + b"comment\0"
    named += (zlib.crc32(named) & 0xFFFF).to_bytes(2, "little") + one[10:]
    yield "one member", one
    yield "two members", one + two
    yield "three members, one empty", one + empty + two
    yield "an empty member", empty
    yield "a member with name, comment, extra field and checksum", named
    yield "a member and zeros", one + bytes(9)
    yield "a member and other bytes", one + b"other bytes, which are no member at all"
    yield "a member and one byte", one + b"\x1f"
    yield "a member and the start of another one", one + two[:4]
    yield "a member and half of another one", one + two[: len(two) // 2]
    yield "a member without its trailer", one[:-8]
    yield "a member with a wrong checksum", one[:-8] + bytes([one[-8] ^ 1]) + one[-7:]
    yield "half a member", one[: len(one) // 2]
    yield "no bytes", b""


def _snappies() -> Iterator[tuple[str, bytes]]:
    import cramjam

    def raw(data: bytes) -> bytes:
        return bytes(cramjam.snappy.compress_raw(data))

    def chunk(data: bytes) -> bytes:
        return len(raw(data)).to_bytes(4, "big") + raw(data)

    stream = XERIAL + chunk(ONE)
    yield "one stream", stream
    yield "one stream of two chunks", stream + chunk(TWO)
    yield "two streams", stream + XERIAL + chunk(TWO)
    yield "three streams, one empty", stream + XERIAL + XERIAL + chunk(TWO)
    yield "a header alone", XERIAL
    yield "a stream with an empty chunk", stream + chunk(b"") + chunk(TWO)
    yield "a stream and a chunk without bytes", stream + bytes(4)
    yield "a stream and one byte", stream + b"\1"
    yield "a stream and three bytes", stream + b"\1\2\3"
    yield "a stream and half a header", stream + XERIAL[:9]
    yield "a stream and another magic", stream + XERIAL[:4] + b"XXXX" + XERIAL[8:] + chunk(TWO)
    yield (
        "a stream of a newer version",
        XERIAL[:8] + (2).to_bytes(4, "big") + (1).to_bytes(4, "big") + chunk(ONE),
    )
    yield (
        "a stream that needs a newer version",
        XERIAL[:8] + (2).to_bytes(4, "big") + (2).to_bytes(4, "big") + chunk(ONE),
    )
    yield "a second stream of version 0", stream + XERIAL[:8] + bytes(8) + chunk(TWO)
    yield "a chunk that is cut off", stream[:-3]
    yield "a chunk of negative size", stream + b"\xff\xff\xff\xff"
    yield "one raw block", raw(ONE)
    yield "one raw block that is cut off", raw(ONE)[:-2]
    yield "no bytes", b""
    yield "three bytes", b"abc"


def _lz4s() -> Iterator[tuple[str, bytes]]:
    import lz4.frame

    def frame(data: bytes, **options: Any) -> bytes:
        settings = {
            "block_size": lz4.frame.BLOCKSIZE_MAX64KB,
            "block_linked": False,
            "store_size": False,
        } | options
        return bytes(lz4.frame.compress(data, **settings))

    one = frame(ONE)
    yield "one frame", one
    yield "two frames", one + frame(TWO)
    yield "an empty frame", frame(b"")
    yield "a frame with its size", frame(ONE, store_size=True)
    yield "a frame with checksums of blocks", frame(ONE, block_checksum=True)
    yield "a frame with a checksum", frame(ONE, content_checksum=True)
    yield "a frame of blocks of 256 KiB", frame(ONE, block_size=lz4.frame.BLOCKSIZE_MAX256KB)
    yield "a frame of blocks of 4 MiB", frame(ONE, block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    yield "a frame and a byte", one + b"\1"
    yield "a frame and a skippable one", one + SKIPPABLE
    yield "a skippable frame before", SKIPPABLE + one
    yield "half a frame", one[: len(one) // 2]
    yield "a frame without its end mark", one[:-4]
    yield "no bytes", b""


def _zstds() -> Iterator[tuple[str, bytes]]:
    import zstandard

    def frame(data: bytes, **options: Any) -> bytes:
        return zstandard.ZstdCompressor(**options).compress(data)

    one = frame(ONE)
    two = frame(TWO)
    stream = zstandard.ZstdCompressor().compressobj()
    unsized = stream.compress(ONE) + stream.flush()
    yield "one frame", one
    yield "two frames", one + two
    yield "two frames without sizes", unsized + unsized
    yield "an empty frame between two", one + frame(b"") + two
    yield "an empty frame", frame(b"")
    yield "a frame with a checksum", frame(ONE, write_checksum=True)
    yield "a frame without its size", unsized
    yield "a skippable frame before", SKIPPABLE + one
    yield "a skippable frame after", one + SKIPPABLE
    yield "a skippable frame between", one + SKIPPABLE + two
    yield (
        "a skippable frame between frames without sizes",
        unsized + SKIPPABLE + SKIPPABLE + unsized,
    )
    yield "a skippable frame alone", SKIPPABLE
    yield "a skippable frame that is cut off", one + SKIPPABLE[:-2]
    yield "a frame and other bytes", one + b"other bytes"
    yield "a frame and one byte", one + b"\x28"
    yield "half a frame", one[: len(one) // 2]
    yield "half a frame without its size", unsized[: len(unsized) // 2]
    yield "a frame and half of another one", one + two[: len(two) // 2]
    yield "no bytes", b""


def made() -> list[Section]:
    """All sections, without Kafka's results."""
    forms = {"gzip": _gzips(), "snappy": _snappies(), "lz4": _lz4s(), "zstd": _zstds()}
    return [
        Section(name, codec, data) for codec, sections in forms.items() for name, data in sections
    ]


def stored() -> list[Section]:
    """The sections of the file, with Kafka's results."""
    found = []
    for line in DATA.read_text().splitlines():
        entry = json.loads(line)
        plain = None if entry["plain"] is None else bytes.fromhex(entry["plain"])
        found.append(Section(entry["name"], entry["codec"], bytes.fromhex(entry["data"]), plain))
    return found


def read_by_kafka(sections: list[Section]) -> list[Section]:
    """The sections with the results of a real Kafka. Needs a JDK."""
    lines = "".join(f"{each.codec}\t{each.data.hex()}\n" for each in sections)
    command = [
        "java",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-cp",
        oracle.class_path(),
        str(PROGRAM),
    ]
    answer = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=300, check=True
    )
    results = answer.stdout.splitlines()
    plains = [None if result == "-" else bytes.fromhex(result) for result in results]
    return [section._replace(plain=plain) for section, plain in zip(sections, plains, strict=True)]


def store(sections: list[Section]) -> None:
    """Write the file of the sections."""
    lines = []
    for each in sections:
        plain = None if each.plain is None else each.plain.hex()
        lines.append(
            json.dumps(
                {"name": each.name, "codec": each.codec, "data": each.data.hex(), "plain": plain}
            )
            + "\n"
        )
    DATA.write_text("".join(lines))


if __name__ == "__main__":
    store(read_by_kafka(made()))
