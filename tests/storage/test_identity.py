"""Identities: a broker's files are understood and kept; files that a broker would refuse are
refused here, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from embedlog.errors import ForeignDirectoryError, UnsupportedFormatError
from embedlog.storage import identity

ID = "r-C-DlFnRrGUW2o_ts5gyA"


def test_a_brokers_partition_metadata_is_written_back_to_the_byte(
    golden: Path, tmp_path: Path
) -> None:
    paths = list(golden.glob("*/log/*/partition.metadata"))
    assert len(paths) > 40
    for path in paths:
        topic_id = identity.read_topic_id(path.parent)
        assert topic_id is not None
        identity.write_topic_id(tmp_path, topic_id)
        assert (tmp_path / "partition.metadata").read_bytes() == path.read_bytes()
        assert path.stat().st_size == 43


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 0",
        f"version: 0\ntopic: {ID}",
        f"version: -1\ntopic_id: {ID}",
        f"version: 0\ntopic_id: {ID}x",
        "version: 0\ntopic_id: " + "A" * 22,
        f"topic_id: {ID}\nversion: 0",
        "version: 0\ntopic_id: ",
    ],
)
def test_damaged_partition_metadata_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    with pytest.raises(ForeignDirectoryError, match=r"partition\.metadata: malformed line"):
        identity.read_topic_id(tmp_path)


def test_newer_partition_metadata_is_named(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text(f"version: 1\ntopic_id: {ID}")
    with pytest.raises(UnsupportedFormatError, match="expected 0, found 1"):
        identity.read_topic_id(tmp_path)


def test_a_partition_without_an_id_says_so(tmp_path: Path) -> None:
    assert identity.read_topic_id(tmp_path) is None


def test_new_ids_are_ones_that_kafka_would_make() -> None:
    draws = iter([b"\xf8" + bytes(15), bytes(range(16))])
    assert identity.new_id(lambda size: next(draws)) == identity.id_text(
        bytes.fromhex("000102030405460788090a0b0c0d0e0f")
    )
    assert len({identity.new_id() for _ in range(100)}) == 100
    assert identity.id_text(identity.id_bytes(ID)) == ID


def test_a_brokers_meta_properties_are_read_and_left_alone(golden_copy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    directory = golden_copy("clean")
    before = (directory / "meta.properties").read_bytes()
    meta = identity.ensure_meta(directory)
    assert (meta.version, meta.cluster_id, meta.node_id) == (1, "embedlogoracle000000AA", 1)
    assert meta.directory_id is not None
    assert (directory / "meta.properties").read_bytes() == before


def test_a_missing_directory_id_is_added_and_strangers_values_stay(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text(
        "#\n! a comment\n version = 1\ncluster.id:a\\:b\\u0041\nnode.id 7\nfuture.key=x\\=y\n"
    )
    meta = identity.ensure_meta(tmp_path)
    assert (meta.cluster_id, meta.node_id, meta.others) == ("a:bA", 7, {"future.key": "x=y"})
    assert identity.read_meta(tmp_path) == meta
    assert identity.ensure_meta(tmp_path) == meta


def test_a_new_directory_gets_an_identity_once(tmp_path: Path) -> None:
    meta = identity.ensure_meta(tmp_path)
    assert (meta.version, meta.node_id, len(meta.cluster_id)) == (1, 1, 22)
    assert identity.ensure_meta(tmp_path) == meta


def test_the_zookeeper_layout_is_readable_and_stays_one(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=c\n")
    meta = identity.ensure_meta(tmp_path)
    assert (meta.version, meta.node_id) == (0, 3)
    assert "broker.id=3" in (tmp_path / "meta.properties").read_text()


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("version=1\nnode.id=1\n", "cluster.id is missing"),
        ("version=1\ncluster.id=c\n", "node.id"),
        ("version=1\ncluster.id=c\nnode.id=-1\n", "node.id"),
        ("version=x\n", "version"),
        ("\x00\x01binary", "node.id|broker.id"),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAYw\n", "reserves"),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=short\n", "directory.id"),
    ],
)
def test_an_identity_that_a_broker_would_refuse_is_refused(
    tmp_path: Path, text: str, refusal: str
) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(ForeignDirectoryError, match=refusal):
        identity.ensure_meta(tmp_path)
    assert (tmp_path / "meta.properties").read_text() == text


def test_newer_meta_properties_are_named(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=2\n")
    with pytest.raises(UnsupportedFormatError, match="expected 0 or 1, found 2"):
        identity.read_meta(tmp_path)


def test_the_clean_mark_is_kafkas(golden: Path, tmp_path: Path) -> None:
    assert identity.read_clean_mark(golden / "unclean" / "log") is None
    epoch = identity.read_clean_mark(golden / "clean" / "log")
    assert epoch is not None
    assert epoch > 0
    identity.write_clean_mark(tmp_path, epoch)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == (
        golden / "clean" / "log" / ".kafka_cleanshutdown"
    ).read_bytes()
    assert identity.remove_clean_mark(tmp_path)
    assert not identity.remove_clean_mark(tmp_path)
    assert identity.read_clean_mark(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"brokerEpoch":"7"}'])
def test_a_clean_mark_counts_by_existing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    assert identity.read_clean_mark(tmp_path) == -1


def test_control_characters_of_strangers_values_stay(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text("version=1\nnode.id=7\ncluster.id=c\nx=a\\tb\\u000ac\\f\\r\n")
    others = {"x": "a\tb\nc\f\r"}
    assert identity.ensure_meta(tmp_path).others == others  # which writes the file again
    meta = identity.read_meta(tmp_path)
    assert meta is not None
    assert meta.others == others
