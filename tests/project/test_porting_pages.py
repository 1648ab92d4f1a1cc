"""The pages for users of other clients: a name whose error is described there is refused with an
error of that kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.config.client import ConsumerConfig, ProducerConfig
from embedlog.config.options import parse
from tests.conftest import ROOT

PAGES = sorted((ROOT / "docs" / "porting").glob("*.md"))
ROW = re.compile(r"^\| (?P<theirs>.+?) \| .+ \| (?P<result>.*?) \|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
NAME = re.compile(r"\.?([A-Za-z_]\w*)(?:\(.*\))?$")
OPTION = re.compile(r"[a-z_.]+")


def rows(page: Path, result: str) -> Iterator[tuple[str, list[str]]]:
    """The rows whose third column begins with this result, each with the code of its first
    column.
    """
    for found in ROW.finditer(page.read_text()):
        if found["result"].startswith(result):
            yield found["theirs"], CODE.findall(found["theirs"])


def refusals(objects: list[object], name: str) -> list[str]:
    """The messages of the objects without an attribute of this name that state more than its
    absence.
    """
    messages = []
    for each in objects:
        try:
            getattr(each, name)
        except AttributeError as problem:
            if re.search(r"; .", str(problem)):
                messages.append(str(problem))
    return messages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_attribute_error_of_a_page_has_the_call(page: Path, tmp_path: Path) -> None:
    checked = 0
    with embedlog.open(tmp_path / "log") as log, log.producer() as producer:
        log.create_topic("t")
        future = producer.send("t", b"x")
        future.result(10)
        objects = [
            producer,
            future,
            log.last_record("t", 0),
            embedlog.Consumer,
            embedlog.AsyncProducer,
            embedlog.AsyncConsumer,
        ]
        for row, codes in rows(page, "`AttributeError` with"):
            for code in codes:
                if code.count(".") > 1:
                    continue  # an option
                name = NAME.search(code.partition("(")[0])
                assert name is not None, row
                assert refusals(objects, name[1]), (
                    f"{page.name}: {name[1]} is not refused with a call"
                )
                checked += 1
    assert checked > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_option_of_a_page_is_refused(page: Path) -> None:
    checked = 0
    for _, codes in rows(page, "`UnknownOptionError`"):
        for code in codes:
            option = code.rstrip("=").replace(".", "_")
            if not OPTION.fullmatch(option) or "(" in code:
                continue  # an argument of a call
            for config in (ProducerConfig, ConsumerConfig):
                with pytest.raises(embedlog.UnknownOptionError):
                    parse(config, {option: 1})
            checked += 1
    assert checked > 1
