"""The tests in docs/testing.md pass as they are written there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.kafka import oracle
from tests.support.child_pytest import PLUGIN
from tests.support.documents import program

PAGE = ROOT / "docs" / "testing.md"


def run_page(directory: Path, *options: str, **environment: str) -> str:
    (directory / "test_page.py").write_text(program(PAGE))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:benchmark",
        *PLUGIN,
        "test_page.py",
        *options,
    ]
    environment = {**os.environ, **environment}
    answer = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=250
    )
    assert answer.returncode == 0, answer.stdout[-5000:] + answer.stderr[-3000:]
    return answer.stdout


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    answer = run_page(tmp_path, KAFKA_BOOTSTRAP="")
    # the contract tests with a broker
    assert f"{program(PAGE).count('def test_')} passed, 2 skipped" in answer


@pytest.mark.kafka
@pytest.mark.slow
def test_the_contract_of_the_page_holds_with_a_broker(
    broker: oracle.Broker, tmp_path: Path
) -> None:
    pytest.importorskip("confluent_kafka")
    assert "2 passed" in run_page(tmp_path, "-k", "kafka", KAFKA_BOOTSTRAP=broker.bootstrap)
