"""Each small file of a directory that is damaged: a cache stops nobody, and a repair mends every
other one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import embedlog
from tests.support.broker_directories import GENERATIONS, build

CONFIG: dict[str, Any] = {"housekeeping": False}
DAMAGES: Final[dict[str, Callable[[bytes], bytes | None]]] = {
    "absent": lambda data: None,
    "zeroed": lambda data: bytes(max(len(data), 20)),
    "halved": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(range(1, 250)) * (len(data) // 249 + 1),
}
# A damaged one stops readers or writers until it is repaired, with an error that says so: nothing
# else knows what it says.
NEEDED: Final = {
    "embedlog.topics",
    "log-start-offset-checkpoint",
    "meta.properties",
    "t-0/leader-epoch-checkpoint",
    "t-0/partition.metadata",
}
CACHES_OF_OURS: Final = {
    "cleaner-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "embedlog.control",
    "embedlog.slots",
    "t-0/embedlog.page",
    "t-0/embedlog.durable",
    "t-0/embedlog.manifest",
    f"t-0/{0:020d}.index",
    f"t-0/{0:020d}.timeindex",
    f"t-0/{0:020d}.txnindex",
    f"t-0/embedlog.digests-{0:020d}",
    "*.snapshot",
}
CACHES_OF_BROKERS: Final = {
    "cleaner-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    f"t-0/{0:020d}.index",
    f"t-0/{0:020d}.timeindex",
    "*.snapshot",
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of two segments with a compacted topic beside it, and a log start within a segment."""
    path = tmp_path_factory.mktemp("ours") / "log"
    with embedlog.open(path, config=CONFIG) as log:
        log.create_topic("t", config={"segment.bytes": 2000, "index.interval.bytes": 200})
        log.create_topic(
            "c",
            config={"cleanup.policy": "compact", "segment.ms": 1, "min.cleanable.dirty.ratio": 0.0},
        )
        with log.producer(linger_ms=0) as producer:
            for number in range(24):
                producer.send("t", b"v%d" % number * 30).result()
        with log.producer() as producer:
            for number in range(40):
                producer.send("c", b"v%d" % number, key=b"k%d" % (number % 3)).result()
        log.delete_records({embedlog.TopicPartition("t", 0): 2})
        log.housekeep()
    return path


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = build(
        tmp_path_factory.mktemp("brokers") / "log",
        GENERATIONS[-1],
        closed=True,
        whole=True,
        compacted=False,
    )
    (path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 100\n")
    (path / "replication-offset-checkpoint").write_text("0\n1\nt 0 204\n")
    return path


def content(path: Path, *, read_only: bool) -> list[tuple[int, bytes | None]]:
    with embedlog.open(path, read_only=read_only, config=CONFIG) as log:
        return [(each.offset, each.value) for each in log.scan("t").records()]


def read_or_refusal(
    path: Path, *, read_only: bool
) -> tuple[list[tuple[int, bytes | None]], str | None]:
    try:
        return content(path, read_only=read_only), None
    except embedlog.EmbedlogError as problem:
        return [], str(problem)


def damaged(source: Path, path: Path, name: str, damage: str) -> None:
    shutil.copytree(source, path)
    pattern = name.removeprefix("t-0/")
    folder = path / "t-0" if name.startswith(("t-0/", "*")) else path
    for each in sorted(folder.glob(pattern)) or [folder / pattern]:
        data = each.read_bytes() if each.exists() else b""
        changed = DAMAGES[damage](data)
        if changed is None:
            each.unlink(missing_ok=True)
        else:
            each.write_bytes(changed)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", sorted(CACHES_OF_OURS))
def test_a_cache_of_ours_stops_nobody(ours: Path, tmp_path: Path, name: str, damage: str) -> None:
    check_cache(ours, tmp_path / "log", name, damage)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", sorted(CACHES_OF_BROKERS))
def test_a_cache_of_a_broker_stops_nobody(
    brokers: Path, tmp_path: Path, name: str, damage: str
) -> None:
    check_cache(brokers, tmp_path / "log", name, damage)


def check_cache(source: Path, path: Path, name: str, damage: str) -> None:
    right = content(shutil.copytree(source, path.with_name("right")), read_only=False)
    assert right
    damaged(source, path, name, damage)
    for read_only in (True, False):
        assert content(path, read_only=read_only) == right
        shutil.rmtree(path)
        damaged(source, path, name, damage)
    report = embedlog.check(path)
    assert not report.damaged, str(report)
    report = embedlog.repair(path)
    assert report.good, str(report)
    for read_only in (True, False):
        assert content(path, read_only=read_only) == right


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", sorted(NEEDED))
@pytest.mark.parametrize("source", ["ours", "brokers"])
def test_a_repair_mends_each_other_file(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, name: str, damage: str
) -> None:
    given = request.getfixturevalue(source)
    if source == "brokers" and name == "embedlog.topics":
        pytest.skip("a broker writes none")
    path = tmp_path / "log"
    right = content(shutil.copytree(given, tmp_path / "right"), read_only=False)
    for read_only in (True, False):
        damaged(given, path, name, damage)
        found, refusal = read_or_refusal(path, read_only=read_only)
        if refusal is None:
            assert dict(right).items() <= dict(found).items()
        else:
            assert os.path.basename(name) in refusal
            assert "embedlog repair --execute" in refusal
        shutil.rmtree(path)
    damaged(given, path, name, damage)
    report = embedlog.repair(path)
    assert not report.damaged, str(report)
    for read_only in (True, False):
        found = content(path, read_only=read_only)
        assert dict(right).items() <= dict(found).items()
        deleted = {offset for offset, _ in found} - {offset for offset, _ in right}
        assert not deleted or (
            name.startswith("log-start") and source == "ours" and deleted < {0, 1}
        )


@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_checkpoint_of_a_log_without_topics_is_found(
    tmp_path: Path, is_open: bool
) -> None:
    embedlog.open(tmp_path / "log", config=CONFIG).close()
    checkpoint = tmp_path / "log" / "recovery-point-offset-checkpoint"
    checkpoint.write_text("garbage")
    if is_open:
        with embedlog.open(tmp_path / "log", read_only=True) as log:
            report = log.check()
    else:
        report = embedlog.check(tmp_path / "log")
    assert [Path(finding.path).name for finding in report.findings] == [checkpoint.name]
