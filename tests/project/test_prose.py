"""The reader of comments, which other tests of the project use, finds the comments that Python's
tokenizer finds.
"""

from __future__ import annotations

import io
import tokenize

from tests.support import prose, python_source


def test_comments_are_those_of_the_tokenizer() -> None:
    paths = [path for path in prose.code("tests/support", "tests/project") if path.suffix == ".py"]
    text = 'x = "no # comment"  # one\ny = r"\\\\"  # two\nz = """\\""" # not\n"""\n#three\n'
    text += 'u = f\'{x!r} # not\' "" # four "not a text\n'
    for source in (text, *(path.read_text() for path in paths)):
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        expected = [
            (each.start[0], each.string) for each in tokens if each.type == tokenize.COMMENT
        ]
        assert [(each.line, each.text) for each in python_source.comments_in(source)] == expected
