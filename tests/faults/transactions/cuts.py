"""Power losses in the middle of transactions: a recording of the script on durable topics, replayed
into disks.

Invariant (TXN-5): transactions are present as a whole or not at all. Acknowledged ends are final,
and `init_transactions` returns the last outcome. Nothing stays open, and the id can continue.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedlog._native import system
from embedlog.errors import EmbedlogError
from tests.faults.harness.processes import Nursery
from tests.faults.harness.tasks import Stage, task
from tests.faults.harness.transaction_tasks import transaction_script
from tests.faults.power.powerloss import HEAD, PROMISE, changes, disks
from tests.faults.transactions.owners import Notes, aftermath
from tests.support.mutants import mutated


@task
def recorded_transactions(stage: Stage, path: str, seed: int, recording_path: str) -> None:
    """Run the script on durable topics and record every change, and each note as a promise between
    them.
    """
    fd = os.open(recording_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    system.record_to(fd)

    def promise(content: Any) -> None:
        data = json.dumps(content).encode()
        os.write(fd, HEAD.pack(PROMISE, 0, 0, 0, 0, len(data)) + data)

    stage.note = promise  # type: ignore[method-assign]
    transaction_script(stage, path, seed, config={"flush.messages": "1"})
    system.record_to(-1)
    os.close(fd)


def experiment(
    nursery: Nursery, workspace: Path, seed: int, states: int, mutants: Sequence[str] = ()
) -> tuple[list[str], int]:
    """Open `states` disks, cut at moments drawn by the seed; what is wrong with the first bad one,
    and how many were opened.
    """
    rng = random.Random(seed)
    root = workspace / "recorded"
    path = workspace / "recording"
    victim = nursery.spawn()
    victim.call("mutants", *mutants)
    victim.call("recorded_transactions", str(root), seed, str(path))
    nursery.end(victim)
    found = list(changes(path))
    first = next(at for at, change in enumerate(found) if change.kind == "promise")
    moments = sorted(rng.randrange(first, len(found)) for _ in range(states))
    notes = Notes()
    opened = 0
    for where, target in disks(
        found,
        root,
        workspace,
        moments,
        rng,
        lambda change: notes.take(tuple(json.loads(change.data))),
    ):
        wrong = judge(target, notes, mutants)
        opened += 1
        if wrong:
            return [f"{where}: {each}" for each in wrong], opened
        shutil.rmtree(target)
    return [], opened


def judge(directory: Path, notes: Notes, mutants: Sequence[str]) -> list[str]:
    try:
        with mutated(*mutants):
            return aftermath(directory, notes, by_reader=False)
    except EmbedlogError as problem:
        return [f"the log does not open or accept transactions: {problem!r}"]
