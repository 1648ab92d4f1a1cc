"""The lists of docs/contributing.md, "How to add …": with all steps the named tests pass, and
without a step its test fails.

Each list is followed in a copy of the project, with the example of `example_additions`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT
from tests.support.example_additions import EXAMPLES, GENERATED, apply

PAGE = (ROOT / "docs" / "contributing.md").read_text()
SECTION = PAGE.partition("\n## How to add …\n")[2].partition("\n## ")[0]
STEP = re.compile(r"^\d+\. `([^`]+)`: .* Test: `([^`]+)`$", re.MULTILINE)
COPIED = (
    "embedlog",
    "tests",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "setup.py",
    "release",
)
COMPILED = "A fault of the test build"  # takes a build of the C core


class Line(NamedTuple):
    """A step of a list on the page."""

    file: str
    test: str


def lists() -> dict[str, list[Line]]:
    """The lists of the page by their titles."""
    found = {}
    for part in SECTION.split("\n### ")[1:]:
        title, _, text = part.partition("\n")
        found[title] = [Line(*step) for step in STEP.findall(text)]
        assert len(found[title]) == len(re.findall(r"^\d+\. ", text, re.MULTILINE)), (
            f"{title}: a step is `FILE`: what. Test: `TEST`"
        )
    return found


LISTS = lists()
STEPS = [(title, number) for title, steps in LISTS.items() for number in range(len(steps))]


def copied(directory: Path) -> Path:
    """A copy of the project. Modification times are kept: what is compiled is compiled once."""
    project = directory / "project"
    project.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, project / name, symlinks=True)
        else:
            shutil.copy2(source, project / name)
    (directory / "tmp").mkdir()
    return project


def environment(project: Path) -> Mapping[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))
    }
    return {
        **kept,
        "PYTHONPATH": str(project),
        "TMPDIR": str(project.parent / "tmp"),
        "EMBEDLOG_TEST_BUILD": "1",
    }


def follow(project: Path, titles: Iterable[str], without: int | None = None) -> None:
    """Make all steps of these lists, or all but one."""
    is_generated = False
    for title in titles:
        for number, step in enumerate(EXAMPLES[title]):
            if number == without:
                continue
            if step.file == GENERATED:
                is_generated = True
            else:
                apply(project, step)
        if title == COMPILED:
            compile_core(project)
    if is_generated:
        answer = run(project, ["docs/generate.py"])
        assert answer.returncode == 0 or without is not None, answer.stderr[-4000:]


def compile_core(project: Path) -> None:
    """Compile the C core of the copy, without optimisation."""
    script = project / "embedlog" / "_native" / "build.py"
    script.write_text(script.read_text().replace('"-O3"', '"-O0"'))
    answer = run(project, ["setup.py", "-q", "build_ext", "--inplace"])
    assert answer.returncode == 0, answer.stderr[-4000:]


def run(project: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Python with these arguments and the package of the copy."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment(project),
        capture_output=True,
        text=True,
        timeout=280,
    )


def run_tests(project: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    return run(project, ["-m", "pytest", "-q", "-p", "no:cacheprovider", *sorted(set(tests))])


def test_each_list_has_the_files_of_its_example() -> None:
    assert list(LISTS) == list(EXAMPLES)
    for title, steps in LISTS.items():
        patterns = [line.file.replace("NAME", "*").replace("…", "*") for line in steps]
        files = [step.file for step in EXAMPLES[title]]
        assert len(patterns) == len(files), title
        for pattern, file in zip(patterns, files, strict=True):
            assert fnmatchcase(file, pattern), title


def test_with_all_steps_the_tests_of_the_lists_pass(tmp_path: Path) -> None:
    project = copied(tmp_path)
    titles = [title for title in EXAMPLES if title != COMPILED]
    follow(project, titles)
    answer = run_tests(project, [line.test for title in titles for line in LISTS[title]])
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr[-2000:]


@pytest.mark.slow
def test_with_all_steps_a_fault_is_compiled_and_its_tests_pass(tmp_path: Path) -> None:
    project = copied(tmp_path)
    follow(project, [COMPILED])
    answer = run_tests(project, [line.test for line in LISTS[COMPILED]])
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "number"), STEPS, ids=[f"{title}-{number + 1}" for title, number in STEPS]
)
def test_a_step_that_is_left_out_fails_its_test(title: str, number: int, tmp_path: Path) -> None:
    """The same test passes with all steps (the tests above)."""
    project = copied(tmp_path)
    follow(project, [title], without=number)
    answer = run_tests(project, [LISTS[title][number].test])
    assert answer.returncode != 0, answer.stdout[-4000:]
    assert "no tests ran" not in answer.stdout
