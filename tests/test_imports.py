"""What `import embedlog` and an opening import: an import of the rest would cost more than small
programs do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import embedlog

WATCHED = ("embedlog", "numpy", "asyncio", "lz4", "zstandard", "compression")
# one to ten milliseconds each
NOT_NEEDED = ("difflib", "hashlib", "hmac", "html", "platform", "random", "secrets", "uuid")
NOT_FOR_RECORDS = ("concurrent", "datetime", "signal")
NAMES = (*WATCHED, *NOT_NEEDED, *NOT_FOR_RECORDS)
LISTED = (
    f"import sys; print(*sorted(name for name in sys.modules if name.split('.')[0] in {NAMES}))"
)


def imported(program: str) -> set[str]:
    """The modules of WATCHED, NOT_NEEDED and NOT_FOR_RECORDS that a new process has after a
    program.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{LISTED}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_the_import_itself_is_small() -> None:
    found = imported("import embedlog")
    assert "numpy" not in found
    assert len([name for name in found if name.startswith("embedlog")]) <= 5


def test_an_opening_imports_no_clients_and_no_sets(tmp_path: Path) -> None:
    found = imported(f"import embedlog; embedlog.open({str(tmp_path / 'log')!r}).close()")
    clients = ("columns", "consumer", "producer", "aio", "config.client")
    for package in (
        *clients,
        "replication",
        "integrity",
        "replica_set",
        "descriptions",
        "transaction",
        "group",
    ):
        assert f"embedlog.{package}" not in found, package
    assert {"asyncio", *NOT_NEEDED, *NOT_FOR_RECORDS}.isdisjoint(found)


def test_the_first_record_needs_neither_numpy_nor_a_codec(tmp_path: Path) -> None:
    found = imported(f"""
import embedlog
log = embedlog.open({str(tmp_path / "log")!r})
log.create_topic("events")
producer = log.producer()
producer.send("events", b"value", key=b"key").result(timeout=30)""")
    assert {"numpy", "asyncio", "lz4", "lz4.frame", "zstandard", "compression.zstd"}.isdisjoint(
        found
    )
    assert {*NOT_NEEDED, *NOT_FOR_RECORDS}.isdisjoint(found)
    late = (
        "columns.ingest",
        "descriptions",
        "group",
        "producer.conditional_send",
        "producer.transaction_manager",
        "transaction",
    )
    late += ("coordination.host", "partition.interfaces")  # for types only
    assert {f"embedlog.{name}" for name in late}.isdisjoint(found)
    assert len([name for name in found if name.startswith("embedlog")]) <= 160


def test_a_consumer_that_waits_has_what_its_first_record_needs(tmp_path: Path) -> None:
    """The import of numpy took 60 to 140 ms, after the record had come."""
    program = f"""
import embedlog
log = embedlog.open({str(tmp_path / "log")!r})
log.create_topic("events", exist_ok=True)
consumer = log.consumer("events")
assert not consumer.poll(0) and not consumer.poll(0.01)"""
    assert "numpy" not in imported(program)
    assert "numpy" in imported(f"{program}\nassert not consumer.poll(0.3)")


def test_a_description_of_a_closed_log_needs_neither_numpy_nor_coordinators(tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log,
        log.producer() as producer,
    ):
        log.create_topic("events")
        for number in range(300):
            producer.send("events", b"%0100d" % number)
    found = imported(f"""
import embedlog
with embedlog.open({str(tmp_path / "log")!r}, read_only=True) as log:
    assert log.describe_topic("events").partitions[0].high_watermark == 300""")
    late = {
        "embedlog.group",
        "embedlog.coordination.transactions.transaction_coordinator",
        "embedlog.config.typed_options",
    }
    assert {"numpy", "asyncio", "lz4", "zstandard", *late, *NOT_NEEDED}.isdisjoint(found)


def test_every_public_name_is_found_on_first_use() -> None:
    program = (
        "import embedlog\nfor name in embedlog.__all__: getattr(embedlog, name)\nfrom embedlog "
        "import *"
    )
    assert "embedlog.aio.consumer" in imported(program)
    assert set(embedlog.__all__) <= set(dir(embedlog))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(embedlog, "no_such_name")
    assert embedlog.IsolationLevel is not None
