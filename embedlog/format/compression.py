"""Contains the five codecs of the records section of a batch, byte for byte as Kafka's readers
expect them.

- Every Kafka client reads the output: LZ4 is one frame of independent blocks, snappy has Xerial's
  framing.
- The uncompressed size is stored nowhere, so every decompression has a limit. Its memory grows with
  the actual output, and its time with input and output, whatever sizes the input claims.
- Damaged input raises CorruptRecordError, a codec that is not installed MissingExtraError with the
  extra.
- A codec is imported at its first use: most programs use one of them, or none.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError
from embedlog.format import snappy, zstd
from embedlog.format.buffer_pool import shared_pool
from embedlog.types import CODECS

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from numpy.typing import NDArray

Buffer = Any  # any argument of memoryview

# the numbers of codecs that other code names, as in `CODECS`
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

# of one batch, uncompressed: Kafka has no limit, but its records count within 2 GiB
LIMIT_BYTES = 1 << 30
FIRST_GUESS = 4  # first estimate of the ratio of uncompressed to compressed bytes
# Kafka's default, which selects the fast compressor; all others select the high compressor
LZ4_FAST_LEVEL = 9
LZ4_THOROUGH = range(3, 13)  # the levels of liblz4's high compressor
ZSTD_LEVEL = 3  # Kafka's default
LZ4_MAGIC = b"\x04\x22\x4d\x18"
# a block of 128 KiB takes four bytes at least: a frame that claims more is truncated
ZSTD_RATIO_MAX = 1 << 15
LZ4_BLOCK_BYTES = 1 << 16  # the block size of Kafka's writers
LZ4_STEP_BYTES = 1 << 20  # read at once: output beyond the buffer is copied
POOLED_BYTES_MIN = 128 << 10  # smaller memory costs less from the allocator
GZIP_MAGIC = b"\x1f\x8b\x08"  # and the only method
GZIP_HEADER_BYTES = 10  # without the fields that its flags announce
# these flags
GZIP_HEADER_CHECK = 2
GZIP_EXTRA = 4
GZIP_NAME = 8
GZIP_COMMENT = 16
GZIP_REST_MAX = 18  # no member is as short
GZIP_STEP_BYTES = 256  # the least that is read for a member after the first

Item = TypeVar("Item")
Result = TypeVar("Result")

# ---- compress ------------------------------------------------------------------------------------


def check_installed(name: str) -> None:
    """Raises MissingExtraError for a codec whose package is not installed."""
    if name == "snappy":
        snappy.import_package()
    elif name == "zstd":
        zstd.check_installed()


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """`data` as one records section of this codec; `level` None is Kafka's default.

    **Threads:** any number at once; the GIL is released.
    """
    return _CODECS[codec].compress(data, level)


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    frame_level = 0  # the fast compressor
    if level is not None and level != LZ4_FAST_LEVEL:
        frame_level = min(max(level, LZ4_THOROUGH[0]), LZ4_THOROUGH[-1])
    packed: bytes = lz4.frame.compress(
        data,
        compression_level=frame_level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return packed


def _compress_zstd(data: Buffer, level: int | None) -> Buffer:
    return zstd.compress(data, ZSTD_LEVEL if level is None else level)


# ---- decompress ----------------------------------------------------------------------------------


class LimitExceeded(Exception):
    """The output is larger than the limit."""


def decompress(codec: int, data: Buffer, limit: int = LIMIT_BYTES) -> Buffer:
    """The uncompressed bytes. Raises CorruptRecordError for damaged data, and for more than `limit`
    bytes.

    **Threads:** any number at once.
    """
    try:
        return expand(codec, data, limit)
    except LimitExceeded:
        raise CorruptRecordError(
            "uncompressed size of a batch", expected=f"at most {limit}", found="more"
        ) from None


def expand(codec: int, data: Buffer, limit: int) -> Buffer:
    """As `decompress`, but raises LimitExceeded for more than `limit` bytes: the caller may decode
    them in another way.
    """
    if not 0 <= codec < len(CODECS):
        raise CorruptRecordError(
            "codec of a batch", expected=f"0 to {len(CODECS) - 1}", found=codec
        )
    try:
        return _CODECS[codec].decompress(data, limit)
    except _DAMAGE as error:
        raise CorruptRecordError(f"{CODECS[codec]} data of a batch: {error}") from error


def _drain(read: Callable[[memoryview], int], guess: int, limit: int) -> Buffer:
    """The bytes that `read` writes until it returns 0, in memory that grows with them.

    The byte after a correct guess is for the read that finds the end: without it the memory would
    be doubled and copied.
    """
    output = _lease_memory(min(guess, limit) + 1)
    size = 0
    while True:
        if size == len(output):
            if size > limit:
                raise LimitExceeded
            larger = _lease_memory(min(2 * size, limit + 1))
            larger[:size] = output
            output = larger
        got = read(output.data[size:])
        if got == 0:
            return output.data[:size]
        size += got
        if size > limit:
            raise LimitExceeded


def _lease_memory(size: int) -> NDArray[np.uint8]:
    """Large sections use pages of the pool, which are mapped already."""
    if size >= POOLED_BYTES_MIN:
        return shared_pool().lease(size).array
    return np.empty(size, np.uint8)


def _decompress_gzip(data: Buffer, limit: int) -> Buffer:
    view = memoryview(data).cast("B")
    pieces = []
    size = 0
    at = 0
    step = len(view)
    while at == 0 or _is_gzip_member(view[at:]):  # concatenated members are legal
        member = zlib.decompressobj(31)
        start = at
        while not member.eof:
            packed = view[at : at + step]
            if not packed:
                raise EOFError("the data end too early")
            piece = member.decompress(packed, limit - size + 1)
            size += len(piece)
            if size > limit:
                raise LimitExceeded
            pieces.append(piece)
            at += len(packed) - len(member.unused_data)
            step *= 2
        # bytes that are read too far are copied: at most as many as were used
        step = max(GZIP_STEP_BYTES, 2 * (at - start))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _is_gzip_member(view: memoryview) -> bool:
    """Whether bytes after a member are another one. As in Java, any other bytes there are
    ignored.
    """
    if len(view) <= GZIP_REST_MAX or bytes(view[:3]) != GZIP_MAGIC:
        return False
    flags = view[3]
    end = GZIP_HEADER_BYTES
    if flags & GZIP_EXTRA:
        end += 2 + int.from_bytes(view[end : end + 2], "little")
    for text in (GZIP_NAME, GZIP_COMMENT):
        if flags & text:
            while end < len(view) and view[end]:
                end += 1
            end += 1
    if flags & GZIP_HEADER_CHECK:
        stored = int.from_bytes(view[end : end + 2], "little")
        return end + 2 <= len(view) and stored == zlib.crc32(view[:end]) & 0xFFFF
    return end <= len(view)


def _decompress_snappy(data: Buffer, limit: int) -> Buffer:
    plain = snappy.decompress(data, limit)
    if plain is None:
        raise LimitExceeded
    return plain


def _decompress_lz4(data: Buffer, limit: int) -> Buffer:
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    view = memoryview(data).cast("B")
    at = 0

    def read(output: memoryview) -> int:
        nonlocal at
        while not frame.eof:
            packed = view[at : at + LZ4_STEP_BYTES] if frame.needs_input else b""
            if frame.needs_input and not packed:
                raise EOFError("the data end too early")
            at += len(packed)
            plain = frame.decompress(packed, max_length=len(output))
            if plain:
                output[: len(plain)] = plain
                return len(plain)
        return 0

    if bytes(view[: len(LZ4_MAGIC)]) != LZ4_MAGIC:
        raise ValueError("the data do not begin with a frame")
    # Kafka too ignores bytes after the end mark
    return _drain(read, max(FIRST_GUESS * len(view), LZ4_BLOCK_BYTES), limit)


def _decompress_zstd(data: Buffer, limit: int) -> Buffer:
    packed_bytes = memoryview(data).nbytes
    if not packed_bytes:
        return b""
    stated_bytes = zstd.frame_content_size(data)
    if stated_bytes > limit:
        raise LimitExceeded
    guess = FIRST_GUESS * packed_bytes
    if stated_bytes > 0:
        guess = min(stated_bytes, ZSTD_RATIO_MAX * packed_bytes)
    plain = _drain(zstd.reader(data), guess, limit)
    if memoryview(plain).nbytes < stated_bytes:  # the reader accepts a truncated stream
        raise EOFError("the data end too early")
    return plain


# ---- the table -----------------------------------------------------------------------------------


class _Codec(NamedTuple):
    """The two functions of a codec. Threads: any number at once; they release the GIL.

    `compress(data, level)` returns one records section for any buffer, which it only reads. `level`
    None is Kafka's default.

    `decompress(data, limit)` returns the uncompressed bytes, as bytes or as a memoryview. It raises
    LimitExceeded for more than `limit` bytes, before its memory is a multiple of that: it believes
    no size that the data claim. For damaged data, also for data that end too early, it raises one
    of `_DAMAGE`.

    Both import the package of the codec when they are called, and raise MissingExtraError without
    it.
    """

    compress: Callable[[Buffer, int | None], Buffer]
    decompress: Callable[[Buffer, int], Buffer]


# what the packages raise for damaged data; CorruptRecordError is made of it
_DAMAGE: Final = (RuntimeError, ValueError, EOFError, zlib.error, zstd.ZstdError)

_CODECS: Final = (  # in the order of `CODECS`
    _Codec(lambda data, _level: data, lambda data, _limit: data),
    _Codec(_compress_gzip, _decompress_gzip),
    _Codec(lambda data, _level: snappy.compress(data), _decompress_snappy),
    _Codec(_compress_lz4, _decompress_lz4),
    _Codec(_compress_zstd, _decompress_zstd),
)

# ---- many at once --------------------------------------------------------------------------------

_workers: ThreadPoolExecutor | None = None
_workers_lock = threading.Lock()


def _executor() -> ThreadPoolExecutor:
    global _workers
    from concurrent.futures import ThreadPoolExecutor  # expensive to import, and rarely needed

    with _workers_lock:
        if _workers is None:
            _workers = ThreadPoolExecutor(core_count(), thread_name_prefix="embedlog-codec")
        return _workers


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results of `function` for every item, in order, computed on all cores."""
    listed = list(items)
    if len(listed) < 2 or core_count() < 2:
        return [function(item) for item in listed]
    try:
        results = _executor().map(function, listed)
    except RuntimeError:  # the interpreter exits and accepts no more work for threads
        return [function(item) for item in listed]
    return list(results)


def _forget_workers() -> None:
    global _workers, _workers_lock
    _workers = None
    _workers_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_workers)
