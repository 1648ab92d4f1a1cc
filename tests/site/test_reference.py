"""The reference has every public name, each with an example that uses it, and the examples run.

A page of docs/reference is one program. The directives (`::: name`) between two blocks of code
share the second block.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import embedlog
from embedlog import testing
from embedlog.config.other_clients import ABSENT
from tests.conftest import ROOT
from tests.support.documents import BLOCK, name, program

REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted(REFERENCE.glob("*.md"))
# seconds each: data frames, waits, and copies of replicas
SLOW = {"errors", "integrations", "log", "scan", "sets", "types"}
IN_A_SESSION = {"spark"}  # run by tests/spark/test_spark.py
INDENTED = re.compile(r"(?<=\n\n)(?: {4}(?!>>>).*(?:\n|\Z))+")  # a literal block of a docstring
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
MODULES = (
    "embedlog.assignors",
    "embedlog.duckdb",
    "embedlog.exporters.opentelemetry",
    "embedlog.exporters.prometheus",
    "embedlog.mirror",
    "embedlog.partitioners",
    "embedlog.plot",
    "embedlog.polars",
    "embedlog.progress",
    "embedlog.schemas",
    "embedlog.serializers",
    "embedlog.spark",
    "embedlog.testing",
)
# with their members
CLASSES = (
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "Consumer",
    "Log",
    "Producer",
    "Scan",
    "Search",
)
CLASSES_OF_TESTS = ("Clock", "Expected", "Fault", "Faults", "Held")
# names that their modules, or no page, describe
OF_MODULES = {"assignors", "partitioners", "serializers", "__version__"}
WITHOUT_ALL = {  # modules that list no names
    "embedlog.assignors": [
        "ASSIGNORS",
        "Assignment",
        "Assignor",
        "Member",
        "assign_range",
        "assign_round_robin",
        "assign_sticky",
        "assign_cooperative_sticky",
    ],
    "embedlog.duckdb": ["register", "sql", "table"],
    "embedlog.exporters.opentelemetry": ["instrument"],
    "embedlog.exporters.prometheus": ["Collector", "text"],
    "embedlog.polars": ["scan"],
}


def public() -> Iterator[str]:
    """All public names, and the public members of the classes that programs call."""
    yield from (f"embedlog.{each}" for each in embedlog.__all__ if each not in OF_MODULES)
    for module in MODULES:
        names = getattr(import_module(module), "__all__", None) or WITHOUT_ALL[module]
        yield from (f"{module}.{each}" for each in names)
    for owner in CLASSES:
        members = [each for each in dir(getattr(embedlog, owner)) if not each.startswith("_")]
        yield from (
            f"embedlog.{owner}.{each}" for each in members if each not in ABSENT.get(owner, {})
        )
    for owner in CLASSES_OF_TESTS:
        own = vars(getattr(testing, owner)).items()  # the fields of a dataclass are in its text
        members = [each for each, found in own if isinstance(found, (FunctionType, property))]
        yield from (
            f"embedlog.testing.{owner}.{each}" for each in members if not each.startswith("_")
        )


def examples(page: Path) -> dict[str, str]:
    """The code of each directive of a page: the next block."""
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    after = {
        found[1]: [block[1] for block in blocks if block.start() > found.end()]
        for found in DIRECTIVE.finditer(text)
    }
    return {directive: code[0] if code else "" for directive, code in after.items()}


ALL_EXAMPLES = {directive: code for page in PAGES for directive, code in examples(page).items()}


def test_every_public_name_is_on_a_page() -> None:
    missing = sorted(set(public()) - set(ALL_EXAMPLES))
    advice = "\n".join(f"  ::: {each}" for each in missing)
    assert not missing, (
        "public names without a place in the reference. "
        "Add to a page of docs/reference, each before a block of code that uses it:\n" + advice
    )
    assert len(ALL_EXAMPLES) > 250


def test_no_page_names_what_is_not_public() -> None:
    unknown = sorted(set(ALL_EXAMPLES) - set(public()))
    assert unknown == [], "directives in docs/reference for names that are absent or private"


def test_every_name_has_an_example_that_uses_it() -> None:
    unused = [
        each
        for each, code in sorted(ALL_EXAMPLES.items())
        if not re.search(rf"\b{re.escape(each.rpartition('.')[2])}\b", code)
    ]
    assert unused == [], (
        "the block of code after each of these directives does not use the name: write an example "
        "that does"
    )


@pytest.mark.slow
def test_every_name_has_a_text() -> None:
    griffe = pytest.importorskip(
        "griffe", reason="no documentation tools: pip install 'embedlog[docs]'"
    )
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    loader.load("embedlog")
    loader.resolve_aliases(implicit=False)
    found = loader.modules_collection
    silent = [each for each in sorted(ALL_EXAMPLES) if not found[each].docstring]
    assert silent == [], "names without a docstring, or (Record, Future) without one in _rows.pyi"


def described(directive: str) -> str:
    """The code in the description of a name, which the site shows at the directive. Sessions with a
    prompt are none.
    """
    module = next(
        each
        for each in sorted((*MODULES, "embedlog"), reverse=True)
        if directive.startswith(f"{each}.")
    )
    found: Any = import_module(module)
    for part in directive.removeprefix(f"{module}.").split("."):
        found = getattr(found, part)
    if not str(getattr(found, "__module__", "")).startswith("embedlog"):
        return ""  # an alias: the description is that of another type
    return "\n\n".join(
        textwrap.dedent(each) for each in INDENTED.findall(inspect.getdoc(found) or "")
    )


def shown(page: Path) -> str:
    """The code that a reader sees: that of the page, and in the place of each directive that of its
    description.
    """
    lines = program(page).splitlines()
    for number, line in enumerate(page.read_text().splitlines()):
        directive = DIRECTIVE.match(line)
        code = described(directive[1]) if directive is not None else ""
        if code:
            lines[number] = f"exec({code!r})"
    return "\n".join(lines) + "\n"


def test_code_of_descriptions_is_a_part_of_the_program() -> None:
    assert "clock.advance" in described("embedlog.testing.clock")
    assert "exec('with embedlog.testing.clock()" in shown(REFERENCE / "testing.md")


def run(page: Path, folder: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"exec(compile({shown(page)!r}, {name(page)!r}, 'exec'), {{}})",
    ]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert answer.returncode == 0, answer.stderr[-3000:]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    "page", [each for each in PAGES if each.stem not in SLOW | IN_A_SESSION], ids=name
)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", [each for each in PAGES if each.stem in SLOW], ids=name)
def test_the_examples_of_a_long_page_run(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)
