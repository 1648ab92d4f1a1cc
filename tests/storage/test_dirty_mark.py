"""The mark of a written partition is on disk before its first record, with as few syncs as that
needs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog.storage import dirty_mark, file_names, files


class Syncs:
    """The names of synced files and directories, in order, each with the names that its directory
    had then.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.listed: list[list[str]] = []
        sync = files.sync

        def noted(fd: int, path: object) -> None:
            place = Path(str(path))
            self.names.append(
                place.name.split(".tmp")[0].rsplit(".", 1)[0]
                if place.name.endswith(".tmp")
                else place.name
            )
            self.listed.append(files.listing(place) if place.is_dir() else [])
            sync(fd, path)  # type: ignore[arg-type]

        monkeypatch.setattr(files, "sync", noted)


def test_the_first_record_of_a_partition_needs_two_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(tmp_path, config={"housekeeping": False}) as log, log.producer() as producer:
        log.create_topic("warm")
        log.create_topic("t")
        producer.send("warm", b"x").result()
        syncs = Syncs(monkeypatch)
        producer.send("t", b"first").result()
        assert syncs.names == [file_names.EPOCHS, "t-0"]
        assert file_names.DIRTY in syncs.listed[1], (
            "the name of the mark is synced with that of the epochs"
        )


def test_a_mark_whose_process_was_killed_before_its_sync_is_synced_by_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(tmp_path, config={"housekeeping": False}) as log:
        log.create_topic("t")
        partition = tmp_path / "t-0"
        assert dirty_mark.make(partition, 0o666)
        assert not dirty_mark.make(partition, 0o666)
        syncs = Syncs(monkeypatch)
        with log.producer() as producer:
            producer.send("t", b"first").result()
        assert "t-0" in syncs.names


def test_a_partition_with_segments_is_marked_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(tmp_path) as log, log.producer() as producer:
        log.create_topic("t")
        producer.send("t", b"first").result()
    (tmp_path / file_names.CLEAN_MARK).unlink()
    assert not dirty_mark.can_sync_later(tmp_path / "t-0", preallocated=False)
    syncs = Syncs(monkeypatch)
    with embedlog.open(tmp_path, config={"housekeeping": False}) as log:
        opened = len(syncs.names)
        log._engine.partition("t", 0).open()
        assert syncs.names[opened] == "t-0"
        assert file_names.DIRTY in syncs.listed[opened]


def test_reserved_blocks_do_not_wait(tmp_path: Path) -> None:
    assert dirty_mark.can_sync_later(tmp_path, preallocated=False)
    assert not dirty_mark.can_sync_later(tmp_path, preallocated=True)
