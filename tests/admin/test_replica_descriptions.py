"""Description of a set: directories, leaders, ISRs, lags, decisions; also with failing and absent
directories.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import embedlog
from tests.support.described_sets import (
    PATIENT_S,
    QUIET,
    changed,
    created,
    opened,
    replica,
    sent,
    states,
    used,
)


def test_a_set_in_order(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 5)
        found = log.replicas()
        assert states(found) == {1: "live", 2: "live", 3: "live"}
        assert [each.path for each in found.directories] == [
            str(tmp_path / f"d{node}") for node in (1, 2, 3)
        ]
        assert [(each.leads, each.holds) for each in found.directories] == [(1, 2), (1, 2), (0, 2)]
        assert (found.voters, found.can_decide, found.term) == ((1, 2, 3), True, 1)
        first, second = found.partitions
        assert (first.topic, first.partition, first.leader, first.replicas) == (
            "t",
            0,
            1,
            (1, 2, 3),
        )
        assert (sorted(first.isr), first.elr, first.adding, first.removing) == (
            [1, 2, 3],
            (),
            (),
            (),
        )
        assert (first.high_watermark, first.state, first.leader_epoch, first.partition_epoch) == (
            5,
            "OnlinePartition",
            0,
            0,
        )
        for node in (1, 2, 3):
            each = replica(first, node)
            assert (each.log_start, each.log_end, each.lag, each.lag_bytes, each.lag_seconds) == (
                0,
                5,
                0,
                0,
                0.0,
            )
            assert (each.state, each.in_sync, each.leads) == ("OnlineReplica", True, node == 1)
            assert each.last_caught_up_ms is not None
            assert each.last_caught_up_ms >= found.observed_ms - 60_000
        assert second.high_watermark == 0
        assert changed(found)[-1] == "topic t created, 2 partitions"
        assert not any(
            each.under_replicated or each.under_min_isr or each.offline for each in found.partitions
        )


def test_an_unused_partition_is_not_opened(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log, 30)
        sent(log, 3, 7)
    with opened(tmp_path) as log:
        found = log.replicas()
        ends = [[each.log_end for each in partition.copies] for partition in found.partitions]
        assert ends == [[3 if number == 7 else 0] * 3 for number in range(30)]
        assert found.partitions[7].high_watermark == 3
        assert used(log) == {"__replica_state"}
        with opened(tmp_path) as other:
            sent(other, 2, 8)
            assert [each.log_end for each in log.replicas().partitions[8].copies] == [2, 2, 2]
        assert used(log) == {"__replica_state"}


def test_a_topic_is_selected(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        log.create_topic("u", replication_factor=1)
        assert {each.topic for each in log.replicas().partitions} == {"t", "u"}
        assert [each.partition for each in log.replicas("t").partitions] == [0, 1]
        assert sum(each.holds for each in log.replicas("u").directories) == 7, (
            "the counts are those of the whole set"
        )
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.replicas("v")
    with pytest.raises(embedlog.ClosedError):
        log.replicas()


@pytest.mark.parametrize("lost", [1, 3])
def test_a_directory_that_was_removed_and_returns(tmp_path: Path, lost: int) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 2)
        before = log.replicas()
        (tmp_path / f"d{lost}").rename(tmp_path / "removed")
        sent(log, 3)
        found = log.replicas()
        assert states(found) == {node: "failed" if node == lost else "live" for node in (1, 2, 3)}
        failed = found.directories[lost - 1]
        assert failed.reason
        assert str(tmp_path / f"d{lost}") in failed.reason
        assert failed.since_ms is not None
        assert failed.since_ms >= before.observed_ms
        assert found.can_decide
        first = found.partitions[0]
        assert lost not in first.isr
        assert first.leader != lost
        assert first.under_replicated
        gone = replica(first, lost)
        assert (gone.state, gone.log_end, gone.lag, gone.in_sync) == (
            "OfflineReplica",
            None,
            None,
            False,
        )
        assert (first.leader_epoch, first.high_watermark) == (1 if lost == 1 else 0, 5)
        assert any(f"node {lost} is failed" in text for text in found.warnings)
        change = next(text for text in changed(found) if text.startswith("t-0: "))
        assert ("leader 1 -> " in change and "in epoch 1" in change) == (lost == 1)
        assert "ISR [1, 2, 3] -> " in change
        again = log.replicas()
        assert again.directories[lost - 1].since_ms == failed.since_ms, "the begin does not move"
    (tmp_path / "removed").rename(tmp_path / f"d{lost}")
    with opened(tmp_path, read_only=True) as log:
        found = log.replicas()
        late = replica(found.partitions[0], lost)
        assert (late.state, late.log_end, late.lag, late.in_sync) == ("OnlineReplica", 2, 3, False)
        assert late.lag_bytes is not None
        assert late.lag_bytes > 3 * 60
        assert late.last_caught_up_ms is not None
        assert before.observed_ms <= late.last_caught_up_ms <= found.observed_ms
        assert late.lag_seconds is not None
        assert late.lag_seconds >= 0
    with opened(tmp_path) as log:
        log.housekeep()
        found = log.replicas()
        assert states(found) == {1: "live", 2: "live", 3: "live"}
        assert sorted(found.partitions[0].isr) == [1, 2, 3]
        assert replica(found.partitions[0], lost).lag == 0


def test_the_bytes_of_missing_records_are_counted_over_segments(tmp_path: Path) -> None:
    with opened(tmp_path, 2) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config={"segment.bytes": 400})
        sent(log, 7)
        size = log.replicas().partitions[0]
        assert replica(size, 2).lag_bytes == 0
        (tmp_path / "d2").rename(tmp_path / "removed")
        with log.producer(acks=1, enable_idempotence=False, linger_ms=0) as producer:
            for number in range(20):
                producer.send("t", b"%03d" % number).result(PATIENT_S)
        leader = tmp_path / "d1" / "t-0"
    (tmp_path / "removed").rename(tmp_path / "d2")
    with opened(tmp_path, 2, read_only=True) as log:
        late = replica(log.replicas().partitions[0], 2)
        total = sum(path.stat().st_size for path in leader.glob("*.log"))
        kept = sum(path.stat().st_size for path in (tmp_path / "d2" / "t-0").glob("*.log"))
        assert late.lag == 20
        assert late.lag_bytes == total - kept


def test_a_directory_that_was_not_opened_is_away(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
    (tmp_path / "d2").rename(tmp_path / "removed")
    with opened(tmp_path) as log:
        found = log.replicas()
        assert states(found) == {1: "live", 2: "away", 3: "live"}
        assert found.directories[1].reason
        assert found.can_decide
        assert replica(found.partitions[0], 2).state == "OfflineReplica"


def test_without_a_majority(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 2)
    for node in (2, 3):
        (tmp_path / f"d{node}").rename(tmp_path / f"removed{node}")
    for read_only in (False, True):
        with opened(tmp_path, read_only=read_only) as log:
            found = log.replicas()
            assert states(found) == {1: "live", 2: "away", 3: "away"}
            assert not found.can_decide
            assert any("no majority" in text for text in found.warnings)
            assert replica(found.partitions[0], 1).log_end == 2
            assert found.partitions[0].state == "OnlinePartition"
            assert found.partitions[1].state == "OfflinePartition"
            assert changed(found)[-1] == "topic t created, 2 partitions"
            assert "NO majority" in str(found)


def test_a_reader_describes_a_set_that_others_write_and_one_that_no_process_has_open(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as log:
        created(log)
        with opened(tmp_path, read_only=True) as reader:
            sent(log, 4)
            found = reader.replicas()
            assert [each.log_end for each in found.partitions[0].copies] == [4, 4, 4]
            assert found.partitions[0].high_watermark == 4
            assert states(found) == {1: "live", 2: "live", 3: "live"}
    with opened(tmp_path, read_only=True) as reader:
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        found = reader.replicas()
        assert [each.log_end for each in found.partitions[0].copies] == [4, 4, 4]
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, (
            "a reader changes nothing"
        )


def test_a_directory_that_crashed_waits_for_a_majority_to_register_it(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 2)
    pid = os.fork()
    if pid == 0:
        sent(opened(tmp_path), 1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    for node in (2, 3):
        (tmp_path / f"d{node}").rename(tmp_path / f"removed{node}")
    with opened(tmp_path) as log:
        found = log.replicas()
        assert states(found) == {1: "live", 2: "away", 3: "away"}
        assert "not closed in order" in (found.directories[0].reason or "")
        assert found.partitions[0].state == "OfflinePartition", "it leads nothing"
        assert replica(found.partitions[0], 1).log_end is None, "only a recovery knows it"
    for node in (2, 3):
        (tmp_path / f"removed{node}").rename(tmp_path / f"d{node}")
    with opened(tmp_path) as log:
        log.housekeep()
        found = log.replicas()
        assert [each.reason for each in found.directories] == [None, None, None]
        assert found.partitions[0].state == "OnlinePartition"


def test_a_directory_that_was_written_without_the_set_is_away(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
    with embedlog.open(tmp_path / "d3", alone=True, config=QUIET):
        pass
    with opened(tmp_path, read_only=True) as reader:
        found = reader.replicas()
        assert states(found) == {1: "live", 2: "live", 3: "away"}
        assert "written without the set" in (found.directories[2].reason or "")
        assert replica(found.partitions[0], 3).log_end is None, (
            "its offsets say nothing about the set"
        )


# ---- one directory, and texts --------------------------------------------------------------------


def test_one_directory_has_one_replica_of_each_partition(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t", 2)
        sent(log, 3)
        for found in (log.replicas(), log.replicas("t")):
            assert [each.state for each in found.directories] == ["live"]
            node = found.directories[0].node
            assert [(each.leader, each.isr, each.high_watermark) for each in found.partitions] == [
                (node, (node,), 3),
                (node, (node,), 0),
            ]
            assert (found.decisions, found.can_decide, found.warnings) == ((), True, ())
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.replicas("u")
    with embedlog.open(tmp_path, read_only=True) as log:
        assert [each.high_watermark for each in log.replicas().partitions] == [3, 0]
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n4 0\n")
    with embedlog.open(tmp_path, read_only=True) as log:
        assert [each.leader_epoch for each in log.replicas().partitions] == [4, 0]


def test_the_table_the_html_and_the_dict_show_the_same(tmp_path: Path) -> None:
    strange = tmp_path / "a <b> & \n c"
    strange.mkdir()
    with opened(strange) as log:
        created(log)
        sent(log, 2)
        found = log.replicas()
    text = str(found)
    html = found._repr_html_()
    content = json.loads(json.dumps(found.as_dict()))
    assert "3 directories; term 1, voters [1, 2, 3], a majority answers" in text
    assert "t-0" in text
    assert "t-0" in html
    assert all("\n c" not in line for line in text.splitlines())
    assert "a <b> & \\n c" in text
    assert "<b>" not in html
    assert "a &lt;b&gt; &amp; \\n c" in html
    assert html.count("<table>") == 4 == html.count("</table>")
    assert [each["node"] for each in content["directories"]] == [1, 2, 3]
    assert content["partitions"][0]["copies"][0]["log_end"] == 2
    assert content["warnings"] == list(found.warnings)
    assert "one device" in found.warnings[0]
    assert hash(found)
    assert found == found
