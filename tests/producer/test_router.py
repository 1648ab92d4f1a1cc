"""Routes: which partition a record goes to, without a thread and without a log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from embedlog._native import _rows, system
from embedlog.storage import files
from tests.support.partition_queues import accumulator
from tests.support.routing import VECTORS, route

# ---- routes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", VECTORS)
def test_keys_go_where_kafka_puts_them(key: bytes) -> None:
    for count in (1, 3, 6, 10):
        way = route(count, accumulator())
        assert way.append(b"v", key, None, None, ()) is not None
        assert [queue.queued_bytes > 0 for queue in way.queues].index(True) == (
            VECTORS[key] & 0x7FFFFFFF
        ) % count


def test_records_without_a_key_stay_for_a_batch_and_then_move() -> None:
    shared = accumulator()
    way = route(50, shared, batch_size=1000)
    used = set()
    for number in range(400):
        before = [queue.queued_bytes for queue in way.queues]
        way.append(b"x" * 90, None, None, None, ())
        (moved,) = [
            queue
            for queue, size in zip(way.queues, before, strict=True)
            if queue.queued_bytes != size
        ]
        used.add(moved.partition)
        assert len(used) <= 2 + number // 9
    assert len(used) > 8


def test_ignored_keys_stick_as_no_keys_do() -> None:
    way = route(10, accumulator(), keys_ignored=True)
    for number in range(50):
        way.append(b"x", b"key-%d" % number, None, None, ())
    assert sum(queue.queued_bytes > 0 for queue in way.queues) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("text", None, None, None, ()),
        (b"v", "text", None, None, ()),
        (bytearray(b"v"), None, None, None, ()),
        (b"v", None, 3, None, ()),
        (b"v", None, -1, None, ()),
        (b"v", None, True, None, ()),
        (b"v", None, 2**70, None, ()),
        (b"v", None, None, -5, ()),
        (b"v", None, None, 2**62, ()),
        (b"v", None, None, 2**70, ()),
        (b"v", None, None, 1.5, ()),
        (b"v", None, None, None, [("h", b"")]),
        (b"v", None, None, None, (("h", "text"),)),
        (b"v", None, None, None, (("h",),)),
        (b"v", None, None, None, ((b"h", b"v"),)),
        (b"v", None, None, None, (("\udc80", b"v"),)),
        (b"x" * (1 << 20), None, None, None, ()),
    ],
)
def test_the_fast_way_leaves_the_unusual_alone(arguments: Any) -> None:
    shared = accumulator()
    way = route(3, shared)
    assert way.append(*arguments) is None
    assert shared.memory_used == 0


def test_the_fast_way_is_shut_without_memory_and_after_close() -> None:
    shared = accumulator(memory=400)
    way = route(1, shared)
    assert way.append(b"x" * 200, None, None, None, ()) is not None
    assert way.append(b"x" * 200, None, None, None, ()) is None
    shared.waiting += 1
    assert way.append(b"", None, None, None, ()) is None
    assert way.append(b"", None, None, None, (), True) is not None
    shared.waiting -= 1
    shared.close()
    assert way.append(b"", None, None, None, ()) is None


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    way = route(1, accumulator(), keys_required=True)
    assert way.append(b"v", None, None, None, ()) is None
    assert way.append(b"v", b"", None, None, ()) is not None


# ---- the draw ------------------------------------------------------------------------------------


def queued(way: _rows.Router, lengths: list[int]) -> None:
    """Fills the queues up to these lengths, one batch for each."""
    for number, length in enumerate(lengths):
        while way.queues[number].batch_count < length:
            way.append(b"x", b"k", number, None, ())
            way.queues[number].seal()


def drawn(way: _rows.Router, times: int) -> list[int]:
    """How often each partition is drawn for runs that fill a batch, without anything being put
    in.
    """
    counts = [0] * len(way.queues)
    for _ in range(times):
        counts[way.stick(1 << 30)] += 1
    return counts


def used(way: _rows.Router) -> None:
    """Every partition has had a batch, and none has one now."""
    queued(way, [1] * len(way.queues))
    for queue in way.queues:
        for producer_batch in queue.take(1 << 20):
            producer_batch.deliver(0, -1)


def test_short_queues_are_drawn_more_often_as_kafka_weighs_them() -> None:
    """Queues of 0, 3 and 1 batches weigh 4, 1 and 3: a half, an eighth, three eighths."""
    way = route(3, accumulator(), adaptive=True, seed=5)
    used(way)
    queued(way, [0, 3, 1])
    counts = drawn(way, 8000)
    assert [
        abs(count - expected) < 300
        for count, expected in zip(counts, (4000, 1000, 3000), strict=True)
    ] == [True] * 3, counts


@pytest.mark.parametrize("case", ["off", "one never used", "all alike"])
def test_the_draw_is_uniform_where_queues_say_nothing(case: str) -> None:
    way = route(3, accumulator(), adaptive=case != "off", seed=7)
    if case != "one never used":
        used(way)
    queued(way, {"off": [0, 9, 9], "one never used": [0, 9, 9], "all alike": [2, 2, 2]}[case])
    assert all(abs(count - 2000) < 250 for count in drawn(way, 6000))


def test_a_partition_that_is_not_written_to_any_more_gets_nothing_new() -> None:
    way = route(3, accumulator(linger_ms=0), adaptive=True, availability_ms=1, seed=9)
    queued(way, [0, 1, 0])
    opened = way.queues[1].take(1 << 20)[0].opened
    while time.monotonic() < opened + 0.002:
        pass
    counts = drawn(way, 1000)
    assert counts[1] == 0
    assert min(counts[0], counts[2]) > 300


def test_only_what_sticks_counts_towards_the_next_draw() -> None:
    way = route(2, accumulator(), batch_size=1000)
    way.append(b"x" * 100, None, None, None, ())
    before = way.stuck_bytes
    assert 100 < before < 200
    for _ in range(100):
        way.append(b"x" * 100, b"key", None, None, ())
        way.append(b"x" * 100, None, way.sticky, None, ())
    assert way.stuck_bytes == before


def test_what_is_shut_takes_nothing() -> None:
    shared = accumulator()
    way = route(1, shared)
    shared.shut = True
    assert way.append(b"x", None, None, None, ()) is None
    assert way.queues[0].push_run(object(), 1, 1) is None
    shared.shut = False
    assert way.append(b"x", None, None, None, ()) is not None


# ---- where some partitions are elsewhere ----------------------------------------------------------


def part(numbers: list[int], shared: _rows.Accumulator, **facts: Any) -> _rows.Router:
    queues = [_rows.PartitionQueue(shared, "t", number, 16384) for number in numbers]
    given = {
        "request_limit": 1 << 20,
        "past_ms": 2**62,
        "future_ms": 1000,
        "keys_required": False,
        "keys_ignored": False,
    }
    return _rows.Router(shared, queues, batch_size=1, seed=7, **(given | facts))


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_route_over_a_part_of_a_topic_goes_to_lanes_by_their_numbers(adaptive: bool) -> None:
    numbers = [0, 3, 7, 2**31 - 1]
    way = part(numbers, accumulator(), partition_count=2**31, adaptive=adaptive)
    for queue in way.queues:
        before = queue.queued_bytes
        assert way.append(b"v", None, queue.partition, None, ()) is not None
        assert queue.queued_bytes > before
    for number in (1, 2, 4, 6, 8, 2**31 - 2):
        assert way.append(b"v", None, number, None, ()) is None
    assert {way.stick(1) for _ in range(200)} == set(numbers)


@pytest.mark.parametrize("key", VECTORS)
def test_a_key_goes_where_it_would_go_if_all_were_here_or_nowhere(key: bytes) -> None:
    for count in (3, 10, 2**31):
        number = (VECTORS[key] & 0x7FFFFFFF) % count
        here = part(sorted({0, number, count - 1}), accumulator(), partition_count=count)
        assert here.append(b"v", key, None, None, ()) is not None
        assert [queue.partition for queue in here.queues if queue.queued_bytes] == [number]
        elsewhere = part(
            [each for each in range(min(count, 11)) if each != number][:5],
            accumulator(),
            partition_count=count,
        )
        assert elsewhere.append(b"v", key, None, None, ()) is None


@pytest.mark.parametrize(
    ("numbers", "count"), [([1, 0], 2), ([0, 0], 2), ([0, 2], 2), ([-1], 2), ([0], 2**31 + 1)]
)
def test_a_route_of_wrong_lanes_is_refused(numbers: list[int], count: int) -> None:
    with pytest.raises(ValueError, match=r"increasing order|below"):
        part(numbers, accumulator(), partition_count=count)


# ---- changes of the topics ------------------------------------------------------------------------


def test_a_route_takes_no_record_by_itself_after_the_topics_have_changed(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(bytes(4096))
    with files.opened(tmp_path / "page", files.WRITE) as fd:
        pages = [system.Page(fd, True), system.Page(fd, True)]
    way = route(3, accumulator())
    assert not way.moved
    for _ in range(2):
        way.follow(
            tuple(page.address for page in pages),
            system.TOPICS_FUNCTION,
            sum(page.topics() for page in pages),
        )
        assert not way.moved
        assert way.append(b"v", b"k", None, None, ()) is not None
        pages[0].touch_topics()
        assert way.moved
        assert way.append(b"v", b"k", None, None, ()) is None
        assert way.append(b"v", b"k", None, None, (), False) is not None
    for page in pages:
        page.close()
    pages.clear()
    assert way.append(b"v", b"k", None, None, ()) is None, "the route keeps the memory of the pages"


def test_a_route_watches_a_bounded_number_of_pages() -> None:
    way = route(1, accumulator())
    with pytest.raises(ValueError, match="at most 8 pages, not 9"):
        way.follow(((None, 0),) * 9, 0, 0)
    with pytest.raises(TypeError):
        way.follow((None,), 0, 0)  # type: ignore[arg-type]
    assert way.append(b"v", b"k", None, None, ()) is not None
