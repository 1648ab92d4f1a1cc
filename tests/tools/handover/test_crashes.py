"""A handover that dies at any of its calls, in both directions, and is repeated, perhaps after
dying again.

Invariant: after each death the directory is as before, or the repetition completes it. No record
and no offset is lost.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import EmbedlogError
from embedlog.tools.handover import metadata_image, server_properties
from tests.faults.harness.processes import Nursery
from tests.support.crashing_handovers import die, points
from tests.support.given_directories import (
    CONFIG,
    broker,
    change,
    check_changed,
    check_records,
    give,
    make,
    take,
)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory before each direction; the second handover, with metadata of a broker."""
    given = make(tmp_path_factory.mktemp("crashes") / "to")
    give(given)
    with broker(given):
        pass
    take(given)
    used = given.with_name("from")
    shutil.copytree(given, used)
    give(used)
    with broker(used) as image:
        change(used, image)
    return {"to": given, "from": used}


def judge_given(directory: Path) -> list[str]:
    """Before the repetition, embedlog continues; afterwards, a broker gets everything."""
    with embedlog.open(directory, config=CONFIG) as log:
        wrong = check_records(log)
    give(directory)
    names = {topic.name for topic in metadata_image.read(directory)[0].topics.values()}
    if names != {"kept", "gone", "__consumer_offsets"} or not server_properties.read(directory):
        wrong.append(f"the broker gets {names}")
    return wrong


def judge_taken(directory: Path) -> list[str]:
    try:
        take(directory)
    except EmbedlogError as problem:
        return [f"{problem!r}"]
    wrong = (
        [] if not server_properties.read(directory) else ["the configuration file is still there"]
    )
    return wrong + check_changed(directory)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("direction", ["to", "from"])
def test_a_handover_that_dies_at_any_call_is_completed_by_its_repetition(
    nursery: Nursery, templates: dict[str, Path], tmp_path: Path, rng: random.Random, direction: str
) -> None:
    directory = tmp_path / "data"
    every = points(nursery, templates[direction], directory, direction)
    assert len(every) >= 10
    died = 0
    for point in every:
        shutil.copytree(templates[direction], directory)
        died += die(nursery, directory, direction, point)
        if rng.random() < 0.3:
            die(nursery, directory, direction, rng.choice(every))
        assert (judge_given if direction == "to" else judge_taken)(directory) == [], point
        shutil.rmtree(directory)
    assert died == len(every)
