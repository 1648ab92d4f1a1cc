"""The protocol as a program: with all rules no invariant breaks, without any one of them some
invariant does.

The models in `tests/model` are the executable form of the multi-process protocol. The small
scenarios run always; all of them, with every mutant, have the marker `faults`.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.campaign_report import add_counts, pieces

JOB_PIECES = 12
# models of what the library does around the log, which changes more often than the log: seconds
ALWAYS = (
    "deleted_topics",
    "replica_retries",
    "replica_repairs",
    "decision_copies",
    "follower_lags",
    "failing_directories",
    "set_members",
)
MODEL = Path(__file__).resolve().parent.parent / "model"


def check(*arguments: str, timeout_s: float) -> str:
    """Run `check.py`; its exit status is an error if a rule has a hole or a mutant was missed."""
    command = [sys.executable, "check.py", *arguments]
    done = subprocess.run(
        command, cwd=MODEL, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def states_of(report: str) -> int:
    found = re.search(r"^([\d,]+) states", report, re.MULTILINE)
    assert found, report
    return int(found[1].replace(",", ""))


@pytest.mark.slow  # no code of the library: it changes with the model only
def test_no_interleaving_of_the_small_scenarios_breaks_an_invariant(rng: random.Random) -> None:
    """Half of the scenarios and mutants; `test-faults` runs all."""
    report = check("--fast", "--piece", f"{rng.randrange(2)}/2", timeout_s=110)
    add_counts("models", states=states_of(report), surprises=0)
    assert states_of(report) > 50_000
    assert "0 surprises" in report


def test_no_interleaving_of_what_a_set_does_around_its_logs_breaks_an_invariant() -> None:
    report = check("--fast", "--only", ",".join(ALWAYS), timeout_s=110)
    assert states_of(report) > 10_000
    assert "0 surprises" in report


def test_a_hole_in_the_rules_is_reported_with_its_trace() -> None:
    report = check("--trace", "append.owner_word", timeout_s=60)
    assert report.startswith("I3 the published tuple does not describe the files")
    assert "!A is killed" in report


def test_every_rule_of_a_model_is_a_rule_of_the_protocol() -> None:
    rules = {
        rule
        for path in MODEL.glob("*.py")
        for rule in re.findall(r'\("([A-Z]+-\d+)\+?", ', path.read_text())
    }
    protocol = (MODEL.parent.parent / "docs" / "protocol.md").read_text()
    assert len(rules) > 40
    assert [rule for rule in sorted(rules) if f"**{rule}.**" not in protocol] == []


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(JOB_PIECES)
def test_every_rule_of_the_models_is_needed_and_enough(piece: int) -> None:
    report = check("--piece", f"{piece}/{JOB_PIECES}", timeout_s=1750)
    add_counts("models", states=states_of(report), surprises=0)
