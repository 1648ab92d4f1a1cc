"""The words of a directory's control page: each has one use."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.admin import directory_jobs, housekeeper
from embedlog.coordination import directory
from embedlog.coordination.transactions import recovery_due
from embedlog.errors import EmbedlogError
from embedlog.replicas.partition import copy_rate
from embedlog.storage import file_names
from tests.conftest import ROOT

QUIET: dict[str, Any] = {"housekeeping": False}
USED_BYTES = 0x150  # of the page; zeros follow
BITS_FAST = 8
BITS_LONG = 400

WORDS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in {
        directory: (
            "MARK_INODE",
            "MARK_NS",
            "WAS_CLEAN",
            "BROKER_WROTE",
            "BY_LOCKS",
            "BOOT",
            "IN_SET",
            "REGISTERED",
        ),
        directory_jobs: ("NEXT_ROUND_NS", "NEXT_POINTS_NS", "NEXT_CLEANING_NS"),
        housekeeper: ("NEXT_TRANSACTIONS_NS", "NEXT_IDS_NS", "NEXT_OFFSETS_NS", "NEXT_GROUPS_NS"),
        recovery_due: ("LAST_CACHE", "RECOVERY_DUE"),
        copy_rate: ("COPIES_OUT", "COPIES_IN"),
        system: ("WORD_UNSYNCED_COUNT",),
    }.items()
    for name in names
}


def test_each_word_has_one_use() -> None:
    assert len(set(WORDS.values())) == len(WORDS), sorted(
        (value, name) for name, value in WORDS.items()
    )


def test_every_word_is_in_the_table_of_the_layout() -> None:
    page = (ROOT / "docs" / "layout.md").read_text()
    tables = page.partition("### The words of the pages")[2].partition("Three words of 32 bits")[0]
    of_partitions, _, of_directories = tables.partition("`embedlog.control`")
    for name, number in WORDS.items():
        word = name.rpartition(".")[2].removeprefix("WORD_")
        assert f"{number} `{word}`" in of_directories
    named = set(re.findall(r"(\d+) `([A-Z_]+)`", of_partitions))
    header = (ROOT / "embedlog" / "_native" / "api" / "log.h").read_text()
    enum = header.partition("enum el_word {")[2].partition("EL_WORDS")[0]
    assert named == {(number, word) for word, number in re.findall(r"EL_WORD_(\w+) = (\d+)", enum)}


def test_a_directory_is_opened_again_after_the_tasks_of_its_housekeeper(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        for _ in range(2):
            log.housekeep(due_only=True)
        log.housekeep()
        with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as other:
            assert other.topics() == ["t"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "bits", [BITS_FAST, pytest.param(BITS_LONG, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_a_flipped_bit_of_the_page_of_an_open_directory_loses_nothing(
    tmp_path: Path, rng: random.Random, count: int, bits: int
) -> None:
    """The process that has the directory open continues, and a later opening finds all. Another one
    may be refused.
    """
    for bit in rng.sample(range(USED_BYTES * 8), bits):
        root = tmp_path / str(bit)
        paths = [root / f"d{number}" for number in range(count)]
        where = paths if count > 1 else paths[0]
        with embedlog.open(where, config=QUIET) as log, log.producer(linger_ms=0) as producer:
            log.create_topic("t", replication_factor=count)
            producer.send("t", b"0").result(60)
            with open(paths[0] / file_names.CONTROL, "r+b") as page:
                page.seek(bit // 8)
                changed = page.read(1)[0] ^ 1 << bit % 8
                page.seek(bit // 8)
                page.write(bytes([changed]))
            producer.send("t", b"1").result(60)
            log.create_topic("u", replication_factor=count)
            log.housekeep()
            producer.send("t", b"2").result(60)
            with contextlib.suppress(EmbedlogError):
                embedlog.open(where, config=QUIET).close()
        with embedlog.open(where, config=QUIET) as log:
            assert log.topics() == ["t", "u"], bit
            assert [record.value for record in log.scan("t").records()] == [b"0", b"1", b"2"], bit
