"""`make test-threads` fails for reports of ThreadSanitizer about the extensions, and for no
others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.thread_reports import main

REPORT = """==================
WARNING: ThreadSanitizer: data race (pid=7)
  Write of size 8 at 0x7fd31c101278 by thread T2:
    #0 {write}

  Previous read of size 8 at 0x7fd31c101278 by thread T1:
    #0 memcpy <null> (python3.14t+0xe373e) (BuildId: 14)

  Thread T2 'embedlog-produc' (tid=9, running) created by thread T1 at:
    #0 pthread_create <null> (python3.14t+0xe7ac1) (BuildId: 14)
    #1 {creator}

SUMMARY: ThreadSanitizer: data race (/build/lib/embedlog/_native/_core.cpython-314t-x86_64-linux-gnu.so+0x38398) in publish
==================
"""
CPYTHON = (
    "_PyEval_EvalFrameDefault Python/generated_cases.c.h:62:35 (python3.14t+0x412050) (BuildId: 14)"
)
NAMED = (
    "publish embedlog/_native/log/control_page.c:149:19 "
    "(_core.cpython-314t-x86_64-linux-gnu.so+0x38398) (BuildId: b9)"
)
UNNAMED = "<null> <null> (_rows.cpython-314t-aarch64-linux-gnu.so+0x38398) (BuildId: b9)"
GCC = (
    "publish embedlog/_native/log/control_page.c:149 "
    "(_core.cpython-314t-x86_64-linux-gnu.so+0x38398)"
)


def test_no_report_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("frame", [NAMED, UNNAMED, GCC])
def test_a_report_with_a_frame_of_an_extension_fails(
    tmp_path: Path, frame: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tsan.7").write_text(
        REPORT.format(write=CPYTHON, creator=CPYTHON) + REPORT.format(write=frame, creator=CPYTHON)
    )
    assert main(tmp_path) == 1
    printed = capsys.readouterr().out
    assert "2 reports" in printed
    assert "1 of them in the extensions" in printed
    assert frame in printed


@pytest.mark.parametrize("creator", [CPYTHON, NAMED])
def test_a_report_of_other_code_is_counted_only(
    tmp_path: Path, creator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tsan.7").write_text(REPORT.format(write=CPYTHON, creator=creator))
    assert main(tmp_path) == 0
    assert "1 reports" in capsys.readouterr().out


def test_without_a_symbolizer_the_reason_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = (
        "==7==WARNING: invalid path to external symbolizer!\n==7==WARNING: Failed to use and "
        "restart external symbolizer!\n"
    )
    (tmp_path / "tsan.7").write_text(warning + REPORT.format(write=UNNAMED, creator=CPYTHON))
    assert main(tmp_path) == 1
    assert "external_symbolizer_path" in capsys.readouterr().out


def test_a_signal_that_ended_a_process_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tsan.7").write_text(
        "==7==ERROR: ThreadSanitizer: SEGV on unknown address 0x000000000018 (pc 0x7fc2e5385434)\n"
    )
    assert main(tmp_path) == 1
    assert "SEGV" in capsys.readouterr().out
