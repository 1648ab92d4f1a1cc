"""A log directory of another party: no name in it leads outside, nothing in it makes the opening
process wait or fail.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import (
    EmbedlogError,
    ForeignDirectoryError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from tests.support.idle_logs import COUNT, QUIET, closed, fill, frozen, use, values

__all__ = ["closed"]

LAST = f"{0:020d}"
NAMES = (
    f"t-0/{LAST}.log",
    f"t-0/{LAST}.index",
    f"t-0/{LAST}.timeindex",
    "t-0/embedlog.page",
    "t-0/embedlog.lock",
    "t-0/embedlog.sync",
    "t-0/embedlog.dirty",
    "t-0/embedlog.durable",
    "t-0/embedlog.manifest",
    "t-0/leader-epoch-checkpoint",
    "t-0/partition.metadata",
    f"t-0/embedlog.digests-{LAST}",
    "embedlog.control",
    "embedlog.door",
    "embedlog.directory",
    "embedlog.topics",
    "embedlog.slots",
    "embedlog.housekeeper",
    ".lock",
    ".kafka_cleanshutdown",
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "embedlog.visit",
    "embedlog.topics.tmp",
    "t-0/embedlog.manifest.tmp",
)


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    make(path)


def allowed(directory: Path, *, read_only: bool) -> None:
    """The right records, or an error of ours."""
    try:
        use(directory, read_only)
    except EmbedlogError:
        pass


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("name", NAMES)
def test_a_link_among_the_files_writes_nothing_elsewhere(closed: Path, name: str) -> None:
    victim = closed.with_name("victim")
    made = closed.with_name("made")
    victim.write_bytes(b"precious")
    for target in (victim, made):
        for read_only in (True, False):
            copy = closed.with_name("copy")
            shutil.copytree(closed, copy)
            replace(copy / name, lambda path, target=target: path.symlink_to(target))
            allowed(copy, read_only=read_only)
            assert victim.read_bytes() == b"precious"
            assert not made.exists()
            shutil.rmtree(copy)


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_among_the_files_makes_nobody_wait(closed: Path, name: str) -> None:
    replace(closed / name, os.mkfifo)
    for read_only in (True, False):
        allowed(closed, read_only=read_only)


# ---- links to partitions -------------------------------------------------------------------------


@pytest.fixture
def linked(closed: Path) -> Path:
    """The partition is in another place, as on another disk."""
    elsewhere = closed.with_name("elsewhere")
    shutil.move(closed / "t-0", elsewhere)
    (closed / "t-0").symlink_to(elsewhere)
    return closed


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_a_linked_partition_is_refused_and_left_alone(linked: Path, read_only: bool) -> None:
    elsewhere = linked.with_name("elsewhere")
    before = frozen(elsewhere)
    with pytest.raises(ForeignDirectoryError, match=r"follow\.links") as problem:
        use(linked, read_only)
    assert problem.value.path == str(linked / "t-0")
    assert frozen(elsewhere) == before


def test_a_linked_partition_that_appears_later_is_refused_as_well(closed: Path) -> None:
    with embedlog.open(closed, config=QUIET) as log:
        shutil.move(closed / "t-0", closed.with_name("elsewhere"))
        (closed / "t-0").symlink_to(closed.with_name("elsewhere"))
        before = frozen(closed.with_name("elsewhere"))
        with pytest.raises(ForeignDirectoryError, match="symbolic link"):
            values(log)
        assert frozen(closed.with_name("elsewhere")) == before
        (closed / "t-0").unlink()
        shutil.move(closed.with_name("elsewhere"), closed / "t-0")
        assert len(values(log)) == COUNT


def test_a_topic_is_not_made_through_a_link(tmp_path: Path) -> None:
    """The registry may say `creating` of any directory."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "t-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ForeignDirectoryError):
        embedlog.open(tmp_path / "log", config=QUIET)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_links_that_the_owner_allows_are_followed_to_the_end(linked: Path) -> None:
    config = QUIET | {"follow.links": True, "log.segment.delete.delay.ms": 0}
    for read_only in (True, False):
        with embedlog.open(linked, read_only=read_only, config=config) as log:
            if not read_only:
                fill(log, count=3)
            assert len(values(log)) == COUNT + (0 if read_only else 3)
    elsewhere = linked.with_name("elsewhere")
    with embedlog.open(linked, config=config) as log:
        log.delete_topic("t")
        log.housekeep()
    assert not list(elsewhere.iterdir())
    assert not list(linked.glob("t-*"))


def test_a_retired_directory_that_is_a_link_takes_no_files_with_it(closed: Path) -> None:
    photos = closed.with_name("photos")
    photos.mkdir()
    (photos / "cat.jpg").write_bytes(b"cat")
    link = closed / f"gone-0.{'a' * 32}-delete"
    link.symlink_to(photos)
    with embedlog.open(closed, config=QUIET | {"log.segment.delete.delay.ms": 0}) as log:
        log.housekeep()
        assert len(values(log)) == COUNT
    assert (photos / "cat.jpg").read_bytes() == b"cat"
    assert not link.is_symlink()


def test_a_log_directory_may_be_reached_through_a_link(closed: Path) -> None:
    """The path is the opener's own."""
    (closed.parent / "link").symlink_to(closed)
    use(closed.parent / "link", read_only=False)
    use(closed.parent / "link", read_only=True)
    (closed.parent / "dangling").symlink_to("nowhere")
    for read_only in (True, False):
        with pytest.raises((ForeignDirectoryError, StorageError)):
            embedlog.open(closed.parent / "dangling", read_only=read_only)
    assert not (closed.parent / "nowhere").exists()


# ---- files of older brokers and of other brokers of a cluster ------------------------------------


@pytest.mark.parametrize(
    "order", [(True, False), (False, True)], ids=["read first", "written first"]
)
def test_a_partition_without_an_id_is_read_and_written(
    closed: Path, order: tuple[bool, bool]
) -> None:
    """As every broker before Kafka 2.8 left it, which had no `partition.metadata`."""
    old = closed.with_name("old")
    old.mkdir()
    shutil.copytree(
        closed / "t-0",
        old / "t-0",
        ignore=shutil.ignore_patterns("embedlog.*", "partition.metadata"),
    )
    for read_only in order:
        before = frozen(old)
        use(old, read_only)
        assert (frozen(old) == before) is read_only
    use(old, read_only=True)


def test_a_topic_without_an_id_keeps_the_one_a_reader_gave_it(closed: Path) -> None:
    old = closed.with_name("old")
    old.mkdir()
    shutil.copytree(
        closed / "t-0",
        old / "t-0",
        ignore=shutil.ignore_patterns("embedlog.*", "partition.metadata"),
    )
    with embedlog.open(old, read_only=True) as one, embedlog.open(old, read_only=True) as two:
        assert one.describe_topic("t").topic_id == two.describe_topic("t").topic_id
        one._engine.home.reload_topics()
        assert one.describe_topic("t").topic_id == two.describe_topic("t").topic_id


NUMBERS = (0, 5, 2**31 - 1)


@pytest.fixture
def sparse(closed: Path) -> Path:
    """One broker's part of a topic: the other partitions lay with others. Its largest number is no
    size of anything.
    """
    part = closed.with_name("part")
    part.mkdir()
    for number in NUMBERS:
        shutil.copytree(
            closed / "t-0", part / f"t-{number}", ignore=shutil.ignore_patterns("embedlog.*")
        )
    return part


def test_a_reader_of_a_part_of_a_topic_reads_what_is_here(sparse: Path) -> None:
    with embedlog.open(sparse, read_only=True) as log:
        assert len(values(log)) == COUNT * len(NUMBERS)
        assert tuple(each.partition for each in log.describe_topic("t").partitions) == NUMBERS
        with log.consumer("t", auto_offset_reset="earliest") as consumer:
            assert sum(
                1 for _ in zip(range(COUNT * len(NUMBERS)), consumer, strict=False)
            ) == COUNT * len(NUMBERS)


def test_records_without_a_key_go_to_partitions_that_are_here(sparse: Path) -> None:
    with embedlog.open(sparse, config=QUIET) as log:
        used = set()
        for _ in range(40):
            with log.producer() as producer:
                assert producer.partitions_for("t") == set(NUMBERS)
                used.add(producer.send("t", b"x").result(10).partition)
                used |= {place[1] for place in producer.send_batch("t", [b"y"] * 10).result(10)}
        assert used == set(NUMBERS)


def test_a_key_whose_partition_is_elsewhere_is_refused(sparse: Path) -> None:
    """Where another broker would put it: to put it elsewhere would tear the key's records apart."""
    with embedlog.open(sparse, config=QUIET) as log, log.producer(max_block_ms=60_000) as producer:
        key = b"foobar"
        with pytest.raises(
            UnknownTopicOrPartitionError,
            match=r"has no partition [0-9]+: expected one of.* 0, 5, 2147483647",
        ):
            producer.send("t", b"x", key).result(10)
        with pytest.raises(UnknownTopicOrPartitionError, match="one of"):
            producer.send_batch("t", [b"x"], [key]).result(10)
        with pytest.raises(UnknownTopicOrPartitionError, match="one of"):
            producer.send("t", b"x", partition=3).result(10)
        for number in NUMBERS:
            assert producer.send("t", b"x", partition=number).result(10).partition == number
            assert producer.send_batch("t", [b"x"], partition=number).result(10)[0][1] == number


def test_partitioners_are_told_what_is_here(sparse: Path) -> None:
    asked = []

    def choose(key: bytes | None, every: Sequence[int], here: Sequence[int]) -> int:
        asked.append((len(every), tuple(here)))
        return here[-1]

    with embedlog.open(sparse, config=QUIET) as log, log.producer(partitioner=choose) as producer:
        assert producer.send("t", b"x").result(10).partition == NUMBERS[-1]
        assert {each[1] for each in producer.send_batch("t", [b"x"] * 3).result(10)} == {
            NUMBERS[-1]
        }
    assert set(asked) == {(2**31, NUMBERS)}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_group_shares_what_is_here(sparse: Path, strategy: str) -> None:
    with embedlog.open(sparse, config=QUIET) as log:
        facts = {
            "group_id": "g",
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": [strategy],
        }
        one = log.consumer("t", **facts)
        other = log.consumer("t", **facts)
        wanted = {TopicPartition("t", number) for number in NUMBERS}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            one.poll(0.05)
            other.poll(0.05)
            if (
                one.assignment()
                and other.assignment()
                and one.assignment() | other.assignment() == wanted
            ):
                break
        assert one.assignment() | other.assignment() == wanted
        assert not one.assignment() & other.assignment()
        one.commit()
        other.commit()
        log.flush()
        log.backup(sparse.with_name("copy"))
    with embedlog.open(sparse.with_name("copy"), read_only=True) as copy:
        assert len(values(copy)) == COUNT * len(NUMBERS)
