"""The origin of the clean mark in a directory, and the age of the other files: the library's own, a
copy's, a broker's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.storage import file_names, identity
from embedlog.storage.manifest import Manifest
from tests.support.segmented_logs import (
    COUNT,
    PARTITION,
    QUIET,
    closed,
    copied,
    flip,
    logs,
    middle_missing,
    read,
    write,
)

__all__ = ["closed"]


def test_our_mark_is_signed_and_a_brokers_is_not(
    closed: Path, golden_copy: Callable[[str], Path]
) -> None:
    """OPEN-6."""
    with (closed / file_names.CONTROL).open("r+b") as file:
        page = system.Page(file.fileno(), True)
    assert identity.mark_owner(closed) == page.incarnation()
    page.close()
    assert json.loads((closed / file_names.CLEAN_MARK).read_text())["brokerEpoch"] == -1
    assert identity.read_clean_mark(closed) == -1
    assert identity.mark_owner(golden_copy("clean")) is None
    assert identity.mark_owner(golden_copy("unclean")) is None


def test_a_mark_that_was_copied_before_the_rest_says_nothing(closed: Path) -> None:
    """A copy of an open directory, begun while no process had it open: the mark is older than the
    rest.
    """
    mark = (closed / file_names.CLEAN_MARK).read_bytes()
    log = embedlog.open(closed, config=QUIET)
    with log.producer(linger_ms=0) as producer:
        for number in range(COUNT, COUNT + 20):
            producer.send("t", b"%d" % number * 20).result(timeout=10)
    path = copied(closed)
    log.close()
    (path / file_names.CLEAN_MARK).write_bytes(mark)
    for read_only in (True, False):
        assert read(path, read_only=read_only) == list(range(COUNT + 20))


def test_what_an_older_version_left_is_read_as_before(closed: Path) -> None:
    """No signature, no start in the manifest."""
    manifest = Manifest(closed / PARTITION, topic_id_of(closed))
    manifest.refresh()
    assert manifest.closed is not None
    manifest.rewrite([*manifest.segments.values(), manifest.closed], None)
    (closed / file_names.CLEAN_MARK).write_text('{"version":0,"brokerEpoch":-1}')
    path = copied(closed)
    assert read(path, read_only=True) == list(range(COUNT))
    assert read(path) == list(range(COUNT))
    manifest = Manifest(path / PARTITION, topic_id_of(path))
    manifest.refresh()
    assert manifest.start is not None
    assert manifest.start.offset == 0


def topic_id_of(path: Path) -> bytes:
    found = identity.read_topic_id(path / PARTITION)
    assert found is not None
    return identity.id_bytes(found)


def two_topics(path: Path) -> Path:
    with write(path) as log:
        log.create_topic("u", config={"segment.bytes": 1000})
        with log.producer(linger_ms=0) as producer:
            for number in range(COUNT):
                producer.send("u", b"%d" % number * 20).result(timeout=10)
    return path


@pytest.mark.parametrize("visit", ["kept", "damaged"])
def test_what_a_broker_changed_is_no_damage_even_if_it_is_looked_at_much_later(
    tmp_path: Path, visit: str
) -> None:
    """LOAD-8: it removes the first segments of a topic and begins others; this library opens twice
    before it opens that topic.
    """
    path = two_topics(tmp_path / "log")
    first, second, *_, last = logs(path)
    for each in (first, second):
        each.unlink()
    grown = last.with_name(file_names.file_name(COUNT, file_names.LOG))
    grown.write_bytes(b"")
    (path / file_names.CLEAN_MARK).unlink()
    (path / file_names.CLEAN_MARK).write_text('{"version":0,"brokerEpoch":7}')
    for _ in range(2):
        with embedlog.open(path, config=QUIET) as log:
            assert sum(1 for _ in log.scan("u").records()) == COUNT
    assert identity.mark_owner(path) is not None
    if visit == "damaged":
        flip(path / file_names.VISIT, 3, 0)
    expected = list(range(int(logs(path)[0].stem), COUNT))
    assert read(path, read_only=True) == expected
    assert read(path) == expected
    assert identity.read_visit(path) > 0
    middle_missing(path)
    with pytest.raises(embedlog.CorruptRecordError):  # it is ours again
        read(path)
