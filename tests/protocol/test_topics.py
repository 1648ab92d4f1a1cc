"""DIR-1 and DIR-2 of the protocol, step by step with processes that stop or die between two steps.

Tests of a rule also run with the rule switched off, and must fail then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.storage import file_names
from embedlog.storage.identity import id_bytes
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery, RemoteError, Victim
from tests.faults.harness.stage import Play, check_rule, fails_without
from tests.faults.harness.tasks import TOPIC
from tests.support.mutants import mutated


def answer_of(victim: Victim) -> Any:
    """The result of an append: its offsets, or the name of its error."""
    try:
        return victim.result()
    except RemoteError as refused:
        return refused.kind


def appender_comes_before_the_renaming(play: Play) -> Verdict:
    """A has looked the topic up and waits for the append lock; B marks the topic as deleted and
    stops before it renames the directory. A continues: names and inodes are as A knows them, only
    the flag differs.
    """
    a = play.enter()
    b = play.enter()
    play.append(a)
    a.arm(["lock"], "stop_before", name=file_names.LOCK)
    play.start_append(a)
    a.wait_stopped()
    b.arm(["rename"], "stop_before", name=f"/{TOPIC}-0")
    b.start("on_log", "delete_topic", TOPIC)
    b.wait_stopped()
    a.resume()
    answer = answer_of(a)
    b.resume()
    b.result()
    verdict = Verdict()
    if answer != "UnknownTopicOrPartitionError":
        verdict.violations.append(
            f"{answer}: acknowledged into a directory that is purged in a minute"
        )
    return verdict


@pytest.mark.parametrize(
    "mutants", [(), ("no_deleted_flag",), ("any_settings",)], ids=["both", "no flag", "no word"]
)
def test_dir_1_no_record_is_appended_to_a_deleted_topic(
    nursery: Nursery, tmp_path: Path, mutants: tuple[str, ...]
) -> None:
    """Under the lock, the flag shows the deletion, and so does the directory's topics word
    (APPEND-8).
    """
    verdict = appender_comes_before_the_renaming(Play(nursery, tmp_path / "log", mutants=mutants))
    assert not verdict.violations, verdict


def test_dir_1_without_flag_and_word_a_record_is_appended_to_a_deleted_topic(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", mutants=("no_deleted_flag", "any_settings"))
    assert appender_comes_before_the_renaming(play).violations


def appender_meets_a_new_topic_of_the_same_name(play: Play) -> Verdict:
    """As before, but B also creates the topic again and appends; A must not take its old partition
    for the new one.
    """
    a = play.enter()
    b = play.enter()
    play.append(a)
    old_id = id_bytes(b.call("on_log", "describe_topic", TOPIC).topic_id)
    a.arm(["lock"], "stop_before", name=file_names.LOCK)
    play.start_append(a)
    a.wait_stopped()
    b.call("on_log", "delete_topic", TOPIC)
    b.call("create_topic", TOPIC, 1)
    a.resume()
    verdict = Verdict()
    # the producer may look the topic up again: then it is the new one that it writes into
    answer = answer_of(a)
    if answer not in ("UnknownTopicOrPartitionError", [0]):
        verdict.violations.append(f"{answer}: the new topic was empty")
    if old_id in (play.partition / file_names.PAGE).read_bytes():
        verdict.violations.append("the new topic's page was taken over in the name of the old one")
    return verdict


def test_dir_1_no_record_of_a_deleted_topic_is_appended_to_a_new_one(
    nursery: Nursery, tmp_path: Path
) -> None:
    verdict = appender_meets_a_new_topic_of_the_same_name(Play(nursery, tmp_path / "log"))
    assert not verdict.violations, verdict


def marker_meets_a_new_topic_of_the_same_name(play: Play) -> Verdict:
    """A ends a transaction, and waits for the append lock with the marker, which no setting
    concerns; B deletes and creates.
    """
    a = play.enter()
    b = play.enter()
    a.call("owner", "id")
    a.call("transact", "id", [b"v"])
    old_id = id_bytes(b.call("on_log", "describe_topic", TOPIC).topic_id)
    a.arm(["lock"], "stop_before", name=f"{TOPIC}-0/{file_names.LOCK}")
    a.start("end", "id", True)
    a.wait_stopped()
    b.call("on_log", "delete_topic", TOPIC)
    b.call("create_topic", TOPIC, 1)
    a.resume()
    verdict = Verdict()
    answer_of(a)
    if (ends := b.call("ends")) != {0: (0, 0)}:
        verdict.violations.append(f"{ends}: the new topic was empty")
    if old_id in (play.partition / file_names.PAGE).read_bytes():
        verdict.violations.append("the new topic's page was taken over in the name of the old one")
    return verdict


def test_dir_1_the_id_is_looked_at_when_the_page_is_mapped_again(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_topic_id_check", marker_meets_a_new_topic_of_the_same_name, nursery, tmp_path)


def read_over_a_deletion(directory: Path) -> str:
    """A reader has begun when another handle deletes the topic and creates it again, with other
    records at the same offsets.
    """
    quiet = {"housekeeping": False}
    values = []
    with (
        embedlog.open(directory, config=quiet) as reader,
        embedlog.open(directory, config=quiet) as other,
    ):
        partition = fill(other, "old", reader)
        position = partition.fetch(0, max_bytes=1).next_offset
        other.delete_topic(TOPIC)
        fill(other, "new", other)
        try:
            while position < 40:
                found = partition.fetch(position, max_bytes=1)
                values.append(bytes(found.data))
                position = found.next_offset
        except embedlog.EmbedlogError as problem:
            return type(problem).__name__
    return (
        "records of the new topic"
        if any(b"new" in value for value in values)
        else "the old records"
    )


def fill(log: Any, word: str, reader: Any) -> Any:
    """The topic with forty records in as many segments, and a reader's view of it."""
    log.create_topic(TOPIC, 1, {"segment.bytes": 100})
    with log.producer(linger_ms=0) as producer:
        for number in range(40):
            producer.send_batch(TOPIC, [b"%s %d" % (word.encode(), number)]).result(30)
    return reader._engine.partition(TOPIC, 0)


def test_dir_1_a_reader_never_gets_records_of_another_topic(tmp_path: Path) -> None:
    """Readers check the flag at every fetch: the segments that they have not opened yet would be
    the new topic's.
    """
    assert read_over_a_deletion(tmp_path / "log") == "UnknownTopicOrPartitionError"
    with mutated("no_deleted_flag"):
        # at best a digest shows that these are not the batches it was made of
        assert read_over_a_deletion(tmp_path / "mutant") in (
            "records of the new topic",
            "CorruptRecordError",
        )


@pytest.mark.parametrize("point", ["locked", "before-publish"])
def test_dir_1_a_frozen_appender_delays_one_deletion_and_nothing_else(
    nursery: Nursery, tmp_path: Path, point: str
) -> None:
    """Its record is refused if it was not written yet: the topic is being deleted."""
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    b = play.enter(config={"lock.timeout.ms": 200})
    play.stop_in_append(a, point)
    with pytest.raises(RemoteError, match="LockTimeoutError"):
        b.call("on_log", "delete_topic", TOPIC)
    b.call("create_topic", "other", 1)
    assert b.call("on_log", "topics") == ["other"]
    a.resume()
    assert answer_of(a) == ("UnknownTopicOrPartitionError" if point == "locked" else [1])
    b.call("create_topic", "third", 1)
    assert list(play.directory.glob(f"{TOPIC}-0.*-delete"))
    b.call("create_topic", TOPIC, 1)
    assert b.call("ends") == {0: (0, 0)}


def test_dir_1_a_deleter_killed_on_the_way_is_survived(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log", partitions=2)
    a = play.enter()
    b = play.enter()
    play.append(a)
    b.arm(["rename"], "kill_before", name=f"/{TOPIC}-1")
    b.start("on_log", "delete_topic", TOPIC)
    b.wait_dead()
    with pytest.raises(RemoteError, match="UnknownTopicOrPartitionError"):
        a.call("append", [b"x"], 1)
    a.call("create_topic", "other", 1)
    assert len(list(play.directory.glob(f"{TOPIC}-*-delete"))) == 2


def two_processes_write_one_checkpoint(play: Play) -> Verdict:
    """Each knows its own partitions; the entries of the other must stay."""
    a = play.enter()
    b = play.enter()
    for partition in range(2):
        play.append(a, partition)
        play.append(a, partition)
    a.call("delete_records", 1, 0)
    b.call("delete_records", 2, 1)
    a.kill()
    b.kill()
    c = play.enter()
    verdict = Verdict()
    starts = {number: start for number, (start, _) in c.call("ends").items()}
    if starts != {0: 1, 1: 2}:
        verdict.violations.append(f"deleted records are back: {starts}")
    return verdict


def test_dir_2_a_checkpoint_is_read_before_it_is_written(nursery: Nursery, tmp_path: Path) -> None:
    verdict = two_processes_write_one_checkpoint(Play(nursery, tmp_path / "log", partitions=2))
    assert not verdict.violations, verdict
    fails_without(
        "blind_checkpoints", two_processes_write_one_checkpoint, nursery, tmp_path / "mutant"
    )
