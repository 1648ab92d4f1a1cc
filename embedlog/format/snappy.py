"""Contains Snappy as Kafka uses it: raw blocks in Xerial's framing, also concatenated streams; a
raw block alone is read as well.

- The uncompressed size in a block is compared with the limit before memory is allocated.
- Blocks need the package `cramjam` of the extra `snappy`.
"""

from __future__ import annotations

from typing import Any

from embedlog.errors import CorruptRecordError, MissingExtraError

MAGIC = b"\x82SNAPPY\x00"
# version, and the oldest compatible one
HEADER = MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
SIZE_BYTES = 4  # before each block
BLOCK_BYTES = 32 << 10  # of uncompressed bytes, as in Xerial's library


def import_package() -> Any:
    """The package that compresses blocks. Raises MissingExtraError."""
    try:
        import cramjam
    except ImportError as error:
        raise MissingExtraError("snappy needs cramjam", extra="snappy") from error
    return cramjam


def compress(data: Any) -> bytes:
    """One Xerial stream."""
    blocks = import_package().snappy
    view = memoryview(data).cast("B")
    pieces = [HEADER]
    for start in range(0, len(view), BLOCK_BYTES):
        block = bytes(blocks.compress_raw(view[start : start + BLOCK_BYTES]))
        pieces += (len(block).to_bytes(4, "big"), block)
    return b"".join(pieces)


def decompress(data: Any, limit: int) -> bytes | None:
    """The bytes of Xerial streams or of one raw block, None for more than `limit`. Raises
    CorruptRecordError.

    As in Xerial's library, less than a size after the last block is ignored.
    """
    library = import_package()
    view = memoryview(data).cast("B")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        return _decompress_block(library, view, limit)
    if len(view) < len(HEADER):
        raise CorruptRecordError(
            "snappy data of a batch: its header is cut off", expected=len(HEADER), found=len(view)
        )
    pieces = []
    size = 0
    at = len(HEADER)
    while at + SIZE_BYTES <= len(view):
        if bytes(view[at : at + SIZE_BYTES]) == MAGIC[:SIZE_BYTES]:
            _check_header(view[at : at + len(HEADER)])
            at += len(HEADER)
            continue
        length = int.from_bytes(view[at : at + SIZE_BYTES], "big")
        block = view[at + SIZE_BYTES : at + SIZE_BYTES + length]
        if len(block) < length:
            raise CorruptRecordError(
                "snappy data of a batch: a block is cut off", expected=length, found=len(block)
            )
        plain = _decompress_block(library, block, limit - size)
        if plain is None:
            return None
        pieces.append(plain)
        size += len(plain)
        at += SIZE_BYTES + length
    return b"".join(pieces)


def _check_header(header: memoryview) -> None:
    """Check the header of a stream that follows on another one. Raises CorruptRecordError."""
    if len(header) < len(HEADER):
        raise CorruptRecordError(
            "snappy data of a batch: a header is cut off", expected=len(HEADER), found=len(header)
        )
    version = int.from_bytes(header[len(MAGIC) : len(MAGIC) + SIZE_BYTES], "big")
    if version < 1:
        raise CorruptRecordError(
            "snappy data of a batch: version of a stream", expected="at least 1", found=version
        )


def _decompress_block(library: Any, block: memoryview, limit: int) -> bytes | None:
    size = _read_size(block)
    if size > limit:
        return None
    # 64 bytes out of 3 is the maximum of the format: a larger size is false, and would cost memory.
    if size > 64 * len(block):
        raise CorruptRecordError(
            "uncompressed size of a snappy block", expected=f"at most {64 * len(block)}", found=size
        )
    try:
        plain = bytes(library.snappy.decompress_raw(block))
    except library.DecompressionError as error:
        raise CorruptRecordError(f"snappy data of a batch: {error}") from error
    if len(plain) != size:
        raise CorruptRecordError(
            "uncompressed size of a snappy block", expected=size, found=len(plain)
        )
    return plain


def _read_size(block: memoryview) -> int:
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CorruptRecordError("snappy data of a batch: no size")
