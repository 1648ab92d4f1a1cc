"""Log directories as brokers of all generations left them, built without the package: bytes of
batches, indexes, checkpoints.

A generation has the message formats that its broker wrote, and the files that it knew. `build`
makes one directory with the topic `t`; it was closed in order or the broker crashed, and compaction
may have left gaps in the segments and between them.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.kafka_log_reader import crc32c

TIME_MS: Final = 1_600_000_000_000
TOPIC_ID: Final = "lwmx71lPTqupdQQc1SRVhg"
CLUSTER: Final = "cluster.id=AAAAAAAAQACAAAAAAAAAAQ\n"
DIRECTORY: Final = "directory.id=AAAAAAAAQACAAAAAAAAAAg\n"
JAVA_HEAD: Final = "#\n#Mon Jun 17 15:19:18 CST 2019\n"
INTERVAL_BYTES: Final = 100
TORN_BYTES: Final = 30  # of a batch that a crashed broker did not finish


class Generation(NamedTuple):
    """What brokers of some versions write. `formats`: the magic of each segment, or of the batches
    within one.
    """

    name: str
    formats: Sequence[Sequence[int]]
    meta: str | None
    has_time_index: bool = True
    # None: the broker knows no leader-epoch-checkpoint
    epochs: Sequence[tuple[int, int]] | None = None
    has_topic_id: bool = False
    has_snapshots: bool = False
    has_log_starts: bool = False
    mark: bytes = b""


ZOOKEEPER_0: Final = JAVA_HEAD + "version=0\nbroker.id=0\n"
ZOOKEEPER: Final = ZOOKEEPER_0 + CLUSTER
KRAFT: Final = JAVA_HEAD + "version=1\nnode.id=1\n" + CLUSTER
MARK: Final = b'{"version":0,"brokerEpoch":8}'
OLD_0: Final = ((0,), (0,), (0,))
OLD_1: Final = ((1,), (1,), (1,))
NEW: Final = ((2,), (2,), (2,))

GENERATIONS: Final = (
    Generation("0.8", OLD_0, None, has_time_index=False),
    Generation("0.9", OLD_0, ZOOKEEPER_0, has_time_index=False),
    Generation("0.10.0", OLD_1, ZOOKEEPER_0, has_time_index=False),
    Generation("0.10.1", ((0,), (0, 1), (1,)), ZOOKEEPER),
    Generation(
        "0.11", NEW, ZOOKEEPER, epochs=((3, 0), (4, 100)), has_snapshots=True, has_log_starts=True
    ),
    Generation(
        "0.11-upgraded",
        ((0,), (0, 1), (1, 2)),
        ZOOKEEPER,
        epochs=((4, 200),),
        has_snapshots=True,
        has_log_starts=True,
    ),
    Generation(
        "1.1-format-1",
        OLD_1,
        ZOOKEEPER,
        epochs=((3, 0), (5, 100)),
        has_snapshots=True,
        has_log_starts=True,
    ),
    Generation(
        "2.1-back",
        ((2,), (2, 1), (1, 2)),
        ZOOKEEPER,
        epochs=((3, 0), (4, 100), (6, 200)),
        has_snapshots=True,
        has_log_starts=True,
    ),
    Generation(
        "2.4-lost-epochs",
        ((2,), (1,), (2,)),
        ZOOKEEPER,
        epochs=(),
        has_snapshots=True,
        has_log_starts=True,
    ),
    Generation(
        "2.8",
        NEW,
        ZOOKEEPER,
        epochs=((3, 0), (4, 100)),
        has_topic_id=True,
        has_snapshots=True,
        has_log_starts=True,
    ),
    Generation(
        "3.3",
        NEW,
        KRAFT,
        epochs=((3, 0), (4, 100)),
        has_topic_id=True,
        has_snapshots=True,
        has_log_starts=True,
    ),
    Generation(
        "3.9",
        NEW,
        KRAFT + DIRECTORY,
        epochs=((3, 0), (4, 100)),
        has_topic_id=True,
        has_snapshots=True,
        has_log_starts=True,
        mark=MARK,
    ),
    Generation(
        "4.0-upgraded",
        ((0, 1), (2,), (2,)),
        KRAFT + DIRECTORY,
        epochs=((3, 100), (4, 200)),
        has_topic_id=True,
        has_snapshots=True,
        has_log_starts=True,
        mark=MARK,
    ),
    Generation(
        "4.4",
        NEW,
        KRAFT + DIRECTORY,
        epochs=((3, 0), (4, 100)),
        has_topic_id=True,
        has_snapshots=True,
        has_log_starts=True,
        mark=MARK,
    ),
)

# The offsets of the batches of each segment.
DENSE: Final = {
    0: ((0, 1, 2), (3,), *((number,) for number in range(4, 100))),
    100: (tuple(range(100, 120)), *((number, number + 1) for number in range(120, 200, 2))),
    200: ((200,), (201, 202), (203,)),
}
COMPACTED: Final = {
    0: ((0, 2), (50,)),  # a record of the first batch is gone, and offsets after 50
    100: ((150, 153), (180,)),  # the segment does not begin with its base offset
    200: ((200,), (201, 202), (203,)),
}


# ---- bytes ---------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    rest = ((number << 1) ^ (number >> 63)) & (1 << 64) - 1
    out = bytearray()
    while rest >> 7:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _varbytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def batch(
    base: int,
    records: Sequence[tuple[int, bytes | None, bytes | None]],
    *,
    last: int | None = None,
    epoch: int = 0,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch of magic 2. `records`: offset, key, value; `last`: its last offset; `codec`: 0 or 1
    (gzip).
    """
    body = b""
    for offset, key, value in records:
        content = (
            b"\0"
            + _varint(0)
            + _varint(offset - base)
            + _varbytes(key)
            + _varbytes(value)
            + _varint(0)
        )
        body += _varint(len(content)) + content
    body = gzip.compress(body, mtime=0) if codec else body
    end = records[-1][0] if last is None else last
    rest = (
        struct.pack(">hiqqqhii", codec, end - base, TIME_MS, TIME_MS, *producer, len(records))
        + body
    )
    return struct.pack(">qiibI", base, 9 + len(rest), epoch, 2, crc32c(rest)) + rest


def message(
    offset: int, key: bytes | None, value: bytes | None, *, magic: int, codec: int = 0
) -> bytes:
    """A message of magic 0 or 1; with a codec its value contains the compressed inner messages."""
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", TIME_MS) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def _encoded(magic: int, offsets: Sequence[int], epoch: int) -> list[tuple[int, bytes]]:
    """The offsets as batches: pairs of the last offset and the bytes."""
    records = [(offset, b"k%d" % (offset % 7), b"value-%d" % offset) for offset in offsets]
    if magic == 2:
        return [(offsets[-1], batch(offsets[0], records, epoch=epoch, codec=len(records) > 2))]
    if len(records) < 3:
        return [
            (offset, message(offset, key, value, magic=magic)) for offset, key, value in records
        ]
    inner = [
        message(offset - (offsets[0] if magic else 0), key, value, magic=magic)
        for offset, key, value in records
    ]
    return [
        (
            offsets[-1],
            message(
                offsets[-1], None, gzip.compress(b"".join(inner), mtime=0), magic=magic, codec=1
            ),
        )
    ]


# ---- a directory ---------------------------------------------------------------------------------


def build(
    root: Path, generation: Generation, *, closed: bool, whole: bool, compacted: bool
) -> Path:
    """The log directory. `whole`: with all files of the broker, else only with the logs and the
    mark of an orderly close.
    """
    partition = root / "t-0"
    partition.mkdir(parents=True)
    segments = COMPACTED if compacted else DENSE
    for number, (base, batches) in enumerate(segments.items()):
        last = number + 1 == len(segments)
        entries = _write_log(partition, base, batches, generation, number, torn=last and not closed)
        if whole:
            _write_indexes(partition, base, entries, generation, padded=last and not closed)
    if closed:
        (root / ".kafka_cleanshutdown").write_bytes(generation.mark)
    if not whole:
        return root
    if generation.meta is not None:
        (root / "meta.properties").write_text(generation.meta)
    _write_checkpoints(
        root,
        generation,
        max(segments),
        segments[max(segments)][-1][-1] + 1,
        closed=closed,
        compacted=compacted,
    )
    if generation.has_topic_id:
        (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    if generation.epochs is not None:
        lines = [f"{epoch} {start}\n" for epoch, start in generation.epochs]
        (partition / "leader-epoch-checkpoint").write_text(
            "".join(["0\n", f"{len(lines)}\n", *lines])
        )
    if generation.has_snapshots:
        for offset in (*sorted(segments)[1:], *([204] if closed else [])):
            (partition / f"{offset:020d}.snapshot").write_bytes(_no_producers())
    return root


def _no_producers() -> bytes:
    body = struct.pack(">i", 0)
    return struct.pack(">hI", 1, crc32c(body)) + body


def _write_log(
    partition: Path,
    base: int,
    batches: Sequence[Sequence[int]],
    generation: Generation,
    number: int,
    *,
    torn: bool,
) -> list[tuple[int, int, int]]:
    """Write a segment; last offset, position and size of each batch."""
    formats = generation.formats[number]
    data = b""
    entries = []
    for at, offsets in enumerate(batches):
        magic = formats[min(at * len(formats) // len(batches), len(formats) - 1)]
        epoch = next(
            (epoch for epoch, start in reversed(generation.epochs or ()) if start <= offsets[0]), 0
        )
        for last, raw in _encoded(magic, offsets, epoch):
            entries.append((last, len(data), len(raw)))
            data += raw
    if torn:
        data += _encoded(generation.formats[-1][-1], (204,), 0)[0][1][:TORN_BYTES]
    (partition / f"{base:020d}.log").write_bytes(data)
    return entries


def _write_indexes(
    partition: Path,
    base: int,
    entries: Sequence[tuple[int, int, int]],
    generation: Generation,
    *,
    padded: bool,
) -> None:
    """The indexes, trimmed as at the close of a segment, or with the reserved zeros of the active
    one.
    """
    offsets = b""
    times = b""
    since = 0
    for last, position, size in entries:
        if since > INTERVAL_BYTES:
            offsets += struct.pack(">ii", last - base, position)
            since = 0
        since += size
    if not padded:
        times = struct.pack(">qi", TIME_MS, entries[0][0] - base)
    rest = bytes(4096) if padded else b""
    (partition / f"{base:020d}.index").write_bytes(offsets + rest)
    if generation.has_time_index:
        (partition / f"{base:020d}.timeindex").write_bytes(times + rest)


def _write_checkpoints(
    root: Path, generation: Generation, active: int, end: int, *, closed: bool, compacted: bool
) -> None:
    noted = {
        "recovery-point-offset-checkpoint": end if closed else active,
        "replication-offset-checkpoint": end if closed else active,
        "cleaner-offset-checkpoint": 200 if compacted else None,
        "log-start-offset-checkpoint": None,
    }
    if not generation.has_log_starts:
        del noted["log-start-offset-checkpoint"]
    for name, offset in noted.items():
        (root / name).write_text("0\n0\n" if offset is None else f"0\n1\nt 0 {offset}\n")
