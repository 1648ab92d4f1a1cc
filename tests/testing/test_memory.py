"""Logs in memory: where they are, that they end, and what they cost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import embedlog
from embedlog.testing import memory, memory_directory, open_log


def test_a_directory_is_in_memory_where_that_is_possible() -> None:
    with memory_directory() as path:
        expected = memory.memory_parent()
        assert expected is None or path.parent == Path(expected)
        (path / "file").write_bytes(b"x")
    assert not path.exists()


@pytest.mark.parametrize("free_bytes_min", [1 << 60])
def test_without_enough_memory_it_is_a_temporary_directory(
    free_bytes_min: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with memory_directory(free_bytes_min) as path:
        assert path.parent == tmp_path
    assert not path.exists()


def test_no_memory_is_used_where_it_is_absent_or_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory.memory_parent(memory=str(tmp_path / "absent")) is None
    assert memory.memory_parent(1, str(tmp_path)) == str(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert memory.memory_parent(1, str(tmp_path)) is None


def test_a_log_ends_with_its_block_also_after_an_exception() -> None:
    with pytest.raises(KeyError), open_log({"orders": 3}) as log:
        assert log.describe_topic("orders").partition_count == 3
        raise KeyError
    with pytest.raises(embedlog.ClosedError):
        log.topics()
    assert not log.path.exists()


@pytest.mark.parametrize("topics", [["a", "b"], {"a": 1, "b": 1}, ("a", "b")])
def test_topics_are_names_or_numbers_of_partitions(topics: dict[str, int]) -> None:
    with open_log(topics) as log:
        assert log.topics() == ["a", "b"]


def test_settings_come_before_those_for_tests() -> None:
    with open_log(
        "t", config={"offsets.topic.num.partitions": 3, "log.segment.bytes": 1 << 20}
    ) as log:
        assert log.config.offsets_topic_num_partitions == 3
        assert log.config.log_segment_bytes == 1 << 20
        assert log.config.group_initial_rebalance_delay_ms == 0


def test_another_process_opens_the_same_log() -> None:
    program = (
        "import embedlog, sys; embedlog.open(sys.argv[1]).producer().send('t', "
        "b'theirs').result(60)"
    )
    with open_log("t") as log:
        subprocess.run([sys.executable, "-c", program, str(log.path)], check=True, timeout=60)
        assert [each.value for each in log.scan("t").records()] == [b"theirs"]


def test_a_path_of_the_caller_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with open_log("t", path=tmp_path / "log") as log, log.producer() as producer:
            producer.send("t", b"v")
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert log.describe_topic("t").partitions[0].log_end_offset == 2
