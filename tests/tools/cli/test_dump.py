"""The verb `dump` beside kafka-dump-log, and on damaged files."""

from __future__ import annotations

import json
import os
import random
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.format.wire import uvarint
from embedlog.tools.dump.coordinator_records import (
    OFFSETS,
    SHARE_STATES,
    TRANSACTIONS,
    Field,
    RecordSchema,
)
from tests.kafka import oracle

PRINTED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
MODES = [
    "--print-data-log",
    "--deep-iteration",
    "--skip-record-metadata --print-data-log",
    "--index-sanity-check",
    "--verify-index-only",
    "",
]


def files_of(directory: Path) -> str:
    """The files of a log directory that kafka-dump-log prints."""
    return ",".join(
        map(str, sorted(path for path in directory.rglob("*") if path.suffix in PRINTED))
    )


def lines(text: str) -> list[str]:
    """Java and Python replace bytes that are not UTF-8 by different numbers of characters."""
    return re.sub("\ufffd+", "\ufffd", text).split("\n")


def agrees(run: Callable[..., Any], *arguments: str) -> None:
    """Text is equal line by line; contradictions and gaps are equal in any order, because Kafka
    prints them in that of a hash.
    """
    expected = oracle.tool("dump-log", *arguments)
    found = run("dump", *arguments)
    # as the text of the other process was read
    printed = found.out.replace("\r\n", "\n").replace("\r", "\n")
    assert lines(printed) == lines(expected.stdout)
    assert sorted(found.err.splitlines()) == sorted(expected.stderr.splitlines())
    assert found.status == 0


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.xdist_group("kafka")
@pytest.mark.usefixtures("kafka")
def test_records_of_a_brokers_directory_are_printed_as_by_kafka(
    golden: Path, run: Callable[..., Any]
) -> None:
    directory = golden / "clean" / "log"
    names = ("compacted-0", "corners-0", "empty-0", "idempotent-0", "transactions-0")
    agrees(
        run, "--files", ",".join(files_of(directory / name) for name in names), "--print-data-log"
    )
    if oracle.TOOLS_VERSION != oracle.REFERENCE:
        return  # older tools print the status of a transaction as a number
    for topic, option in (
        ("__consumer_offsets", "--offsets-decoder"),
        ("__transaction_state", "--transaction-log-decoder"),
    ):
        agrees(run, "--files", str(directory / f"{topic}-0" / f"{0:020d}.log"), option)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.xdist_group("kafka")
@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("mode", MODES)
def test_all_options_print_what_kafka_prints(
    golden: Path, run: Callable[..., Any], mode: str
) -> None:
    agrees(run, "--files", files_of(golden / "clean" / "log"), *mode.split())


# ---- records of coordinators -----------------------------------------------------------------------------------------


class Encoder:
    """Random values of the schemas that `dump` knows, in Kafka's encoding."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def key(self, kind: int, fields: Sequence[Field]) -> bytes:
        return struct.pack(">h", kind) + self._struct(fields, 0, flexible=False)

    def value(self, schema: RecordSchema, version: int) -> bytes:
        return struct.pack(">h", version) + self._struct(
            schema.fields, version, flexible=version >= schema.flexible
        )

    def _struct(self, fields: Sequence[Field], version: int, *, flexible: bool) -> bytes:
        present = [each for each in fields if each.since <= version <= each.until]
        made = b"".join(self._field(each, version, flexible) for each in present if each.tag < 0)
        if not flexible:
            return made
        tagged = [each for each in present if each.tag >= 0 and self._rng.random() < 0.5]
        parts = [
            (each.tag, self._field(each, version, flexible))
            for each in sorted(tagged, key=lambda each: each.tag)
        ]
        return (
            made
            + uvarint(len(parts))
            + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in parts)
        )

    def _field(self, field: Field, version: int, flexible: bool) -> bytes:
        if field.nullable and self._rng.random() < 0.5:
            return b"\xff" if field.tag < 0 else b"\0"
        there = b"\1" if field.nullable else b""
        if not field.many:
            return there + self._one(field.kind, version, flexible)
        count = self._rng.randrange(3)
        items = b"".join(self._one(field.kind, version, flexible) for _ in range(count))
        return there + (uvarint(count + 1) if flexible else struct.pack(">i", count)) + items

    def _one(self, kind: str | tuple[Field, ...], version: int, flexible: bool) -> bytes:
        if isinstance(kind, tuple):
            return self._struct(kind, version, flexible=flexible)
        sizes = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uuid": 16}
        if kind in sizes:
            return self._rng.randbytes(sizes[kind])
        if kind.endswith("?") and self._rng.random() < 0.3:
            return b"\0" if flexible else b"\xff" * (4 if kind == "bytes?" else 2)
        data = (
            self._rng.choice(["", "a", "größer"]).encode()
            if kind.startswith("string")
            else b"bytes"
        )
        if flexible:
            return uvarint(len(data) + 1) + data
        return struct.pack(">h" if kind.startswith("string") else ">i", len(data)) + data


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.xdist_group("kafka")
@pytest.mark.usefixtures("kafka")
@pytest.mark.skipif(
    oracle.KAFKA_VERSION != oracle.REFERENCE, reason="the schemas are those of the reference"
)
@pytest.mark.parametrize(
    ("types", "option"),
    [
        (OFFSETS, "--offsets-decoder"),
        (TRANSACTIONS, "--transaction-log-decoder"),
        (SHARE_STATES, "--share-group-state-decoder"),
    ],
)
def test_records_of_each_type_are_printed_as_by_kafka(
    tmp_path: Path,
    run: Callable[..., Any],
    rng: random.Random,
    types: Mapping[int, Any],
    option: str,
) -> None:
    encoder = Encoder(rng)
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("t")
        for kind, (fields, schema) in types.items():
            for version in range(schema.newest + 1):
                for _ in range(6):
                    producer.send(
                        "t", encoder.value(schema, version), key=encoder.key(kind, fields)
                    )
            producer.send("t", None, key=encoder.key(kind, fields))
            producer.send("t", struct.pack(">h", schema.newest + 1), key=encoder.key(kind, fields))
            producer.send("t", b"", key=encoder.key(kind, fields))
        producer.send("t", b"\0\0", key=struct.pack(">h", max(types) + 10))
        producer.send("t", b"\0\0", key=b"\0")
    assert run("ls").status == 0  # it takes the line of the seed from the output
    agrees(run, "--files", str(tmp_path / "data" / "t-0" / f"{0:020d}.log"), option)


def test_the_state_of_a_share_group_is_printed(tmp_path: Path, run: Callable[..., Any]) -> None:
    topic = bytes(range(16))
    key = b"\0\1" + b"\0\2sg" + topic + struct.pack(">i", 3)
    state = struct.pack(">qqbh", 40, 42, 2, 1) + b"\0"
    value = b"\0\0" + struct.pack(">iiq", 1, 0, 40) + b"\2" + state + b"\0"
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("state")
        producer.send("state", value, key=key)
    printed = run("dump", "state-0", "--share-group-state-decoder")
    assert (printed.status, printed.err) == (0, "")
    assert (
        '{"type":"1","data":{"groupId":"sg","topicId":"AAECAwQFBgcICQoLDA0ODw","partition":3}}'
        in printed.out
    )
    batches = (
        '"stateBatches":[{"firstOffset":40,"lastOffset":42,"deliveryState":2,"deliveryCount":1}]'
    )
    assert (
        f'{{"version":"0","data":{{"snapshotEpoch":1,"leaderEpoch":0,"startOffset":40,{batches}}}}}'
        in printed.out
    )


# ---- files -----------------------------------------------------------------------------------------------------------


def filled(path: Path) -> Path:
    """The files of a partition with three batches."""
    with embedlog.open(path) as log:
        log.create_topic("t", config={"index.interval.bytes": 1})
        for value in (b"first", b"second", b"third"):
            with log.producer() as producer:
                producer.send("t", value, key=b"k", headers=[("name", b"x")])
    return path / "t-0"


def test_a_partition_is_printed_by_its_name(tmp_path: Path, run: Callable[..., Any]) -> None:
    filled(tmp_path / "data")
    found = run("dump", "t-0", "--print-data-log")
    assert (found.status, found.err) == (0, "")
    assert found.out.count("baseOffset: ") == found.out.count("| offset: ") == 3
    assert "headerKeys: [name] key: k payload: second\n" in found.out
    facts = [
        json.loads(line)
        for line in run("dump", "t-0", "--deep-iteration", "--json").out.splitlines()
    ]
    assert [each["offset"] for each in facts if "headerKeys" in each] == [0, 1, 2]


def test_damage_is_reported_with_its_place(tmp_path: Path, run: Callable[..., Any]) -> None:
    log = filled(tmp_path / "data") / f"{0:020d}.log"
    good = log.read_bytes()
    index = log.with_suffix(".index")
    size = 12 + int.from_bytes(good[8:12], "big")

    log.write_bytes(good[: size - 2] + b"\xff" + good[size - 1 :])
    found = run("dump", "--files", str(log), "--deep-iteration")
    assert (found.status, found.out.count("isvalid: false"), found.out.count("| offset")) == (
        1,
        1,
        2,
    )

    log.write_bytes(good[:-5])
    found = run("dump", "--files", str(log))
    left = len(good) - 5 - found.out.count("baseOffset") * size
    assert found.status == 1
    assert found.out.endswith(f"invalid bytes at the end of {log.name}\n")
    assert left > 0

    log.write_bytes(good)
    index.write_bytes(b"\0\0\0\1\0\0\0\0")  # names offset 1 at the first batch
    found = run("dump", "--files", str(index))
    assert (found.status, found.err) == (
        1,
        f"Mismatches in :{index}\n  Index offset: 1, log offset: 0\n",
    )

    log.with_suffix(".timeindex").write_bytes(bytes(7) + b"\1" + bytes(4))
    found = run("dump", "--files", str(log.with_suffix(".timeindex")))
    assert found.status == 1
    assert "Found timestamp mismatch" in found.err


def test_a_size_in_a_file_is_compared_with_the_file(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    log = filled(tmp_path / "data") / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[8:12] = (2**31 - 20).to_bytes(4, "big")
    log.write_bytes(data)
    found = run("dump", "--files", str(log), "--print-data-log")
    assert found.status == 1
    assert f"Found {len(data)} invalid bytes" in found.out


def test_other_files_are_ignored_and_absent_ones_reported(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    directory = filled(tmp_path / "data")
    found = run("dump", "--files", f"{directory}/partition.metadata,{directory}/{5:020d}.log")
    assert found.status == 1
    assert f"Ignoring unknown file {directory}/partition.metadata\n" in found.out
    assert (
        run("dump").status
        == run("dump", "none-0").status
        == run("dump", "--key-decoder-class", "x").status
        == 2
    )


def test_any_bytes_are_printed_or_reported(
    tmp_path: Path, run: Callable[..., Any], rng: Any
) -> None:
    directory = filled(tmp_path / "data")
    for path in sorted(path for path in directory.iterdir() if path.suffix in PRINTED):
        good = path.read_bytes()
        for _ in range(20):
            data = bytearray(good or os.urandom(24))
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(data[: rng.randint(1, len(data))])
            assert run("dump", "--files", str(path), "--offsets-decoder").status in (0, 1)
        path.write_bytes(good)
