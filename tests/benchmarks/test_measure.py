"""The verdict of a figure: its target, its upper bound, and its reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import references
from benchmarks.measure import REFERENCES, Outcome, report
from tests.conftest import ROOT

SOURCES = [path.read_text() for path in (ROOT / "benchmarks").glob("*.py")]


def figure(**more: object) -> Outcome:
    facts: dict[str, object] = {
        "value": 0.5,
        "unit": "of ceiling",
        "target": 0.4,
        "at_least": True,
        "detail": {"ceiling": 1.0},
    }
    return Outcome("figure", **(facts | more))  # type: ignore[arg-type]


def test_a_figure_without_a_reference_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([figure()], None) == 0
    assert report([figure(detail={"rounds": 7})], None) == 1
    assert "NO REF   figure" in capsys.readouterr().out


def test_a_figure_above_its_upper_bound_is_invalid() -> None:
    above = figure(value=1.01, bound=True)
    assert not above.valid
    assert not above.passed
    assert above.line().startswith("INVALID")
    assert figure(value=1.01).passed  # a peer is no bound


@pytest.mark.parametrize("key", sorted(REFERENCES))
def test_each_reference_is_of_a_figure(key: str) -> None:
    assert sum(f'"{key}"' in text or "detail = found" in text for text in SOURCES) > 1, key


def test_bare_loops_leave_nothing(tmp_path: Path) -> None:
    assert references.files_ms(tmp_path, 3) > 0
    assert references.pwrite_us(tmp_path, 100) > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_bytes(bytes(10_000))
    assert references.heads([tmp_path / "file"]) == references.HEAD_BYTES
