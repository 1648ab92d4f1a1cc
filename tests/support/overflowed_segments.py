"""Segments whose offsets exceed their base by more than an index can hold, as cleaners of old
brokers left them.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.broker_directories import CLUSTER, DIRECTORY, KRAFT, TOPIC_ID, batch, message

FAR = 2**31
Segments = dict[int, list[bytes]]


def one(offset: int) -> bytes:
    return batch(offset, [(offset, b"k%d" % offset, b"v%d" % offset)])


def old(offset: int) -> bytes:
    return message(offset, b"k%d" % offset, b"v%d" % offset, magic=1)


LAYOUTS: dict[str, Segments] = {
    "last segment": {0: [one(0), one(FAR + 5)]},
    "exactly one too many": {10: [one(10), one(10 + FAR - 1), one(10 + FAR)]},
    "middle segment": {
        0: [one(0), one(7)],
        100: [one(100), one(100 + FAR), one(101 + FAR)],
        3 * FAR: [one(3 * FAR)],
    },
    "no batch fits": {0: [one(FAR + 5), one(FAR + 6)]},
    "three parts": {0: [one(0), one(FAR), one(FAR + 1), one(5 * FAR), one(5 * FAR + 9)]},
    "old messages": {0: [old(0), old(FAR + 5), old(3 * FAR)]},
}


def offsets_of(layout: str) -> list[int]:
    return [
        int.from_bytes(each[:8], "big") for batches in LAYOUTS[layout].values() for each in batches
    ]


def write(root: Path, layout: str, *, closed: bool, indexed: bool) -> Path:
    path = root / "t-0"
    path.mkdir(parents=True)
    (root / "meta.properties").write_text(KRAFT + DIRECTORY)
    assert CLUSTER in KRAFT
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    for base, batches in LAYOUTS[layout].items():
        (path / f"{base:020d}.log").write_bytes(b"".join(batches))
        overflows = int.from_bytes(batches[-1][:8], "big") - base >= FAR
        # an old cleaner cast an offset to 32 bits, so the last entry of an index can be negative
        if indexed and overflows:
            (path / f"{base:020d}.index").write_bytes(
                (-(2**31) + 5).to_bytes(4, "big", signed=True) + bytes((0, 0, 0, 1))
            )
            (path / f"{base:020d}.timeindex").write_bytes(bytes(12))
    if closed:
        (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    return root
