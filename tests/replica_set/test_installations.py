"""The leaders of many partitions that lost their directory are installed together (embedlog/replica_set/installations.py)."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import embedlog
from embedlog._native import replication, system
from embedlog.replica_set.installations import Installations
from tests.support.producer_helpers import wait_until
from tests.support.replica_moves import opened

PARTITIONS = 12


def leads(log: embedlog.Log, number: int, node: int) -> bool:
    """Whether a replica other than that of `node` shows in its page that it leads and has committed the start of its epoch."""
    engine = log._engine
    name, topic_id = "t", engine.set.topics.topic_id("t")
    decided = engine.set.decisions.hint().partitions[topic_id, number]
    if decided.leader == node:
        return False
    found = engine.set.replicas((topic_id, number), name).reached(decided.leader)
    if found is None:
        return False
    now, replica = found.replica.published()
    return replica.role == replication.ROLE_LEADER and now.high_watermark >= replica.epoch_start


def test_one_use_after_a_loss_installs_the_leaders_of_all_partitions(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", PARTITIONS, replication_factor=3)
        with log.producer(linger_ms=0) as producer:
            for number in range(PARTITIONS):
                producer.send("t", b"before", partition=number).result()
            node = log._engine.partition("t", 0).node
            led = [number for number in range(PARTITIONS) if log._engine.partition("t", number).node == node]
            assert len(led) > 1
            shutil.move(log._engine.set.directories.member(node).directory.path, tmp_path / "lost")
            producer.send("t", b"after", partition=led[0]).result()
            wait_until(lambda: all(leads(log, number, node) for number in led))
            for number in led:
                assert producer.send("t", b"after", partition=number).result().offset >= 1


class Place:
    """A partition whose installation waits for an event."""

    def __init__(self, go: threading.Event) -> None:
        self.go, self.entered, self.ended = go, threading.Event(), threading.Event()

    def begin(self, deadline_ns: int) -> None:
        self.entered.set()
        self.go.wait((deadline_ns - system.boot_ns()) / 1e9)
        self.ended.set()


def deadline_ns(seconds: float = 10.0) -> int:
    return system.boot_ns() + int(seconds * 1e9)


def test_a_close_waits_for_the_installations_in_progress_and_drops_the_others() -> None:
    found, go = Installations(), threading.Event()
    places = [Place(go) for _ in range(20)]
    found.begin(places)  # type: ignore[arg-type]
    wait_until(lambda: sum(place.entered.is_set() for place in places) == 8)
    closing = threading.Thread(target=found.close, args=(deadline_ns(),))
    closing.start()
    wait_until(lambda: not found._due)
    go.set()
    closing.join()
    assert [place.ended.is_set() for place in places] == [place.entered.is_set() for place in places]
    assert sum(place.entered.is_set() for place in places) == 8
    late = Place(go)
    found.begin([late])  # type: ignore[list-item]
    assert not found._threads
    assert not late.entered.is_set()


def test_a_close_ends_at_its_deadline_although_an_installation_hangs() -> None:
    found, go = Installations(), threading.Event()
    place = Place(go)
    found.begin([place])  # type: ignore[list-item]
    assert place.entered.wait(10)
    found.close(deadline_ns(0.05))
    assert not place.ended.is_set()
    go.set()
    assert place.ended.wait(10)


def test_installations_continue_after_their_threads_have_ended() -> None:
    found, go = Installations(), threading.Event()
    go.set()
    for _ in range(3):
        places = [Place(go) for _ in range(10)]
        found.begin(places)  # type: ignore[arg-type]
        assert all(place.ended.wait(10) for place in places)
        wait_until(lambda: not found._threads)
