"""Calls that import their modules late, in a process without a free descriptor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, resource, sys
import embedlog
log = embedlog.open(sys.argv[1])
log.create_topic("t", exist_ok=True)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
calls = {
    "scan": lambda: log.scan("t"),
    "producer": lambda: log.producer(),
    "consumer": lambda: log.consumer("t"),
    "async_producer": lambda: log.async_producer(),
    "describe_group": lambda: log.describe_group("g"),
}
try:
    calls[sys.argv[2]]()
except embedlog.StorageError as problem:
    print(problem.errno, problem)
for descriptor in held:
    os.close(descriptor)
log.close()
"""


@pytest.mark.parametrize(
    "verb", ["scan", "producer", "consumer", "async_producer", "describe_group"]
)
def test_a_late_import_without_a_descriptor_is_a_storage_error(tmp_path: Path, verb: str) -> None:
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), verb]
    answer = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("24 ")
    assert "ulimit -n" in answer.stdout
