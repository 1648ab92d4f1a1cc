"""The verb `handover`: output, errors and statuses. `tests/interop/test_handover.py` uses a real
broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.support.given_directories import CONFIG, SETTINGS, broker, change, make


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make(tmp_path / "data")


def test_a_dry_run_writes_nothing(data: Path, run: Callable[..., Any]) -> None:
    before = sorted(path.name for path in data.rglob("*"))
    answer = run("handover", "to-kafka", "--dry-run")
    assert (answer.status, answer.err) == (0, "")
    assert "1048576  changed       4096 is less than a broker accepts" in answer.out
    assert answer.out.endswith("A broker would get 3 topics with 4 partitions.\n")
    assert "__consumer_offsets" not in answer.out
    assert sorted(path.name for path in data.rglob("*")) == before


def test_both_directions_in_text(data: Path, run: Callable[..., Any]) -> None:
    answer = run("handover", "to-kafka", "--listen", "localhost:19092", "-c", "log.retention.ms=9")
    assert (answer.status, answer.err) == (0, "")
    path = data / "embedlog.server.properties"
    start = (
        "The broker of node 1 has 3 topics with 4 partitions. Start "
        f"it:\nbin/kafka-server-start.sh {path}\n"
    )
    assert answer.out.endswith(start)
    lines = path.read_text().splitlines()
    assert "log.retention.ms=9" in lines
    assert "advertised.listeners=PLAINTEXT://localhost:19092" in lines
    with broker(data) as image:
        change(data, image)
    shown = run("handover", "from-kafka", "--dry-run")
    assert shown.out.endswith("Set aside: gone-0\n3 topics with 6 partitions would be back.\n")
    answer = run("handover", "from-kafka")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.endswith(
        "Created: new\nDeleted: gone\nSet aside: gone-0\n3 topics with 6 partitions are back.\n"
    )
    assert "new    remote.storage.enable  false" in answer.out
    with embedlog.open(data, config=CONFIG) as log:
        assert log.describe_topic("kept").config == {
            **SETTINGS,
            "retention.ms": "7",
            "cleanup.policy": "compact",
        }
    again = run("handover", "from-kafka")
    assert again.status == 1
    assert again.err.count("\n") == 1
    assert "nothing to take back" in again.err


def test_both_directions_in_json(data: Path, run: Callable[..., Any]) -> None:
    given = json.loads(run("handover", "to-kafka", "--json").out)
    common = {"directory", "cluster_id", "node_id", "metadata_directory", "topics", "settings"}
    assert set(given) == common | {"properties"}
    assert given["topics"] == {"__consumer_offsets": 1, "gone": 1, "kept": 2}
    assert {
        "topic": "kept",
        "name": "retention.ms",
        "value": "1000000",
        "outcome": "carried over",
        "reason": "",
    } in given["settings"]
    with broker(data) as image:
        change(data, image)
    found = json.loads(run("handover", "from-kafka", "--json").out)
    assert set(found) == common | {"created", "deleted", "set_aside", "lost", "clean"}
    assert (found["created"], found["deleted"], found["lost"], found["clean"]) == (
        ["new"],
        ["gone"],
        [],
        True,
    )
    assert found["cluster_id"] == given["cluster_id"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["to-kafka", "-c", "log.dirs=/x"], "log.dirs follows from the directory"),
        (["to-kafka", "--listen", "nowhere"], "expected HOST:PORT"),
        (["to-kafka", "--dry-run", "-d", "ANOTHER"], "handover needs one directory"),
        (["from-kafka", "-c", "a=b"], "--config is for to-kafka"),
        (["sideways"], "sideways"),
    ],
)
def test_refusals_are_one_line_with_status_2(
    data: Path, run: Callable[..., Any], arguments: list[str], message: str
) -> None:
    answer = run("handover", "-d", str(data), *arguments)
    assert answer.status == 2
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_a_directory_of_a_broker_is_taken_back_first(data: Path, run: Callable[..., Any]) -> None:
    assert run("handover", "to-kafka").status == 0
    with broker(data) as image:
        change(data, image)
    answer = run("handover", "to-kafka")
    assert answer.status == 2
    assert answer.err.endswith("take it back first, by `embedlog handover from-kafka`\n")
    with embedlog.open(data.with_name("other")) as log, log.producer():
        pass
    missing = run("handover", "to-kafka", "-d", str(data.with_name("missing")))
    assert missing.status == 2
    assert "not a log directory" in missing.err
