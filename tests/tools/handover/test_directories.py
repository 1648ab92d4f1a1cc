"""Directories that are given to a broker and taken back; the broker is a lock and a metadata log
made by hand.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import (
    CorruptRecordError,
    DirectoryInUseError,
    ForeignDirectoryError,
    ReplicaSetError,
    StateError,
    UnsupportedFormatError,
)
from embedlog.storage import file_names
from embedlog.storage.identity import read_clean_mark, read_meta, read_topic_id, write_meta
from embedlog.tools.handover import (
    from_kafka,
    metadata_image,
    metadata_log,
    server_properties,
    to_kafka,
)
from embedlog.tools.handover import metadata_records as records
from embedlog.tools.handover.held_directory import identity
from embedlog.tools.handover.server_properties import Addresses
from tests.support.given_directories import (
    CONFIG,
    SETTINGS,
    broker,
    by_name,
    change,
    check_changed,
    check_records,
    create,
    give,
    make,
    take,
)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    directory = make(tmp_path / "data")
    give(directory)
    return directory


def test_a_broker_gets_the_topics_with_their_ids_and_settings(given: Path) -> None:
    image, log = metadata_image.read(given)
    meta = identity(given)
    with embedlog.open(given, read_only=True) as opened:
        wanted = {
            name: opened.describe_topic(name) for name in opened.topics(include_internal=True)
        }
    assert {
        topic.name: (topic.topic_id, len(topic.partitions)) for topic in image.topics.values()
    } == {name: (topic.topic_id, len(topic.partitions)) for name, topic in wanted.items()}
    assert image.settings_of("kept") == SETTINGS | {"segment.bytes": "1048576"}
    assert image.features == to_kafka.FEATURES
    assert log.end > 0
    for partition in by_name(image, "kept").partitions.values():
        assert (partition.replicas, partition.isr, partition.leader) == (
            (1,),
            (1,),
            records.NO_LEADER,
        )
        assert partition.directories == (meta.directory_id,)
    assert server_properties.read(given)["offsets.topic.num.partitions"] == "1"


def test_changes_of_the_broker_come_back(given: Path) -> None:
    with broker(given) as image:
        change(given, image)
    found = take(given)
    assert (found.created, found.deleted, found.set_aside) == (["new"], ["gone"], ["gone-0"])
    assert check_changed(given) == []
    assert not (given / file_names.SERVER_PROPERTIES).exists()
    assert [each.name for each in given.glob("gone-0.*-stray")]
    assert [each.name for each in found.settings if each.outcome != "carried over"] == [
        "remote.storage.enable"
    ]


def test_a_second_handover_continues_the_metadata_of_the_first(given: Path) -> None:
    with broker(given) as image:
        image.others.append(b"\1\x12\0an access control entry")
        image.settings[records.BROKER_SETTINGS, ""] = {
            "log.cleaner.threads": "2",
            "min.insync.replicas": "1",
        }
        image.producer_ids = records.ProducerIds(1, 40, 7000)
        image.features["metadata.version"] = 30
    found = take(given)
    assert found.lost == ["access control entries"]
    assert [each.name for each in found.settings if each.topic is None] == ["log.cleaner.threads"]
    with embedlog.open(given, config=CONFIG) as log:
        log.delete_topic("gone")
        log.alter_topic("kept", {"retention.ms": "9"})
    before = metadata_image.read(given)[1].end
    give(given)
    image, log_of = metadata_image.read(given)
    assert log_of.end > before
    assert b"\1\x12\0an access control entry" in image.others
    assert image.settings[records.BROKER_SETTINGS, ""] == {
        "log.cleaner.threads": "2",
        "min.insync.replicas": "1",
    }
    assert image.producer_ids == records.ProducerIds(1, 40, 7000)
    assert image.features["metadata.version"] == 30
    assert "gone" not in {topic.name for topic in image.topics.values()}
    assert image.settings_of("kept")["retention.ms"] == "9"


def test_leader_epochs_and_broker_epoch_never_fall(given: Path) -> None:
    with broker(given) as image:
        kept = by_name(image, "kept")
        kept.partitions[0] = records.PartitionRecord(kept.topic_id, 0, (1,), (1,), 1, 12, 30)
        register = (
            b"\1\0\0" + struct.pack(">i", 1) + bytes(16) + struct.pack(">q", 77) + b"\1\1\0\0\0"
        )
        image.others.append(register)
        assert records.decode(register) == records.RegisterBrokerRecord(1, 77, ())
    take(given)
    assert read_clean_mark(given) == -1
    give(given)
    partition = by_name(metadata_image.read(given)[0], "kept").partitions[0]
    assert (partition.leader_epoch, partition.partition_epoch) == (12, 31)
    assert read_clean_mark(given) == 77


def test_producer_ids_of_an_earlier_broker_are_not_assigned_again(
    golden_copy: Callable[[str], Path],
) -> None:
    directory = golden_copy("clean")
    embedlog.open(directory).close()
    give(directory)
    found = metadata_image.read(directory)[0].producer_ids
    assert found is not None
    assert found.following >= 1000
    assert found.following % 1000 == 0


def test_the_metadata_can_be_in_a_directory_of_their_own(tmp_path: Path) -> None:
    directory = make(tmp_path / "data")
    metadata = tmp_path / "metadata"
    give(directory, {"log.retention.ms": "99"}, metadata)
    values = server_properties.read(directory)
    assert (values["metadata.log.dir"], values["log.retention.ms"]) == (str(metadata), "99")
    assert not (directory / metadata_log.NAME).exists()
    own = read_meta(directory)
    other = read_meta(metadata)
    assert own is not None
    assert other is not None
    assert (own.cluster_id, own.node_id) == (other.cluster_id, other.node_id)
    assert own.directory_id != other.directory_id
    with broker(directory, metadata) as image:
        change(directory, image)
    take(directory)  # the configuration file names the other directory
    assert check_changed(directory) == []


def test_a_directory_that_was_left_open_by_a_crash_is_recovered(given: Path) -> None:
    with broker(given, killed=True) as image:
        change(given, image)
    assert not take(given).clean
    assert check_changed(given) == []


# ---- repetition ----------------------------------------------------------------------------------


def test_each_direction_can_be_repeated(given: Path) -> None:
    once = metadata_image.read(given)[0]
    give(given)
    twice = metadata_image.read(given)[0]
    assert {each.name for each in once.topics.values()} == {
        each.name for each in twice.topics.values()
    }
    with broker(given) as image:
        change(given, image)
    from_kafka.take_back(given, None)
    from_kafka.take_back(given, None)
    take(given)
    assert check_changed(given) == []


def test_nothing_is_taken_back_if_no_broker_was_there(given: Path) -> None:
    with embedlog.open(given, config=CONFIG) as log:
        log.create_topic("later")
    with pytest.raises(StateError, match="nothing to take back"):
        take(given)
    assert not (given / file_names.SERVER_PROPERTIES).exists()
    with embedlog.open(given, read_only=True) as log:
        assert set(log.topics()) == {"gone", "kept", "later"}
        assert check_records(log) == []


def test_a_topic_that_was_made_anew_leaves_the_old_records_aside(given: Path) -> None:
    with broker(given) as image:
        del image.topics[by_name(image, "gone").topic_id]
        topic_id = create(image, given, "gone", 1, made=0)
    found = take(given)
    assert (found.created, found.deleted, found.set_aside) == (["gone"], ["gone"], ["gone-0"])
    assert read_topic_id(given / "gone-0") == topic_id


def test_a_partition_without_an_id_gets_that_of_its_topic(given: Path) -> None:
    with broker(given) as image:
        create(image, given, "new", 1, made=1)
        (given / "new-0" / "partition.metadata").unlink()
        (given / "kept-0" / "partition.metadata").unlink()
        (given / "unknown-0").mkdir()
    assert take(given).set_aside == ["unknown-0"]
    kept = {topic.name: topic.topic_id for topic in metadata_image.read(given)[0].topics.values()}
    assert (read_topic_id(given / "new-0"), read_topic_id(given / "kept-0")) == (
        kept["new"],
        kept["kept"],
    )
    with embedlog.open(given, read_only=True) as log:
        assert check_records(log) == []


# ---- refusals ------------------------------------------------------------------------------------


def test_an_open_directory_is_refused(tmp_path: Path) -> None:
    directory = make(tmp_path / "data")
    with (
        embedlog.open(directory),
        pytest.raises(DirectoryInUseError, match="the directory is open"),
    ):
        give(directory)
    assert not (directory / metadata_log.NAME).exists()


def test_a_directory_that_a_broker_used_is_taken_back_first(given: Path) -> None:
    with broker(given) as image:
        change(given, image)
    with pytest.raises(ForeignDirectoryError, match="handover from-kafka"):
        give(given)
    take(given)
    give(given)


def test_settings_of_groups_are_named_and_are_there_in_the_next_handover(given: Path) -> None:
    of_group = (records.GROUP_SETTINGS, "sg")
    with broker(given) as image:
        image.settings[of_group] = {"share.auto.offset.reset": "earliest"}
        image.settings[records.CLIENT_METRICS_SETTINGS, "slow"] = {"interval.ms": "1000"}
        image.settings[records.BROKER_SETTINGS, "1"] = {"log.cleaner.threads": "2"}
    named = [each for each in take(given).settings if each.topic is None]
    assert [(each.name, each.outcome, each.reason.partition(":")[0]) for each in named] == [
        ("log.cleaner.threads", "lost", "a setting of the broker"),
        ("interval.ms", "carried over", "of the client metrics slow"),
        ("share.auto.offset.reset", "carried over", "of the group sg"),
    ]
    give(given)
    assert metadata_image.read(given)[0].settings[of_group] == {
        "share.auto.offset.reset": "earliest"
    }


def test_settings_of_the_broker_that_were_not_taken_back_are_named(given: Path) -> None:
    assert [each for each in give(given).settings if "taken back" in each.reason] == []
    with broker(given) as image:
        change(given, image)
    embedlog.open(given).close()
    named = [each for each in give(given).settings if "taken back" in each.reason]
    assert [(each.topic, each.name, each.value, each.outcome) for each in named] == [
        ("kept", "cleanup.policy", "compact", "lost"),
        ("kept", "retention.ms", "7", "lost"),
        ("new", "remote.storage.enable", "false", "lost"),
        ("new", "retention.bytes", "55", "lost"),
    ]
    with embedlog.open(given, read_only=True) as log:
        assert check_records(log) == []


def test_a_directory_that_is_not_closed_is_not_given(tmp_path: Path) -> None:
    directory = make(tmp_path / "data")
    (directory / ".kafka_cleanshutdown").unlink()
    with pytest.raises(StateError, match="not closed in order"):
        to_kafka.hand_over(directory, None, Addresses(), {})
    with pytest.raises(ForeignDirectoryError, match="not a log directory"):
        give(tmp_path)


def test_a_directory_beside_which_no_broker_starts_is_named(given: Path) -> None:
    (given / "notes").mkdir()
    with pytest.raises(ForeignDirectoryError, match=r"data/notes: a broker does not start"):
        give(given)


def test_a_directory_of_a_set_is_refused(tmp_path: Path) -> None:
    with embedlog.open([tmp_path / "a", tmp_path / "b"]) as log:
        log.create_topic("t")
        log.backup(tmp_path / "copy")
    for step in (give, take):
        with pytest.raises(ReplicaSetError, match="embedlog backup"):
            step(tmp_path / "a")
    give(tmp_path / "copy")


def test_identities_and_brokers_that_do_not_fit_are_refused(given: Path, tmp_path: Path) -> None:
    elsewhere = make(tmp_path / "elsewhere")
    with pytest.raises(ForeignDirectoryError, match="another cluster or node"):
        give(given, metadata=elsewhere)
    with broker(given) as image:
        pass
    with pytest.raises(ForeignDirectoryError, match="no metadata log"):
        take(given, metadata=elsewhere)
    shutil.copytree(given / metadata_log.NAME, elsewhere / metadata_log.NAME)
    with pytest.raises(ForeignDirectoryError, match="another cluster or node"):
        take(given, metadata=elsewhere)
    place = given / metadata_log.NAME
    register = (
        b"\1\0\3" + struct.pack(">i", 2) + bytes(17) + struct.pack(">q", 77) + b"\1\1\0\0\0\0"
    )
    _add(place, register)
    with pytest.raises(ForeignDirectoryError, match="other brokers"):
        take(given)
    own = (
        b"\1\0\3"
        + struct.pack(">i", 1)
        + bytes(17)
        + struct.pack(">q", 77)
        + b"\1\1\0\0\0\1\0\x11\2"
        + bytes(range(16))
    )
    _add(place, b"\1\1\0" + struct.pack(">i", 2) + bytes(9), own)
    with pytest.raises(ForeignDirectoryError, match="other log directories"):
        take(given)
    assert image is not None


def _add(place: Path, *values: bytes) -> None:
    """Append records to the metadata log, as a snapshot after its end."""
    image, log = metadata_image.read(place.parent)
    data = metadata_log.snapshot([*image.values(2), *values], {}, 1, 0)
    (place / metadata_log.snapshot_name(log.end + 1, 1)).write_bytes(data)


def test_a_cluster_with_other_controllers_is_refused(given: Path) -> None:
    with broker(given):
        pass
    take(given)
    image, log = metadata_image.read(given)
    place = given / metadata_log.NAME
    voters = {1: b"\0\0\2", 2: b"\0\0\3", -1: b"\0\0"}
    for number, (count, value) in enumerate(voters.items(), 1):
        raft = {metadata_log.RAFT_VERSION: b"\0\0\0\1\0", metadata_log.VOTERS: value}
        data = metadata_log.snapshot(image.values(2), raft, 1, 0)
        (place / metadata_log.snapshot_name(log.end + number, 1)).write_bytes(data)
        if count == 1:
            assert (
                "controller.quorum.bootstrap.servers"
                in to_kafka.plan(given, None, Addresses(), {}).properties
            )
            continue
        with pytest.raises(
            ForeignDirectoryError if count == 2 else CorruptRecordError, match=r"controllers|voters"
        ):
            give(given)


def test_an_old_cluster_is_refused(given: Path) -> None:
    with broker(given) as image:
        image.features["metadata.version"] = 16
    take(given)
    with pytest.raises(UnsupportedFormatError, match="raise it with kafka-features"):
        give(given)


def test_identities_without_a_directory_id_are_named(tmp_path: Path) -> None:
    directory = make(tmp_path / "data")
    meta = read_meta(directory)
    assert meta is not None
    write_meta(directory, type(meta)(1, meta.cluster_id, meta.node_id))
    with pytest.raises(ForeignDirectoryError, match=r"directory\.id"):
        to_kafka.plan(directory, None, Addresses(), {})
    give(directory)  # opening it draws one
