"""Prose: documents, docstrings, comments and messages use the terms of the field, not a private vocabulary."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import prose, python_source
from tests.support.prose import Prose

pytestmark = pytest.mark.xdist_group("tests/project/prose")  # one worker reads all texts once

# word -> what to write instead. A word in `code` is a name and may stay.
BANNED = {
    "anybody|anyone|someone|everyone": "any process, a caller, all processes",
    "who|whom": "name the subject: the process, the caller, a reader that …",
    "whoever": "any process that …, the next process that …",
    "nobody|somebody|everybody": "no process, a process, all processes",
    "he|him|his|himself": "the process, the caller, the user; its, itself",
    "behind": "after, or before",
    "tells|told": "reports, notifies, returns, states",
    "room": "module, or space",
    "fate|fates": "result, outcome",
    "house|houses": "package, project",
    "heart|hearts": "heartbeat",
    "beats?|beaten": "writes a heartbeat",
    "twins?": "reference implementation, or asynchronous counterpart",
    "lapses?|lapsed": "expires, expired",
    "stands|stood": "is, contains, remains",
    "lies": "is, is located",
}
WORD = re.compile(r"(?<![\w`./-])(?:" + "|".join(f"({words})" for words in BANNED) + r")(?![\w`/])(?! for\b)", re.IGNORECASE)
LETTERS = re.compile(r"[a-z]+")
BANNED_ALONE = re.compile("|".join(BANNED))
CODE = re.compile(r"``.*?``|`[^`\n]*`|\]\([^)]*\)")


WORDS_MAX = 25  # of a sentence

# Words that are no part of a name of the package.
NAMES_WITHOUT = {
    *("adopt", "adopted", "adoption", "beat", "beats", "behind", "bystander", "complaint", "doomed", "fate", "forsaken", "going"),
    *("heard", "life", "look", "looked", "looks", "nap", "naps", "patience", "room", "rooms", "said", "strays", "stranger"),
    *("strangers", "sweep", "tell", "told", "twin", "unheard", "who", "whose"),
}


@cache
def is_banned(word: str) -> bool:
    return BANNED_ALONE.fullmatch(word) is not None


def words_in(each: Prose) -> Iterator[str]:
    """Banned words of a text, with place and replacement."""
    if not any(map(is_banned, set(LETTERS.findall(each.text.lower())))):
        return  # the long expression takes a hundred times as long
    text = CODE.sub(lambda found: re.sub(r"[^\n]", "`", found[0]), each.text)
    for found in WORD.finditer(text):
        instead = list(BANNED.values())[next(index for index, group in enumerate(found.groups()) if group)]
        yield f"{each.where(found.start())}: “{found[0]}”; write: {instead}"


@cache
def findings(path: Path) -> tuple[str, ...]:
    if path.suffix == ".md":
        texts: Iterable[Prose] = [prose.of_document(path, code=False)]
    elif path in prose.build_files():
        texts = [prose.of_document(path)]
    else:
        texts = prose.of_code(path, messages=True)
    return tuple(sorted({word for each in texts for word in words_in(each)}))


def sources() -> list[Path]:
    """All prose except this module, which names the words."""
    code = prose.code("embedlog", "benchmarks", "docs", "examples", "pyspark_embedlog", "release", "tests")
    return [*prose.documents(), *prose.build_files(), *(path for path in code if path != Path(__file__).resolve())]


def test_no_banned_word_is_used() -> None:
    wrong = [word for path in sources() for word in findings(path)]
    assert wrong == [], "\n".join(wrong)


def test_a_banned_word_is_found_and_a_name_is_not() -> None:
    def said(text: str) -> list[str]:
        return [word.partition("“")[2].partition("”")[0] for word in words_in(Prose(ROOT / "README.md", 1, text))]

    assert said("Who waits behind the lock is told its fate.") == ["Who", "behind", "told", "fate"]
    assert said("The housekeeper stands for a heartbeat; `behind` and `embedlog.door` are names.") == []


def test_a_sentence_has_at_most_25_words() -> None:
    wrong = [
        f"{each.where()}: {count} words: {' '.join(sentence.split())}"
        for path in prose.code("embedlog", "tests", "benchmarks", "examples", "release")
        for each in prose.of_code(path)
        for sentence in prose.sentences(each)
        if (count := prose.word_count(sentence)) > WORDS_MAX
    ]
    assert wrong == [], "\n".join(wrong)


def test_sentences_rules_and_rows_are_counted_separately() -> None:
    text = """Reads `a file` once. Then it ends.

    RULE-1  the first rule
        continues here
    RULE-2  the second
    """
    found = prose.sentences(Prose(ROOT / "README.md", 1, text))
    assert [prose.word_count(each) for each in found if each.strip()] == [3, 3, 5, 2]


def test_names_of_the_package_are_terms_of_the_field() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in prose.code("embedlog")
        if path.suffix == ".py"
        for name, line in prose.names(path)
        if NAMES_WITHOUT & set(name.lower().split("_"))
    ]
    assert wrong == [], "\n".join(wrong)


def test_comments_are_those_of_the_tokenizer() -> None:
    paths = [path for path in prose.code("tests/support", "tests/project") if path.suffix == ".py"]
    text = 'x = "no # comment"  # one\ny = r"\\\\"  # two\nz = """\\""" # not\n"""\n#three\n'
    text += 'u = f\'{x!r} # not\' "" # four "not a text\n'
    for source in (text, *(path.read_text() for path in paths)):
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        expected = [(each.start[0], each.string) for each in tokens if each.type == tokenize.COMMENT]
        assert [(each.line, each.text) for each in python_source.comments_in(source)] == expected
