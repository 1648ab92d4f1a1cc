"""Options: every name, type and range with wrong input; contradictions; inherited values; no
setting is silently ignored.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from embedlog.config.client import ConsumerConfig, ProducerConfig
from embedlog.config.options import LONG_MAX, Options, dotted, options_of, rows, underscored
from embedlog.config.topic import LogConfig, TopicConfig, parse
from embedlog.errors import ConfigError, RecordTooLargeError
from embedlog.types import CODECS
from tests.conftest import ROOT

CLASSES: tuple[type[Options], ...] = (TopicConfig, LogConfig, ProducerConfig, ConsumerConfig)
EVERY = [(cls, name) for cls in CLASSES for name in options_of(cls)]
each_option = pytest.mark.parametrize(
    ("cls", "name"), EVERY, ids=[f"{cls.__name__}.{name}" for cls, name in EVERY]
)
each_class = pytest.mark.parametrize("cls", CLASSES)

# name of an option: its default in Kafka 4.4.0, by the kind of its owner
KAFKAS: dict[str, dict[str, str]] = {"topic": {}, "broker": {}, "producer": {}, "consumer": {}}
for row in (ROOT / "tests" / "data" / "options-4.4.0.txt").read_text().splitlines():
    owner, option_name, *option_default = row.split("\t")
    KAFKAS[owner][option_name] = option_default[0] if option_default else ""
each_kind = pytest.mark.parametrize(
    ("kind", "cls"), [*zip(KAFKAS, CLASSES, strict=True)], ids=KAFKAS
)
NOTHING = ("", "null", "none")  # no default
# Kafka's default is the same: it is the value of another unit, or the class of that name
SPELLED_OTHERWISE = {
    "log.roll.hours",
    "log.roll.ms",
    "log.roll.jitter.hours",
    "log.roll.jitter.ms",
    "partition.assignment.strategy",
}


# ---- the documentation of the fields -------------------------------------------------------------


@each_option
def test_every_option_is_documented_and_takes_its_own_default(
    cls: type[Options], name: str
) -> None:
    known = options_of(cls)[name]
    assert known.doc.endswith((".", "…"))
    assert known.allowed()
    default = getattr(cls, name)
    if (cls, name) != (ConsumerConfig, "enable_auto_commit"):  # which needs a group, if it is set
        assert getattr(parse(cls, {dotted(name): default}), name) == default
    if (
        known.kind not in ("partitioner", "objects")
        and default is not None
        and name != "enable_auto_commit"
    ):
        text = {row[0]: row[1] for row in rows(cls)}[dotted(name)]
        assert getattr(parse(cls, {name: text}), name) == default, "its text is taken too"


@pytest.mark.usefixtures("usual_internal_topics")
@each_kind
def test_every_difference_from_kafka_is_declared(kind: str, cls: type[Options]) -> None:
    """`differs` of an option states another default, and that Kafka has no such option."""
    silent = []
    for name, default, _, _, _, differs in rows(cls):
        kafkas = KAFKAS[kind].get(name)
        is_same = kafkas is not None and _is_same(default, kafkas)
        if not is_same and name not in SPELLED_OTHERWISE and not differs:
            silent.append((name, default, kafkas))
    assert silent == []


def _is_same(default: str, kafkas: str) -> bool:
    if kafkas in NOTHING:
        return default in NOTHING
    return default in (kafkas, f"{kafkas}.0")


def test_every_option_of_a_topic_has_a_default_at_the_log() -> None:
    twins = {known.topic_option for known in options_of(LogConfig).values() if known.topic_option}
    # nor does a broker of Kafka
    of_partitions = {f"{side}.replication.throttled.replicas" for side in ("leader", "follower")}
    assert twins == {dotted(name) for name in options_of(TopicConfig)} - of_partitions


# ---- names ---------------------------------------------------------------------------------------


def test_both_spellings_are_taken_together() -> None:
    config = parse(TopicConfig, {"segment.bytes": 1000, "flush_ms": "5"}, retention_ms=7)
    assert (config.segment_bytes, config.flush_ms, config.retention_ms) == (1000, 5, 7)
    assert config.overrides() == {"segment.bytes": "1000", "flush.ms": "5", "retention.ms": "7"}
    assert parse(TopicConfig).overrides() == {}
    assert len(config.as_kafka()) == len(options_of(TopicConfig))


def test_one_option_in_two_spellings_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"segment\.bytes is given twice"):
        parse(TopicConfig, {"segment.bytes": 1000}, segment_bytes=1000)


@pytest.mark.parametrize(
    ("cls", "name", "text"),
    [
        (
            TopicConfig,
            "segment.byte",
            "segment.byte is not an option of a topic; did you mean segment.bytes?",
        ),
        (
            ConsumerConfig,
            "auto_offset_rest",
            "auto_offset_rest is not an option of a consumer; did you mean auto_offset_reset?",
        ),
        (
            TopicConfig,
            "partitions",
            "partitions is not an option here: it is an argument of the creation; "
            "create_partitions(",
        ),
        (ProducerConfig, "zzz", "zzz is not an option of a producer"),
        (ProducerConfig, "", " is not an option of a producer"),
        (
            ProducerConfig,
            "bootstrap.servers",
            "bootstrap.servers is not an option here: there is no server; a log directory",
        ),
        (
            ConsumerConfig,
            "ssl_keystore_location",
            "ssl_keystore_location is not an option here: there is no server",
        ),
        (ConsumerConfig, "connections.max.idle.ms", "there is no server"),
        (TopicConfig, "remote.storage.enable", "there is no tiered storage"),
        (TopicConfig, "message.format.version", "Kafka 4 removed it"),
        (
            LogConfig,
            "retention.ms",
            "retention.ms is an option of a topic; the default of all topics is log.retention.ms",
        ),
        (LogConfig, "listeners", "there is no server"),
        (LogConfig, "unclean.leader.election.interval.ms", "by the housekeeper"),
        (
            LogConfig,
            "replica.high.watermark.checkpoint.interval.ms",
            "every log.flush.offset.checkpoint.interval.ms",
        ),
        (
            LogConfig,
            "log.flush.start.offset.checkpoint.interval.ms",
            "every log.flush.offset.checkpoint.interval.ms",
        ),
        (LogConfig, "num.recovery.threads.per.data.dir", "a partition is checked at its first use"),
        (
            ProducerConfig,
            "metadata.max.age.ms",
            "compares its topics with the file of topics at each append",
        ),
        (ConsumerConfig, "request.timeout.ms", "default.api.timeout.ms bounds a call"),
        (ConsumerConfig, "retry.backoff.max.ms", "every retry.backoff.ms"),
        (LogConfig, "given", "given is not an option of a log"),
        (LogConfig, "REFUSED", "REFUSED is not an option of a log"),
    ],
)
def test_an_unknown_name_is_refused_with_what_helps(
    cls: type[Options], name: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(cls, {name: 1})
    assert str(caught.value).startswith(text) or text in str(caught.value)


@pytest.mark.parametrize("mapping", [[("a", 1)], "segment.bytes=5", 7])
def test_a_configuration_that_is_no_mapping_is_a_type_error(mapping: Any) -> None:
    with pytest.raises(TypeError, match="mapping of names to values"):
        parse(TopicConfig, mapping)


@each_kind
def test_every_name_of_kafka_is_an_option_or_refused_with_the_reason(
    kind: str, cls: type[Options]
) -> None:
    assert len(KAFKAS[kind]) > 30
    silent = []
    for name in KAFKAS[kind]:
        if underscored(name) not in options_of(cls):
            with pytest.raises(ConfigError) as caught:
                parse(cls, {name: "1"})
            if f"{name} is not an option here: " not in str(caught.value):
                silent.append(str(caught.value))
    assert silent == []


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a text: found 5"):
        parse(TopicConfig, {5: 1})  # type: ignore[dict-item]


# ---- values --------------------------------------------------------------------------------------

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    object(),
    b"1",
    "",
    " ",
    "x",
    "1e3",
    "1_000",
    "0x10",
    1.5,
    float("nan"),
    float("inf"),
    -(2**70),
    2**70,
    [],
    {},
    (1,),
    "9" * 6000,
    "delete,delete",
    "\x00",
)


@each_option
def test_a_hostile_value_is_taken_as_it_should_or_refused_with_the_key(
    cls: type[Options], name: str
) -> None:
    known = options_of(cls)[name]
    complaints: list[str] = []
    for value in HOSTILE:
        try:
            taken = getattr(parse(cls, {name: value}), name)
        except ConfigError as problem:
            complaints.append(str(problem))
            continue
        if known.kind in ("int", "mode"):
            assert taken is None or type(taken) is int
            assert (
                taken is None
                or taken in known.also
                or (known.low or -LONG_MAX) <= taken <= (known.high or LONG_MAX)
            )
        elif known.kind == "bool":
            assert taken in (True, False)
        elif known.choices and taken is not None:
            assert {*([taken] if isinstance(taken, str) else taken)} <= {*known.choices}
    assert complaints
    assert all(dotted(name) in each and len(each) < 600 for each in complaints)


@pytest.mark.parametrize(
    ("cls", "name", "value", "text"),
    [
        (
            TopicConfig,
            "segment.bytes",
            13,
            "segment.bytes: expected an integer from 14 to 2147483647, found 13",
        ),
        (
            TopicConfig,
            "segment.bytes",
            "ten",
            "segment.bytes: expected an integer from 14 to 2147483647, found 'ten'",
        ),
        (TopicConfig, "retention.ms", -2, "retention.ms: expected an integer from -1, found -2"),
        (TopicConfig, "min.cleanable.dirty.ratio", 1.1, "expected a number from 0 to 1, found 1.1"),
        (
            TopicConfig,
            "compression.gzip.level",
            0,
            "expected an integer from 1 to 9 or -1, found 0",
        ),
        (TopicConfig, "cleanup.policy", "", "expected a list out of delete, compact, found ''"),
        (
            TopicConfig,
            "compression.type",
            "none",
            f"one of producer, uncompressed, {', '.join(CODECS[1:])}, found 'none'",
        ),
        (ProducerConfig, "acks", 2, "acks: expected one of all, -1, 0, 1, found 2"),
        (
            ProducerConfig,
            "enable.idempotence",
            1,
            "enable.idempotence: expected true or false, found 1",
        ),
        (
            ProducerConfig,
            "value.serializer",
            "json",
            "value.serializer: expected a callable of the data, an object with",
        ),
        (
            ConsumerConfig,
            "auto.offset.reset",
            "by_duration:3D",
            "or such as by_duration:P3DT12H, found 'by_duration:3D'",
        ),
        (LogConfig, "file.mode", "444", "file.mode: expected permission bits"),
        (
            LogConfig,
            "auto.create.topics.enable",
            True,
            "expected false: topics are created by create_topic()",
        ),
        (LogConfig, "shared", "yes", "shared: expected one of no, locks, found 'yes'"),
    ],
)
def test_a_bad_value_is_refused_with_key_range_and_value(
    cls: type[Options], name: str, value: object, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(cls, {name: value})
    assert text in str(caught.value)


def test_texts_and_numpys_numbers_are_taken() -> None:
    config = parse(
        TopicConfig,
        {
            "segment.bytes": np.int64(1000),
            "preallocate": "True",
            "cleanup.policy": "compact, delete",
        },
    )
    assert type(config.segment_bytes) is int
    assert config.preallocate is True
    assert config.cleanup_policy == ("compact", "delete")
    assert config.compacted
    assert (
        parse(LogConfig, file_mode="0o640").file_mode
        == parse(LogConfig, file_mode=0o640).file_mode
        == 0o640
    )
    assert parse(ProducerConfig, acks=1).acks == "1"
    assert parse(ProducerConfig, acks=-1).acks == "all"


@pytest.mark.parametrize(
    "text", ["by_duration:P3D", "by_duration:PT1H", "by_duration:P1DT2H3M4.5S"]
)
def test_a_duration_to_go_back(text: str) -> None:
    assert parse(ConsumerConfig, auto_offset_reset=text).auto_offset_reset == text


@pytest.mark.parametrize(
    "text", ["by_duration:P", "by_duration:PT", "by_duration:-P1D", "by_duration:", "P1D"]
)
def test_a_duration_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        parse(ConsumerConfig, auto_offset_reset=text)


@each_class
def test_a_configuration_is_frozen_comparable_and_made_directly_too(cls: type[Options]) -> None:
    assert parse(cls) == cls()
    with pytest.raises(AttributeError, match=f"a {cls.__name__} cannot be changed: given"):
        parse(cls).given = frozenset()  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot be changed"):
        del parse(cls).given
    assert pickle.loads(pickle.dumps(parse(cls))) == cls()


def test_a_configuration_made_directly_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"segment\.bytes"):
        TopicConfig(segment_bytes=5)
    with pytest.raises(
        TypeError,
        match=r"TopicConfig\.__init__\(\) got an unexpected keyword argument 'segment_size'",
    ):
        TopicConfig(segment_size=5)  # type: ignore[call-arg]


def test_configurations_are_compared_and_shown_by_their_values() -> None:
    default = TopicConfig()
    same = parse(TopicConfig, {"flush.ms": TopicConfig().flush_ms})
    other = TopicConfig(flush_ms=7)
    assert same.given
    assert same == default
    assert hash(same) == hash(default)
    assert repr(same) == repr(default)
    assert other != default
    assert repr(other) == repr(default).replace(f"flush_ms={default.flush_ms}", "flush_ms=7")
    assert repr(default).startswith("TopicConfig(cleanup_policy=('delete',), retention_ms=-1, ")
    assert "given" not in repr(same)
    assert default != LogConfig()
    assert default != repr(default)


# ---- options together ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "options", "text"),
    [
        (
            TopicConfig,
            {"min.compaction.lag.ms": 6, "max.compaction.lag.ms": 5},
            "at most max.compaction.lag.ms (5), found 6",
        ),
        (
            ProducerConfig,
            {"enable.idempotence": True, "acks": 1},
            "acks: expected all, because of idempotence, found 1",
        ),
        (
            ProducerConfig,
            {"transactional.id": "t", "retries": 0},
            "retries: expected above 0, because of idempotence, found 0",
        ),
        (
            ProducerConfig,
            {"transactional.id": "t", "enable.idempotence": False},
            "because transactional.id is set",
        ),
        (
            ProducerConfig,
            {"delivery.timeout.ms": 30004},
            "at least linger.ms + request.timeout.ms (30005), found 30004",
        ),
        (
            ConsumerConfig,
            {"heartbeat.interval.ms": 45000},
            "below session.timeout.ms (45000), found 45000",
        ),
        (ConsumerConfig, {"enable.auto.commit": True}, "false, because there is no group.id"),
        (ConsumerConfig, {"check.crcs": False}, "every batch is checked"),
        (ConsumerConfig, {"allow.auto.create.topics": True}, "create_topic()"),
    ],
)
def test_a_contradiction_that_the_user_wrote_is_an_error(
    cls: type[Options], options: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(cls, options)
    assert text in str(caught.value)


def test_a_contradiction_with_a_default_gives_way() -> None:
    assert not parse(ProducerConfig, acks=0).enable_idempotence
    assert not parse(ProducerConfig, max_in_flight_requests_per_connection=6).enable_idempotence
    assert parse(ProducerConfig, request_timeout_ms=200_000).delivery_timeout_ms == 200_005
    assert not parse(ConsumerConfig).enable_auto_commit
    assert parse(ConsumerConfig, group_id="g").enable_auto_commit


# ---- settings that a topic inherits --------------------------------------------------------------


def test_a_topic_inherits_the_logs_defaults_and_overrides_them() -> None:
    log = parse(
        LogConfig, {"log.segment.bytes": 1000, "log.flush.interval.ms": 7, "message.max.bytes": 50}
    )
    config = log.topic_config({"flush.ms": "9", "segment.bytes": "1000"})
    assert (
        config.segment_bytes,
        config.flush_ms,
        config.max_message_bytes,
        config.retention_ms,
    ) == (1000, 9, 50, -1)
    assert config.overrides() == {"flush.ms": "9", "segment.bytes": "1000"}, (
        "also where it equals the default"
    )


def test_the_finest_unit_that_was_set_wins() -> None:
    def retention(**options: object) -> int:
        return parse(LogConfig, options).topic_config({}).retention_ms

    assert retention() == -1
    assert retention(log_retention_hours=2) == 7_200_000
    assert retention(log_retention_hours=2, log_retention_minutes=1) == 60_000
    assert retention(log_retention_hours=2, log_retention_ms=-1) == -1
    assert retention(log_retention_minutes=-1) == -1
    config = parse(LogConfig, log_roll_hours=1, log_roll_jitter_hours=2).topic_config({})
    assert (config.segment_ms, config.segment_jitter_ms) == (3_600_000, 7_200_000)


def test_a_default_that_no_topic_could_have_is_refused_when_the_log_opens() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"):
        parse(LogConfig, log_cleaner_min_compaction_lag_ms=6, log_cleaner_max_compaction_lag_ms=5)
    with pytest.raises(ConfigError, match=r"at most group\.max\.session\.timeout\.ms"):
        parse(LogConfig, group_min_session_timeout_ms=6000, group_max_session_timeout_ms=5999)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"segment.bytes": 100}, "segment.bytes"),
        ({"max.message.bytes": 100}, "max.message.bytes"),
        ({"segment.bytes": 100, "max.message.bytes": 101}, "segment.bytes"),
    ],
)
def test_the_setting_that_limits_a_batch_is_the_one_that_is_named(
    settings: dict[str, int], name: str
) -> None:
    config = parse(TopicConfig, settings)
    config.check_batch(100, "a batch")
    with pytest.raises(
        RecordTooLargeError,
        match=rf"^a batch is larger than {name}: expected at most 100 bytes.*, found 101$",
    ):
        config.check_batch(101, "a batch")


def test_a_setting_that_only_another_version_knows_does_not_hinder_this_one() -> None:
    # of a newer and an older one
    stored = {"hologram.depth": "9", "message.format.version": "3.0", "flush.ms": "5"}
    assert LogConfig().topic_config(stored).flush_ms == 5
