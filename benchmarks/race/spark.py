"""Spark's Kafka connector, through the comparison that exists for it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.kafka.oracle import CACHE

from .processes import ROOT

INSTALL = "needs Java 17, Maven and `pip install pyspark`; `python -m benchmarks.rivals_spark` then installs the connector"
ROWS = {"quick": 10_000, "default": 300_000, "full": 2_000_000}
TIMEOUT_S = {"quick": 300, "default": 600, "full": 7200}


def run(scale: str, rounds: int, directory: Path) -> dict[str, Any]:
    """The outcomes of `rivals_spark`, or the reason why it cannot run."""
    version = version_of_connector()
    if not shutil.which("java") or find_spec("pyspark") is None or not (CACHE.parent / f"spark-{version}" / "ready").exists():
        return {"lacks": INSTALL}
    import pyspark

    path = directory / "spark.json"
    words = ["--rows", str(ROWS[scale]), "--rounds", str(rounds), "--repeats", "3", "--json", str(path)]
    command = [sys.executable, "-m", "benchmarks.rivals_spark", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=TIMEOUT_S[scale])
    if not path.exists():  # status 1 also means that a target was missed
        return {"lacks": f"failed: {done.stderr.strip().splitlines()[-1][-300:]}"}
    figures = json.loads(path.read_text())["figures"]
    kept = [{name: each[name] for name in ("name", "value", "detail")} for each in figures]
    return {"version": version, "ours": pyspark.__version__, "figures": kept}


def version_of_connector() -> str:
    from ..rivals_spark import VERSION

    return VERSION
