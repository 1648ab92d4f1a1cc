"""The codecs: Kafka's output is read, Kafka reads the library's output, and a decompression bomb
costs no memory.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import sys
import threading
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard

import embedlog
from embedlog.errors import CorruptRecordError, MissingExtraError
from embedlog.format import compression, zstd
from embedlog.format.compression import GZIP, LZ4, SNAPPY, ZSTD, compress, decompress
from tests.conftest import ROOT

SECTION = b"".join(
    bytes.fromhex(head) + b"abc" * 100 + b"\0"
    for head in ("ec04000000066b6579d804", "ec04001402066b6579d804")
)
# format.md 13.2: the same 624 bytes, by librdkafka and by Kafka itself.
LIBRDKAFKA = bytes.fromhex(
    "04224d18 68 40 7002000000000000 c2"
    "24000000 efec04000000066b6579d8046162630300ff176f00ec040014023801ff1c5063616263 00"
    "00000000"
)
JAVA = bytes.fromhex("04224d18 60 40 82") + LIBRDKAFKA[15:]
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]


def plain(codec: int, data: bytes, limit: int = 1 << 24) -> bytes:
    return bytes(decompress(codec, data, limit))


def test_every_codec_has_its_functions() -> None:
    assert len(embedlog.CODECS) == len(compression._CODECS)
    for codec in range(1, len(embedlog.CODECS)):
        with pytest.raises(compression.LimitExceeded):
            compression.expand(codec, compress(codec, SECTION), len(SECTION) - 1)
        for end in (1, len(SECTION) // 10):
            with contextlib.suppress(CorruptRecordError):  # and no other error
                decompress(codec, bytes(compress(codec, SECTION))[:end])


def test_every_codec_is_on_the_page_of_the_format() -> None:
    page = (ROOT / "docs" / "format.md").read_text()
    numbers = ", ".join(f"{number} {name}" for number, name in enumerate(embedlog.CODECS))
    assert f"codec: {numbers}; others are invalid" in page
    for number, name in enumerate(embedlog.CODECS[1:], 1):
        assert f"| {number} | {name} |" in page


@pytest.mark.parametrize("codec", range(len(embedlog.CODECS)))
def test_random_data_comes_back(rng: random.Random, codec: int) -> None:
    for size in (0, 1, 100, 32_767, 32_768, 32_769, 65_536, 65_537, 300_000):
        data = rng.randbytes(size // 2) + bytes(size - size // 2)
        assert plain(codec, bytes(compress(codec, data))) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (GZIP, -1),
        (GZIP, 1),
        (GZIP, 9),
        (LZ4, 1),
        (LZ4, 9),
        (LZ4, 17),
        (ZSTD, -100),
        (ZSTD, 1),
        (ZSTD, 22),
    ],
)
def test_levels(codec: int, level: int) -> None:
    assert plain(codec, bytes(compress(codec, SECTION, level))) == SECTION


def test_any_buffer_is_taken(rng: random.Random) -> None:
    data = bytearray(rng.randbytes(1000) * 3)
    for codec in CODECS:
        packed = compress(codec, memoryview(data)[100:2000])
        assert plain(codec, memoryview(bytearray(packed))) == data[100:2000]


# ---- Kafka's own bytes ---------------------------------------------------------------------------


def test_lz4_frames_of_both_clients_are_read() -> None:
    assert plain(LZ4, LIBRDKAFKA) == SECTION
    assert plain(LZ4, JAVA) == SECTION


def test_lz4_is_written_as_kafkas_reader_wants_it() -> None:
    """One frame, independent blocks of 64 KiB, no sizes, no checksums: the seven bytes that Kafka
    writes.
    """
    for level in (None, 9, 3, 17):
        packed = bytes(compress(LZ4, SECTION * 1000, level))
        assert packed[:7] == JAVA[:7]
        assert packed[-4:] == bytes(4)


def test_xerial_frames_of_32_kib_blocks() -> None:
    packed = bytes(compress(SNAPPY, bytes(100_000)))
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    sizes = []
    at = 16
    while at < len(packed):
        (length,) = struct.unpack_from(">i", packed, at)
        # a bare block is read as well
        sizes.append(len(plain(SNAPPY, packed[at + 4 : at + 4 + length])))
        at += 4 + length
    assert sizes == [32_768, 32_768, 32_768, 1696]


def test_gzip_members_and_zstd_frames_one_behind_the_other() -> None:
    assert plain(GZIP, bytes(compress(GZIP, b"one")) + bytes(compress(GZIP, b"two"))) == b"onetwo"
    assert plain(ZSTD, bytes(compress(ZSTD, b"one")) + bytes(compress(ZSTD, b"two"))) == b"onetwo"


def test_many_small_gzip_members_are_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member reads few bytes after its own: if it read all of the rest, the time would be
    quadratic.
    """
    fed: list[int] = []

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._member = original(wbits)

        def decompress(self, data: memoryview, most: int) -> bytes:
            fed.append(len(data))
            return self._member.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._member, name)

    original = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    for content in (b"", b"x", b"abc" * 300):
        member = bytes(compress(GZIP, content))
        data = member * (200_000 // len(member))
        fed.clear()
        assert plain(GZIP, data) == content * (200_000 // len(member))
        assert sum(fed) < len(data) + max(16, 3 * len(data) // len(member)) * max(
            256, 2 * len(member)
        )
    mixed = b"".join(bytes(compress(GZIP, bytes(size))) for size in (0, 100_000, 0, 70_000, 1, 0))
    assert plain(GZIP, mixed) == bytes(170_001)


def test_an_lz4_frame_of_many_blocks_and_one_that_ends_with_its_room(rng: random.Random) -> None:
    for size in ((1 << 16) - 1, 1 << 16, (1 << 16) + 1, 4 << 20, (5 << 20) + 3):
        data = rng.randbytes(size // 3) + bytes(size - size // 3)
        assert plain(LZ4, bytes(compress(LZ4, data))) == data
        assert plain(LZ4, bytes(compress(LZ4, data)), size) == data


def test_a_zstd_stream_without_a_size_as_java_writes_it() -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    packed = packer.compress(SECTION * 500) + packer.flush()
    assert zstandard.frame_content_size(packed) == -1
    assert plain(ZSTD, packed) == SECTION * 500


# ---- broken and hostile --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_is_corruption(rng: random.Random, codec: int) -> None:
    for _ in range(100):
        with pytest.raises(CorruptRecordError):
            plain(codec, b"\xff" + rng.randbytes(rng.randrange(60)))


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_an_error_or_other_bytes_and_never_more(rng: random.Random, codec: int) -> None:
    packed = bytearray(compress(codec, SECTION * 3))
    for _ in range(500):
        bad = bytearray(packed)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        try:
            assert len(plain(codec, bytes(bad), 10_000)) <= 10_000
        except CorruptRecordError:
            pass


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_that_is_cut_off_is_corruption(codec: int) -> None:
    packed = bytes(compress(codec, SECTION * 100))
    for end in range(1, len(packed), 7):
        if codec == SNAPPY and end == 16:
            continue  # a stream of no blocks
        with pytest.raises(CorruptRecordError):
            plain(codec, packed[:end])


def test_a_second_lz4_frame_is_not_read_as_by_kafka() -> None:
    assert plain(LZ4, JAVA + JAVA) == plain(LZ4, JAVA)


def test_content_beyond_the_limit_is_refused_at_the_byte() -> None:
    for codec in CODECS:
        packed = bytes(compress(codec, SECTION))
        assert plain(codec, packed, len(SECTION)) == SECTION
        with pytest.raises(CorruptRecordError, match=f"at most {len(SECTION) - 1}"):
            plain(codec, packed, len(SECTION) - 1)


BOMB_MIB = 64


def bomb(codec: int) -> bytes:
    """64 MiB of zeroes."""
    if codec == GZIP:
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        return b"".join(packer.compress(bytes(1 << 20)) for _ in range(BOMB_MIB)) + packer.flush()
    if codec == LZ4:
        return bytes(lz4.frame.compress(bytes(BOMB_MIB << 20), block_linked=False))
    if codec == ZSTD:
        streamed = zstandard.ZstdCompressor(write_content_size=False).compressobj()
        return (
            b"".join(streamed.compress(bytes(1 << 20)) for _ in range(BOMB_MIB)) + streamed.flush()
        )
    return b"\xff\xff\xff\x1f" + b"\0" * 50  # a snappy block with this size in its header


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_no_more_memory_than_the_limit(codec: int) -> None:
    data = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="uncompressed size"):
            plain(codec, data, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_snappy_block_that_claims_more_than_the_format_can_do() -> None:
    with pytest.raises(CorruptRecordError, match="uncompressed size of a snappy block"):
        plain(SNAPPY, b"\xff\xff\x7f" + b"\0" * 20)


@pytest.mark.parametrize("codec", [*range(len(embedlog.CODECS), 8), -1])
def test_a_codec_that_is_none(codec: int) -> None:
    with pytest.raises(CorruptRecordError, match="codec of a batch"):
        plain(codec, b"")


def test_snappy_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for call in (compress, decompress):
        with pytest.raises(MissingExtraError, match=r'pip install "embedlog\[snappy\]"'):
            call(SNAPPY, b"abc")


@pytest.mark.skipif(zstd.is_built_in(), reason="this Python has zstd")
def test_zstd_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.14 can be built without zstd. Then each use was a ModuleNotFoundError."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for call in (compress, decompress):
        with pytest.raises(
            MissingExtraError,
            match=r'zstd needs zstandard in this Python: pip install "embedlog\[zstd\]"',
        ):
            call(ZSTD, b"abc")
    with pytest.raises(MissingExtraError):
        compression.check_installed("zstd")


# ---- many at once --------------------------------------------------------------------------------


def test_each_keeps_the_order_and_tells_the_first_error() -> None:
    assert compression.each(lambda number: number * 2, range(100)) == list(range(0, 200, 2))

    def fail(number: int) -> int:
        if number >= 3:
            raise CorruptRecordError(f"number {number}")
        return number

    with pytest.raises(CorruptRecordError, match="number 3"):
        compression.each(fail, range(10))


def test_threads_compress_at_once_with_one_packer_each(rng: random.Random) -> None:
    data = [rng.randbytes(2000) * 5 for _ in range(8)]
    wrong: list[int] = []

    def work(number: int) -> None:
        found = [plain(ZSTD, bytes(compress(ZSTD, data[number]))) for _ in range(50)]
        wrong.extend(number for content in found if content != data[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_has_workers_of_its_own() -> None:
    compression.each(len, [b"a", b"bc"])
    child = os.fork()
    if child == 0:
        os._exit(0 if compression.each(len, [b"a", b"bc", b""]) == [1, 2, 0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
