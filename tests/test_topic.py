"""The registry of topics: names Kafka would refuse, files damaged, newer or edited, two processes,
an older version beside.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from embedlog import topic
from embedlog.errors import (
    ForeignDirectoryError,
    InvalidPartitionsError,
    InvalidTopicError,
    StorageError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from embedlog.storage import file_names, files, json_file
from embedlog.storage.identity import mark_owner, new_id, read_clean_mark
from embedlog.topic import Topic, TopicRegistry


def some(name: str = "events", partitions: int = 3, **facts: object) -> Topic:
    return Topic(name, new_id(), partitions)._replace(**facts)  # type: ignore[arg-type]


def registry(path: Path) -> TopicRegistry:
    found = TopicRegistry(path)
    found.load()
    return found


def edited(path: Path, change: dict[str, object], checksum: bool = True) -> None:
    """Change the file as a newer version would: with a checksum that is right."""
    document = json.loads((path / file_names.TOPICS).read_text()) | change
    document.pop("checksum")
    document["checksum"] = json_file.checksum(document) if checksum else "xxh3:0000000000000000"
    (path / file_names.TOPICS).write_text(json.dumps(document))


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a" * 250,
        "a b",
        "a/b",
        "../a",
        "ä",
        "a\n",
        "a\x00",
        "a:b",
        "a" * 100_000,
        "__cluster_metadata",
    ],
)
def test_a_name_kafka_refuses_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError) as caught:
        topic.check_name(name)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", [None, 7, b"events", ["events"]])
def test_a_name_of_a_wrong_type_is_a_type_error(name: object) -> None:
    with pytest.raises(TypeError, match="is a str"):
        topic.check_name(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["a", "...", "-", "a-0", "A.b_c-9", "a" * 249, "__consumer_offsets"]
)
def test_a_name_kafka_takes_is_taken(name: str) -> None:
    assert topic.check_name(name) == name


def test_names_that_collide_in_kafkas_metrics() -> None:
    topic.check_collision("a.b", ["a.b", "a-b", "ab"])
    with pytest.raises(InvalidTopicError, match=r"a\.b collides with the topic a_b"):
        topic.check_collision("a.b", ["c", "a_b"])


# ---- the file ------------------------------------------------------------------------------------


def test_topics_are_there_again_for_the_next_process(tmp_path: Path) -> None:
    first = registry(tmp_path)
    assert (first.generation, first.names()) == (0, [])
    kept = some(config={"retention.ms": "5"}, only=(0, 2))
    growing = some("growing", 1, growing=4)
    first.put(kept, growing, some("gone"), some("new", state="creating"))
    first.remove("gone", "never there")
    second = registry(tmp_path)
    assert second.get("events") == kept
    assert second.get("gone") is None
    assert second.names() == ["events", "growing"]
    assert [each.name for each in second.list_unfinished()] == ["growing", "new"]
    assert second.generation == first.generation == 2
    assert (list(kept.numbers), list(growing.numbers)) == ([0, 2], [0, 1, 2, 3])


def test_the_file_can_be_read_by_a_person(tmp_path: Path) -> None:
    registry(tmp_path).put(some(config={"segment.bytes": "1000"}))
    lines = (tmp_path / file_names.TOPICS).read_text().splitlines()
    assert max(len(line) for line in lines) < 100
    assert '    "segment.bytes": "1000"' in lines


def test_a_change_by_another_process_is_seen_at_the_next_refresh(tmp_path: Path) -> None:
    mine = registry(tmp_path)
    other = registry(tmp_path)
    assert not mine.refresh()
    other.put(some())
    assert mine.get("events") is None
    assert mine.refresh()
    assert mine.get("events") == other.get("events")
    assert not mine.refresh()


def test_a_word_that_stands_still_spares_the_look_at_the_file_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = registry(tmp_path)
    other = registry(tmp_path)
    word = 2
    mine.word = lambda: word
    assert not mine.refresh()
    other.put(some("told"))
    word += 2
    assert mine.refresh()
    other.put(some("untold"))  # by a process with another page
    assert not mine.refresh()
    assert mine.names() == ["told"]
    word += 1  # odd: a change is under way, or its writer died
    assert mine.refresh()
    other.put(some("later"))
    assert mine.refresh()
    word += 1
    assert not mine.refresh()
    other.remove("later")
    monkeypatch.setattr(topic.time, "monotonic_ns", lambda: mine._trusted_ns)
    assert mine.refresh()


def test_a_file_that_is_gone_is_an_error_and_no_log_without_topics(tmp_path: Path) -> None:
    found = registry(tmp_path)
    other = some("other")
    found.put(topic_of_file := some())
    data = (tmp_path / file_names.TOPICS).read_bytes()
    (tmp_path / file_names.TOPICS).unlink()
    with pytest.raises(StorageError, match="the file of the topics is gone"):
        found.refresh()
    with pytest.raises(StorageError, match="the file of the topics is gone"):
        found.put(other)
    assert found.all() == [topic_of_file]
    assert not (tmp_path / file_names.TOPICS).exists()
    (tmp_path / file_names.TOPICS).write_bytes(data)
    found.put(other)
    assert found.all() == [topic_of_file, other]


def test_a_change_keeps_what_another_process_changed_before(tmp_path: Path) -> None:
    mine = registry(tmp_path)
    other = registry(tmp_path)
    other.put(some("theirs"))
    mine.put(some("mine"))
    assert registry(tmp_path).names() == ["mine", "theirs"]
    assert mine.generation == 2


def test_a_change_beside_a_thread_that_reads_the_file_keeps_what_another_process_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread had read the file before the other process, and replaced the content after it."""
    ours = registry(tmp_path)
    theirs = registry(tmp_path)
    theirs.put(some("before"))
    has_read = threading.Event()
    may_end = threading.Event()
    read_bytes = files.read_bytes

    def read_slowly(path: Path) -> bytes | None:
        data = read_bytes(path)
        if threading.current_thread() is reader:
            has_read.set()
            may_end.wait(0.5)  # the change waits for this thread now
        return data

    content_with = ours._content_with

    def compute_late(*arguments: Any) -> Any:
        may_end.set()
        reader.join(20)
        return content_with(*arguments)

    monkeypatch.setattr(files, "read_bytes", read_slowly)
    monkeypatch.setattr(ours, "_content_with", compute_late)
    reader = threading.Thread(target=ours.refresh)
    reader.start()
    assert has_read.wait(20)
    theirs.put(some("theirs"))
    changer = threading.Thread(target=ours.put, args=(some("ours"),))
    changer.start()
    changer.join(20)
    reader.join(20)
    assert set(registry(tmp_path).content.topics) == {"before", "theirs", "ours"}


def test_what_a_newer_version_added_survives_an_older_one(tmp_path: Path) -> None:
    registry(tmp_path).put(some(), some("other"))
    document = json.loads((tmp_path / file_names.TOPICS).read_text())
    document["topics"]["events"]["replicas"] = {"0": [1, 2]}
    edited(tmp_path, {"topics": document["topics"], "clusters": ["x"]})
    older = registry(tmp_path)
    older.put(some("third"))
    events = older.get("events")
    assert events is not None
    older.put(events._replace(partitions=9))
    document = json.loads((tmp_path / file_names.TOPICS).read_text())
    assert document["clusters"] == ["x"]
    assert document["topics"]["events"]["replicas"] == {"0": [1, 2]}
    assert document["topics"]["events"]["partitions"] == 9


def test_a_newer_version_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    registry(tmp_path).put(some())
    edited(tmp_path, {"version": 2})
    before = (tmp_path / file_names.TOPICS).read_bytes()
    found = TopicRegistry(tmp_path)
    with pytest.raises(
        UnsupportedFormatError, match="newer embedlog: version: expected 1, found 2"
    ):
        found.load()
    with pytest.raises(UnsupportedFormatError):
        found.put(some("mine"))
    assert (tmp_path / file_names.TOPICS).read_bytes() == before


def test_a_file_edited_by_hand_is_noticed(tmp_path: Path) -> None:
    registry(tmp_path).put(some(config={"retention.ms": "86400000"}))
    path = tmp_path / file_names.TOPICS
    path.write_text(path.read_text().replace("86400000", "864"))
    with pytest.raises(
        ForeignDirectoryError, match="edited by hand; if it cannot be restored, remove the file"
    ):
        registry(tmp_path)


def test_every_flipped_byte_is_noticed_or_means_nothing(tmp_path: Path) -> None:
    whole = registry(tmp_path)
    whole.put(some(config={"flush.ms": "7"}))
    path = tmp_path / file_names.TOPICS
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        try:
            survived = registry(tmp_path).get("events")
        except (ForeignDirectoryError, UnsupportedFormatError):
            continue
        assert survived == whole.get("events"), f"byte {position}"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"version": 1}',
        b'{"version":1,"checksum":[]}',
        b"\0" * 999,
    ],
)
def test_other_peoples_files_are_not_taken_for_topics(tmp_path: Path, data: bytes) -> None:
    (tmp_path / file_names.TOPICS).write_bytes(data)
    with pytest.raises(ForeignDirectoryError, match=re.escape(str(tmp_path / file_names.TOPICS))):
        registry(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {},
        {"partitions": 0},
        {"partitions": True},
        {"partitions": "3"},
        {"topic_id": "short"},
        {"state": "asleep"},
        {"config": []},
        {"growing": -1},
        {"only": [-1]},
        {"only": 5},
        {"only": [0, 0]},
        {"only": [5]},
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(tmp_path: Path, entry: object) -> None:
    registry(tmp_path).put(some())
    good = json.loads((tmp_path / file_names.TOPICS).read_text())["topics"]["events"]
    edited(
        tmp_path,
        {"topics": {"events": good | entry if entry and isinstance(entry, dict) else entry}},
    )
    with pytest.raises(ForeignDirectoryError, match="the entry of 'events' cannot be read"):
        registry(tmp_path)


def test_a_failed_write_changes_neither_disk_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registry(tmp_path)
    found.put(some())

    def full(path: object, data: object, mode: object = None, **_: object) -> None:
        raise StorageError("cannot write", errno=28, path=tmp_path)

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(StorageError, match="ENOSPC"):
        found.remove("events")
    assert (found.names(), found.generation) == (["events"], 1)


def test_a_reader_that_may_not_write_adopts_in_memory_only(tmp_path: Path) -> None:
    found = registry(tmp_path)
    found.change_in_memory([some("brokers")], [])
    assert found.names() == ["brokers"]
    assert not (tmp_path / file_names.TOPICS).exists()


@pytest.mark.parametrize(
    ("state", "why"),
    [("creating", "is being created"), ("deleting", "is being deleted"), (None, "is unknown")],
)
def test_a_topic_that_is_not_live_cannot_be_used(
    tmp_path: Path, state: str | None, why: str
) -> None:
    found = registry(tmp_path)
    found.put(some("other"), *([some(state=state)] if state else []))
    with pytest.raises(UnknownTopicOrPartitionError, match=f"'events' {why}"):
        found.live("events")
    assert found.live("other").partitions == 3


def test_what_a_newer_version_added_in_no_utf8_stays_as_it_is(tmp_path: Path) -> None:
    """JSON can spell a lone surrogate: it was read, and the next change of any topic failed because
    of it.
    """
    registry = TopicRegistry(tmp_path)
    registry.load()
    registry.put(Topic("t", new_id(), 1, others={"added": "\ud800"}))
    registry.put(Topic("u", new_id(), 1))
    again = TopicRegistry(tmp_path)
    again.load()
    found = again.get("t")
    assert found is not None
    assert found.others == {"added": "\ud800"}


IMPOSSIBLE: list[dict[str, object]] = [
    {"partitions": 0},
    {"partitions": 2**20 + 1},
    {"partitions": 2**31},
    {"growing": 2**20 + 1},
    {"growing": 2**40},
    {"growing": -1},
    {"partitions": 2**31 + 1, "only": (5,)},
    {"only": (0, 0)},
    {"only": (7,)},
    {"state": "asleep"},
    {"partitions": True},
    {"topic_id": "short"},
    {"name": "a b"},
]


@pytest.mark.parametrize("facts", IMPOSSIBLE, ids=str)
def test_a_topic_that_cannot_be_read_is_not_written(
    tmp_path: Path, facts: dict[str, object]
) -> None:
    found = registry(tmp_path)
    found.put(some("kept"))
    before = (tmp_path / file_names.TOPICS).read_bytes()
    for change in (found.put, lambda topic: found.change([topic], ["kept"])):
        with pytest.raises((InvalidPartitionsError, InvalidTopicError, TypeError, ValueError)):
            change(some()._replace(**facts))  # type: ignore[arg-type]
        assert (tmp_path / file_names.TOPICS).read_bytes() == before
        assert (found.names(), found.generation) == (["kept"], 1)


@pytest.mark.parametrize(
    "numbers", [{"partitions": 2**31}, {"partitions": 2**62}, {"partitions": 1, "growing": 2**40}]
)
def test_a_signed_number_of_partitions_that_nobody_has_is_refused(
    tmp_path: Path, numbers: dict[str, int]
) -> None:
    registry(tmp_path).put(some())
    entry = json.loads((tmp_path / file_names.TOPICS).read_text())["topics"]["events"]
    edited(tmp_path, {"topics": {"events": entry | numbers}})
    with pytest.raises(ForeignDirectoryError, match="cannot be read"):
        registry(tmp_path)


def test_the_mark_of_a_clean_close_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"[" * 100_000)
    assert read_clean_mark(tmp_path) == -1
    assert mark_owner(tmp_path) is None


def test_random_changes_of_two_processes_and_failed_ones(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change encodes only its topics: the file has all of them, whatever was encoded before."""
    both = [registry(tmp_path), registry(tmp_path)]
    known = dict[str, Topic]()
    for _ in range(120):
        one = rng.choice(both)
        wanted = [
            some(f"t{rng.randrange(15)}", state=rng.choice(["live", "live", "creating"]))
            for _ in range(rng.randrange(4))
        ]
        removed = rng.sample([f"t{number}" for number in range(15)], rng.randrange(3))
        topics = {topic.name: topic for topic in wanted if topic.name not in removed}
        if rng.random() < 0.2:
            with monkeypatch.context() as patched, pytest.raises(OSError):
                patched.setattr(files, "write_atomically", failing)
                one.change(topics.values(), removed)
            one.refresh()
        else:
            one.change(topics.values(), removed)
            known = {name: topic for name, topic in known.items() if name not in removed} | topics
        read = registry(tmp_path)
        assert read.all() == one.all() == [known[name] for name in sorted(known)]
        assert (
            read.list_unfinished()
            == one.list_unfinished()
            == [each for each in read.all() if not each.is_finished]
        )


def failing(*_: object, **__: object) -> None:
    raise OSError("no space left")


def test_a_topic_can_be_copied_and_pickled() -> None:
    for made in (
        Topic("t", new_id(), 1),
        Topic("t", new_id(), 2, {"retention.ms": "5"}, growing=3, others={"new": [1]}),
    ):
        assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
