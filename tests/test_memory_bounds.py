"""The documented bounds of memory: scan, fetch and producer in a process of their own, by resident
size and page faults.

The resident size includes everything: objects of Python, arrays, blocks of the pool, the C core.
The limits are those of docs/limits.md. No test looks at a clock.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.format import buffer_pool
from tests.conftest import ROOT
from tests.support.crowd import FREE_THREADED

MIB = 1 << 20
SCAN_MAX_BYTES = 128 * MIB  # and one batch
# the bytes of a fetch, their columns, and those of the fetch before, until they are released
FETCH_FACTOR = 3.25
# compressed batches are decoded in groups of 8 MiB
FETCH_MORE_BYTES = {"none": 12 * MIB, "zstd": 64 * MIB}
PRODUCER_FACTOR = 1.75
RECORD_BYTES = 1000
LOG_BYTES = 96 * MIB
SMALL_BYTES = 32 * MIB
# A block of the pool has huge pages if the kernel has some: then 0.5 faults for each fresh MiB,
# otherwise 256.
FAULTS_PER_MIB_MAX = {
    "none": 1.0,
    "zstd": 20.0,
}  # the threads of a busy machine have more pieces at once, of 200 fresh pages each


# ---- in the child ----------------------------------------------------------------------------------------------------


def status_bytes(name: str) -> int:
    """A size in /proc/self/status."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(name))


def growth(work: Callable[[], object]) -> int:
    """By how much the resident size was larger, at most, during a piece of work than before it."""
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    work()
    return status_bytes("VmHWM") - before


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def scan(directory: str) -> dict[str, Any]:
    """Growth in a whole scan, and page faults in its second half."""
    marks = []
    with embedlog.open(directory, read_only=True) as log:
        for _ in log.scan("t", end_offset=1):
            continue  # its code is loaded

        def work() -> None:
            rows = 0
            for batch in log.scan("t"):
                rows += batch.num_rows
                marks.append((rows, faults()))

        grown = growth(work)
    half = marks[len(marks) // 2]
    mib = (marks[-1][0] - half[0]) * RECORD_BYTES / MIB
    return {"grown": grown, "rows": marks[-1][0], "faults_per_mib": (marks[-1][1] - half[1]) / mib}


def scan_without_pool(directory: str) -> dict[str, Any]:
    """The same if no block is used twice."""
    buffer_pool.shared_pool()._free_bytes_max = 0
    return scan(directory)


def fetch(directory: str, way: str, max_bytes: str) -> dict[str, Any]:
    options: Any = {"auto.offset.reset": "earliest", "fetch.max.bytes": 0}
    with embedlog.open(directory, read_only=True) as log:
        with log.consumer("t", config=options) as warm:
            assert warm.poll(max_records=1)
            assert next(warm.batches(0)).num_rows
        sizes = {"fetch.max.bytes": int(max_bytes), "max.partition.fetch.bytes": int(max_bytes)}
        rows = 0
        with log.consumer("t", config=options | sizes) as reader:

            def work() -> None:
                nonlocal rows
                if way == "poll":
                    while records := reader.poll():
                        rows += len(records)
                else:
                    for batch in reader.batches(0):
                        rows += batch.num_rows

            grown = growth(work)
    return {"grown": grown, "rows": rows}


def produce(size: str, memory: str) -> dict[str, Any]:
    """Sends while no append ends, until the memory of the producer is full."""
    go = threading.Event()
    sent = 0
    with (
        tempfile.TemporaryDirectory() as directory,
        embedlog.open(directory, config={"housekeeping": False}) as log,
    ):
        log.create_topic("t")
        with log.producer() as warm:
            warm.send("t", b"first").result()
        partition = type(log._engine.partition("t", 0))
        real = partition.append

        def append(this: Any, *arguments: Any, **keywords: Any) -> Any:
            assert go.wait(60)
            return real(this, *arguments, **keywords)

        partition.append = append  # type: ignore[method-assign]
        options: Any = {
            "buffer.memory": int(memory),
            "max.block.ms": 50,
            "on.delivery.error": "log",
        }
        with log.producer(options) as producer:

            def work() -> None:
                nonlocal sent
                while True:
                    future = producer.send("t", bytes(int(size)))
                    if future.done() and future.exception(0) is not None:
                        return
                    sent += 1

            grown = growth(work)
            go.set()
    return {"grown": grown, "sent": sent}


WORK = {"scan": scan, "scan_without_pool": scan_without_pool, "fetch": fetch, "produce": produce}


# ---- the tests -------------------------------------------------------------------------------------------------------


def child(*words: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.test_memory_bounds", *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=120, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def filled(directory: Path, size: int, codec: str) -> str:
    """A log of compressible records of RECORD_BYTES."""
    lines = [
        (b"%09d " % number * (RECORD_BYTES // 10))[:RECORD_BYTES]
        for number in range(size // RECORD_BYTES)
    ]
    with embedlog.open(directory) as log, log.producer(compression_type=codec) as producer:
        log.create_topic("t", 1, config={"flush.ms": 3_600_000})
        producer.send_batch("t", lines).result()
    return str(directory)


@pytest.fixture(scope="module", params=["none", "zstd"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(tmp_path_factory.mktemp("large") / request.param, LOG_BYTES, request.param)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(tmp_path_factory.mktemp("small") / "log", SMALL_BYTES, "none")


@pytest.mark.sample(0.3)
def test_a_scan_needs_less_memory_than_its_bound(large: str) -> None:
    """On Python 3.14 the one of zstd fails if it makes one object of all that it decodes."""
    found = child("scan", large)
    assert found["rows"] == LOG_BYTES // RECORD_BYTES
    assert found["grown"] < min(SCAN_MAX_BYTES, found["rows"] * RECORD_BYTES)


@pytest.mark.sample(0.3)
def test_a_scan_touches_no_fresh_pages_for_each_piece(large: str) -> None:
    found = child("scan", large)
    codec = Path(large).name
    # Python without the GIL has another allocator, which returns pages of short objects from time
    # to time.
    assert found["faults_per_mib"] < FAULTS_PER_MIB_MAX[codec] * (3 if FREE_THREADED else 1)
    # plain values stay in the buffer of the read, which the allocator may return again
    if codec != "none":
        without = child("scan_without_pool", large)
        assert without["faults_per_mib"] > 3 * found["faults_per_mib"]  # the count sees fresh pages


@pytest.mark.parametrize("way", [pytest.param("poll", marks=pytest.mark.slow), "batches"])
@pytest.mark.parametrize("max_bytes", [pytest.param(100_000, marks=pytest.mark.slow), 8_000_000])
def test_a_consumer_needs_memory_for_about_one_fetch(large: str, way: str, max_bytes: int) -> None:
    found = child("fetch", large, way, max_bytes)
    assert found["rows"] == LOG_BYTES // RECORD_BYTES
    assert found["grown"] < FETCH_FACTOR * max_bytes + FETCH_MORE_BYTES[Path(large).name]


def test_the_memory_of_a_consumer_is_that_of_its_setting(small: str) -> None:
    """The bound is not reached by chance: a setting as large as the log takes more."""
    assert (
        child("fetch", small, "batches", 30_000_000)["grown"]
        > FETCH_FACTOR * 100_000 + FETCH_MORE_BYTES["none"]
    )


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(100, marks=pytest.mark.slow),
        1000,
        pytest.param(100_000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("memory", [8_000_000, pytest.param(32_000_000, marks=pytest.mark.slow)])
def test_a_producer_needs_memory_for_its_buffer(size: int, memory: int) -> None:
    found = child("produce", size, memory)
    assert 0.8 * memory < found["sent"] * size <= memory
    assert found["grown"] < PRODUCER_FACTOR * memory


def test_the_page_of_limits_has_these_bounds() -> None:
    page = (ROOT / "docs" / "limits.md").read_text()
    assert f"{SCAN_MAX_BYTES // MIB} MiB and one batch" in page
    for codec in FETCH_MORE_BYTES.values():
        assert f"{FETCH_FACTOR} × `fetch.max.bytes` + {codec // MIB} MiB" in page
    assert f"{PRODUCER_FACTOR} × `buffer.memory`" in page


if __name__ == "__main__":
    print(json.dumps(WORK[sys.argv[1]](*sys.argv[2:])))
