"""Another program removes or replaces the segment that is written: no record is acknowledged that
no file name leads to.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import embedlog

PATIENT_S: Final = 20.0
QUIET: Final = {"housekeeping": False}
TOPIC: Final = "t"


def segment(root: Path) -> Path:
    return root / f"{TOPIC}-0" / f"{0:020d}.log"


def remove(path: Path) -> None:
    path.unlink()


def replace_by_nothing(path: Path) -> None:
    fresh = path.with_suffix(".fresh")
    fresh.write_bytes(b"")
    fresh.rename(path)


def remove_and_make_again(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"")


def remove_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def move_directory(path: Path) -> None:
    path.parent.rename(path.parent.parent / "moved")


def send(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send(TOPIC, b"2").result(PATIENT_S)


def send_batch(log: embedlog.Log, producer: embedlog.Producer) -> None:
    producer.send_batch(TOPIC, [b"2", b"3"]).result(PATIENT_S)


def send_by_another_producer(log: embedlog.Log, producer: embedlog.Producer) -> None:
    with log.producer(linger_ms=5) as other:
        other.send(TOPIC, b"2").result(PATIENT_S)


def commit(log: embedlog.Log, producer: embedlog.Producer) -> None:
    with log.producer(transactional_id="x") as transactional:
        transactional.init_transactions()
        transactional.begin_transaction()
        transactional.send(TOPIC, b"2")
        transactional.commit_transaction()


DAMAGES: Final = (
    remove,
    replace_by_nothing,
    remove_and_make_again,
    remove_directory,
    move_directory,
)
WAYS: Final = (send, send_batch, send_by_another_producer, commit)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def opened(root: Path) -> Iterator[tuple[embedlog.Log, embedlog.Producer]]:
    """A log with one record, and the producer that wrote it. Their ends may report the lost
    file.
    """
    log = embedlog.open(root, config=QUIET)
    log.create_topic(TOPIC)
    producer = log.producer(delivery_timeout_ms=2000, request_timeout_ms=1000)
    producer.send(TOPIC, b"1").result(PATIENT_S)
    yield log, producer
    for end in (producer, log):
        try:
            end.close()
        except embedlog.EmbedlogError:
            continue


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("way", WAYS)
def test_no_append_is_acknowledged(
    root: Path,
    opened: tuple[embedlog.Log, embedlog.Producer],
    damage: Callable[[Path], None],
    way: Callable[[embedlog.Log, embedlog.Producer], None],
) -> None:
    damage(segment(root))
    with pytest.raises(embedlog.EmbedlogError) as refused:
        way(*opened)
    assert str(root) in str(refused.value)


def test_the_message_names_the_segment_and_the_way_out(
    root: Path, opened: tuple[embedlog.Log, embedlog.Producer]
) -> None:
    segment(root).unlink()
    with pytest.raises(
        embedlog.CorruptRecordError, match=r"is missing; another program has removed it"
    ) as refused:
        send(*opened)
    assert refused.value.path == str(segment(root)) or Path(str(refused.value.path)) == segment(
        root
    )


@pytest.mark.parametrize("damage", [remove, replace_by_nothing])
def test_appends_continue_in_a_file_that_was_restored(
    root: Path, opened: tuple[embedlog.Log, embedlog.Producer], damage: Callable[[Path], None]
) -> None:
    log, producer = opened
    kept = root.parent / "kept"
    shutil.copy(segment(root), kept)
    damage(segment(root))
    with pytest.raises(embedlog.CorruptRecordError):
        send(log, producer)
    shutil.copy(kept, segment(root).with_suffix(".copy"))
    segment(root).with_suffix(".copy").rename(segment(root))
    with log.producer() as other:
        assert other.send(TOPIC, b"again").result(PATIENT_S).offset == 1
    assert [each.value for each in log.scan(TOPIC).records()] == [b"1", b"again"]


def test_a_file_that_was_replaced_by_its_copy_is_taken(
    root: Path, opened: tuple[embedlog.Log, embedlog.Producer]
) -> None:
    log, producer = opened
    copy = segment(root).with_suffix(".copy")
    shutil.copy(segment(root), copy)
    copy.rename(segment(root))
    send(log, producer)
    assert [each.value for each in log.scan(TOPIC).records()] == [b"1", b"2"]


def test_a_sync_of_a_file_that_was_renamed_is_an_error(
    root: Path, opened: tuple[embedlog.Log, embedlog.Producer]
) -> None:
    """Its link count does not show it: the name is compared at each sync."""
    log, producer = opened
    segment(root).rename(segment(root).with_suffix(".away"))
    log.alter_topic(TOPIC, config={"flush.messages": "1"})
    with pytest.raises(embedlog.EmbedlogError, match=r"sync|segment"):
        send(log, producer)
