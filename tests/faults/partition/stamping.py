"""Batches with sequences, and markers, in one partition, with a crash or an error at a chosen call;
then the step is repeated.

Invariant: for every call at which the process dies or gets an error, the next one repeats the
current step and continues. The log is then as without the fault: every batch once, at the same
offsets, visible to the same isolation levels. The same transactions are open. Every snapshot and
transaction index equals a replay of the log.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import embedlog
from embedlog import segment
from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.format import aborted_transactions, record_batch
from embedlog.format.producer_state import ProducerState
from embedlog.format.record_batch import Chain, Stamp
from embedlog.format.record_columns import BytesColumn, Columns
from embedlog.partition.log_context import AppendProgress
from embedlog.partition.recovery import producer_history
from embedlog.storage import file_names
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Died, Nursery, RemoteError
from tests.faults.harness.tasks import TOPIC, Stage, task

CONFIG = {
    "segment.bytes": 2_000,
    "index.interval.bytes": 300,
    "flush.ms": 3_600_000,
    "retention.ms": -1,
}
PRODUCERS = (2**62 + 11, 2**62 + 12, 2**62 + 13)
QUIET = {"housekeeping": False}


class Send(NamedTuple):
    """A run of `count` records of `size` bytes; in batches of `batch_bytes`."""

    stamp: Stamp
    sequence: int
    count: int
    size: int
    batch_bytes: int
    time_ms: int
    expected_offset: int | None = None

    def values(self) -> list[bytes]:
        head = f"{self.stamp.producer_id - 2**62}/{self.stamp.epoch}"
        return [
            f"{head}/{self.sequence + at}:".encode().ljust(self.size, b".")
            for at in range(self.count)
        ]

    def run(self) -> record_batch.EncodedRun:
        columns = Columns(self.count, BytesColumn.of(self.values()), timestamps=self.time_ms)
        (run,) = record_batch.encode(columns, batch_bytes=self.batch_bytes, run_bytes=1 << 20)
        record_batch.stamp(run, self.stamp, self.sequence)
        return run


class End(NamedTuple):
    """A marker, with the raised epoch."""

    producer_id: int
    epoch: int
    commit: bool


Step = Send | End


def steps(seed: int, count: int, time_ms: int) -> list[Step]:
    """Two producers in transactions, one without; runs of many batches now and then, so that
    segments are rolled inside one.
    """
    rng = random.Random(seed)
    made: list[Step] = []
    epochs = dict.fromkeys(PRODUCERS, 0)
    sequences = dict.fromkeys(PRODUCERS, 0)
    opened = dict.fromkeys(PRODUCERS, False)
    for _ in range(count):
        producer = rng.choice(PRODUCERS)
        transactional = producer != PRODUCERS[2]
        if opened[producer] and rng.random() < 0.35:
            epochs[producer] += 1
            sequences[producer] = 0
            opened[producer] = False
            made.append(End(producer, epochs[producer], rng.random() < 0.5))
            continue
        records = rng.choice((1, 1, 2, 3, 12))
        stamp = Stamp(
            producer, epochs[producer], transactional, transactional and not opened[producer]
        )
        made.append(
            Send(
                stamp,
                sequences[producer],
                records,
                rng.randint(20, 250),
                rng.choice((300, 1500)),
                time_ms,
            )
        )
        sequences[producer] += records
        opened[producer] = transactional
    return made


def conditional(made: Sequence[Step], answers: Sequence[Any]) -> list[Step]:
    """The steps, every other run with the offset that it gets."""
    return [
        step._replace(expected_offset=answer[0]) if isinstance(step, Send) and number % 2 else step
        for number, (step, answer) in enumerate(zip(made, answers, strict=True))
    ]


def closed(made: list[Step]) -> list[Step]:
    """With every transaction ended."""
    opened = {step[0] if isinstance(step, End) else step.stamp.producer_id: step for step in made}
    sends = [
        step.stamp
        for step in opened.values()
        if isinstance(step, Send) and step.stamp.transactional
    ]
    return made + [End(stamp.producer_id, stamp.epoch + 1, False) for stamp in sends]


def do(partition: Any, step: Step) -> Any:
    if isinstance(step, End):
        partition.append_marker(step.producer_id, step.epoch, commit=step.commit)
        return None
    run = step.run()
    found = partition.append(
        run, stamp=step.stamp, progress=AppendProgress(run, step.expected_offset)
    )
    return found.base_offset, found.last_offset


@task
def do_steps(
    stage: Stage, path: str, todo: Sequence[Step], nth: int = 0, error: int = 0, stay: bool = False
) -> None:
    """Open, do the steps, close; a note before and after each. With `nth` that call fails, and the
    step is repeated.
    """
    stage.log = log = embedlog.open(path, config=QUIET)
    if TOPIC not in log.topics():
        log.create_topic(TOPIC, config=CONFIG)
    partition = log._engine.partition(TOPIC, 0)
    if nth:
        system.fault_arm(
            ("open", "pread", "pwrite", "ftruncate", "unlink", "rename", "stat", "fsync"),
            nth,
            "fail",
            error,
        )
    for step in todo:
        stage.note(("begun", step))
        try:
            answer = do(partition, step)
        except EmbedlogError as problem:
            if not nth:
                raise
            stage.note(("failed", str(problem)))
            system.fault_off()
            answer = do(partition, step)
        stage.note(("done", answer))
    system.fault_off()
    if not stay:
        log.close()


@task
def disagreements_now(stage: Stage) -> list[str]:
    """The same among the living: by this process's own knowledge, which comes from reading
    along.
    """
    partition = stage.opened._engine.partition(TOPIC, 0)
    bounds = partition.bounds()
    opened = partition.open_transactions()
    wrong = list(disagreements(partition.path))
    if bounds.last_stable != min((first for _, _, first in opened), default=bounds.log_end):
        wrong.append(f"last stable {bounds.last_stable}, open {opened}")
    return wrong


@task
def census(stage: Stage, path: str) -> dict[str, Any]:
    """The view of a new process, and its differences from a replay of the log."""
    with embedlog.open(path, config=QUIET) as log:
        if TOPIC not in log.topics():
            return {"rows": [], "committed": [], "open": [], "epochs": [], "wrong": []}
        partition = log._engine.partition(TOPIC, 0)
        found = {
            "rows": [(each.offset, each.value) for each in log.scan(TOPIC).records()],
            "committed": [
                (each.offset, each.value)
                for each in log.scan(TOPIC, isolation_level="read_committed").records()
            ],
            "open": partition.open_transactions(),
            "epochs": [partition.stored_epoch(producer) for producer in PRODUCERS],
        }
        found["wrong"] = list(disagreements(partition.path))
    return found


def disagreements(directory: Path) -> Iterator[str]:
    """Every snapshot and transaction index that a replay of the log contradicts."""
    state = ProducerState()
    snapshots = set(producer_history.snapshot_offsets(directory))
    bases = file_names.bases(names(directory))
    for base in bases:
        path = file_names.segment_path(directory, base)
        aborted = []
        with path.open("rb") as file:
            walk = segment.Walk(
                file.fileno(), path, Chain(gaps_allowed=True), 0, path.stat().st_size
            )
            for data, batches in walk.chunks():
                at = int(batches["position"][0])
                for row in range(len(batches)):
                    start = int(batches["position"][row]) - at
                    one = batches[row : row + 1]
                    aborted += state.replay(
                        one,
                        producer_history.markers_in(data[start : start + int(one["size"][0])], one),
                    )
                    if state.offset in snapshots:
                        there = file_names.segment_path(
                            directory, state.offset, file_names.SNAPSHOT
                        ).read_bytes()
                        if entries_of(there) != entries_of(state.encode()):
                            yield (
                                f"snapshot {state.offset}: {there.hex()} is not "
                                f"{state.encode().hex()}"
                            )
        index = file_names.segment_path(directory, base, file_names.TRANSACTION_INDEX)
        there = index.read_bytes() if index.exists() else b""
        if there != aborted_transactions.encode(aborted):
            yield f"{index.name}: {there.hex()} is not {aborted_transactions.encode(aborted).hex()}"
    missing = [base for base in bases if base and base not in snapshots]
    if missing:
        yield f"no snapshot at {missing}"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def entries_of(snapshot: bytes) -> list[bytes]:
    return sorted(snapshot[at : at + 46] for at in range(10, len(snapshot), 46))


# ---- the experiment ------------------------------------------------------------------------------


def census_of(nursery: Nursery, directory: Path) -> dict[str, Any]:
    looker = nursery.spawn()
    found: dict[str, Any] = looker.call("census", str(directory))
    nursery.end(looker)
    return found


def undisturbed(
    nursery: Nursery, directory: Path, todo: Sequence[Step]
) -> tuple[list[Any], dict[str, Any], dict[str, int]]:
    """The results, the final view, and the number of calls of each kind that the steps make."""
    victim = nursery.spawn()
    victim.call("counters", True)
    victim.start("do_steps", str(directory), todo)
    answers = [note[1] for note in victim.notes() if note[0] == "done"]
    counts: dict[str, int] = victim.call("counters")
    nursery.end(victim)
    found = census_of(nursery, directory)
    shutil.rmtree(directory)
    return answers, found, counts


def crash_at(
    nursery: Nursery,
    directory: Path,
    todo: Sequence[Step],
    expected: tuple[list[Any], dict[str, Any]],
    arms: Sequence[tuple[tuple[str, ...], str, int, str]],
    mutants: Sequence[str] = (),
    alone: bool = False,
) -> Verdict:
    """Processes one after the other, each dies where its arm says (kinds, action, nth, name); the
    last one runs without a fault.

    Alone, the next process loads the log; else another process has it open all the time, and the
    next one repairs.
    """
    verdict = Verdict()
    answers = []
    bystander = nursery.spawn()
    if not alone:
        bystander.call("do_steps", str(directory), (), stay=True)
    for arm in [*arms, None]:
        victim = nursery.spawn()
        victim.call("mutants", *mutants)
        if arm is not None:
            victim.arm(arm[0], arm[1], nth=arm[2], name=arm[3])
        try:
            victim.start("do_steps", str(directory), todo[len(answers) :])
            answers += [note[1] for note in victim.notes() if note[0] == "done"]
        except RemoteError as problem:
            verdict.violations.append(
                f"{arms}: step {len(answers)} {todo[len(answers) :][:1]}: "
                f"{problem}\n{problem.trace}"
            )
            return verdict
        finally:
            nursery.end(victim)
    if not alone:
        verdict.violations += [
            f"{arms}: before the close, {each}" for each in bystander.call("disagreements_now")
        ]
        bystander.call("close")
    nursery.end(bystander)
    compare(verdict, f"{arms}, alone {alone}", answers, census_of(nursery, directory), expected)
    return verdict


def fail_at(
    nursery: Nursery,
    directory: Path,
    todo: Sequence[Step],
    expected: tuple[list[Any], dict[str, Any]],
    nth: int,
    error: int,
) -> tuple[Verdict, list[str]]:
    """One process whose nth call fails; it repeats the step that failed."""
    verdict = Verdict()
    answers = []
    failures = []
    victim = nursery.spawn()
    try:
        victim.start("do_steps", str(directory), todo, nth, error)
        for note in victim.notes():
            if note[0] == "done":
                answers.append(note[1])
            elif note[0] == "failed":
                failures.append(note[1])
        compare(
            verdict,
            f"call {nth} fails with {error}: {failures}",
            answers,
            census_of(nursery, directory),
            expected,
        )
    except (RemoteError, Died) as problem:
        trace = problem.trace if isinstance(problem, RemoteError) else ""
        verdict.violations.append(f"call {nth} fails with {error}: {failures}: {problem}\n{trace}")
    nursery.end(victim)
    return verdict, failures


def compare(
    verdict: Verdict,
    where: str,
    answers: list[Any],
    found: dict[str, Any],
    expected: tuple[list[Any], dict[str, Any]],
) -> None:
    if answers != expected[0]:
        wrong = [
            (number, *pair)
            for number, pair in enumerate(zip(answers, expected[0], strict=False))
            if pair[0] != pair[1]
        ]
        verdict.violations.append(
            f"{where}: answers (step, found, expected) {wrong[:3]}, {len(answers)} of "
            f"{len(expected[0])}"
        )
    for what, wanted in expected[1].items():
        if found[what] != wanted:
            verdict.violations.append(
                f"{where}: {what}: {str(found[what])[:2000]} is not {str(wanted)[:2000]}"
            )
