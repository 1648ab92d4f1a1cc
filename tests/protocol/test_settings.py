"""The protocol's rule on settings (APPEND-8), step by step with processes that stop or die in an
append or in a change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from embedlog._native import system
from embedlog.storage import files
from embedlog.storage.file_names import CONTROL, LOCK, TOPICS
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery, RemoteError, Victim
from tests.faults.harness.stage import Play, check_rule
from tests.faults.harness.tasks import TOPIC

COMPACT = {"cleanup.policy": "compact"}
DELETE = {"cleanup.policy": "delete"}


def change(victim: Victim, settings: dict[str, str]) -> None:
    victim.call("on_log", "alter_topic", TOPIC, settings)


def is_odd(directory: Path) -> bool:
    """Whether the topics word of a directory is that of a change that has begun and not ended."""
    with files.opened(directory / CONTROL, files.READ) as fd:
        page = system.Page(fd, False)
    try:
        return bool(page.topics() & 1)
    finally:
        page.close()


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
    """The settings change before an append, and after its producer has looked at them: just before
    its lock.
    """
    writer = play.enter()
    other = play.enter()
    verdict = Verdict()
    for settings in (DELETE, COMPACT, DELETE, COMPACT):
        change(other, settings)
        if any(is_refused(writer) != (settings is COMPACT) for _ in range(3)):
            verdict.violations.append(f"an append went by other settings than {settings}")
    change(other, DELETE)
    if is_refused(writer):
        verdict.violations.append("an append went by settings that have changed")
    writer.arm(["lock"], "stop_before", name=LOCK)
    writer.start("append_one", b"v")
    writer.wait_stopped()
    change(other, COMPACT)
    writer.resume()
    try:
        writer.result()
    except RemoteError as error:
        if error.kind != "InvalidRecordError":
            raise
    else:
        verdict.violations.append("an append went by the settings of before its lock")
    return verdict


def test_append_8_the_next_append_goes_by_the_settings_of_another_process(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("any_settings", no_append_goes_by_older_settings, nursery, tmp_path)


def test_append_8_a_change_waits_for_an_append_that_began_before(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Otherwise its record, which the new settings refuse, comes after the return of the change."""
    play = Play(nursery, tmp_path / "log")
    writer = play.enter()
    other = play.enter()
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
    with pytest.raises(
        RemoteError,
        match=r"the settings of .* are changed, but an append that began before has not ended",
    ):
        change(other, COMPACT)
    writer.resume()
    play.finish_append(writer)
    change(other, COMPACT)
    assert is_refused(writer)


def test_append_8_a_record_of_a_killed_writer_comes_before_the_change(
    nursery: Nursery, tmp_path: Path
) -> None:
    """It is written and not published: the next holder of the append lock publishes it
    (APPEND-3).
    """
    play = Play(nursery, tmp_path / "log")
    writer = play.enter()
    other = play.enter()
    third = play.enter()
    play.append(writer)
    play.die_in_append(writer, "before-publish")
    change(other, COMPACT)
    end = end_of(other)
    assert is_refused(third)
    assert end_of(third) == end == 2


class Death(NamedTuple):
    """A call of a change between both steps of the topics word, at which its process is killed."""

    kind: str
    action: str
    nth: int = 1
    is_of_file: bool = True  # of the temporary for the file of topics; else of the directory

    def __str__(self) -> str:
        return f"{self.kind}-{self.nth}-{self.action}"

    @property
    def is_late(self) -> bool:
        """Whether the file of topics has the new settings."""
        return not self.is_of_file or (self.kind, self.action) == ("rename", "kill_after")

    def strike(self, victim: Victim, directory: Path, change: Callable[[Victim], None]) -> None:
        victim.arm(
            [self.kind],
            self.action,
            nth=self.nth,
            name=f"{directory}/{TOPICS}." if self.is_of_file else str(directory),
        )
        change(victim)
        victim.wait_dead()
        assert is_odd(directory)


DEATHS = [
    *(
        Death(kind, f"kill_{when}")
        for kind in ("open", "pwrite", "fsync", "rename")
        for when in ("before", "after")
    ),
    Death("pwrite", "torn_kill"),
    Death("fsync", "kill_before", 2, is_of_file=False),
    Death("fsync", "kill_after", 2, is_of_file=False),
]
SMALL = b"v" * 100
LARGE = b"v" * 5000
STRICT = {"max.message.bytes": "1000"}
LAX = {"max.message.bytes": "10000"}
AT_ONCE_S = 10.0  # less than the timeout of a lock, by far
PATIENT = {"lock.timeout.ms": 60_000}


def is_large_refused(writer: Victim, task: str) -> bool:
    """Whether a large record is refused; small ones before and after it are appended at once."""
    values = {"append": lambda value: [value], "append_one": lambda value: value}[task]
    writer.call(task, values(SMALL), deadline_s=AT_ONCE_S)
    try:
        writer.call(task, values(LARGE), deadline_s=AT_ONCE_S)
    except RemoteError as error:
        if error.kind != "RecordTooLargeError":
            raise
        return True
    finally:
        writer.call(task, values(SMALL), deadline_s=AT_ONCE_S)
    return False


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("is_broken", [False, True], ids=["in order", "with a dead writer"])
@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_append_8_a_change_that_was_killed_delays_no_append(
    nursery: Nursery, tmp_path: Path, death: Death, is_broken: bool
) -> None:
    """The topics word stays odd. The file of topics is as before, or changed, and decides about
    each append.

    After the death of a writer the next append repairs, and compares its sequences with the log: it
    is tried twice.
    """
    play = Play(nursery, tmp_path / "log", config=LAX)
    writer, killed, other = (play.enter(config=PATIENT) for _ in range(3))
    for _ in range(2):
        assert not is_large_refused(writer, "append_one")
    if is_broken:
        play.die_in_append(play.enter(), "before-publish")
    death.strike(
        killed, play.directory, lambda victim: victim.start("on_log", "alter_topic", TOPIC, STRICT)
    )
    for task in ("append", "append_one", "append"):
        assert is_large_refused(writer, task) == death.is_late
    assert is_odd(play.directory), "the word was settled by a process that changes no topic"
    change(other, LAX)
    assert not is_odd(play.directory)
    for task in ("append", "append_one"):
        assert not is_large_refused(writer, task)
    change(other, STRICT)
    assert is_large_refused(writer, "append_one")


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("death", [death for death in DEATHS if death.is_of_file], ids=str)
def test_append_8_a_change_in_a_set_that_was_killed_delays_no_append(
    nursery: Nursery, tmp_path: Path, death: Death
) -> None:
    """The settings were decided; the topics word of the leader stays odd."""
    paths = [tmp_path / "d1", tmp_path / "d2"]
    writer, killed, other = (nursery.spawn() for _ in range(3))
    for victim in (writer, killed, other):
        victim.call("open", [str(path) for path in paths], config={"housekeeping": False} | PATIENT)
    writer.call("create_topic", TOPIC, 1, LAX)
    (led,) = writer.call("on_log", "describe_topic", TOPIC).partitions
    for _ in range(2):
        assert not is_large_refused(writer, "append_one")
    death.strike(
        killed,
        Path(led.path).parent,
        lambda victim: victim.start("on_log", "alter_topic", TOPIC, STRICT),
    )
    for task in ("append", "append_one", "append"):
        assert is_large_refused(writer, task)
    change(other, LAX)
    for task in ("append", "append_one"):
        assert not is_large_refused(writer, task)
    other.call("create_topic", "other", 2)  # in both directories: each one's lock is taken
    assert not any(is_odd(path) for path in paths)
    for task in ("append", "append_one"):
        assert not is_large_refused(writer, task)


def test_append_8_a_change_that_is_under_way_is_waited_for_by_nobody(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Its process is frozen between both steps. Appends go by the file of topics until it goes
    on.
    """
    play = Play(nursery, tmp_path / "log")
    writer = play.enter()
    frozen = play.enter()
    play.append(writer)
    frozen.arm(["rename"], "stop_before", name=TOPICS)
    frozen.start("on_log", "alter_topic", TOPIC, COMPACT)
    frozen.wait_stopped()
    assert not any(is_refused(writer) for _ in range(3))
    frozen.resume()
    frozen.result()
    assert is_refused(writer)
