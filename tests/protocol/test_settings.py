"""The protocol's rule on settings (APPEND-8), step by step with processes that stop or die in an append or in a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedlog.storage.file_names import LOCK, TOPICS
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery, RemoteError, Victim
from tests.faults.harness.stage import Play, check_rule
from tests.faults.harness.tasks import TOPIC

COMPACT = {"cleanup.policy": "compact"}
DELETE = {"cleanup.policy": "delete"}


def change(victim: Victim, settings: dict[str, str]) -> None:
    victim.call("on_log", "alter_topic", TOPIC, settings)


def end_of(victim: Victim) -> int:
    return int(victim.call("ends")[0][1])


def is_refused(writer: Victim) -> bool:
    """Whether a record without a key is refused, if the writer appends one."""
    try:
        writer.call("append_one", b"v")
    except RemoteError as error:
        if error.kind != "InvalidRecordError":
            raise
        return True
    return False


def no_append_goes_by_older_settings(play: Play) -> Verdict:
    writer, other = play.enter(), play.enter()
    verdict = Verdict()
    for settings in (DELETE, COMPACT, DELETE, COMPACT):
        change(other, settings)
        if any(is_refused(writer) != (settings is COMPACT) for _ in range(3)):
            verdict.violations.append(f"an append went by other settings than {settings}")
    return verdict


def test_append_8_the_next_append_goes_by_the_settings_of_another_process(nursery: Nursery, tmp_path: Path) -> None:
    check_rule("any_settings", no_append_goes_by_older_settings, nursery, tmp_path)


def test_append_8_a_change_waits_for_an_append_that_began_before(nursery: Nursery, tmp_path: Path) -> None:
    """Otherwise its record, which the new settings refuse, comes after the return of the change."""
    play = Play(nursery, tmp_path / "log")
    writer, other = play.enter(), play.enter()
    play.append(writer)
    play.append(other)
    play.stop_in_append(writer, "before-publish")
    other.arm_refused(LOCK)
    other.start("on_log", "alter_topic", TOPIC, COMPACT)
    assert other.is_refused(), "the settings changed while a record of the older ones was under way"
    writer.resume()
    play.finish_append(writer)
    other.resume()
    other.result()
    assert end_of(other) == 3
    assert is_refused(writer)


def test_append_8_a_change_says_that_it_waited_in_vain(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    writer = play.enter()
    other = play.enter(config={"lock.timeout.ms": 300})
    play.append(writer)
    play.stop_in_append(writer, "before-publish")
    with pytest.raises(RemoteError, match=r"the settings of .* are changed, but an append that began before has not ended"):
        change(other, COMPACT)
    writer.resume()
    play.finish_append(writer)
    change(other, COMPACT)
    assert is_refused(writer)


def test_append_8_a_record_of_a_killed_writer_comes_before_the_change(nursery: Nursery, tmp_path: Path) -> None:
    """It is written and not published: the next holder of the append lock publishes it (APPEND-3)."""
    play = Play(nursery, tmp_path / "log")
    writer, other, third = play.enter(), play.enter(), play.enter()
    play.append(writer)
    play.die_in_append(writer, "before-publish")
    change(other, COMPACT)
    end = end_of(other)
    assert is_refused(third)
    assert end_of(third) == end == 2


@pytest.mark.parametrize("action", ["kill_before", "kill_after"])
def test_append_8_a_change_that_was_killed_leaves_no_older_settings(nursery: Nursery, tmp_path: Path, action: str) -> None:
    """The topics word stays odd. The file of topics is as before, or changed, and decides about each append."""
    play = Play(nursery, tmp_path / "log")
    writer, killed, other = play.enter(), play.enter(), play.enter()
    play.append(writer)
    killed.arm(["rename"], action, name=TOPICS)
    killed.start("on_log", "alter_topic", TOPIC, COMPACT)
    killed.wait_dead()
    assert [is_refused(writer) for _ in range(3)] == [action == "kill_after"] * 3
    change(other, DELETE)
    assert not is_refused(writer)
    change(other, COMPACT)
    assert is_refused(writer)


def test_append_8_a_change_that_is_under_way_is_waited_for_by_nobody(nursery: Nursery, tmp_path: Path) -> None:
    """Its process is frozen between both steps. Appends go by the file of topics until it goes on."""
    play = Play(nursery, tmp_path / "log")
    writer, frozen = play.enter(), play.enter()
    play.append(writer)
    frozen.arm(["rename"], "stop_before", name=TOPICS)
    frozen.start("on_log", "alter_topic", TOPIC, COMPACT)
    frozen.wait_stopped()
    assert not any(is_refused(writer) for _ in range(3))
    frozen.resume()
    frozen.result()
    assert is_refused(writer)
