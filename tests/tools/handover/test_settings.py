"""Settings that are carried over, changed and lost between a directory and a broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from embedlog.config.options import dotted, options_of
from embedlog.config.topic import TopicConfig
from embedlog.errors import ConfigError, ForeignDirectoryError
from embedlog.tools.handover import server_properties, settings
from embedlog.tools.handover.server_properties import Addresses
from embedlog.tools.handover.settings import CARRIED, CHANGED, LOST, from_broker

DEFAULTS = Addresses()
SMALL = {"segment.bytes": "4096", "min.insync.replicas": "2", "retention.ms": "5"}


def fates(given: dict[str, str]) -> dict[str, tuple[str, str]]:
    return {each.name: (each.value, each.outcome) for each in settings.for_broker("t", given)}


def test_settings_that_a_broker_cannot_take_are_named() -> None:
    given = SMALL | {
        "leader.replication.throttled.replicas": "*",
        "max.decompressed.message.bytes": "5",
        "new.setting": "x",
    }
    assert fates(given) == {
        "segment.bytes": ("1048576", CHANGED),
        "retention.ms": ("5", CARRIED),
        "min.insync.replicas": ("2", LOST),
        "leader.replication.throttled.replicas": ("*", LOST),
        "max.decompressed.message.bytes": ("5", LOST),
        "new.setting": ("x", LOST),
    }
    assert all(each.reason for each in settings.for_broker("t", given) if each.outcome != CARRIED)
    assert settings.carried(settings.for_broker("t", given)) == {
        "segment.bytes": "1048576",
        "retention.ms": "5",
    }


def test_each_default_is_a_setting_that_a_broker_can_take() -> None:
    every = {
        name: text
        for name, text in TopicConfig().as_kafka().items()
        if not re.search("throttled|decompressed", name)
    }
    assert {dotted(name) for name in options_of(TopicConfig)} - set(every) == {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "max.decompressed.message.bytes",
    }
    assert {outcome for _, outcome in fates(every).values()} == {CARRIED}


def test_lost_and_changed_settings_come_back() -> None:
    given = settings.carried(settings.for_broker("t", SMALL))
    kept, found = from_broker("t", given, SMALL)
    assert kept == SMALL
    assert {each.outcome for each in found} == {CARRIED}


def test_settings_of_the_broker_replace_those_before() -> None:
    kept, _ = from_broker(
        "t",
        {"segment.bytes": "2000000", "min.insync.replicas": "1", "cleanup.policy": "compact"},
        SMALL,
    )
    assert kept == {
        "segment.bytes": "2000000",
        "min.insync.replicas": "1",
        "cleanup.policy": "compact",
    }


def test_settings_without_a_meaning_here_are_lost_with_the_reason() -> None:
    kept, found = from_broker(
        "t", {"remote.storage.enable": "true", "retention.ms": "x", "what.is.this": "1"}, {}
    )
    assert kept == {}
    assert {each.outcome for each in found} == {LOST}
    reasons = {each.name: each.reason for each in found}
    assert "tiered storage" in reasons["remote.storage.enable"]
    assert all(reasons.values())


def test_settings_that_contradict_each_other_leave_those_before() -> None:
    kept, found = from_broker(
        "t", {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "5"}, {"retention.ms": "5"}
    )
    assert kept == {"retention.ms": "5"}
    assert {each.outcome for each in found} == {LOST}


# ---- the configuration file ----------------------------------------------------------------------


def made(
    path: Path, addresses: Addresses = DEFAULTS, dynamic: bool = False, **given: str
) -> dict[str, str]:
    counts = {"__consumer_offsets": 7, "t": 3}
    return server_properties.properties(
        path, path, 5, counts, addresses, dynamic=dynamic, given=given
    )


def test_the_configuration_file_is_read_back(tmp_path: Path) -> None:
    strange = tmp_path / " a=b:c#d \\ ü\t😀"
    strange.mkdir()
    values = made(strange) | {"key with space": " value", "empty": ""}
    path = server_properties.write(strange, values)
    assert server_properties.read(strange) | {"key with space": " value"} == {
        name.replace(" ", "\\ ") if " " in name else name: value for name, value in values.items()
    } | {"key with space": " value"}
    assert path.read_bytes().isascii()
    assert server_properties.read(tmp_path) == {}


def test_the_broker_has_the_partition_counts_and_defaults_of_the_directory(tmp_path: Path) -> None:
    values = made(tmp_path, message_max_bytes="5")
    assert (
        values["offsets.topic.num.partitions"],
        values["log.retention.ms"],
        values["node.id"],
    ) == ("7", "-1", "5")
    assert values["message_max_bytes"] == "5"
    assert values["controller.quorum.voters"] == "5@127.0.0.1:9093"
    assert "transaction.state.log.num.partitions" not in values
    assert made(tmp_path, dynamic=True)["controller.quorum.bootstrap.servers"] == "127.0.0.1:9093"


def test_settings_that_follow_from_the_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs follows from the directory"):
        server_properties.properties(
            tmp_path, tmp_path, 1, {}, Addresses(), dynamic=False, given={"log.dirs": "/"}
        )
    for wrong in (
        "localhost",
        "localhost:",
        "localhost:0",
        "localhost:65536",
        "a b:9092",
        "::1:9092",
    ):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            made(tmp_path, Addresses(clients=wrong))
    with pytest.raises(ConfigError, match="two addresses"):
        made(tmp_path, Addresses("localhost:1", "localhost:1"))
    made(tmp_path, Addresses("[::1]:9092"))
    with pytest.raises(ForeignDirectoryError, match="comma"):
        made(tmp_path / "a,b")
