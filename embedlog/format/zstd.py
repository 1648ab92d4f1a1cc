"""Contains zstd as Kafka uses it, over the standard library of Python 3.14 or the package
`zstandard`.

- Python 3.14 and later use `compression.zstd`; earlier versions use `zstandard`, which is a
  dependency there only. So does a later Python that was built without the library of zstd, as its
  own build allows: `zstandard` is the extra `zstd` there.
- A frame states its uncompressed size, as Kafka's writers do if they know it.
- The standard library makes `bytes` of what it decodes; so that a batch is not in memory three
  times, it decodes in steps.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, PathFinder
from typing import Any

from embedlog.errors import MissingExtraError

STEP_BYTES = 1 << 20  # read at once: the decoder copies its input
PLAIN_BYTES = 1 << 14  # decoded at once
SIZE_UNKNOWN = -1
DECOMPRESSOR = -(2**31)  # in place of a level of compression

_local = threading.local()


class ZstdError(Exception):
    """The data are damaged."""


def is_built_in() -> bool:
    """Whether this Python is 3.14 or later and was built with the library of zstd
    (`compression.zstd` exists in any case).
    """
    return sys.version_info >= (3, 14) and any(
        finder.find_spec("_zstd") is not None for finder in (BuiltinImporter, PathFinder)
    )


def _of_thread(level: int, make: Callable[[], Any]) -> Any:
    """The compressor of this thread, or its decompressor: they cannot be shared, and creating one
    is expensive.
    """
    compressors: dict[int, Any] = _local.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = make()
    return compressors[level]


if sys.version_info >= (3, 14) and is_built_in():

    def check_installed() -> None:
        """Nothing is missing."""

    def compress(data: Any, level: int) -> bytes:
        """One frame."""
        from compression import zstd

        compressor = _of_thread(level, lambda: zstd.ZstdCompressor(level=level))
        packed: bytes = compressor.compress(data, mode=zstd.ZstdCompressor.FLUSH_FRAME)
        return packed

    def frame_content_size(data: Any) -> int:
        """The uncompressed size that the first frame states, or SIZE_UNKNOWN. Raises ZstdError."""
        from compression import zstd

        try:
            size = zstd.get_frame_info(data).decompressed_size
        except zstd.ZstdError as error:
            raise ZstdError(*error.args) from error
        return SIZE_UNKNOWN if size is None else size

    def reader(data: Any) -> Callable[[memoryview], int]:
        """A function that writes the next bytes into its argument and returns their number, 0 at
        the end. Raises ZstdError.
        """
        from compression import zstd

        frame = zstd.ZstdDecompressor()
        remaining = memoryview(data).cast("B")

        def read(output: memoryview) -> int:
            nonlocal frame, remaining
            while True:
                if frame.eof:
                    unused = frame.unused_data
                    if unused:
                        remaining = memoryview(unused + bytes(remaining))
                    if not remaining:
                        return 0
                    frame = zstd.ZstdDecompressor()  # concatenated frames are legal
                packed = remaining[:0]
                if frame.needs_input:
                    packed = remaining[:STEP_BYTES]
                    if not packed:
                        return 0
                remaining = remaining[len(packed) :]
                try:
                    plain = frame.decompress(packed, max_length=min(len(output), PLAIN_BYTES))
                except zstd.ZstdError as error:
                    raise ZstdError(*error.args) from error
                if plain:
                    output[: len(plain)] = plain
                    return len(plain)

        return read

else:

    def _import_package() -> Any:
        """The package that compresses frames. Raises MissingExtraError."""
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtraError("zstd needs zstandard in this Python", extra="zstd") from error
        return zstandard

    def check_installed() -> None:
        """Raises MissingExtraError without `zstandard`."""
        _import_package()

    def compress(data: Any, level: int) -> bytes:
        """One frame. Raises MissingExtraError."""
        zstandard = _import_package()
        compressor = _of_thread(level, lambda: zstandard.ZstdCompressor(level=level))
        packed: bytes = compressor.compress(data)
        return packed

    def frame_content_size(data: Any) -> int:
        """The uncompressed size that the first frame states, or SIZE_UNKNOWN. Raises ZstdError,
        MissingExtraError.
        """
        zstandard = _import_package()
        try:
            return int(zstandard.frame_content_size(data))
        except zstandard.ZstdError as error:
            raise ZstdError(*error.args) from error

    def reader(data: Any) -> Callable[[memoryview], int]:
        """A function that writes the next bytes into its argument and returns their number, 0 at
        the end.

        It raises ZstdError. Raises MissingExtraError.
        """
        zstandard = _import_package()
        # A new reader resets the decompressor, also after damaged data.
        source = _of_thread(DECOMPRESSOR, zstandard.ZstdDecompressor).stream_reader(
            data, read_across_frames=True
        )

        def read(output: memoryview) -> int:
            try:
                return int(source.readinto(output))
            except zstandard.ZstdError as error:
                raise ZstdError(*error.args) from error

        return read
