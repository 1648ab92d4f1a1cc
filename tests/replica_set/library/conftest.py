"""Each log that a test here opens is a set of three directories, and each of its topics has three copies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import embedlog

OTHERWISE = {  # tests that look at the files of one directory, or open it from another process by its path
    "test_sealed_segments_are_byte_for_byte_what_a_close_leaves": "the decision log is not part of a backup",
    "test_who_was_killed_is_in_nobodys_way": "the other process opens one directory",
    "test_a_static_member_that_will_not_come_back_gives_its_place_away": "the other process opens one directory",
    "test_a_call_that_fails_is_an_error_of_ours_and_harms_nothing": "each failed call is the failure of a directory",
    "test_all_engines_say_of_a_random_log_what_a_consumer_says": "it looks at the control page of the directory",
    "test_a_reader_at_the_end_follows_transactions_as_they_end": "a set has no short path to the end of one file",
}
SHORT = {"test_transactional_reads.py"}  # the others are slow
NODES = ("d1", "d2", "d3")
open_log = embedlog.open


def opened_as_set(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **settings: Any) -> embedlog.Log:
    """A set below the path. A directory with other content is opened as it is; so is the copy that a backup made."""
    if not isinstance(path, str | os.PathLike):
        return open_log(path, **settings)
    root = Path(path)
    if root.name in NODES and (root.parent / NODES[0]).exists():
        root = root.parent  # `log.path` is that of the first directory
    if root.exists() and any(root.iterdir()) and not (root / NODES[0]).exists():
        return open_log(path, **settings)
    root.mkdir(parents=True, exist_ok=True)
    config = {"default.replication.factor": len(NODES), **(settings.pop("config", None) or {})}
    return open_log([root / name for name in NODES], config=config, **settings)


@pytest.fixture(autouse=True)
def _on_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedlog, "open", opened_as_set)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    gone = [item for item in here if item.name.split("[")[0] in OTHERWISE]
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=gone)
    for item in here:
        if item.path.name not in SHORT:
            item.add_marker(pytest.mark.slow)
