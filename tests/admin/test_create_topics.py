"""Topics made one by one, many at once, or only if they are not there: all of them or none,
whatever fails on the way.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import errors as e
from tests.support.full_disks import QUIET, failing, tree
from tests.support.full_disks import log as log


def test_a_topic_that_is_there_already_can_be_right(log: Any, other: Any) -> None:
    assert log.create_topic("events", 2, retention_ms=5, exist_ok=True) is True
    before = other.describe_topic("events")
    for each in (log, other):
        assert each.create_topic("events", 2, {"retention.ms": 5}, exist_ok=True) is False
        assert each.create_topic("events", 1, exist_ok=True, cleanup_policy="delete") is False, (
            "as it is, also by default"
        )
    assert log.describe_topic("events") == before, "it stays as it is"
    with pytest.raises(e.TopicExistsError, match="exist_ok=True"):
        log.create_topic("events", 2)
    with pytest.raises(e.InvalidTopicError, match="collides"):
        log.create_topics(["eve.nts", "eve_nts"], exist_ok=True)
    with pytest.raises(e.ConfigError, match="not an option of a topic"):
        log.create_topic("events", exist_ok=True, config={"nothing": 1})


def test_a_topic_that_somebody_makes_meanwhile_is_right_too(
    log: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look without the lock and the look with it."""
    looked: list[str] = []
    is_live = log._topics._is_live

    def racing(name: str) -> bool:
        found: bool = is_live(name)
        if not looked:
            other.create_topic(name, 4)
        looked.append(name)
        return found

    monkeypatch.setattr(log._topics, "_is_live", racing)
    assert log.create_topic("events", 2, exist_ok=True) is False
    assert log.describe_topic("events").partition_count == 4


def test_a_topic_that_contradicts_the_call_is_refused_with_all_differences(
    log: Any, other: Any
) -> None:
    log.create_topic("events", 2, retention_ms=5)
    before = tree(log.path)
    with pytest.raises(e.TopicMismatchError) as caught:
        other.create_topic("events", 3, {"retention.ms": 7, "segment.ms": 8}, exist_ok=True)
    assert caught.value.differences == {
        "retention.ms": ("7", "5"),
        "segment.ms": ("8", "604800000"),
        "partitions": (3, 2),
    }
    assert isinstance(caught.value, e.TopicExistsError)
    assert "partitions: wanted 3, has 2" in str(caught.value)
    with pytest.raises(e.TopicMismatchError):
        other.create_topics(["more", embedlog.NewTopic("events", 3)], exist_ok=True)
    assert tree(log.path) == before, "a call that is refused creates none of its topics"
    log.create_partitions("events", 4)
    assert other.create_topic("events", 2, exist_ok=True) is False, "partitions may have been added"


def test_many_topics_are_made_in_one_step(log: Any, other: Any) -> None:
    log.create_topic("b", 2)
    wanted = ["a", embedlog.NewTopic("b", 2), embedlog.NewTopic("c", 3, {"segment.ms": 5})]
    with pytest.raises(e.TopicExistsError, match="'b'"):
        log.create_topics(wanted)
    assert other.topics() == ["b"], "nothing is made if one of them cannot be"
    assert log.create_topics(wanted, exist_ok=True) == ["a", "c"]
    assert other.topics() == ["a", "b", "c"]
    assert [other.describe_topic(name).partition_count for name in "abc"] == [1, 2, 3]
    assert other.describe_topic("c").config == {"segment.ms": "5"}
    assert log.create_topics(wanted, exist_ok=True) == []
    assert log.create_topics([]) == []


@pytest.mark.parametrize(
    ("topics", "error", "text"),
    [
        (["x", "x"], e.TopicExistsError, "'x' is given twice"),
        (["x.y", "x_y"], e.InvalidTopicError, "collides"),
        (["x", ""], e.InvalidTopicError, "not a valid topic name"),
        (["x", embedlog.NewTopic("y", 0)], e.InvalidPartitionsError, "found 0"),
        (
            ["x", embedlog.NewTopic("y", 1, {"segment.byte": 1})],
            e.ConfigError,
            "did you mean segment.bytes?",
        ),
        ("x", TypeError, "a list of names or NewTopics: ['x']"),
        (["x", 5], TypeError, "not int"),
    ],
)
def test_one_topic_that_cannot_be_is_none_of_them(
    log: Any, topics: Any, error: type[Exception], text: str
) -> None:
    before = tree(log.path)
    with pytest.raises(error) as caught:
        log.create_topics(topics)
    assert text in str(caught.value)
    assert tree(log.path) == before


def test_many_topics_on_a_full_disk_are_taken_back_together(tmp_path: Path) -> None:
    for step in range(1, 90):
        with embedlog.open(tmp_path / str(step), config=QUIET) as log:
            with pytest.MonkeyPatch.context() as patch:
                came = failing(patch, step, ever_after=False)
                with contextlib.suppress(e.StorageError):
                    log.create_topics(["a", embedlog.NewTopic("b", 2)])
                if not came():
                    assert step > 12, "nothing was written"
                    return
            assert log.topics() in ([], ["a", "b"]), f"step {step}"
            assert log.create_topics(["a", "b"], exist_ok=True) in (["a", "b"], [])
    pytest.fail("it never got through")


def test_settings_as_keywords_follow_the_same_rules(log: Any) -> None:
    log.create_topic("events", config={"segment.bytes": 1000}, flush_ms=5)
    assert log.describe_topic("events").config == {"segment.bytes": "1000", "flush.ms": "5"}
    log.alter_topic("events", {"segment.bytes": None}, flush_ms=7, retention_ms=9)
    assert log.describe_topic("events").config == {"flush.ms": "7", "retention.ms": "9"}
    log.alter_topic("events", flush_ms=None)
    assert log.describe_topic("events").config == {"retention.ms": "9"}
    for act in (log.create_topic, log.alter_topic):
        with pytest.raises(e.ConfigError, match=r"retention\.ms is given twice"):
            act("events", config={"retention.ms": 5}, retention_ms=5)
