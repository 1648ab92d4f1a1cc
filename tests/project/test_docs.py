"""Documents run: every Python block of the README and docs/ is executed, links lead somewhere,
generated parts are current.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.documents import BLOCK, PAGES, PROGRAMS, name, program

SHELL_BLOCK = re.compile(r"^```(?:console|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
REFERENCE = ROOT / "docs" / "reference"  # run by tests/site/test_reference.py
ELSEWHERE = (
    ROOT / "docs" / "delivery.md",  # run, and killed, by tests/project/test_delivery_docs.py
    ROOT / "docs" / "testing.md",  # tests, run by tests/testing/test_page.py
    ROOT / "docs" / "spark.md",  # run in the session of tests/spark/test_spark.py
)
SLOW = {"compacted-topics"}  # compactions, and a data frame
MAKE = re.compile(r"^(?:\$ )?make ([a-z-]+)", re.MULTILINE)


def cost(page: Path) -> tuple[pytest.MarkDecorator, ...]:
    """Whether `make test` always runs the code of a page: that of the README, whose program is the
    first of a reader.
    """
    if page.parent.name in ("concepts", "porting") or page.stem in SLOW:
        return (pytest.mark.slow,)
    return () if page.name == "README.md" else (pytest.mark.sample(0.25),)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=cost(page))
        for page in PAGES
        if page not in (PROGRAMS, *ELSEWHERE)
        and page.parent != REFERENCE
        and BLOCK.search(page.read_text())
    ],
    ids=name,
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"exec(compile({program(page)!r}, {name(page)!r}, 'exec'), {{}})",
    ]
    # the first program of a reader runs a second time, too
    for _ in range(2 if page.name == "README.md" else 1):
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert answer.returncode == 0, answer.stderr[-3000:]


@pytest.mark.sample(0.25)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.slow) if "import plot" in block else number
        for number, block in enumerate(BLOCK.findall(PROGRAMS.read_text()))
    ],
)
def test_a_recipe_runs(number: int, tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    block = BLOCK.findall(PROGRAMS.read_text())[number]
    if "import polars" in block:
        pytest.importorskip("polars", reason="needs polars")
    if "from application import" in block:
        pytest.skip("a part of a server, run by tests/project/test_recipes.py")
    path.write_text(block)
    command = [sys.executable, "-W", "error", str(path)]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (answer.returncode, answer.stderr[-3000:]) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    local = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_no_diagram_needs_a_script() -> None:
    assert [name(page) for page in PAGES if "```mermaid" in page.read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target for block in SHELL_BLOCK.findall(page.read_text()) for target in MAKE.findall(block)
    }
    assert named <= targets


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_what_is_generated_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs/generate.py"), "--check"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, f"run `make docs`: {answer.stdout}{answer.stderr[-2000:]}"


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    explained = makefile.partition("\nhelp:\n")[2].partition("\n\n")[0]
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) - {"help", "install", "clean"}
    assert {target for target in targets if f"make {target} " not in explained} == set()
