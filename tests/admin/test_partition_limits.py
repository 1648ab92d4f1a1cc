"""The number of partitions of a topic has a limit, which every call checks before it writes: no
reader accepts more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.config.options import PARTITIONS_MAX
from embedlog.errors import ConfigError, InvalidPartitionsError
from tests.support.command_line import run
from tests.support.full_disks import QUIET, tree

__all__ = ["run"]

CALLS: dict[str, Callable[[Any, int], object]] = {
    "create_topic": lambda log, count: log.create_topic("new", partitions=count),
    "create_topic that may exist": lambda log, count: log.create_topic(
        "there", partitions=count, exist_ok=True
    ),
    "create_topics": lambda log, count: log.create_topics(
        ["first", embedlog.NewTopic("new", count)]
    ),
    "create_partitions": lambda log, count: log.create_partitions("there", count),
}


@pytest.fixture(params=["one directory", "a set"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """The path or paths of a log with the topic `there`."""
    chosen: Any = (
        tmp_path / "data"
        if request.param == "one directory"
        else [tmp_path / "data" / name for name in ("a", "b")]
    )
    with embedlog.open(chosen, config=QUIET) as log:
        log.create_topic("there")
    return chosen


@pytest.fixture
def log(place: Any) -> Iterator[Any]:
    with embedlog.open(place, config=QUIET) as opened:
        yield opened


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("count", [0, PARTITIONS_MAX + 1, 2_000_000, 2**31 - 1])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_number_outside_of_the_limit_is_refused_before_anything_is_written(
    log: Any, place: Any, tmp_path: Path, call: Callable[[Any, int], object], count: int
) -> None:
    before = tree(tmp_path)
    with pytest.raises(InvalidPartitionsError, match=f"expected 1 to 1048576, found {count}"):
        call(log, count)
    assert tree(tmp_path) == before
    with embedlog.open(place, read_only=True) as reader:
        assert reader.topics() == ["there"]


@pytest.mark.parametrize(
    "name",
    ["num.partitions", "offsets.topic.num.partitions", "transaction.state.log.num.partitions"],
)
def test_a_default_above_the_limit_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="an integer from 1 to 1048576, found 1048577"):
        embedlog.open(tmp_path / "log", config={name: PARTITIONS_MAX + 1})


@pytest.mark.parametrize(
    "arguments",
    [
        ("--alter", "--topic", "there", "--partitions", "1048577"),
        ("--create", "--topic", "new", "--partitions", "2000000"),
        ("--create", "--topic", "new", "--partitions", "0"),
    ],
)
def test_the_command_refuses_it(
    run: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with embedlog.open(tmp_path / "data", config=QUIET) as log:
        log.create_topic("there")
    refused = run("topics", *arguments)
    assert (refused.status, refused.out) == (2, "")
    assert (
        refused.err
        == f"embedlog: number of partitions: expected 1 to 1048576, found {arguments[-1]}\n"
    )
    assert run("topics").out == "there\n"
