"""LOAD-2: a file system that is shut down and mounted again in the same boot: its cache is lost, and
opening must notice it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.coordination.transactions import recovery_due
from embedlog.storage import control_page
from tests.conftest import ROOT
from tests.faults.power import remounting
from tests.support.campaign_report import add_counts, pieces

CUTS_FAST = 2
CUTS_LONG = 12
CUTS_PIECES = 8


def cut(directory: Path, kind: str, seed: int, cuts: int, *more: str) -> dict[str, object]:
    if reason := remounting.missing(kind):
        pytest.skip(reason)
    ended = subprocess.run(
        remounting.command(kind, seed, cuts, directory, *more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    verdict: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    if "missing" in verdict:
        pytest.skip(str(verdict["missing"]))
    return verdict


def test_transactions_are_whole_after_a_remount(tmp_path: Path, seed: int) -> None:
    verdict = cut(tmp_path, "ext4", seed, CUTS_FAST)
    add_counts("E5 remounted", cuts=CUTS_FAST)
    assert verdict["violations"] == []


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pieces(CUTS_PIECES)
def test_transactions_are_whole_after_many_remounts(
    tmp_path: Path, campaign_seed: int, kind: str, piece: int
) -> None:
    verdict = cut(tmp_path, kind, campaign_seed + piece, CUTS_LONG)
    add_counts("E5 remounted", cuts=CUTS_LONG)
    assert verdict["violations"] == []


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_cache_that_is_known_by_the_boot_alone_breaks_transactions(
    tmp_path: Path, seed: int
) -> None:
    for turn in range(3):
        directory = tmp_path / str(turn)
        directory.mkdir()
        if cut(directory, "ext4", seed + turn, CUTS_LONG, "boot-only")["violations"]:
            add_counts("mutants", killed=1)
            return
    pytest.fail("the mutant survived")


# ---- the number of a cache -----------------------------------------------------------------------


def test_the_number_is_the_same_for_every_process_and_path_of_a_mount(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    child = (
        "import pathlib, sys; from embedlog.storage.control_page import boot_and_mount_number;"
        " print(boot_and_mount_number(pathlib.Path(sys.argv[1])))"
    )
    told = subprocess.run(
        [sys.executable, "-c", child, tmp_path], capture_output=True, text=True, check=True
    ).stdout
    assert (
        int(told)
        == control_page.boot_and_mount_number(tmp_path)
        == control_page.boot_and_mount_number(tmp_path / "below")
        != 0
    )


def test_another_mount_has_another_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = control_page.boot_and_mount_number(tmp_path)
    monkeypatch.setattr(system, "mount_id", lambda path: 4711)
    assert control_page.boot_and_mount_number(tmp_path) not in (number, recovery_due.UNKNOWN_CACHE)


def test_a_kernel_without_unique_mounts_goes_by_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "mount_id", lambda path: 0)
    assert control_page.boot_and_mount_number(tmp_path) == control_page.boot_number()


def test_a_cache_that_cannot_be_known_proves_nothing(tmp_path: Path) -> None:
    assert control_page.boot_and_mount_number(tmp_path / "missing") == recovery_due.UNKNOWN_CACHE
