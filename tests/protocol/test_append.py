"""The protocol's rules on appending (7-16), step by step with processes that stop or die where the
models say.

The traces are those of `tests/model/RESULTS.md`. Each test names its rule; where a mutant exists,
the same steps must fail with the rule switched off.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from pathlib import Path

import pytest

from embedlog.storage.file_names import LOCK
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery, RemoteError, state_of, until
from tests.faults.harness.stage import FakeBroker, Play, Steps, check_rule, fails_without

# -- APPEND-1
# --------------------------------------------------------------------------------------------------------------


def nothing_is_seen_before_it_is_written(play: Play) -> Verdict:
    writer = play.enter()
    reader = play.enter()
    play.append(writer)
    play.stop_in_append(writer, ".log", kind="pwrite")
    verdict = play.seen_by(reader)
    if reader.call("ends")[0][1] != 1:
        verdict.violations.append("published before it was written")
    writer.resume()
    play.finish_append(writer)
    verdict.add(play.seen_by(reader))
    return verdict


def test_append_1_a_record_is_published_after_it_is_written(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("publish_before_write", nothing_is_seen_before_it_is_written, nursery, tmp_path)


def two_writers_take_turns(play: Play) -> Verdict:
    """Trace `append: without catch_up`, and without a lock: B writes while A is in the middle of
    its append.
    """
    a = play.enter()
    b = play.enter()
    play.append(a)
    play.append(b)
    play.append(a)
    play.stop_in_append(a, "before-publish")
    b.arm_refused(LOCK)
    play.start_append(b)
    assert b.is_refused(), "B appended while A was in the middle of its own"
    a.resume()
    play.finish_append(a)
    b.resume()
    play.finish_append(b)
    verdict = play.seen_by(a)
    verdict.add(play.seen_afresh())
    return verdict


def test_append_1_one_writer_at_a_time_and_each_catches_up(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_append_lock", two_writers_take_turns, nursery, tmp_path)


def short_write_is_finished(play: Play) -> Verdict:
    writer = play.enter()
    play.append(writer)
    writer.arm(["pwrite"], "short", name=".log")
    play.append(writer, size=5000)
    play.append(writer)
    return play.seen_afresh() if play.leave(writer) is None else Verdict()


def test_append_1_a_short_write_is_no_write(nursery: Nursery, tmp_path: Path) -> None:
    check_rule("ignore_short_write", short_write_is_finished, nursery, tmp_path)


# -- LOCK-2
# ---------------------------------------------------------------------------------------------------------------


def test_lock_2_a_frozen_holder_is_named_when_the_deadline_passes(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    holder = play.enter()
    waiter = play.enter(config={"lock.timeout.ms": 300})
    play.append(holder)
    play.append(waiter)
    play.stop_in_append(holder, "before-publish")
    began = time.monotonic()
    with pytest.raises(RemoteError) as refused:
        play.append(waiter)
    spent = time.monotonic() - began
    assert "LockTimeoutError" in refused.value.kinds
    assert "TimeoutError" in refused.value.kinds
    assert str(holder.pid) in str(refused.value)
    assert 0.25 < spent < 5.0, spent
    assert waiter.call("ends")[0][1] == 2, "readers continue"
    holder.resume()
    play.finish_append(holder)
    play.append(waiter)
    assert not play.seen_by(waiter).violations


# -- APPEND-2
# --------------------------------------------------------------------------------------------------------------


def killed_between_write_and_publish(play: Play) -> Verdict:
    """Trace `append: without owner_word`."""
    a = play.enter()
    b = play.enter()
    play.append(a)
    play.die_in_append(a, "before-publish")
    play.append(b)
    play.append(b)
    verdict = play.seen_by(b)
    play.leave(b)
    verdict.add(play.seen_afresh())
    return verdict


def torn_then_killed(play: Play) -> Verdict:
    """A writes half a batch that is larger than B's batch at the same position, and dies."""
    a = play.enter()
    b = play.enter()
    play.append(a)
    a.arm(["pwrite"], "torn_kill", name=".log")
    play.start_append(a, size=20_000)
    a.wait_dead()
    play.append(b)
    play.append(b)
    verdict = play.seen_by(b)
    b.kill()
    verdict.add(play.seen_afresh())
    return verdict


@pytest.mark.parametrize("steps", [killed_between_write_and_publish, torn_then_killed])
def test_append_2_a_dead_writers_successor_repairs_first(
    nursery: Nursery, tmp_path: Path, steps: Steps
) -> None:
    verdict = steps(Play(nursery, tmp_path / "log"))
    assert not verdict.violations, verdict


def test_append_2_without_the_owner_word_the_successor_writes_over_it(
    nursery: Nursery, tmp_path: Path
) -> None:
    fails_without("no_owner_word", written_but_not_published_stays, nursery, tmp_path / "mutant")


@pytest.mark.parametrize("point", ["roll-intent", "roll-created", "roll-published"])
def test_append_2_a_roll_broken_off_anywhere_is_finished_or_undone(
    nursery: Nursery, tmp_path: Path, point: str
) -> None:
    """Trace `append: without owner_word + roll_intent`: killed between creating a segment and
    publishing it.
    """
    play = Play(nursery, tmp_path / "log", config={"segment.bytes": 500})
    a = play.enter()
    b = play.enter()
    for _ in range(2):
        play.append(a)
    play.die_in_append(a, point)
    for _ in range(5):
        play.append(b)
    verdict = play.seen_by(b)
    play.leave(b)
    verdict.add(play.seen_afresh())
    assert not verdict.violations, verdict
    bases = sorted(int(path.stem) for path in play.partition.glob("*.log"))
    assert bases[0] == 0
    assert all(base in {offset for _, offset in play.acks} for base in bases), (
        f"a segment without an appended record: {bases}"
    )


# -- APPEND-3
# --------------------------------------------------------------------------------------------------------------


def written_but_not_published_stays(play: Play) -> Verdict:
    a = play.enter()
    b = play.enter()
    play.append(a)
    play.die_in_append(a, "before-publish")
    offset = play.append(b)
    verdict = play.seen_by(b)
    if offset != 2:
        verdict.violations.append(
            f"bytes after the published end were removed: B appended at {offset}"
        )
    return verdict


def test_append_3_a_valid_tail_is_adopted_not_cut(nursery: Nursery, tmp_path: Path) -> None:
    check_rule("cut_instead_of_adopt", written_but_not_published_stays, nursery, tmp_path)


def test_append_3_what_is_cut_is_copied_aside(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    verdict = torn_then_killed(play)
    assert not verdict.violations, verdict
    aside = list(play.partition.glob("embedlog.cut-*"))
    assert len(aside) == 1, aside
    assert aside[0].stat().st_size > 5_000, "half of the batch that died"


# -- APPEND-4
# --------------------------------------------------------------------------------------------------------------


def reader_meets_half_a_publication(play: Play) -> Verdict:
    """Trace `append: without publish_once`: whatever moment the writer is stopped at, the tuple
    describes the files.
    """
    a = play.enter()
    b = play.enter()
    play.append(a)
    a.arm(["point"], "stop_before", name="torn-publish")
    play.start_append(a)
    stopped = stops_or_answers(a)
    verdict = play.seen_by(b)
    if stopped:
        a.kill()
        play.append(b)
        verdict.add(play.seen_by(b))
    else:
        play.finish_append(a)
    return verdict


def stops_or_answers(victim: object) -> bool:
    """True once it is stopped, False once it has answered: only the mutant's path has the point."""
    from tests.faults.harness.processes import Victim, state_of, until

    assert isinstance(victim, Victim)
    until(lambda: state_of(victim.pid) == "T" or victim.note_waiting(), "a stop or an answer")
    return state_of(victim.pid) == "T"


def test_append_4_the_whole_tuple_changes_by_one_store(nursery: Nursery, tmp_path: Path) -> None:
    check_rule("torn_publish", reader_meets_half_a_publication, nursery, tmp_path)


@pytest.mark.parametrize("point", ["before-publish", "after-publish", "before-unlock"])
def test_append_4_a_death_around_the_publishing_store_loses_nothing(
    nursery: Nursery, tmp_path: Path, point: str
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    b = play.enter()
    play.append(a)
    play.die_in_append(a, point)
    before = b.call("ends")[0][1]
    verdict = play.seen_by(b)
    assert play.append(b) >= before
    verdict.add(play.seen_by(b))
    assert not verdict.violations, verdict


# -- APPEND-5 and READ-1
# ---------------------------------------------------------------------------------------------------


def test_append_5_two_appenders_in_turn_keep_the_indexes_rising(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", config={"index.interval.bytes": 300})
    a = play.enter()
    b = play.enter()
    for _ in range(20):
        play.append(a)
        play.append(b)
    a.kill()
    for _ in range(5):
        play.append(b)
    play.leave(b)
    times = entries(play.partition / f"{0:020d}.timeindex", 12, 8)
    offsets = entries(play.partition / f"{0:020d}.index", 8, 4)
    assert len(offsets) > 5
    assert times == sorted(times), "decreasing time-index entries"
    assert offsets == sorted(set(offsets)), "index entries do not rise"
    assert not play.seen_afresh().violations


def entries(path: Path, size: int, key: int) -> list[int]:
    data = path.read_bytes()
    return [int.from_bytes(data[at : at + key], "big") for at in range(0, len(data), size)]


@pytest.mark.parametrize(("field", "position"), [("base offset", 7), ("leader epoch", 15)])
def test_read_1_damage_outside_kafkas_checksum_is_found(
    nursery: Nursery, tmp_path: Path, field: str, position: int
) -> None:
    """Base offset and leader epoch lie outside the CRC; the running digest of the active segment
    covers them.
    """
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    for _ in range(6):
        play.append(a)
    log = play.partition / f"{0:020d}.log"
    fd = os.open(log, os.O_RDWR)
    head = log.stat().st_size // 6 * 3  # equal batches: the fourth one
    before = os.pread(fd, 1, head + position)
    os.pwrite(fd, bytes([before[0] ^ 0x01]), head + position)
    os.close(fd)
    with pytest.raises(RemoteError) as noticed:
        a.call("read")
    assert noticed.value.kind == "CorruptRecordError", f"{field}: {noticed.value}"
    a.kill()
    b = play.nursery.spawn()
    with pytest.raises(RemoteError) as refused:
        b.call("read_directory", str(play.directory))
    assert refused.value.kind == "CorruptRecordError", f"{field}: {refused.value}"


def seek_into_a_changed_epoch(play: Play) -> Verdict:
    """The segments of a broker have no digests of this library: the epoch cache has the epoch of an
    offset.
    """
    a = play.enter()
    for _ in range(6):
        play.append(a)
    play.leave(a)
    broker = FakeBroker(play.directory)
    assert broker.start()
    broker.mark_and_unlock()
    broker.unlink()
    a = play.enter()
    assert a.call("ends")[0] == (0, 6)
    log = play.partition / f"{0:020d}.log"
    position = log.stat().st_size // 6 * 3 + 15
    with log.open("r+b") as file:
        file.seek(position)
        file.write(b"\x01")
    verdict = Verdict()
    try:
        rows = a.call("poll_at", 3)
        verdict.violations += [
            f"offset {row.offset} came back in epoch {row.epoch}" for row in rows
        ]
    except RemoteError as noticed:
        if noticed.kind != "CorruptRecordError":
            verdict.violations.append(str(noticed))
    return verdict


def test_read_1_an_epoch_is_the_one_that_the_epoch_cache_has(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_epoch_check", seek_into_a_changed_epoch, nursery, tmp_path)


def median_wake_ms(play: Play) -> float:
    writer = play.enter()
    reader = play.enter()
    play.append(writer)
    reader.start("wake_times", 15)
    notes = iter(reader.notes())
    assert next(notes) == "ready"
    for _ in range(15):
        until(lambda: state_of(reader.pid) == "S", "the reader to sleep")
        writer.call("append_time")
        assert next(notes) == "got"
    return statistics.median(reader.result_after(notes))


def test_append_4_publishing_wakes_who_waits(nursery: Nursery, tmp_path: Path) -> None:
    """Without the wake a reader finds out when its slice of sleep is over; with it long before."""
    woken = median_wake_ms(Play(nursery, tmp_path / "log"))
    missed = median_wake_ms(Play(nursery, tmp_path / "mutant", mutants=("no_wake",)))
    print(f"median time to wake: {woken:.2f} ms, without waking {missed:.2f} ms")
    assert woken < missed / 2


def test_a_killed_writer_delays_the_others_by_milliseconds(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    b = play.enter()
    play.append(a)
    play.append(b)
    play.stop_in_append(a, "before-publish")
    play.start_append(b)
    os.kill(a.pid, signal.SIGKILL)
    began = time.monotonic()
    play.finish_append(b)
    assert time.monotonic() - began < 1.0
    assert not play.seen_by(b).violations
