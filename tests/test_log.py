"""The public verbs of an open log: settings are taken in one manner everywhere, wrong names are
answered in one manner.
"""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system

QUIET = {"housekeeping": False}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config=QUIET) as opened:
        opened.create_topic("t", 2)
        yield opened


def closed(made: Any) -> Any:
    made.close()
    return made


# Calls with settings: (call with settings, an option, a value, how to read it back).
TAKERS: dict[str, tuple[Callable[..., Any], str, Any, Callable[[Any], Any]]] = {
    "producer": (
        lambda log, *a, **k: closed(log.producer(*a, **k)),
        "linger.ms",
        7,
        lambda made: made._config.linger_ms,
    ),
    "consumer": (
        lambda log, **k: closed(log.consumer("t", **k)),
        "max.poll.records",
        7,
        lambda m: m._config.max_poll_records,
    ),
    "async_producer": (
        lambda log, *a, **k: log.async_producer(*a, **k),
        "linger.ms",
        7,
        lambda made: made._config.linger_ms,
    ),
    "async_consumer": (
        lambda log, **k: log.async_consumer("t", **k),
        "max.poll.records",
        7,
        lambda made: made._config.max_poll_records,
    ),
    "create_topic": (
        lambda log, **k: log.create_topic("new", **k) and log,
        "retention.ms",
        7,
        lambda log: int(log.describe_topic("new").config["retention.ms"]),
    ),
    "alter_topic": (
        lambda log, **k: (log.alter_topic("t", **k), log)[1],
        "retention.ms",
        7,
        lambda log: int(log.describe_topic("t").config["retention.ms"]),
    ),
    "open": (
        lambda log, **k: closed(embedlog.open(log.path.parent / "other", **k)),
        "log.retention.ms",
        7,
        lambda log: log.config.log_retention_ms,
    ),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_settings_are_a_mapping_or_keywords_in_both_spellings(
    log: embedlog.Log, taker: str
) -> None:
    call, name, value, read = TAKERS[taker]
    under = name.replace(".", "_")
    wrong = name.replace("s", "z", 1)
    for given in (
        {"config": {name: wrong}},
        {"config": {wrong: value}},
        {wrong.replace(".", "_"): value},
        {"zzz": 1},
        {"config": {name: value}, under: value},
    ):
        with pytest.raises(embedlog.ConfigError):
            call(log, **given)
    with pytest.raises(TypeError, match="mapping of names to values"):
        call(log, config=[(name, value)])
    with pytest.raises(embedlog.UnknownOptionError, match=f"did you mean {under}"):
        call(log, **{wrong.replace(".", "_"): value})
    assert read(call(log, config={name: value})) == value
    if taker in ("create_topic", "open"):
        return
    assert read(call(log, config={under: value + 1})) == value + 1
    assert read(call(log, **{under: value + 2})) == value + 2


def test_a_mapping_in_the_first_place_is_the_configuration_of_a_producer(log: embedlog.Log) -> None:
    with log.producer({"linger.ms": 3, "acks": "1"}) as producer:
        assert (producer._config.linger_ms, producer._config.acks) == (3, "1")


def test_a_group_in_the_mapping_is_the_consumers_group(log: embedlog.Log) -> None:
    with log.consumer("t", config={"group.id": "g"}) as consumer:
        assert consumer.group_metadata().group_id == "g"
    with pytest.raises(embedlog.ConfigError, match=r"group\.id is given twice"):
        log.consumer("t", group_id="g", config={"group.id": "h"})


def test_pythons_own_errors_name_the_class_that_users_know(log: embedlog.Log) -> None:
    for name, verb in inspect.getmembers(type(log), inspect.isfunction):
        if not name.startswith("_"):
            assert verb.__qualname__ == f"Log.{name}"
    with pytest.raises(TypeError, match=r"^Log\.create_topic\(\) missing"):
        log.create_topic()  # type: ignore[call-arg]


def test_a_close_reports_each_partition_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = embedlog.open(tmp_path, config={"housekeeping": False})
    log.create_topic("t", 2)
    with log.producer() as producer:
        for number in range(2):
            producer.send("t", b"value", partition=number).result(20)
    system.fault_arm(["fsync", "fdatasync"], 1, "fail", errno.EIO, sticky=True, name="/t-")
    try:
        with caplog.at_level("ERROR", "embedlog"), pytest.raises(embedlog.StorageError) as raised:
            log.close()
    finally:
        system.fault_off()
    told = [str(raised.value), *(record.getMessage() for record in caplog.records)]
    assert [any(f"/t-{number}/" in each for each in told) for number in range(2)] == [True, True], (
        told
    )
