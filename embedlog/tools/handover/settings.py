"""Translates settings of topics between a log directory and a broker.

- Each setting is carried over, changed or lost; the last two have a reason.
- A setting that a broker could not take is restored when the directory comes back, unless it was
  set there.
- Defaults that differ from Kafka's become settings of the broker: a broker deletes nothing that
  embedlog keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from embedlog.config.options import known_only, overlay
from embedlog.config.topic import LogConfig, TopicConfig
from embedlog.errors import ConfigError, EmbedlogError
from embedlog.tools.handover import metadata_records as records
from embedlog.tools.handover.metadata_image import Image
from embedlog.topic import Topic

CARRIED = "carried over"
CHANGED = "changed"
LOST = "lost"

_SEGMENT_BYTES_MIN = 1 << 20  # of Kafka 4
_ONE_REPLICA = "the broker is the only replica"
_DEFAULTS: Final = (
    "log.retention.ms",
    "log.flush.interval.ms",
    "log.flush.scheduler.interval.ms",
    "offsets.topic.segment.bytes",
    "group.initial.rebalance.delay.ms",
    "auto.create.topics.enable",
)
# a broker with eligible leader replicas writes it for the cluster
_OF_ELR: Final = ("min.insync.replicas", "1")

_KEPT: Final = {  # kinds of settings without a meaning in a log directory
    records.GROUP_SETTINGS: "the group",
    records.CLIENT_METRICS_SETTINGS: "the client metrics",
}


class Setting(NamedTuple):
    """One setting and its outcome. `topic` None: of the broker. `value` is the value on the other
    side, or the lost one.
    """

    topic: str | None
    name: str
    value: str
    outcome: str = CARRIED
    reason: str = ""


def broker_defaults() -> dict[str, str]:
    """The defaults of embedlog that a broker needs as settings."""
    defaults = LogConfig().as_kafka()
    return {name: defaults[name] for name in _DEFAULTS}


def for_broker(topic: str, config: Mapping[str, str]) -> list[Setting]:
    """The settings of a topic as a broker takes them."""
    return [_setting_for_broker(topic, name, value) for name, value in sorted(config.items())]


def _setting_for_broker(topic: str, name: str, value: str) -> Setting:
    if not known_only(TopicConfig, {name: value}):
        return Setting(topic, name, value, LOST, "a newer version of embedlog has set it")
    if name == "segment.bytes" and int(value) < _SEGMENT_BYTES_MIN:
        return Setting(
            topic, name, str(_SEGMENT_BYTES_MIN), CHANGED, f"{value} is less than a broker accepts"
        )
    if name == "min.insync.replicas" and value != "1":
        return Setting(topic, name, value, LOST, f"{_ONE_REPLICA}: it would refuse every acks=all")
    if name.endswith(".replication.throttled.replicas"):
        return Setting(topic, name, value, LOST, f"{_ONE_REPLICA}: nothing is copied")
    if name == "max.decompressed.message.bytes":
        return Setting(topic, name, value, LOST, "brokers before Kafka 4.4 do not know it")
    return Setting(topic, name, value)


def carried(settings: list[Setting]) -> dict[str, str]:
    """The settings that the other side has."""
    return {setting.name: setting.value for setting in settings if setting.outcome != LOST}


def from_broker(
    topic: str, broker_config: Mapping[str, str], earlier_config: Mapping[str, str]
) -> tuple[dict[str, str], list[Setting]]:
    """The settings of a topic that a broker had, and their outcomes. `earlier_config`: those when
    it was given to the broker.
    """
    outcomes = []
    config = {
        setting.name: earlier_config[setting.name]
        for setting in for_broker(topic, earlier_config)
        if _is_unchanged(setting, broker_config)
    }
    for name, value in sorted(broker_config.items()):
        if name in config:
            outcomes.append(Setting(topic, name, config[name]))
            continue
        reason = _find_refusal(name, value)
        outcomes.append(Setting(topic, name, value, LOST if reason else CARRIED, reason))
        if not reason:
            config[name] = value
    restored_names = sorted(set(config) - set(broker_config))
    outcomes += [Setting(topic, name, config[name]) for name in restored_names]
    try:
        overlay(TopicConfig(), known_only(TopicConfig, config))
    except EmbedlogError as problem:  # two settings that a broker accepts together
        config = dict(earlier_config)
        outcomes = [
            Setting(topic, name, value, LOST, str(problem))
            for name, value in sorted(broker_config.items())
        ]
    return config, outcomes


def _is_unchanged(setting: Setting, broker_config: Mapping[str, str]) -> bool:
    if setting.outcome == LOST:
        return setting.name not in broker_config
    return broker_config.get(setting.name) == setting.value


def _find_refusal(name: str, value: str) -> str:
    """The reason why a topic cannot have this setting; empty if it can."""
    try:
        overlay(TopicConfig(), {name: value})
    except ConfigError as problem:
        return str(problem)
    return ""


def not_taken_back(topics: Iterable[Topic], image: Image) -> list[Setting]:
    """Settings of a broker's topics that are not in the directory, because it was opened before it
    was taken back.
    """
    reason = "set at the broker, and the directory was opened before it was taken back"
    lost = []
    for topic in topics:
        if topic.topic_id not in image.topics:
            continue
        own = carried(for_broker(topic.name, topic.config))
        for name, value in sorted(image.settings_of(topic.name).items()):
            if own.get(name) != value:
                lost.append(Setting(topic.name, name, value, LOST, reason))
    return lost


def of_brokers(image: Image) -> list[Setting]:
    """Settings that a broker has beside those of topics. They stay in the metadata log; the
    directory has no place for them.
    """
    outcomes = []
    for (kind, resource), settings in sorted(image.settings.items()):
        if kind == records.TOPIC_SETTINGS:
            continue
        outcome = LOST
        reason = "a setting of the broker: give it to open(), if it has a meaning there"
        if kind in _KEPT:
            outcome = CARRIED
            reason = (
                f"of {_KEPT[kind]} {resource}: it stays in the metadata log, and is there in the "
                "next handover"
            )
        for name, value in sorted(settings.items()):
            if (name, value) != _OF_ELR:
                outcomes.append(Setting(None, name, value, outcome, reason))
    return outcomes
