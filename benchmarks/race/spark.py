"""Spark's Kafka connector, through the comparison that exists for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.kafka.oracle import CACHE

from .processes import ROOT

INSTALL = (
    "needs Java 17, Maven and `pip install pyspark`; `python -m benchmarks.rivals_spark` then "
    "installs the connector"
)
ROWS = {"quick": 10_000, "default": 300_000, "full": 2_000_000}
# of each side and record size; each repeats its reads and writes
SESSIONS = {"quick": 1, "default": 1, "full": 3}
TIMEOUT_S = {"quick": 600, "default": 900, "full": 7200}


def run(scale: str, directory: Path) -> dict[str, Any]:
    """The outcomes of `rivals_spark`, or the reason why it cannot run."""
    version = version_of_connector()
    if (
        not shutil.which("java")
        or find_spec("pyspark") is None
        or not (CACHE.parent / f"spark-{version}" / "ready").exists()
    ):
        return {"lacks": INSTALL}
    import pyspark

    path = directory / "spark.json"
    words = [
        "--rows",
        str(ROWS[scale]),
        "--rounds",
        str(SESSIONS[scale]),
        "--repeats",
        "5",
        "--json",
        str(path),
    ]
    command = [sys.executable, "-m", "benchmarks.rivals_spark", *words]
    error = in_its_own_group(command, directory, TIMEOUT_S[scale])
    if not path.exists():  # status 1 also means that a target was missed
        return {"lacks": f"failed: {error[-300:]}"}
    figures = json.loads(path.read_text())["figures"]
    kept = [{name: each[name] for name in ("name", "value", "detail")} for each in figures]
    return {"version": version, "ours": pyspark.__version__, "figures": kept}


def in_its_own_group(command: list[str], directory: Path, timeout_s: float) -> str:
    """Run a program that starts others, and end all of them; the last line of its errors. Its files
    are in the directory.
    """
    environment = os.environ | {"TMPDIR": str(directory)}
    with (directory / "spark.txt").open("w+") as errors:
        running = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            running.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"it did not end within {timeout_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        errors.seek(0)
        return (errors.read().strip().splitlines() or [f"status {running.returncode}"])[-1]


def version_of_connector() -> str:
    from ..rivals_spark import VERSION

    return VERSION
