"""A check calls no sound directory of a broker damaged, names what is missing in others, and its
status follows from that.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.integrity import report
from embedlog.integrity.directory_check import check_closed
from embedlog.tools.cli.program import main
from tests.support.broker_directories import GENERATIONS, Generation, batch, build

NEWEST = GENERATIONS[-1]


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.name)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("whole", [True, False], ids=["all-files", "logs-only"])
@pytest.mark.parametrize("compacted", [False, True], ids=["dense", "compacted"])
def test_a_sound_directory_of_any_generation_has_no_damage(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    generation: Generation,
    closed: bool,
    whole: bool,
    compacted: bool,
) -> None:
    path = build(tmp_path / "left", generation, closed=closed, whole=whole, compacted=compacted)
    found = embedlog.check(path)
    assert not found.damaged, str(found)
    assert "no sign of a compaction" not in caplog.text


def dense(tmp_path: Path) -> Path:
    return build(tmp_path / "left", NEWEST, closed=True, whole=True, compacted=False)


def test_a_middle_segment_that_is_missing_is_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = dense(tmp_path)
    for each in (path / "t-0").glob(f"{100:020d}.*"):
        each.unlink()
    with caplog.at_level(logging.WARNING, "embedlog"):
        found = embedlog.check(path)
    [gap] = [each for each in found.findings if each.kind == "gap"]
    assert (gap.severity, gap.first_offset, gap.end_offset, gap.topic, gap.partition) == (
        "damage",
        100,
        200,
        "t",
        0,
    )
    assert "offsets 100 to 199 are missing, and there is no sign of a compaction" in caplog.text
    assert "offsets 100 to 199" in str(found)
    assert main(("-d", str(path), "check")) == 1
    (path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 200\n")
    assert not embedlog.check(path).damaged


def test_a_repair_accepts_a_gap_that_nothing_explains(tmp_path: Path) -> None:
    path = dense(tmp_path)
    (path / "t-0" / f"{100:020d}.log").unlink()
    found = embedlog.repair(path)
    assert any("offset 100 to 199" in each for each in found.repaired)
    assert found.good, str(found)
    assert embedlog.check(path).good


def test_a_gap_before_the_last_batch_alone_shows_no_compaction(tmp_path: Path) -> None:
    """One changed bit of an offset, which Kafka's checksum does not cover, makes the same."""
    path = dense(tmp_path)
    log = path / "t-0" / f"{200:020d}.log"
    log.write_bytes(log.read_bytes() + batch(300, [(300, None, b"far")], epoch=4))
    found = embedlog.check(path)
    assert [
        (each.kind, each.first_offset, each.end_offset)
        for each in found.findings
        if each.severity == "damage"
    ] == [("gap", 204, 300)]


def test_what_a_reader_refuses_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from embedlog.partition.partition import Partition

    path = dense(tmp_path)

    def refuse(self: Partition, offset: int, **options: Any) -> None:
        raise embedlog.CorruptRecordError("refused", path=self.path / f"{100:020d}.log", position=7)

    monkeypatch.setattr(Partition, "fetch", refuse)
    found = embedlog.check(path)
    [unread] = [each for each in found.findings if each.severity == "damage"]
    assert (unread.kind, unread.message, unread.position, unread.topic) == (
        "unreadable",
        "refused",
        7,
        "t",
    )


@pytest.mark.parametrize("kind", sorted(report.KINDS))
def test_the_status_follows_from_the_severity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    embedlog.open(tmp_path / "log").close()
    finding = report.Finding(kind, "file", "message")
    found = report.CheckReport((finding,))
    monkeypatch.setattr(embedlog, "check", lambda *args, **options: found)
    status = main(("-d", str(tmp_path / "log"), "check"))
    severity, meaning, remedy = report.KINDS[kind]
    assert severity in (report.DAMAGE, report.CACHE, report.NOTE)
    assert status == (0 if severity == report.NOTE else 1)
    assert found.good is (severity == report.NOTE)
    assert found.damaged is (severity == report.DAMAGE)
    output = capsys.readouterr().out
    for text in (f"{severity}: file: message", meaning, remedy):
        assert text in output


def test_a_manifest_from_before_a_visit_describes_nothing(tmp_path: Path) -> None:
    """A broker wrote after the manifest, and embedlog has opened the directory since, but not this
    partition.
    """
    path = dense(tmp_path)
    with embedlog.open(path, config={"housekeeping": False}) as log:
        expected = [each.offset for each in log.scan("t").records()]
    log_file = path / "t-0" / f"{200:020d}.log"
    log_file.write_bytes(
        log_file.read_bytes()
        + b"".join(batch(at, [(at, None, b"b")], epoch=4) for at in range(204, 300))
    )
    for name in ("index", "timeindex"):
        (path / "t-0" / f"{200:020d}.{name}").unlink()
    (path / ".kafka_cleanshutdown").unlink()
    (path / ".kafka_cleanshutdown").write_bytes(NEWEST.mark)
    with embedlog.open(path, config={"housekeeping": False}) as log:
        log.create_topic("other")
    found = embedlog.check(path)
    assert not found.damaged, str(found)
    checked = check_closed(path)
    assert not checked.damaged, str(checked)
    repaired = embedlog.repair(path)
    assert not repaired.damaged
    assert not list((path / "t-0").glob("embedlog.cut-*"))
    with embedlog.open(path, config={"housekeeping": False}) as log:
        assert [each.offset for each in log.scan("t").records()] == [*expected, *range(204, 300)]


@pytest.mark.parametrize(
    ("epochs", "emptied"),
    [
        ("29 2000", True),
        ("29 1000", True),
        ("3 0\n9 100", False),
        ("29 0", False),
        ("3 0\n29 5000", False),
        ("", False),
    ],
)
def test_a_repair_keeps_the_last_epoch(tmp_path: Path, epochs: str, emptied: bool) -> None:
    path = dense(tmp_path)
    partition = path / "t-0"
    if emptied:
        for each in partition.glob("0*"):
            each.unlink()
        (partition / f"{1000:020d}.log").touch()
        (path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 1000\n")
    lines = epochs.splitlines()
    (partition / "leader-epoch-checkpoint").write_text(
        "\n".join(["0", str(len(lines)), *lines, ""])
    )
    repaired = embedlog.repair(path)
    assert not repaired.damaged, str(repaired)
    highest = max(int(line.split()[0]) for line in [*lines, "4 100"][: len(lines) or None])
    with embedlog.open(path, config={"housekeeping": False}) as log, log.producer() as producer:
        before = [each.leader_epoch for each in log.scan("t").records()]
        assert before == ([] if emptied else [3] * 100 + [4] * 104)
        offset = producer.send("t", b"new").result().offset
        assert offset == (1000 if emptied else 204)
        [new] = log.scan("t", start_offset=offset).records()
        assert new.leader_epoch >= highest
