"""The words of a directory's control page: each has one use."""

from __future__ import annotations

from pathlib import Path

import embedlog
from embedlog._native import system
from embedlog.admin import directory_jobs, housekeeper
from embedlog.coordination import directory
from embedlog.coordination.transactions import recovery
from embedlog.replica_set.following import copy_rate

WORDS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in {
        directory: ("MARK_INODE", "MARK_NS", "WAS_CLEAN", "WAS_FOREIGN", "BY_LOCKS", "BOOT", "IN_SET", "REGISTERED"),
        directory_jobs: ("NEXT_ROUND_NS", "NEXT_POINTS_NS", "NEXT_CLEANING_NS"),
        housekeeper: ("NEXT_TRANSACTIONS_NS", "NEXT_IDS_NS", "NEXT_OFFSETS_NS", "NEXT_GROUPS_NS"),
        recovery: ("LAST_CACHE", "RECOVERY_DUE"),
        copy_rate: ("COPIES_OUT", "COPIES_IN"),
        system: ("WORD_UNSYNCED_COUNT",),
    }.items()
    for name in names
}


def test_each_word_has_one_use() -> None:
    assert len(set(WORDS.values())) == len(WORDS), sorted((value, name) for name, value in WORDS.items())


def test_a_directory_is_opened_again_after_the_tasks_of_its_housekeeper(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        for _ in range(2):
            log.housekeep(due_only=True)
        log.housekeep()
        with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as other:
            assert other.topics() == ["t"]
