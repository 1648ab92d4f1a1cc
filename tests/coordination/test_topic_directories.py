"""Directories of topics: every step of creation and deletion interrupted, a broker's directories
adopted, retired ones purged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embedlog.coordination import topic_directories
from embedlog.coordination.topic_directories import (
    find_registry_changes,
    finish_creation,
    finish_deletion,
    scan_directories,
)
from embedlog.errors import ForeignDirectoryError, InvalidPartitionsError, StorageError
from embedlog.storage import checkpoints, file_names, files, identity
from embedlog.topic import Topic, TopicRegistry

SEAM = ("mkdir", "write_atomically", "sync_directory", "rename", "unlink", "rmdir")


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the process die before its `step`th change of the disk."""
    left = [step]

    def wrap(act: Callable[..., object]) -> Callable[..., object]:
        def step_or_die(*arguments: object, **keywords: object) -> object:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return act(*arguments, **keywords)

        return step_or_die

    for name in SEAM:
        monkeypatch.setattr(files, name, wrap(getattr(files, name)))


def registry(path: Path) -> TopicRegistry:
    found = TopicRegistry(path)
    found.load()
    return found


def created(path: Path, name: str = "events", partitions: int = 2) -> Topic:
    found = registry(path)
    topic = Topic(name, identity.new_id(), partitions, state="creating")
    found.put(topic)
    return finish_creation(path, found, topic)


def directories(path: Path) -> list[str]:
    return sorted(
        re.sub(r"\.[0-9a-f]{32}-", ".ID-", each.name) for each in path.iterdir() if each.is_dir()
    )


def left_alone(number: int, path: Path) -> None:
    """No other process uses the partition."""


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-0", ("a", 0)),
        ("a-b-17", ("a-b", 17)),
        ("a.b_c-2147483647", ("a.b_c", 2147483647)),
        ("a--1", ("a-", 1)),
        ("---3", ("--", 3)),
        ("a-01", None),
        ("a-", None),
        ("-0", None),
        ("a", None),
        ("lost+found", None),
        ("a-2147483648", None),
        ("..-0", None),
        ("a-0.0123456789abcdef0123456789abcdef-delete", None),
        ("a" * 250 + "-0", None),
        ("a-٣", None),
    ],
)
def test_directories_are_split_at_the_last_dash(
    name: str, expected: tuple[str, int] | None
) -> None:
    assert file_names.parse_partition_name(name) == expected


def test_a_scan_tells_kafkas_forms_apart(tmp_path: Path) -> None:
    unique = "0123456789abcdef0123456789abcdef"
    for name in (
        "a-0",
        "a-10",
        "b.c-3",
        f"a-1.{unique}-delete",
        f"a-1.{unique}-future",
        f"a-1.{unique}-stray",
        "lost+found",
        "a-007",
        "__cluster_metadata-0",
        "remote-log-index-cache",
        "__consumer_offsets-49",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "a-5").write_text("a file, not a partition")
    found = scan_directories(tmp_path)
    live = {name: sorted(numbers) for name, numbers in found.live.items()}
    assert live == {"a": [0, 10], "b.c": [3], "__consumer_offsets": [49]}
    forms = [
        [path.name for path in each]
        for each in (found.deleted, found.future, found.stray, found.unknown)
    ]
    assert forms == [
        [f"a-1.{unique}-delete"],
        [f"a-1.{unique}-future"],
        [f"a-1.{unique}-stray"],
        ["a-007", "lost+found"],
    ]


def test_a_scan_of_nothing_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="ENOENT"):
        scan_directories(tmp_path / "missing")


def test_a_retired_name_is_cut_to_what_a_file_system_takes() -> None:
    unique = "f" * 32
    assert topic_directories.retired_name("events", 3, unique) == f"events-3.{unique}-delete"
    longest = topic_directories.retired_name("t" * 249, 12345, unique)
    assert len(longest) == 255
    assert longest.endswith(f"t-12345.{unique}-delete")


def test_partitions_whose_directory_could_not_be_named() -> None:
    topic_directories.check_lengths("t" * 249, 100_000)
    with pytest.raises(InvalidPartitionsError, match="too many partitions"):
        topic_directories.check_lengths("t" * 249, 100_001)


# ---- creation and deletion, interrupted ----------------------------------------------------------


def test_a_new_topic_has_what_a_broker_needs(tmp_path: Path) -> None:
    topic = created(tmp_path)
    assert directories(tmp_path) == ["events-0", "events-1"]
    for number in range(2):
        text = (tmp_path / f"events-{number}" / "partition.metadata").read_bytes()
        assert text == f"version: 0\ntopic_id: {topic.topic_id}".encode()
        assert len(text) == 43
    assert registry(tmp_path).live("events") == topic._replace(state="live")


def interrupted(
    act: Callable[[Path], object], prepare: Callable[[Path], object], root: Path
) -> Iterator[Path]:
    """A directory for every step of `act` at which the process can die, in the state that this
    leaves.
    """
    for step in range(100):
        path = root / str(step)
        path.mkdir()
        prepare(path)
        with pytest.MonkeyPatch.context() as patch:
            killed_at(patch, step)
            try:
                act(path)
                assert step > 10, "an act of so few steps cannot have been interrupted"
                return
            except Killed:
                pass
        yield path


def test_a_creation_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    for path in interrupted(lambda path: created(path, partitions=3), lambda path: None, tmp_path):
        found = registry(path)
        if found.names():
            assert len(directories(path)) == 3, "a topic that is half made can be used"
        elif not found.all():
            assert directories(path) == []
            continue
        for topic in found.list_unfinished():
            finish_creation(path, found, topic)
        assert found.live("events").partitions == 3
        assert directories(path) == ["events-0", "events-1", "events-2"]


def test_a_deletion_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    """DIR-1: persisted in the topic's file first, then every partition retired and renamed. The
    next process completes a partial deletion, and until then no process can use it.
    """
    retired: set[tuple[Path, int]] = set()

    def prepare(path: Path) -> None:
        created(path, partitions=3)
        created(path, "kept", 1)
        for name in (file_names.RECOVERY_POINTS, file_names.LOG_STARTS):
            checkpoints.write_offsets(path / name, {("events", 0): 5, ("kept", 0): 6})

    def finish(path: Path, topic: Topic) -> None:
        finish_deletion(path, registry(path), topic, lambda number, _: retired.add((path, number)))

    def delete(path: Path) -> None:
        found = registry(path)
        topic = found.live("events")._replace(state="deleting")
        found.put(topic)
        finish(path, topic)

    for path in interrupted(delete, prepare, tmp_path):
        found = registry(path)
        if "events" in found.names():
            assert directories(path) == ["events-0", "events-1", "events-2", "kept-0"], (
                "a topic half deleted can be used"
            )
            continue
        for topic in found.list_unfinished():
            finish(path, topic)
        assert registry(path).all() == [found.live("kept")]
        assert directories(path) == [
            "events-0.ID-delete",
            "events-1.ID-delete",
            "events-2.ID-delete",
            "kept-0",
        ]
        assert retired >= {(path, 0), (path, 1), (path, 2)}
        for name in (file_names.RECOVERY_POINTS, file_names.LOG_STARTS):
            assert checkpoints.read_offsets(path / name) == {("kept", 0): 6}


def test_a_partition_is_retired_before_its_directory_is_renamed(tmp_path: Path) -> None:
    """DIR-1: an appender that holds the old directory's descriptors must find DELETED under its
    lock. If the name changed first, it would acknowledge into a directory that is purged in a
    minute.
    """
    topic = created(tmp_path)
    found = registry(tmp_path)
    found.put(topic._replace(state="deleting"))
    seen: list[tuple[str, bool, list[str]]] = []

    def retire(number: int, path: Path) -> None:
        seen.append((path.name, path.exists(), registry(tmp_path).names()))

    finish_deletion(tmp_path, found, topic, retire)
    assert seen == [("events-0", True, []), ("events-1", True, [])]


def test_a_deletion_does_not_touch_a_new_topic_of_the_same_name(tmp_path: Path) -> None:
    """DIR-1: the id identifies the directory; a broker may have created the name again during the
    deletion.
    """
    topic = created(tmp_path, partitions=1)
    found = registry(tmp_path)
    found.put(topic._replace(state="deleting"))
    identity.write_topic_id(tmp_path / "events-0", identity.new_id())
    finish_deletion(tmp_path, found, topic, left_alone)
    assert directories(tmp_path) == ["events-0"]
    assert (
        find_registry_changes({}, scan_directories(tmp_path), broker_wrote=False).topics[0].topic_id
        != topic.topic_id
    )


def test_creation_refuses_a_directory_of_another_topic(tmp_path: Path) -> None:
    created(tmp_path, partitions=1)
    found = registry(tmp_path)
    with pytest.raises(ForeignDirectoryError, match="belongs to another topic"):
        finish_creation(tmp_path, found, Topic("events", identity.new_id(), 1, state="creating"))


def test_growth_makes_the_missing_partitions_only(tmp_path: Path) -> None:
    topic = created(tmp_path)
    found = registry(tmp_path)
    found.put(topic._replace(growing=4))
    (tmp_path / "events-0" / "00000000000000000000.log").write_text("kept")
    grown = finish_creation(tmp_path, found, found.live("events"))
    assert (grown.partitions, grown.growing, len(directories(tmp_path))) == (4, 0, 4)
    assert (tmp_path / "events-0" / "00000000000000000000.log").read_text() == "kept"


def test_permissions_are_those_asked_for(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        found = TopicRegistry(tmp_path, 0o660)
        topic = Topic("events", identity.new_id(), 1, state="creating")
        found.put(topic)
        finish_creation(tmp_path, found, topic, 0o666)
    finally:
        os.umask(mask)
    modes = [
        oct(path.stat().st_mode & 0o777)
        for path in (tmp_path / "events-0", tmp_path / "events-0" / "partition.metadata")
    ]
    assert modes == ["0o750", "0o640"]
    assert oct(found.path.stat().st_mode & 0o777) == "0o640"


# ---- purging -------------------------------------------------------------------------------------


def test_retired_directories_wait_for_their_readers_and_go(tmp_path: Path) -> None:
    topic = created(tmp_path)
    found = registry(tmp_path)
    (tmp_path / "events-0" / "00000000000000000000.log").write_text("data")
    os.utime(tmp_path / "events-0", (0, 0))
    finish_deletion(tmp_path, found, topic, left_alone)
    renamed_ms = max(path.stat().st_ctime_ns for path in tmp_path.iterdir()) // 1_000_000
    assert topic_directories.purge_retired(tmp_path, renamed_ms + 59_000, 60_000) == []
    assert len(topic_directories.purge_retired(tmp_path, renamed_ms + 61_000, 60_000)) == 2
    assert directories(tmp_path) == []


def test_without_a_delay_a_retired_directory_goes_in_the_millisecond_of_its_renaming(
    tmp_path: Path,
) -> None:
    (tmp_path / f"events-0.{'a' * 32}-delete").mkdir()
    changed_ns = (tmp_path / f"events-0.{'a' * 32}-delete").stat().st_ctime_ns
    assert len(topic_directories.purge_retired(tmp_path, changed_ns // 1_000_000, 0)) == 1


def test_a_directory_that_cannot_be_removed_is_kept_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for unique in ("a" * 32, "b" * 32):
        (tmp_path / f"events-0.{unique}-delete").mkdir()
    (tmp_path / f"events-0.{'a' * 32}-delete" / "another directory").mkdir()
    far = 10**14
    assert [path.name for path in topic_directories.purge_retired(tmp_path, far, 0)] == [
        f"events-0.{'b' * 32}-delete"
    ]
    assert "another directory" in caplog.text


# ---- adoption ------------------------------------------------------------------------------------


def test_a_brokers_topics_are_adopted(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("clean")
    adoption = find_registry_changes({}, scan_directories(path), broker_wrote=True)
    topics = {topic.name: topic for topic in adoption.topics}
    assert len(topics) == 23
    assert topics["client-none"].partitions == 3
    assert topics["client-none"].topic_id == identity.read_topic_id(path / "client-none-2")
    assert {topic.state for topic in topics.values()} == {"live"}
    found = registry(path)
    found.change(adoption.topics, adoption.removed)
    assert not find_registry_changes(
        {topic.name: topic for topic in found.all()}, scan_directories(path), broker_wrote=True
    )


def test_one_brokers_share_of_a_topic_is_adopted_as_such(tmp_path: Path) -> None:
    for number in (1, 20240101):
        (tmp_path / f"backup-{number}").mkdir()
        identity.write_topic_id(tmp_path / f"backup-{number}", "r-C-DlFnRrGUW2o_ts5gyA")
    (topic,) = find_registry_changes({}, scan_directories(tmp_path), broker_wrote=True).topics
    assert (topic.partitions, topic.only, topic.numbers) == (20240102, (1, 20240101), [1, 20240101])


@pytest.mark.parametrize("broker_wrote", [False, True])
def test_a_partition_that_came_to_one_brokers_share_is_seen(
    tmp_path: Path, broker_wrote: bool
) -> None:
    """By a reassignment in the cluster, or because its directory was copied here: below the largest
    number that was here.
    """
    topic = Topic("events", identity.new_id(), 6, only=(0, 5))
    for number in (0, 3, 5):
        (tmp_path / f"events-{number}").mkdir()
        identity.write_topic_id(tmp_path / f"events-{number}", topic.topic_id)
    (seen,) = find_registry_changes(
        {"events": topic}, scan_directories(tmp_path), broker_wrote=broker_wrote
    ).topics
    assert (seen.partitions, seen.only, seen.usable_numbers) == (6, (0, 3, 5), [0, 3, 5])
    assert not find_registry_changes(
        {"events": seen}, scan_directories(tmp_path), broker_wrote=broker_wrote
    )
    growing = topic._replace(partitions=3, only=(0,), growing=6)
    (seen,) = find_registry_changes(
        {"events": growing._replace(only=(1,))},
        scan_directories(tmp_path),
        broker_wrote=broker_wrote,
    ).topics
    assert (seen.partitions, seen.growing, seen.only) == (3, 6, (0, 1)), (
        "partitions under creation are not there yet"
    )
    for number in (1, 2, 4):
        (tmp_path / f"events-{number}").mkdir()
        identity.write_topic_id(tmp_path / f"events-{number}", topic.topic_id)
    (whole,) = find_registry_changes(
        {"events": topic}, scan_directories(tmp_path), broker_wrote=broker_wrote
    ).topics
    assert (whole.partitions, whole.only) == (6, ())


def test_directories_without_an_id_get_one(tmp_path: Path) -> None:
    (tmp_path / "old-0").mkdir()
    (topic,) = find_registry_changes({}, scan_directories(tmp_path), broker_wrote=True).topics
    assert topic.state == "creating"
    found = registry(tmp_path)
    found.put(topic)
    finish_creation(tmp_path, found, topic)
    assert identity.read_topic_id(tmp_path / "old-0") == topic.topic_id
    assert not find_registry_changes(
        {"old": found.live("old")}, scan_directories(tmp_path), broker_wrote=True
    )


def test_settings_stay_when_a_broker_added_partitions_and_go_with_the_topic(tmp_path: Path) -> None:
    topic = created(tmp_path)._replace(config={"retention.ms": "5"})
    (tmp_path / "events-2").mkdir()
    identity.write_topic_id(tmp_path / "events-2", topic.topic_id)
    (grown,) = find_registry_changes(
        {"events": topic}, scan_directories(tmp_path), broker_wrote=True
    ).topics
    assert (grown.partitions, grown.config) == (3, {"retention.ms": "5"})
    anew = identity.new_id()
    for number in range(3):
        identity.write_topic_id(tmp_path / f"events-{number}", anew)
    (other,) = find_registry_changes(
        {"events": grown}, scan_directories(tmp_path), broker_wrote=True
    ).topics
    assert (other.topic_id, other.config) == (anew, {})


def test_a_topic_without_directories_is_gone_only_if_somebody_else_was_here(tmp_path: Path) -> None:
    topic = Topic("events", identity.new_id(), 1)
    assert find_registry_changes(
        {"events": topic}, scan_directories(tmp_path), broker_wrote=True
    ).removed == ("events",)
    assert not find_registry_changes(
        {"events": topic}, scan_directories(tmp_path), broker_wrote=False
    )


def test_two_topics_under_one_name_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"events-{number}").mkdir()
        identity.write_topic_id(tmp_path / f"events-{number}", identity.new_id())
    with pytest.raises(ForeignDirectoryError, match="different ids"):
        find_registry_changes({}, scan_directories(tmp_path), broker_wrote=True)


def test_a_lost_registry_is_rebuilt_from_the_directories(tmp_path: Path) -> None:
    topic = created(tmp_path)
    (tmp_path / "embedlog.topics").unlink()
    assert find_registry_changes({}, scan_directories(tmp_path), broker_wrote=False).topics == (
        topic,
    )


def test_a_partition_that_is_deleted_during_a_scan_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that deletes a topic renames its directories without the housekeeper's lock."""
    listing = files.listing
    for name in ("events-0", f"events-1.{'a' * 32}-delete"):
        (tmp_path / name).mkdir()

    def late(path: Any) -> list[str]:
        if Path(path).name == "events-0":
            (tmp_path / "events-0").rename(tmp_path / f"events-0.{'b' * 32}-delete")
        return listing(path)

    monkeypatch.setattr(files, "listing", late)
    far_ms = 1 << 50
    assert [path.name for path in topic_directories.purge_retired(tmp_path, far_ms, 0)] == [
        f"events-1.{'a' * 32}-delete"
    ]
