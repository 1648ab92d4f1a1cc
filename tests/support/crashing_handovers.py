"""The steps of a handover in a process that dies at a chosen call."""

from __future__ import annotations

import shutil
from pathlib import Path

from embedlog._native import system
from embedlog.tools.handover import from_kafka, to_kafka
from embedlog.tools.handover.server_properties import Addresses
from tests.faults.harness.processes import Died, Nursery
from tests.faults.harness.tasks import Stage, task
from tests.faults.partition.crashes import KINDS, Point

CHANGING = tuple(
    kind for kind in KINDS if kind not in ("open", "close", "pread", "stat", "lock", "list")
)
Arming = tuple[tuple[str, ...], int, str, int]


@task
def step_of_handover(
    _: Stage, directory: str, direction: str, arming: Arming | None = None
) -> dict[str, int]:
    """The step of a handover without the opening and closing, with a fault; the number of its
    calls.
    """
    system.fault_counters(True)
    if arming is not None:
        system.fault_arm(*arming)
    if direction == "to":
        to_kafka.hand_over(Path(directory), None, Addresses(), {})
    else:
        from_kafka.take_back(Path(directory), None)
        from_kafka.finish(Path(directory))
    counts, _ = system.fault_counters()
    system.fault_off()
    return dict(counts)


def points(nursery: Nursery, template: Path, directory: Path, direction: str) -> list[Point]:
    shutil.copytree(template, directory)
    victim = nursery.spawn()
    counts = victim.call("step_of_handover", str(directory), direction)
    nursery.end(victim)
    shutil.rmtree(directory)
    torn = [Point(nth, "torn_kill", ("pwrite",)) for nth in range(1, counts["pwrite"] + 1)]
    changes = sum(counts[kind] for kind in CHANGING)
    return torn + [Point(nth, "kill_before", CHANGING) for nth in range(1, changes + 1)]


def die(nursery: Nursery, directory: Path, direction: str, point: Point) -> bool:
    """Whether the process died; without the call it completes."""
    victim = nursery.spawn()
    try:
        victim.call(
            "step_of_handover", str(directory), direction, (point.kinds, point.nth, point.mode, 0)
        )
    except Died:
        return True
    finally:
        nursery.end(victim)
    return False
