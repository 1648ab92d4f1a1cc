"""Every look at the files of a log is consistent or repeated while other processes compact, roll,
delete and append.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import embedlog
from embedlog.partition import segment_info
from embedlog.partition.segment_list import SegmentList
from embedlog.storage import files
from embedlog.tools.cli.program import main

PATIENT_S: Final = 20.0
STORM_S: Final = 4.0
CONFIG: Final[dict[str, Any]] = {
    "housekeeping": False,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
TOPIC: Final = "t"
SETTINGS: Final = {
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
    "index.interval.bytes": "100",
}
COMPACTED: Final = SETTINGS | {"cleanup.policy": "compact"}
DELETED: Final = SETTINGS | {"cleanup.policy": "delete", "retention.bytes": "3000"}


def write(producer: embedlog.Producer, count: int = 60) -> None:
    for number in range(count):
        producer.send(TOPIC, b"x" * (50 + number % 90), key=b"k%d" % (number % 7))
        if number % 5 == 0:
            producer.flush()
    producer.flush()


# ---- what other processes do -------------------------------------------------------------------------------


def compact_or_retain(log: embedlog.Log, producer: embedlog.Producer) -> None:
    write(producer, 30)
    log.housekeep()


def roll(log: embedlog.Log, producer: embedlog.Producer) -> None:
    write(producer, 30)


def delete_records(log: embedlog.Log, producer: embedlog.Producer) -> None:
    tp = embedlog.TopicPartition(TOPIC, 0)
    log.delete_records({tp: log.describe_topic(TOPIC).partitions[0].log_end_offset})


CHANGES: Final = {
    "compaction": (COMPACTED, compact_or_retain),
    "retention": (DELETED, compact_or_retain),
    "rolls": (COMPACTED, roll),
    "deleted records": (DELETED, delete_records),
}

# ---- who looks ---------------------------------------------------------------------------------------------


def describe(log: embedlog.Log, root: Path) -> None:
    [partition] = log.describe_topic(TOPIC).partitions
    assert partition.size_bytes is not None
    assert partition.size_bytes >= 0


def metrics(log: embedlog.Log, root: Path) -> None:
    assert log.metrics()


def check(log: embedlog.Log, root: Path) -> None:
    report = log.check()
    assert report.good, str(report)


def check_in_a_storm(log: embedlog.Log, root: Path) -> None:
    """A partition may be replaced during each try of a check; that is told, and it is no damage."""
    report = log.check()
    assert all(
        finding.kind == "unsettled" or finding.severity == "note" for finding in report.findings
    ), str(report)


def check_directory(log: embedlog.Log, root: Path) -> None:
    report = embedlog.check(root)
    assert report.good, str(report)


def back_up(log: embedlog.Log, root: Path) -> None:
    target = root.parent / f"copy-{time.monotonic_ns()}"
    log.backup(target)
    report = embedlog.check(target)
    assert report.good, str(report)


def transactions(log: embedlog.Log, root: Path) -> None:
    assert log.open_transactions() == []


def scan(log: embedlog.Log, root: Path) -> None:
    try:
        assert log.scan(TOPIC).num_rows >= 0
        assert log.scan(TOPIC, start_time=1_600_000_000_000).num_rows >= 0
    except embedlog.OffsetOutOfRangeError:  # its first records were deleted meanwhile
        assert log.describe_topic(TOPIC).partitions[0].log_start_offset > 0


def command(*words: str) -> Callable[[embedlog.Log, Path], None]:
    def run(log: embedlog.Log, root: Path) -> None:
        assert main(("-d", str(root), *words)) == 0

    return run


LOOKS: Final[dict[str, Callable[[embedlog.Log, Path], None]]] = {
    "describe_topic": describe,
    "metrics": metrics,
    "check": check,
    "embedlog.check": check_directory,
    "backup": back_up,
    "open_transactions": transactions,
    "scan": scan,
    "du": command("du"),
    "ls": command("ls", TOPIC),
    "topics --describe": command("topics", "--describe"),
    "metrics --prometheus": command("metrics", "--prometheus"),
    "offsets": command("offsets"),
}


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("between", ["listing", "stat"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_the_listing_and_the_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    look: str,
    read_only: bool,
    between: str,
) -> None:
    root = tmp_path / "log"
    settings, work = CHANGES[change]
    changed = 0
    busy = False
    with embedlog.open(root, config=CONFIG) as other, other.producer() as producer:
        other.create_topic(TOPIC, config=settings)
        write(producer)
        listing = files.listing
        describing = segment_info.info_from_files

        def change_once(path: Any) -> None:
            nonlocal changed, busy
            if os.path.basename(os.fspath(path)) != f"{TOPIC}-0" or busy or changed > 2:
                return
            busy = True
            try:
                work(other, producer)
                changed += 1
            except (embedlog.LockTimeoutError, embedlog.StateError):
                pass  # the look holds a lock: nothing can change
            finally:
                busy = False

        def list_then_change(path: Any, *arguments: Any, **options: Any) -> Any:
            names = listing(path, *arguments, **options)
            change_once(path)
            return names

        def change_then_describe(directory: Path, *arguments: Any) -> Any:
            change_once(directory)
            return describing(directory, *arguments)

        with (
            embedlog.open(root, read_only=read_only, config=CONFIG) as log,
            monkeypatch.context() as patch,
        ):
            if between == "listing":
                patch.setattr(files, "listing", list_then_change)
            else:
                patch.setattr(
                    "embedlog.partition.segment_list.info_from_files", change_then_describe
                )
            patch.setattr(
                SegmentList, "_list_manifest", lambda self, now: self._list_directory(now, {})
            )
            LOOKS[look](log, root)
        # they read few files
        assert changed or look in (
            "offsets",
            "open_transactions",
            "metrics",
            "metrics --prometheus",
        )


def storm(root: Path) -> None:
    """Write and compact until killed."""
    log = embedlog.open(root, config=CONFIG)
    producer = log.producer()
    while True:
        write(producer, 300)
        log.housekeep()


def test_a_storm_of_compactions(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with embedlog.open(root, config=CONFIG) as log:
        log.create_topic(TOPIC, config=COMPACTED | {"segment.bytes": "8000"})
    code = (
        "import sys, pathlib; from tests.partition.test_looks_at_files import storm; "
        "storm(pathlib.Path(sys.argv[1]))"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(root)], cwd=Path(__file__).parents[2]
    )
    calls = 0
    looks = [describe, metrics, check_in_a_storm, transactions, scan]
    try:
        with (
            embedlog.open(root, config=CONFIG) as log,
            embedlog.open(root, read_only=True, config=CONFIG) as reader,
        ):
            until_s = time.monotonic() + STORM_S
            while time.monotonic() < until_s:
                for each in (log, reader):
                    for look in looks:
                        look(each, root)
                        calls += 1
    finally:
        assert writer.poll() is None, "it writes up to the end"
        writer.kill()
        writer.wait(PATIENT_S)
    check_directory(log, root)
    print(f"{calls} looks")
    assert calls
