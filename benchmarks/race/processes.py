"""Starts turns: the processes of one turn get ready, begin together, and answer with one line of
JSON each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from .job import Job
from .peers import Peer, chronicle_peer

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 90.0


class TurnError(RuntimeError):
    """A turn ended without an answer; the message has what it printed."""


def command(peer: type[Peer], turn: str, job: Job) -> list[str]:
    if peer is chronicle_peer.ChroniclePeer:
        return chronicle_peer.command(turn, job)
    return [sys.executable, "-m", "benchmarks.race.turn", peer.NAME, turn, job.as_json()]


class Running:
    """One process of a turn. It is killed when the deadline of the turn has passed."""

    def __init__(self, peer: type[Peer], turn: str, job: Job, deadline_s: float) -> None:
        self._name = f"{peer.NAME} {turn}"
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `close`)
        pipe = subprocess.PIPE
        environment = os.environ | {"PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            command(peer, turn, job),
            stdin=pipe,
            stdout=pipe,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self._timer = threading.Timer(deadline_s, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def _line(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith(("ready", "{")):
                return line
        status = self._process.wait()
        self._errors.seek(0)
        raise TurnError(f"{self._name} ended with {status}: {self._errors.read()[-1500:].strip()}")

    def ready(self) -> None:
        if (line := self._line()) != "ready\n":
            raise TurnError(f"{self._name} said {line!r}")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._line())
        return found

    def close(self) -> None:
        self._timer.cancel()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def take(
    peer: type[Peer], turns: list[tuple[str, Job]], deadline_s: float = DEADLINE_S
) -> list[dict[str, Any]]:
    """The answers of processes that begin at the same moment; they get ready one after the
    other.
    """
    running: list[Running] = []
    try:
        for turn, job in turns:
            running.append(Running(peer, turn, job, deadline_s))
            running[-1].ready()
        for each in running:
            each.go()
        return [each.answer() for each in running]
    finally:
        for each in running:
            each.close()
