"""The examples of docs/format.md are the bytes that the code reads and writes."""

from __future__ import annotations

import re

import pytest

from embedlog.coordination.groups import group_records
from embedlog.coordination.transactions import transaction_records
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.format.compression import decompress
from embedlog.format.consumer_protocol import decode_assignment, encode_assignment
from embedlog.format.producer_state import ProducerState
from embedlog.format.record_batch import Chain, marker_batch, scan
from embedlog.index import OFFSET_ENTRY
from embedlog.partitioners import partition_of
from embedlog.types import OffsetAndMetadata, TopicPartition
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "format.md").read_text()


def section(number: str) -> str:
    return re.split(
        r"^#+ ",
        re.split(rf"^#+ {re.escape(number)} ", PAGE, flags=re.MULTILINE)[1],
        flags=re.MULTILINE,
    )[0]


def example(number: str) -> bytes:
    """The bytes of the fenced block of a section."""
    return bytes.fromhex(re.split(r"^```\n", section(number), flags=re.MULTILINE)[1])


def row(number: str, name: str) -> bytes:
    """The bytes in the last column of a row."""
    line = next(line for line in section(number).splitlines() if line.startswith(f"| {name}"))
    return bytes.fromhex(re.findall(r"`([^`]+)`", line)[-1])


@pytest.mark.parametrize(
    ("number", "size", "base"), [("13.1", 102, 42), ("13.2", 120, 100), ("13.4", 61, 60)]
)
def test_the_batches_pass_the_scan(number: str, size: int, base: int) -> None:
    data = example(number)
    found = scan(data, Chain(next_offset=base, gaps_allowed=True))
    assert (len(data), found.problem, found.batches["base_offset"].tolist()) == (size, None, [base])


def test_the_compressed_batch_contains_its_records() -> None:
    records = decompress(3, example("13.2")[61:], 1000)
    assert (len(records), bytes(records).count(b"abc" * 100)) == (624, 2)


def test_the_marker_is_the_one_that_is_written() -> None:
    lines = re.split(r"^```\n", section("13.3"), flags=re.MULTILINE)[1].splitlines()
    data = bytes.fromhex(lines[0].removeprefix("COMMIT") + lines[1] + lines[2])
    written = marker_batch(4000, 2, True, 9, 1_700_000_000_000)
    assert (len(data), data[16:]) == (78, bytes(written)[16:])
    assert bytes(marker_batch(4000, 2, False, 9, 1_700_000_000_000))[17:21].hex() in lines[3]


def test_the_snapshot_is_decoded_and_encoded() -> None:
    data = example("13.5")
    state = ProducerState.decode(data, 51)
    assert (state.encode(), state.open_transactions()) == (data, [(4000, 45)])


def test_the_entries_of_the_indexes() -> None:
    data = example("13.6")
    assert aborted_transactions.encode([AbortedTransaction(1, 5, 9, 10)]) == data
    assert OFFSET_ENTRY.pack(20 - 17, 669).hex(" ", 4) in section("13.7")


def test_internal_records() -> None:
    offset = OffsetAndMetadata(123, "md", 5)
    assert group_records.encode_offset_key("g1", "t", 3) == row("9.4", "offset key")
    assert group_records.encode_offset(offset, 1_700_000_000_000) == row("9.4", "offset value")
    assert group_records.encode_group_key("g1") == row("9.4", "group key")
    assert transaction_records.encode_key("tx") == row("9.4", "transaction key")
    found = transaction_records.decode(row("9.4", "transaction value"))
    assert (found.producer_id, found.epoch, found.partitions) == (
        4000,
        2,
        frozenset({("t", 0), ("t", 1)}),
    )
    partitions = (TopicPartition("t", 0), TopicPartition("t", 2))
    assert decode_assignment(row("9.4", "assignment")) == partitions
    assert encode_assignment(partitions) == row("9.4", "assignment")


def test_the_partitions_of_keys() -> None:
    rows = re.findall(
        r"^\| (\(empty\)|`\w+`) \| `(\w+)` \| (\d+) \| (\d+) \|$", section("10"), re.MULTILINE
    )
    assert len(rows) == 4
    for name, digest, twelve, fifty in rows:
        key = b"" if name == "(empty)" else name.strip("`").encode()
        assert (partition_of(key, 12), partition_of(key, 50)) == (int(twelve), int(fifty))
        assert (int(digest, 16) & 0x7FFFFFFF) % 12 == int(twelve)


def test_the_header_has_the_fields_of_its_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (i\d+|u32) \|", section("1.1"), re.MULTILINE)
    sizes = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "u32": 4}
    position = 0
    for at, kind in rows:
        assert int(at) == position
        position += sizes[kind]
    assert position == 61
