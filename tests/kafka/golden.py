#!/usr/bin/env python3
"""Makes golden log directories: a real Kafka broker writes them, a real Kafka client reads their
records.

    python -m tests.kafka.golden OUT [--seed N] [--part N] [--suffix TEXT]     (three minutes; needs
    Java, jars, confluent-kafka)

Two log directories come out. `clean/` was shut down in order, `unclean/` belongs to a broker that
was killed in the middle of writing. Beside each, `expected/` holds a file per topic: a JSON line
per record that a consumer gets (tests/data/README.md). `--part N` writes an N-th of the records
that only say more of the same, `--suffix -V` names the directories `clean-V` and so on. The
archives in tests/data were made in this way; a new one replaces one only together with the
expectations of the tests.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.faults.harness.processes import until
from tests.kafka import client
from tests.kafka.oracle import Broker

TEXT_BYTES = 512  # longer ones repeat themselves, so that the archive stays small
# every timestamp is counted from here, so that the files say the same whenever they are made
EPOCH_MS = 1_700_000_000_000
WORDS = (
    *(
        "offset",
        "segment",
        "batch",
        "broker",
        "topic",
        "leader",
        "epoch",
        "replica",
        "index",
        "group",
        "member",
        "commit",
    ),
    *("abort", "lag", "cleaner", "tombstone", "watermark"),
)


def text(rng: random.Random, size: int) -> bytes:
    words = []
    while sum(map(len, words)) + len(words) < min(size, TEXT_BYTES):
        words.append(rng.choice(WORDS))
    return (" ".join(words).encode() * (size // TEXT_BYTES + 1))[:size]


def producer(broker: Broker, **config: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 20,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )


def fill(
    broker: Broker,
    topic: str,
    rng: random.Random,
    count: int,
    *,
    partitions: int = 1,
    size: int = 120,
    keys: int = 50,
    step_ms: int = 7,
    start_ms: int = EPOCH_MS,
    **config: object,
) -> None:
    out = producer(broker, **config)
    for number in range(count):
        out.produce(
            topic,
            text(rng, rng.randrange(1, 2 * size)),
            f"key-{rng.randrange(keys)}".encode(),
            number % partitions,
            timestamp=start_ms + number * step_ms,
        )
        if number % 97 == 96:
            out.flush()
    out.flush()


def corners(broker: Broker, topic: str) -> None:
    """Null and empty keys, values, headers; repeated header names; text beyond ASCII; timestamps
    out of order.
    """
    out = producer(broker)
    cases = [
        (None, b"null key", None),
        (b"", b"empty key", None),
        (b"null value", None, None),
        (b"empty value", b"", None),
        (None, None, None),
        (b"", b"", []),
        (b"h1", b"one header", [("trace", b"abc")]),
        (b"h2", b"null header value", [("nothing", None)]),
        (b"h3", b"empty header value", [("", b"")]),
        (b"h4", b"repeated", [("a", b"1"), ("a", b"2"), ("b", None), ("a", b"")]),
        (b"h5", b"wide", [("schl\u00fcssel-\u65e5\u5fd7", "\u503c".encode())]),
        (bytes(range(256)), bytes(range(255, -1, -1)), [("binary", bytes(range(256)))]),
        (b"many", b"headers", [(f"name-{i}", str(i).encode() * i) for i in range(70)]),
    ]
    for number, (key, value, headers) in enumerate(cases):
        out.produce(
            topic, value, key, 0, headers=headers, timestamp=EPOCH_MS + (number * 7919) % 1000
        )
        if number % 4 == 3:
            out.flush()
    out.flush()


def big(broker: Broker, topic: str, rng: random.Random) -> None:
    for codec in ("none", "lz4", "zstd", "snappy", "gzip"):
        out = producer(broker, compression_type=codec, message_max_bytes=8_000_000)
        for size in (70_000, 1_048_576, 2_500_000):
            out.produce(
                topic,
                (rng.randbytes(1000) * (size // 1000 + 1))[:size],
                codec.encode(),
                0,
                timestamp=EPOCH_MS + size,
            )
            out.flush()


def transactions(broker: Broker, topic: str, rng: random.Random, leave_open: bool) -> None:
    """Committed, aborted, interleaved and plain records; at the end one transaction may stay
    open.
    """
    plain = producer(broker)
    writers = [producer(broker, transactional_id=f"{topic}-writer-{number}") for number in range(3)]
    for writer in writers:
        writer.init_transactions(30)
    for round_number in range(12):
        for writer in writers:
            writer.begin_transaction()
        for step in range(6):
            for number, writer in enumerate(writers):
                writer.produce(
                    topic,
                    b"round %d writer %d step %d " % (round_number, number, step) + text(rng, 60),
                    b"w%d" % number,
                    step % 2,
                    timestamp=EPOCH_MS + round_number * 100 + step,
                )
                writer.flush()
            plain.produce(
                topic,
                b"plain %d %d" % (round_number, step),
                b"plain",
                step % 2,
                timestamp=EPOCH_MS + round_number * 100 + step,
            )
            plain.flush()
        for writer in writers:
            if rng.random() < 0.4:
                writer.abort_transaction(30)
            else:
                writer.commit_transaction(30)
    if leave_open:
        writers[0].begin_transaction()
        writers[0].produce(topic, b"never decided", b"w0", 0, timestamp=EPOCH_MS + 5000)
        writers[0].flush()
        plain.produce(topic, b"behind an open transaction", b"plain", 0, timestamp=EPOCH_MS + 5001)
        plain.flush()


def groups(broker: Broker, topic: str, partitions: int) -> None:
    """Offsets in __consumer_offsets: both protocols, metadata, a deleted group's tombstones, a
    transaction's offsets.
    """
    protocols = {"classic-group": "classic", "new-group": "consumer", "deleted-group": "classic"}
    if broker.version.startswith("3."):  # which has the newer protocol switched off
        del protocols["new-group"]
    for name, protocol in protocols.items():
        reader = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": name,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        reader.subscribe([topic])
        seen = 0
        deadline = time.monotonic() + 30
        while seen < 40 and time.monotonic() < deadline:
            seen += len(reader.consume(20, 1.0))
        reader.commit(asynchronous=False)
        reader.commit(
            offsets=[TopicPartition(topic, 0, 7, metadata="a note beside the offset")],
            asynchronous=False,
        )
        reader.close()
    broker.tool("consumer-groups", "--delete", "--group", "deleted-group")
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "transactional-group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    reader.subscribe([topic])
    while not reader.assignment():
        reader.poll(0.5)
    for name, decide in (
        ("commit", Producer.commit_transaction),
        ("abort", Producer.abort_transaction),
    ):
        writer = producer(broker, transactional_id=f"offsets-{name}")
        writer.init_transactions(30)
        writer.begin_transaction()
        writer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 11 if name == "commit" else 99)],
            reader.consumer_group_metadata(),
            30,
        )
        decide(writer, 30)
    reader.close()


def expect(broker: Broker, directory: Path, topics: dict[str, int]) -> None:
    directory.mkdir(parents=True)
    decided = client.read(broker.bootstrap, topics, "read_committed")
    for topic, rows in client.read(broker.bootstrap, topics).items():
        committed = {(row["partition"], row["offset"]) for row in decided[topic]}
        with (directory / f"{topic}.jsonl").open("w") as out:
            for row in rows:
                out.write(
                    json.dumps({**row, "committed": (row["partition"], row["offset"]) in committed})
                    + "\n"
                )


def deleted(broker: Broker, topic: str, work: Path, rng: random.Random) -> None:
    fill(broker, topic, rng, 500)
    wish = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 333}]}
    (work / "delete.json").write_text(json.dumps(wish))
    broker.tool("delete-records", "--offset-json-file", work / "delete.json")


def compacted(broker: Broker, topic: str, rng: random.Random) -> None:
    for codec in ("none", "zstd"):
        fill(broker, topic, rng, 600, keys=40, compression_type=codec, step_ms=10)
    tombstones = producer(broker)
    for number in range(0, 40, 3):
        tombstones.produce(
            topic, None, f"key-{number}".encode(), 0, timestamp=EPOCH_MS + 20_000 + number
        )
    tombstones.flush()
    fill(broker, topic, rng, 30, keys=5, start_ms=EPOCH_MS + 60_000, step_ms=500)


def is_tidy(broker: Broker) -> bool:
    """Whether the background work of the broker is done: it has compacted, truncated, and removed
    old files.
    """
    checkpoint = broker.log_dir / "cleaner-offset-checkpoint"
    cleaned = checkpoint.exists() and "compacted 0 " in checkpoint.read_text()
    cut = not (broker.log_dir / "records-deleted-0" / f"{0:020}.log").exists()
    return (
        cleaned
        and cut
        and not any(
            found.suffix in (".deleted", ".cleaned", ".swap")
            for found in broker.log_dir.glob("*/*")
        )
    )


def clean(work: Path, out: Path, rng: random.Random, part: int) -> None:
    broker = Broker(
        work / "clean",
        {
            "log.cleaner.min.compaction.lag.ms": 0,
            "log.cleaner.backoff.ms": 200,
            "log.retention.check.interval.ms": 500,
            "transaction.max.timeout.ms": 900000,
        },
    )
    topics: dict[str, int] = {}

    def topic(name: str, partitions: int = 1, **config: object) -> str:
        topics[name] = partitions
        broker.create_topic(
            name, partitions, {key.replace("_", "."): value for key, value in config.items()}
        )
        return name

    with broker:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            sent_so = topic(f"client-{codec}", 3, index_interval_bytes=1024)
            fill(broker, sent_so, rng, 400 // part, partitions=3, compression_type=codec)
            stored, sent = ("uncompressed", "lz4") if codec == "none" else (codec, "none")
            recompressed = topic(
                f"broker-{codec}", 1, compression_type=stored, index_interval_bytes=512
            )
            fill(broker, recompressed, rng, 300 // part, compression_type=sent)
        corners(broker, topic("corners"))
        big(broker, topic("big", 1, max_message_bytes=8_000_000), rng)
        fill(broker, topic("append-time", 1, message_timestamp_type="LogAppendTime"), rng, 60)
        rolled = topic(
            "rolled-by-time", 2, segment_ms=500, index_interval_bytes=64, segment_index_bytes=2048
        )
        fill(broker, rolled, rng, 1500 // part, partitions=2)
        fill(
            broker,
            topic("rolled-by-size", 1, segment_bytes=1048576),
            rng,
            300,
            size=16_000,
            compression_type="none",
        )
        fill(
            broker, topic("idempotent", 2), rng, 200 // part, partitions=2, enable_idempotence=True
        )
        topic("empty", 2)
        transactions(
            broker,
            topic("transactions", 2, segment_ms=300, index_interval_bytes=128),
            rng,
            leave_open=False,
        )
        transactions(broker, topic("transaction-left-open", 2), rng, leave_open=True)
        deleted(broker, topic("records-deleted", 1, segment_ms=500), work, rng)
        settings = {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": "0.01",
            "segment_ms": 1000,
        }
        compacted(
            broker,
            topic("compacted", 1, delete_retention_ms=600_000, min_compaction_lag_ms=0, **settings),
            rng,
        )
        groups(broker, "client-zstd", 3)
        until(
            lambda: is_tidy(broker), "the cleaner and the deletion of old segments", deadline_s=120
        )
    for _ in range(2):  # each start of the broker is a leader epoch of its own
        with broker:
            fill(broker, "client-none", rng, 30, partitions=3, start_ms=EPOCH_MS + 100_000)
    with broker:
        expect(broker, out / "clean" / "expected", topics)
        described = broker.tool("consumer-groups", "--describe", "--all-groups", "--offsets").stdout
        (out / "clean" / "expected" / "groups.txt").write_text(described)
    shutil.copytree(broker.log_dir, out / "clean" / "log")


def unclean(work: Path, out: Path, rng: random.Random, part: int) -> None:
    broker = Broker(work / "unclean", {"log.index.size.max.bytes": 4096})
    topics = {"plain": 2, "pressed": 1, "transactions": 2}
    broker.start()
    for name, partitions in topics.items():
        broker.create_topic(
            name,
            partitions,
            {"segment.ms": 1500, "index.interval.bytes": 256, "segment.index.bytes": 4096},
        )
    fill(broker, "plain", rng, 700 // part, partitions=2)
    fill(broker, "pressed", rng, 700 // part, compression_type="lz4")
    transactions(broker, "transactions", rng, leave_open=True)
    expect(broker, out / "unclean" / "expected", topics)
    broker.kill()
    shutil.copytree(broker.log_dir, out / "unclean" / "log")


def pack(out: Path, suffix: str) -> None:
    """Both directories as one archive: owners, modes and times that say nothing."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        entry.mtime = EPOCH_MS // 1000
        return entry

    with tarfile.open(
        out / f"golden{suffix}.tar.xz", "w:xz", format=tarfile.USTAR_FORMAT, preset=9
    ) as archive:
        for name in ("clean", "unclean"):
            archive.add(out / name, name + suffix, filter=plain)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--suffix", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for make in (clean, unclean):
            shutil.rmtree(options.out / make.__name__, ignore_errors=True)
            make(Path(work), options.out, random.Random(options.seed), options.part)
    pack(options.out, options.suffix)


if __name__ == "__main__":
    main()
