"""One poller with a pool: order by key, commits that pass no unfinished record, nothing lost."""

from __future__ import annotations

import collections
import importlib
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from tests.support import examples
from tests.support.producer_helpers import wait_until

sys.path.append(str(examples.EXAMPLES))
pools: Any = importlib.import_module("worker_pool")

QUIET = {"housekeeping": False}
OPTIONS = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}


def fill(log: embedlog.Log, count: int) -> None:
    log.create_topic("t", 3)
    with log.producer() as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, key=b"k%d" % (number % 11))


def test_a_position_passes_no_unfinished_record() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(50):
        offsets = sorted(chance.sample(range(100), 20))  # gaps: markers and compacted records
        found = pools.FinishedPrefix()
        begun = 0
        finished = set[int]()
        while len(finished) < len(offsets):
            if begun < len(offsets) and (begun == len(finished) or chance.random() < 0.5):
                found.begin(offsets[begun])
                begun += 1
            else:
                each = chance.choice(
                    [offset for offset in offsets[:begun] if offset not in finished]
                )
                found.finish(each)
                finished.add(each)
            prefix = [
                offset
                for at, offset in enumerate(offsets[:begun])
                if set(offsets[: at + 1]) <= finished
            ]
            assert found.position == (prefix[-1] + 1 if prefix else None)
            assert found.count == begun - len(prefix)


def test_records_of_a_key_are_processed_in_order_and_all_are_committed(tmp_path: Path) -> None:
    seen: dict[bytes, list[int]] = collections.defaultdict(list)
    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, 400)
        with log.consumer(**OPTIONS) as consumer:
            pool = pools.Pool(consumer, lambda record: handle(record), workers=3, in_flight=20)
            left = threading.Semaphore(400)

            def handle(record: Any) -> None:
                seen[record.key].append(int(record.value))
                left.acquire()
                if not left._value:
                    pool.stop()

            pool.run(["t"])
            ends = consumer.end_offsets([TopicPartition("t", number) for number in range(3)])
        assert {place: each.offset for place, each in log.group_offsets("g").items()} == ends
    assert sorted(number for numbers in seen.values() for number in numbers) == list(range(400))
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_a_failed_record_ends_the_pool_and_is_read_again(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, 50)
        finished: set[tuple[int, int]] = set()

        def fail(record: Any) -> None:
            if record.value == b"30":
                raise ZeroDivisionError
            finished.add((record.partition, record.offset))

        with log.consumer(**OPTIONS) as consumer, pytest.raises(ZeroDivisionError):
            pools.Pool(consumer, fail, in_flight=7).run(["t"])
        lost = next(each for each in log.scan("t").records() if each.value == b"30")
        for place, each in log.group_offsets("g").items():
            assert place.partition != lost.partition or each.offset <= lost.offset
            assert {(place.partition, offset) for offset in range(each.offset)} <= finished


def test_a_partition_moves_with_its_records_finished(tmp_path: Path) -> None:
    """A second member joins while workers are held: its partitions begin after all that the first
    one has begun.
    """
    held = threading.Event()
    moved = threading.Event()
    seen: list[tuple[int, int]] = []

    def work(record: Any) -> None:
        held.wait(60)
        seen.append((record.partition, record.offset))

    with embedlog.open(tmp_path, config=QUIET) as log:
        fill(log, 60)
        with log.consumer(**OPTIONS) as consumer:
            pool = pools.Pool(consumer, work, in_flight=1000)
            running = threading.Thread(target=pool.run, args=(["t"],), daemon=True)
            running.start()
            wait_until(lambda: pool._waiting == 60)

            def join() -> None:
                with log.consumer("t", **OPTIONS) as second:
                    while not second.assignment():
                        second.poll(0.1)
                    seen.extend((each.partition, each.offset) for each in second.poll(0.1))
                moved.set()

            joining = threading.Thread(target=join, daemon=True)
            joining.start()
            assert not moved.wait(0.2), (
                "the partition is not given away before its records are finished"
            )
            held.set()
            assert moved.wait(60)
            pool.stop()
            running.join(60)
            joining.join(60)
            assert not running.is_alive()
    assert len(seen) == len(set(seen)) == 60, "none is lost, and none repeated"


def test_the_program_ends_when_it_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedlog.open(tmp_path / "log") as log:
        fill(log, 30)
    monkeypatch.setattr(sys, "argv", ["worker_pool", str(tmp_path / "log"), "t", "--idle", "0.01"])
    pools.main()
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert log.scan("t.digests").num_rows == 30
