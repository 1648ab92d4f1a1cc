"""Changed settings of a topic apply in each directory and each process of a set."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import ConfigError, DeadlineError, NotEnoughReplicasError, RecordTooLargeError
from embedlog.format.encoder import encode_records
from embedlog.replicas.rules.events import SetConfig
from tests.support.opened_sets import QUIET, isr, made, paths, send, values
from tests.support.producer_helpers import wait_until
from tests.support.returning_directories import moved_away, moved_back, replica

SETTINGS = {"max.message.bytes": 200, "retention.ms": 5}


def retention(log: embedlog.Log) -> list[int]:
    return [replica(log, node).config.retention_ms for node in (1, 2, 3)]


def test_each_process_applies_them_in_each_directory(tmp_path: Path) -> None:
    made(tmp_path)
    with (
        embedlog.open(paths(tmp_path), config=QUIET) as log,
        embedlog.open(paths(tmp_path), config=QUIET) as other,
    ):
        send(log, b"second")
        send(other, b"third")
        log.alter_topic("t", SETTINGS)
        assert retention(log) == [5, 5, 5]
        with pytest.raises(RecordTooLargeError):
            send(log, b"x" * 1000)
        other.housekeep()
        assert retention(other) == [5, 5, 5]
        with pytest.raises(RecordTooLargeError):
            send(other, b"x" * 1000)
        log.alter_topic("t", {"retention.ms": None})
        other.describe_topic("t")
        assert retention(other) == [-1, -1, -1]


def test_a_required_size_applies_to_an_isr_that_is_too_small(tmp_path: Path) -> None:
    """Before, the leader accepted `acks=all` with one replica until the next change of the ISR."""
    made(tmp_path)
    with (
        embedlog.open(paths(tmp_path), config=QUIET) as log,
        embedlog.open(paths(tmp_path), config=QUIET) as other,
    ):
        send(other, b"second")
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        moved_away(tmp_path / "d2")
        send(log, b"alone")
        send(other, b"alone, too")
        log.alter_topic("t", {"min.insync.replicas": 2})
        for each in (log, other):
            with pytest.raises(DeadlineError, match="too few replicas"):
                send(each, b"refused", delivery_timeout_ms=300, request_timeout_ms=200)
        log.alter_topic("t", {"min.insync.replicas": None})
        send(other, b"accepted")
        moved_back(tmp_path / "d2")


def test_a_directory_notes_them_for_a_use_without_the_set(tmp_path: Path) -> None:
    made(tmp_path)
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        moved_away(tmp_path / "d3")
        send(log, b"second")
        log.alter_topic("t", SETTINGS)
        moved_back(tmp_path / "d3")
        log.housekeep()
        log.housekeep()
    for path in paths(tmp_path):
        with embedlog.open(path, read_only=True) as alone:
            assert alone.describe_topic("t").config["max.message.bytes"] == "200", path


# ---- the default of the log ------------------------------------------------------------------------------

LEAST = "min.insync.replicas"


def needing(root: Path, least: int | None = 2, count: int = 3) -> embedlog.Log:
    own = {} if least is None else {LEAST: least}
    return embedlog.open(paths(root, count), config={**QUIET, **own})


def required(log: embedlog.Log) -> int:
    return log.replicas("t").partitions[0].min_in_sync


def lose(root: Path, log: embedlog.Log) -> None:
    """Leave node 1 alone in the ISR."""
    moved_away(root / "d2")
    send(log, b"of the leader", acks=1)
    log.housekeep()
    assert isr(log) == [1]


def refuses(log: embedlog.Log) -> None:
    with pytest.raises(DeadlineError, match="too few replicas"):
        send(log, b"refused", delivery_timeout_ms=1000, request_timeout_ms=200)


def test_a_new_topic_has_the_required_size_of_the_log(tmp_path: Path) -> None:
    """Before, it had no effect in a set: `acks=all` was acknowledged by one directory."""
    with needing(tmp_path) as log, needing(tmp_path, None) as other:
        log.create_topic("t", assignment={0: [1, 2]})
        assert (
            log.describe_topic("t").config[LEAST] == other.describe_topic("t").config[LEAST] == "2"
        )
        assert required(log) == required(other) == 2
        for each in (log, other):
            send(each, b"in both")
        lose(tmp_path, log)
        for each in (log, other):
            refuses(each)
        moved_back(tmp_path / "d2")


def test_a_value_of_the_topic_replaces_that_of_the_log(tmp_path: Path) -> None:
    with needing(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config={LEAST: 1})
        assert required(log) == 1
        moved_away(tmp_path / "d2")
        send(log, b"alone")
        moved_back(tmp_path / "d2")


@pytest.mark.parametrize("later", [None, 1, 3])
def test_a_log_with_another_value_leaves_that_of_the_topic(
    tmp_path: Path, later: int | None
) -> None:
    with needing(tmp_path) as log:
        log.create_topic("t", replication_factor=3)
    with needing(tmp_path, later) as log:
        assert required(log) == 2
        log.alter_topic("t", {LEAST: None})
        assert required(log) == (later or 1), "without a value of its own, it follows the log"


def test_a_process_requires_its_own_size_of_a_topic_without_a_value(tmp_path: Path) -> None:
    made(tmp_path, 3)
    with needing(tmp_path) as log, needing(tmp_path, None) as other:
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        assert (required(log), required(other)) == (2, 1)
        for each in (log, other):
            send(each, b"in both")
        lose(tmp_path, log)
        refuses(log)
        send(other, b"alone")
        refuses(log)
        moved_back(tmp_path / "d2")
        log.housekeep()
        log.housekeep()
        send(log, b"in both again")


def test_an_open_producer_requires_its_own_size(tmp_path: Path) -> None:
    """Also if callers of `send` append directly, and if another process has evicted the member."""
    made(tmp_path, 3)
    with needing(tmp_path) as log, needing(tmp_path, None) as other:
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        with log.producer(
            linger_ms=0, delivery_timeout_ms=1000, request_timeout_ms=200
        ) as producer:
            for _ in range(20):
                producer.send("t", b"in both", partition=0).result(30)
            lose(tmp_path, other)
            with pytest.raises(DeadlineError, match="too few replicas"):
                producer.send("t", b"refused", partition=0).result(30)
        assert b"refused" not in values(other)
        moved_back(tmp_path / "d2")


def test_a_record_is_acknowledged_once_the_isr_is_large_enough(tmp_path: Path) -> None:
    """It was committed with the other directory evicted, which suffices for other processes."""
    made(tmp_path, 3)
    with needing(tmp_path) as log:
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        with log.producer(linger_ms=0, request_timeout_ms=500) as producer:
            producer.send("t", b"second", partition=0).result(30)
            moved_away(tmp_path / "d2")
            waiting = producer.send("t", b"third", partition=0)
            wait_until(lambda: isr(log) == [1] and values(log) == [b"first", b"second", b"third"])
            assert not waiting.done()
            moved_back(tmp_path / "d2")
            wait_until(lambda: log.housekeep() is None and isr(log) == [1, 2])
            assert waiting.result(30).offset == 2
        assert values(log) == [b"first", b"second", b"third"]


def test_a_decision_of_a_client_requires_the_size_of_its_log(tmp_path: Path) -> None:
    made(tmp_path, 3)
    with needing(tmp_path) as log, needing(tmp_path, None) as other:
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        moved_away(tmp_path / "d2")
        send(other, b"alone")
        one, two = (each._engine.partition("t", 0) for each in (log, other))
        with one.exclusive():
            pass  # what is committed can be read
        with pytest.raises(NotEnoughReplicasError, match="nothing was written"), one.exclusive():
            one.append_held(encode_records([(b"k", b"refused")], system.wall_ms()))
        with two.exclusive():
            two.append_held(encode_records([(b"k", b"decided")], system.wall_ms()))
        assert values(log) == [b"alone", b"decided", b"first"]
        moved_back(tmp_path / "d2")


def test_a_topic_from_before_the_set_has_the_required_size_of_the_log(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "d1", config=QUIET) as log:
        log.create_topic("t")
        send(log, b"first")
        for path in paths(tmp_path)[1:]:
            log.add_directory(path)
    with needing(tmp_path) as log:
        assert required(log) == 1, "at most the number of replicas"
        send(log, b"in one")
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        assert required(log) == 2
        send(log, b"in both")
        lose(tmp_path, log)
        refuses(log)
        moved_back(tmp_path / "d2")


def test_only_a_setting_with_which_the_topic_was_created_decides_that_it_is_durable(
    tmp_path: Path,
) -> None:
    """Another process may not sync its appends: a crashed member must not lead without waiting for
    the others.
    """
    with embedlog.open(paths(tmp_path), config={**QUIET, "log.flush.interval.messages": 1}) as log:
        log.create_topic("t")
        log.create_topic("own", config={"flush.messages": 1})
        log.create_topic("late")
        log.alter_topic("late", {"flush.messages": 1})
        state = log._engine.set.decisions.counted_state()
        durable = {
            state.topics[each.topic_uuid].name: state.is_durable(each)
            for each in state.partitions.values()
        }
    assert durable == {"t": False, "own": True, "late": False}


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """Each is valid alone. Before, both were decided, and no process could apply them."""
    made(tmp_path)
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        log.alter_topic("t", {"max.compaction.lag.ms": 1000})
        with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"):
            log.alter_topic("t", {"min.compaction.lag.ms": 5000})
        assert log.describe_topic("t").config == {"max.compaction.lag.ms": "1000"}
        send(log, b"second")
    defaults = {**QUIET, "log_cleaner_min_compaction_lag_ms": 5000}
    with (
        embedlog.open(paths(tmp_path), config=defaults) as log,
        pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"),
    ):
        log.alter_topic("t", {"retention.ms": 5})


def test_a_set_opens_whose_settings_contradict_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier version has decided them."""
    made(tmp_path)
    changes = {"max.compaction.lag.ms": "1000", "min.compaction.lag.ms": "5000"}
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        with monkeypatch.context() as patched:
            patched.setattr("embedlog.replicas.rules.topics._is_allowed", lambda config: True)
            log._engine.set.decide(lambda state: SetConfig("t", changes))
        send(log, b"second")
        assert "max.compaction.lag.ms of topic t does not apply" in caplog.text
    with embedlog.open(paths(tmp_path), config=QUIET) as log:
        send(log, b"third")
        log.housekeep()
        assert values(log) == [b"first", b"second", b"third"]
        found = log._engine.partition("t", 0).config
        assert (found.min_compaction_lag_ms, found.max_compaction_lag_ms) == (5000, 2**63 - 1)
        log.alter_topic("t", {"min.compaction.lag.ms": None})
        assert replica(log, 1).config.max_compaction_lag_ms == 1000
