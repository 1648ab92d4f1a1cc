"""References: every section, rule, file, module, link and anchor that prose names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import prose
from tests.support.prose import Prose

pytestmark = pytest.mark.xdist_group("tests/project/prose")  # one worker reads all texts once

PACKAGE = ROOT / "embedlog"
PAGES = prose.documents()
HEADING = re.compile(r"^(#+) +(.*?)\s*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]*)\)")
RULE_OF_THE_PAGE = re.compile(r"^\*\*([A-Z]+)-(\d+)\.\*\*", re.MULTILINE)
CITED_RULE = re.compile(r"(?<![\w-])([A-Z][A-Z0-9]+)-(\d+)(?![\w-])")
FORMAT_SECTIONS = re.compile(
    r"format\.md[`\]]*,? (?:sections? )?(\d+(?:\.\d+)?(?:(?:, | and | to )\d+(?:\.\d+)?)*)"
)
FILE = re.compile(
    r"(?<![\w/.:-])((?:docs|tests|embedlog|benchmarks|examples|release)/[\w./-]*\.(?:md|py|pyi|c|h|toml|json))(?![\w*])"
)
DOCUMENT = re.compile(r"(?<![\w*/-])([\w./-]*\w\.md)(?!\w)")
MODULE = re.compile(
    r"`((?:admin|aio|columns|config|consumer|coordination|format|partition|producer|spark|storage)/[\w/]+)`"
)
OLD_RULE = re.compile(r"\b[Rr]ules? \d")
LOCAL_RULE = re.compile(r"^[ *]*(?:[A-Z]{1,2}\d{1,2}|[A-Z][A-Z0-9]+-\d+)  \S", re.MULTILINE)
WRONG_KIP = re.compile(r"\bKIP(?:[ _]?\d|-\D)|\bkip-\d")

STANDARDS = {"CRC", "KIP", "MD", "RFC", "SHA", "UTF"}  # CRC-32, KIP-848, UTF-8: not rules


@cache
def texts() -> tuple[Prose, ...]:
    """All prose: pages as a whole, docstrings and comments of code."""
    pages = [prose.of_document(path) for path in PAGES]
    return (
        *pages,
        *(
            each
            for path in prose.code("embedlog", "tests", "benchmarks", "docs", "examples", "release")
            for each in prose.of_code(path)
        ),
    )


def found(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    for each in texts():
        for match in pattern.finditer(each.text):
            yield each.where(match.start()), match


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(
        slug(match[2]) for match in HEADING.finditer(prose.of_document(page, code=False).text)
    )


@cache
def rules_of_the_protocol() -> dict[str, set[int]]:
    """Numbers by prefix, of the protocol's page."""
    numbers: dict[str, set[int]] = {}
    for prefix, number in RULE_OF_THE_PAGE.findall((ROOT / "docs" / "protocol.md").read_text()):
        numbers.setdefault(prefix, set()).add(int(number))
    return numbers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_exist(page: Path) -> None:
    wrong = []
    for match in LINK.finditer(prose.of_document(page, code=False).text):
        target, _, anchor = match[1].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            wrong.append(match[1])
    assert wrong == []


def test_the_protocol_numbers_its_rules_without_gaps() -> None:
    for prefix, numbers in rules_of_the_protocol().items():
        assert numbers == set(range(1, len(numbers) + 1)), prefix


def test_every_rule_of_the_protocol_is_cited_by_a_test() -> None:
    cited = {
        (match[1], int(match[2]))
        for where, match in found(CITED_RULE)
        if where.startswith("tests/")
    }
    missing = [
        f"{prefix}-{number}"
        for prefix, numbers in rules_of_the_protocol().items()
        for number in sorted(numbers)
        if (prefix, number) not in cited
    ]
    assert missing == []


def test_a_cited_rule_exists() -> None:
    numbers = rules_of_the_protocol()
    wrong = [
        f"{where}: {match[0]}"
        for where, match in found(CITED_RULE)
        if match[1] not in STANDARDS and int(match[2]) not in numbers.get(match[1], ())
    ]
    assert wrong == []


def test_only_the_protocol_numbers_rules() -> None:
    """No module numbers its rules with a letter of its own, and none cites the protocol by bare
    numbers.
    """
    local = [
        f"{where}: {match[0].strip()}"
        for where, match in found(LOCAL_RULE)
        if where.startswith("embedlog/")
    ]
    old = [f"{where}: {match[0]}" for where, match in found(OLD_RULE)]
    assert (local, old) == ([], [])


def test_a_cited_section_of_the_formats_exists() -> None:
    numbers = {
        number.rstrip(".")
        for number in re.findall(
            r"^#+ (\d+(?:\.\d+)?) ", (ROOT / "docs/format.md").read_text(), re.MULTILINE
        )
    }
    cited = [
        (where, number)
        for where, match in found(FORMAT_SECTIONS)
        for number in re.findall(r"\d+(?:\.\d+)?", match[1])
    ]
    assert len(cited) > 20
    assert [each for each in cited if each[1] not in numbers] == []


def test_a_named_file_exists() -> None:
    wrong = [
        f"{where}: {match[1]}"
        for where, match in found(FILE)
        if "NAME" not in match[1] and not (ROOT / match[1]).exists()
    ]
    assert wrong == []


def test_a_named_document_exists() -> None:
    wrong = []
    for each in texts():
        for match in DOCUMENT.finditer(each.text):
            name = match[1].lstrip("/")
            if "://" not in name and not any(
                (base / name).exists() for base in (each.path.parent, ROOT, ROOT / "docs")
            ):
                wrong.append(f"{each.where(match.start())}: {name}")
    assert wrong == []


def test_a_named_module_exists() -> None:
    def there(name: str) -> bool:
        path = PACKAGE / name.rstrip("/")
        return path.is_dir() or path.with_suffix(".py").exists() or path.exists()

    wrong = [f"{where}: {match[1]}" for where, match in found(MODULE) if not there(match[1])]
    assert wrong == []


def test_a_kip_is_written_as_kafka_writes_it() -> None:
    assert [f"{where}: {match[0]}" for where, match in found(WRONG_KIP)] == []
