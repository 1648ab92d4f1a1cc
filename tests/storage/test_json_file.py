"""Files of JSON with a checksum: what is read back, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from embedlog.errors import ForeignDirectoryError, UnsupportedFormatError
from embedlog.storage import json_file
from embedlog.storage.json_file import Entries, JsonFile, checksum

KIND = JsonFile("things", "things of a test", 1, "restore it")
PATH = Path("/log/embedlog.things")


def test_content_generation_and_unknown_fields_come_back() -> None:
    data = KIND.encode(7, {"names": ["a", "\udcff"]}, {"later": 1})
    assert KIND.decode(PATH, data) == (7, {"names": ["a", "\udcff"], "later": 1})


def test_order_and_whitespace_do_not_matter() -> None:
    document = json.loads(KIND.encode(1, {"a": 1, "b": 2}, {}))
    again = json.dumps(dict(reversed(document.items())), indent=7).encode()
    assert KIND.decode(PATH, again) == (1, {"a": 1, "b": 2})


def signed(**changes: Any) -> bytes:
    document = json.loads(KIND.encode(1, {"a": 1}, {})) | changes
    document.pop("checksum")
    return json.dumps(document | {"checksum": json_file.checksum(document)}).encode()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ForeignDirectoryError),
        (b"[]", ForeignDirectoryError),
        (b"\xff\xfe", ForeignDirectoryError),
        (b"[" * 100_000, ForeignDirectoryError),
        (b'{"version": 1}', ForeignDirectoryError),
        (KIND.encode(1, {"a": 1}, {}).replace(b'"a": 1', b'"a": 2'), ForeignDirectoryError),
        (signed(generation=True), ForeignDirectoryError),
        (signed(generation=-1), ForeignDirectoryError),
        (signed(version=2), UnsupportedFormatError),
        (signed(version="1" * 1000), UnsupportedFormatError),
    ],
)
def test_other_bytes_are_refused_with_the_path(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        KIND.decode(PATH, data)
    assert str(PATH) in str(caught.value)
    assert len(str(caught.value)) < 500


def test_entries_that_change_one_by_one_give_the_file_of_the_whole_document(
    rng: random.Random,
) -> None:
    others = {"newer": {"things": None}, "é": [1, {"x": "\n"}]}
    entries = Entries()
    things: dict[str, object] = {}
    for _ in range(60):
        name = rng.choice(["", "é", '"\n', *(f"t{number}" for number in range(12))])
        if rng.random() < 0.4:
            things.pop(name, None)
            entries.remove(name)
        else:
            things[name] = {
                "config": {f"k{each}": '"\n' for each in range(rng.randrange(3))},
                "only": [1] * rng.randrange(3),
            }
            entries.put(name, things[name])
        inside = dict(sorted(things.items()))
        document = {**others, "what": KIND.purpose, "version": 1, "generation": 7, "things": inside}
        document["checksum"] = checksum(document)
        expected = (json.dumps(document, indent=1) + "\n").encode()
        assert KIND.encode(7, {"things": inside}, others) == expected
        assert KIND.encode(7, {"things": entries.encode()}, others) == expected
