"""The tree of errors: the content of a message, the classes of `except`, and errors through a
process pool.
"""

from __future__ import annotations

import errno
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import errors
from embedlog.errors import EmbedlogError

ALL = [getattr(errors, name) for name in errors.__all__]
each_error = pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)


def one(error: type[EmbedlogError]) -> EmbedlogError:
    if error is errors.MissingExtraError:
        return errors.MissingExtraError("Arrow tables need pyarrow", extra="arrow")
    facts = {"errno": errno.ENOSPC} if error is errors.StorageError else {}
    return error(
        "crc",
        path=Path("/log/events-0/0.log"),
        position=8192,
        expected="1a2b3c4d",
        found="00000000",
        **facts,
    )


@each_error
def test_an_error_crosses_processes_with_all_its_facts(error: type[EmbedlogError]) -> None:
    before = one(error)
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is error
    assert str(after) == str(before)
    assert after.__dict__ == before.__dict__
    assert getattr(after, "errno", None) == getattr(before, "errno", None)


def test_every_error_is_a_name_of_the_package() -> None:
    bases = {"PlacedError"}
    assert set(errors.__all__) - set(embedlog.__all__) == bases


@each_error
def test_an_error_says_what_a_caller_can_do(error: type[EmbedlogError]) -> None:
    assert inspect.getdoc(error) != inspect.getdoc(EmbedlogError) or error is EmbedlogError
    assert error.__name__ in (errors.__doc__ or ""), "the tree in the module's docstring"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "crc"),
        ({"path": "/l/0.log"}, "/l/0.log: crc"),
        ({"path": Path("/l/0.log"), "position": 0}, "/l/0.log at byte 0: crc"),
        ({"position": 7}, "at byte 7: crc"),
        ({"expected": 1}, "crc: expected 1"),
        ({"found": 0}, "crc: found 0"),
        (
            {"path": "/l/0.log", "position": 8192, "expected": 1, "found": 2},
            "/l/0.log at byte 8192: crc: expected 1, found 2",
        ),
    ],
)
def test_the_text_is_made_of_the_facts_that_are_there(facts: dict[str, object], text: str) -> None:
    assert str(errors.CorruptRecordError("crc", **facts)) == text  # type: ignore[arg-type]


def test_facts_are_attributes() -> None:
    error = one(errors.CorruptRecordError)
    assert (error.path, error.position, error.expected, error.found) == (
        "/log/events-0/0.log",
        8192,
        "1a2b3c4d",
        "00000000",
    )
    assert error.message == "crc"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.StorageError, OSError),
        (errors.LockTimeoutError, TimeoutError),
        (errors.DeadlineError, TimeoutError),
        (errors.BufferExhaustedError, errors.DeadlineError),
        (errors.MissingExtraError, ImportError),
        (errors.LogTruncationError, errors.OffsetOutOfRangeError),
        (errors.UnknownOptionError, TypeError),
        (errors.ForkedError, errors.ClosedError),
    ],
)
def test_an_error_is_caught_as_what_python_users_expect(
    error: type[EmbedlogError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin):
        raise one(error)


def test_what_the_system_said_is_kept() -> None:
    error = errors.StorageError("cannot write", errno=errno.ENOSPC, path="/l/0.log")
    assert (error.errno, error.filename) == (errno.ENOSPC, "/l/0.log")
    assert str(error) == "/l/0.log: cannot write: No space left on device (ENOSPC)"
    assert str(errors.StorageError("cannot write", errno=9999)).endswith("(9999)")
    assert str(errors.StorageError("cannot write")) == "cannot write"


def test_a_missing_extra_names_the_command() -> None:
    assert (
        str(one(errors.MissingExtraError))
        == 'Arrow tables need pyarrow: pip install "embedlog[arrow]"'
    )


HOSTILE = "a\nERROR forged \x1b[2J \x7f \x85 \u2028 \u202e \udcff end"


@each_error
def test_control_characters_of_names_and_values_never_reach_a_terminal(
    error: type[EmbedlogError],
) -> None:
    facts: dict[str, Any] = (
        {"extra": HOSTILE}
        if error is errors.MissingExtraError
        else {"expected": HOSTILE, "found": HOSTILE}
    )
    if error is not errors.MissingExtraError:
        facts["path"] = HOSTILE
    if issubclass(error, errors.PlacedError):
        facts["topic"] = HOSTILE
    text = str(error(HOSTILE, **facts))
    assert text.isprintable()
    assert r"a\nERROR forged \x1b[2J \x7f \x85 \u2028 \u202e \udcff end" in text
    text.encode("utf-8")
    assert error(HOSTILE, **facts).message == HOSTILE, "the fact itself stays as it is"


def test_printable_text_stays_as_it_is() -> None:
    assert str(errors.ConfigError("größer als 5 → 6 µs, 日本語")) == "größer als 5 → 6 µs, 日本語"


def test_only_what_can_pass_by_itself_is_retriable() -> None:
    names = {error.__name__ for error in ALL if error.retriable}
    waited_for = {
        "BufferExhaustedError",
        "DeadlineError",
        "DirectoryInUseError",
        "LockTimeoutError",
    }
    returning = {
        f"{each}Error"
        for each in ("NotEnoughDirectories", "LeaderNotAvailable", "PreferredLeaderNotAvailable")
    }
    returning.add("EligibleLeadersNotAvailableError")
    assert names == {
        *waited_for,
        *returning,
        "RebalanceInProgressError",
        "RetriableCommitFailedError",
    }
