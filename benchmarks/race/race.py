"""Runs the race: for each workload all peers in alternation, and collects the results."""

from __future__ import annotations

import datetime
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..measure import machine
from . import data
from .job import Job
from .peers import PEERS, Peer
from .processes import ROOT, TurnError, take
from .stores import Place, Stores, disk_bytes
from .workloads import GROUPS, Scale, Workload, workloads

TAIL_FILL = 10  # records that a store has before a reader follows it
Results = dict[str, Any]


def commit() -> str:
    """The commit of the code, with a plus sign if files have changed."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def file_system(directory: Path) -> str:
    """The type of the file system of a directory."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [
        (len(point), kind) for point, kind in mounts if directory.resolve().is_relative_to(point)
    ]
    return max(inside)[1]


def load() -> str:
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


@contextmanager
def conditions(directory: Path) -> Iterator[dict[str, str]]:
    """Date, commit, load and file system of a part of the run; complete when the block ends."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    found = {
        "date": date,
        "commit": commit(),
        "load_before": load(),
        "files": file_system(directory),
    }
    began = time.monotonic()
    yield found
    found |= {"load_after": load(), "minutes": f"{(time.monotonic() - began) / 60:.1f}"}


@dataclass
class Filled:
    """A store that read workloads share."""

    place: Place
    records: int


@dataclass
class Race:
    """One run."""

    scale: Scale
    directory: Path
    stores: Stores
    peers: list[type[Peer]]
    say: Callable[[str], None]
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    filled: dict[str, dict[str, Any]] = field(default_factory=dict)

    def values(self, workload: Workload) -> Path:
        """The file of values, made once."""
        path = self.directory / f"values-{workload.kind}-{workload.record_bytes}"
        if not path.exists():
            data.make(path, workload.kind, workload.record_bytes, self.scale.total_bytes)
        return path

    def job(self, workload: Workload, place: Place, **more: Any) -> Job:
        asked: dict[str, Any] = {
            "where": place.where,
            "values": str(self.values(workload)),
            "topic": place.topic,
            "count": max(
                1,
                (workload.total_bytes or self.scale.total_bytes)
                // workload.record_bytes
                // workload.processes,
            ),
            "seconds": self.seconds(workload),
            "batch": workload.batch,
            "codec": workload.codec,
            "durable": workload.durable,
            "threads": workload.threads,
            "spin": workload.spin,
            "samples": self.scale.samples if workload.latency else 0,
            "record_bytes": workload.record_bytes,
        }
        return Job(**(asked | more))

    def seconds(self, workload: Workload) -> float:
        """The longest time of a turn; syncs are few, so they are counted for longer."""
        if workload.total_bytes:
            return self.scale.fill_seconds * 10
        return self.scale.seconds * (3 if workload.durable else 1)

    def deadline_s(self, workload: Workload) -> float:
        return 90 + 20 * self.scale.fill_seconds * (10 if workload.total_bytes else 1)

    # ---- stores that are read ----

    def fill(self, peer: type[Peer], workload: Workload) -> Filled:
        """A filled and verified store (C3)."""
        place = self.stores.new(peer)
        within = self.scale.fill_seconds * (10 if workload.total_bytes else 1)
        job = self.job(workload, place, seconds=within, samples=0)
        (made,) = take(peer, [("fill", job)], self.deadline_s(workload))
        checked = self.job(workload, place, count=made["records"], samples=0)
        (found,) = take(peer, [("verify", checked)], self.deadline_s(workload))
        expected = data.checksum(data.load(job.values), made["records"])
        if (found["records"], found["checksum"]) != (made["records"], expected):
            raise TurnError(
                f"{peer.NAME} returned other values than it was given: {found}, expected {made}, "
                f"{expected}"
            )
        size = disk_bytes(place.directory)
        self.filled.setdefault(workload.store, {})[peer.NAME] = {
            "records": made["records"],
            "bytes": made["bytes"],
            "disk_bytes": size,
        }
        return Filled(place, made["records"])

    # ---- turns ----

    def turn(self, peer: type[Peer], workload: Workload, filled: Filled | None) -> dict[str, float]:
        """The values of one turn."""
        deadline = self.deadline_s(workload)
        if filled:
            job = self.job(workload, filled.place, count=filled.records)
            (found,) = take(peer, [(workload.turn, job)], deadline)
            return measured(workload, [found])
        place = self.stores.new(peer, durable=workload.durable)
        try:
            job = self.job(workload, place)
            if workload.turn == "tail":
                take(
                    peer,
                    [("fill", self.job(workload, place, count=TAIL_FILL, samples=0))],
                    deadline,
                )
                return measured(
                    workload, take(peer, [("tail/reader", job), ("tail/writer", job)], deadline)[:1]
                )
            return measured(
                workload, take(peer, [(workload.turn, job)] * workload.processes, deadline)
            )
        finally:
            self.stores.remove(place)

    def run(self, workload: Workload, filled: dict[str, Filled]) -> None:
        """All rounds of one workload (C1)."""
        results = self.figures.setdefault(workload.key, {})
        able = []
        for peer in self.peers:
            promised = [
                name
                for name, asked in (("durable", workload.durable), ("spin", workload.spin))
                if asked
            ]
            reasons = [peer.reason(name, workload.codec) for name in (workload.turn, *promised)]
            if reason := next(filter(None, reasons), ""):
                results[peer.NAME] = {"lacks": reason}
            elif workload.store and peer.NAME not in filled:
                results[peer.NAME] = {"lacks": "its store could not be filled"}
            else:
                able.append(peer)
        for number in range(self.scale.rounds):
            for peer in able if number % 2 == 0 else able[::-1]:
                if "failed" in results.get(peer.NAME, {}):
                    continue
                try:
                    found = self.turn(
                        peer, workload, filled.get(peer.NAME) if workload.store else None
                    )
                except TurnError as problem:
                    results[peer.NAME] = {"failed": short(problem)}
                    self.say(f"{workload.key}: {peer.NAME}: {short(problem)}")
                else:
                    for name, value in found.items():
                        results.setdefault(peer.NAME, {}).setdefault(name, []).append(value)
        shown = (
            f"{name} {min(each[measure(workload)]):,.4g}"
            for name, each in results.items()
            if measure(workload) in each
        )
        self.say(f"{workload.key}: " + ", ".join(shown))

    def run_all(self, chosen: Iterable[Workload]) -> Iterator[Workload]:
        """Run the workloads, those of one store together; each is returned when it has run."""
        stores: dict[str, list[Workload]] = {}
        for workload in chosen:
            if workload.store:
                stores.setdefault(workload.store, []).append(workload)
            else:
                self.run(workload, {})
                yield workload
        for readers in stores.values():
            yield from self.run_readers(readers)

    def run_readers(self, readers: list[Workload]) -> Iterator[Workload]:
        """The workloads that read one store."""
        filled: dict[str, Filled] = {}
        try:
            for peer in self.peers:
                if readers[0].codec == "none" or "codec" not in peer.LACKS:
                    try:
                        filled[peer.NAME] = self.fill(peer, readers[0])
                    except TurnError as problem:
                        self.say(f"{peer.NAME}: {short(problem)}")
            for workload in readers:
                self.run(workload, filled)
                yield workload
        finally:
            for each in filled.values():
                self.stores.remove(each.place)


def short(problem: TurnError) -> str:
    """The last line of an error."""
    return str(problem).splitlines()[-1][-300:]


def measure(workload: Workload) -> str:
    """The first value of a workload."""
    return "p50_us" if workload.latency else "records_s"


def measured(workload: Workload, answers: list[dict[str, Any]]) -> dict[str, float]:
    """What the page shows of a turn."""
    if workload.latency:
        return {name: answers[0][name] for name in ("p50_us", "p99_us")}
    records = sum(each["records"] for each in answers)
    if not workload.store:
        stored = max(each["stored"] for each in answers)
        warm = sum(each.get("warm", 0) for each in answers)
        if stored != records + warm:
            raise TurnError(
                f"{records} and {warm} records were appended, and {stored} are in the store"
            )
    if len(answers) > 1:
        seconds = (
            max(each["ended_ns"] for each in answers) - min(each["began_ns"] for each in answers)
        ) / 1e9
    else:
        seconds = answers[0]["seconds"]
    if not records:
        raise TurnError("no record within the time of a turn")
    return {
        "records_s": records / seconds,
        "MB_s": sum(each.get("bytes", 0) for each in answers) / seconds / 1e6,
    }


def facts(peer: type[Peer]) -> dict[str, str]:
    """What the page says of a peer."""
    missing = peer.missing()
    return {
        "title": peer.TITLE,
        "language": peer.LANGUAGE,
        "version": "" if missing else peer.version(),
        "missing": missing,
        "install": peer.INSTALL,
        "checksum": peer.CHECKSUM,
        "settings": peer.SETTINGS,
        "durable": peer.DURABLE,
    }


def run(
    scale: Scale,
    directory: Path,
    groups: list[str],
    names: list[str],
    match: str,
    say: Callable[[str], None],
    save: Callable[[Results], None] = lambda results: None,
) -> Results:
    """All chosen workloads; the results as JSON keeps them. `save` receives those so far after each
    workload.
    """
    peers = [PEERS[name] for name in names if not PEERS[name].missing()]
    chosen = [each for each in workloads(scale) if each.group in groups and match in each.key]
    with conditions(directory) as found, Stores(directory) as stores:
        race = Race(scale, directory, stores, peers, say)
        for _ in race.run_all(chosen):
            save(results_of(race, chosen, names, found | {"load_after": load(), "minutes": "0"}))
    return results_of(race, chosen, names, found)


def results_of(
    race: Race, chosen: list[Workload], names: list[str], found: dict[str, str]
) -> Results:
    """What JSON keeps, of the workloads that have run."""
    scale = race.scale
    chosen = [each for each in chosen if each.key in race.figures]
    return {
        "machine": machine(),
        "scale": scale.name,
        "rounds": scale.rounds,
        "kafka": Stores.kafka_version,
        "peers": {name: facts(PEERS[name]) for name in names},
        "workloads": [
            {
                "key": each.key,
                "group": each.group,
                "title": each.title,
                "record": each.record_bytes,
                "kind": each.kind,
                "codec": each.codec,
                "measures": ["p50_us", "p99_us"] if each.latency else ["records_s"],
                "store": each.store,
                "size": each.total_bytes,
            }
            for each in chosen
        ],
        "groups": {
            name: {"title": text, "conditions": found}
            for name, text in GROUPS.items()
            if any(each.group == name for each in chosen)
        },
        "figures": race.figures,
        "stores": race.filled,
    }
