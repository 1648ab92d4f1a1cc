"""A lag that is not known is 0 nowhere: descriptions, assertions, metrics, exporters, plots, the
command and the console.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.exporters import prometheus
from embedlog.plot.history import History
from embedlog.testing import assert_lag
from embedlog.tools.cli.verbs.groups import document_of_group
from embedlog.tools.console.model import observe
from embedlog.tools.console.model.text import NONE

FIRST = TopicPartition("jobs", 0)
SECOND = TopicPartition("jobs", 1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Two partitions with five records each."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("jobs", 2)
        with opened.producer() as producer:
            for number in range(10):
                producer.send("jobs", b"x", partition=number % 2)
        yield opened


def member(log: embedlog.Log) -> embedlog.Consumer:
    return log.consumer(
        "jobs", group_id="work", auto_offset_reset="earliest", enable_auto_commit=False
    )


def assert_unknown(log: embedlog.Log) -> None:
    assert log.describe_group("work").lag is None
    with pytest.raises(AssertionError, match="expected a lag of 0, found none that is known"):
        assert_lag(log, "work", 0)
    of_group = log.metrics()["groups"]["work"]
    assert (of_group["records-lag"], of_group["records-lag-max"]) == (None, None)
    assert "embedlog_group_records_lag" not in prometheus.text(log.metrics())
    assert document_of_group(log.describe_group("work"))["lag"] is None
    assert observe.groups(log, None)[0].rows[0].cells[-1] == NONE
    history = History(log)
    history.observe()
    ((_, value),) = history.lags()["work"]
    assert value != value, "not a number"


def test_nothing_is_committed_yet(log: embedlog.Log) -> None:
    with member(log) as consumer:
        assert consumer.poll(timeout=5)
        assert_unknown(log)


def test_one_of_two_partitions_has_no_committed_offset(log: embedlog.Log) -> None:
    with member(log) as consumer:
        consumer.poll(timeout=5)
        consumer.commit({FIRST: 5})
        assert_unknown(log)
        consumer.commit({SECOND: 4})
        assert log.describe_group("work").lag == 1
        assert_lag(log, "work", 1)
        assert_lag(log, "work", 1, topic="jobs")
        assert "embedlog_group_records_lag_max" in prometheus.text(log.metrics())


def test_a_partition_of_a_rebalancing_group_is_not_left_out(log: embedlog.Log) -> None:
    """While its member waits for an assignment, an uncommitted partition is assigned to nobody, and
    still unread.
    """
    with member(log) as first:
        first.poll(timeout=5)
        first.commit({FIRST: 5})
        log.remove_group_members("work")
        with member(log) as second:
            second.poll(timeout=0)
            second.enforce_rebalance()
            second.poll(timeout=0)
            assert SECOND in {
                TopicPartition(each.topic, each.partition)
                for each in log.describe_group("work").partitions
            }
            assert_unknown(log)


def test_a_lag_of_a_topic_that_the_group_does_not_read_is_not_zero(log: embedlog.Log) -> None:
    with member(log) as consumer:
        consumer.poll(timeout=5)
        consumer.commit()
        assert_lag(log, "work", 0)
        with pytest.raises(AssertionError, match="none that is known"):
            assert_lag(log, "work", 0, topic="misspelt")
