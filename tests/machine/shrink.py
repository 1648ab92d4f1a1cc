"""Programs of the state machine: the calls of a failing run as text, its repetition, and a shorter
program that fails, too.

Hypothesis shrinks only what fails in each repetition. Here a chance of the log's own decides as
well (a partition, the moment of a kill), so a candidate that does not fail is dropped, and the
search goes on.
"""

from __future__ import annotations

import ast
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.faults.harness.processes import Died, RemoteError
from tests.machine.model import Violation

Call = tuple[str, dict[str, Any]]
Program = list[Call]
FAILURES = (Violation, Died, RemoteError)


def as_text(program: Program) -> str:
    """A call a line."""
    return "\n".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
        for name, given in program
    )


def from_text(text: str) -> Program:
    program = []
    for line in filter(None, map(str.strip, text.splitlines())):
        call = ast.parse(line, mode="eval").body
        assert isinstance(call, ast.Call), line
        assert isinstance(call.func, ast.Name), line
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        program.append((call.func.id, given))
    return program


def failure_of(machine_class: Callable[[], Any], program: Program) -> BaseException | None:
    """What is wrong in a run of the program; None: nothing."""
    machine = machine_class()
    try:
        for name, given in program:
            getattr(machine, name)(**given)
            machine.compare()
    except FAILURES as problem:
        return problem
    finally:
        with contextlib.suppress(*FAILURES):
            machine.teardown()
    return None


def shrunk(
    machine_class: Callable[[], Any], program: Program, seconds: float
) -> tuple[Program, BaseException | None]:
    """The shortest failing program that was found within a time, and its failure; None: the given
    one fails no more.
    """
    end = time.monotonic() + seconds
    problem = failure_of(machine_class, program)
    if problem is None:
        return (program, None)
    is_shorter = True
    while is_shorter and time.monotonic() < end:
        is_shorter = False
        for candidate in _candidates(program):
            if time.monotonic() > end:
                break
            found = failure_of(machine_class, candidate)
            if found is not None:
                program = candidate
                problem = found
                is_shorter = True
                break
    return (program, problem)


def _candidates(program: Program) -> Iterator[Program]:
    """Shorter programs: without runs of calls, the longest first, then with less in one call. The
    first call begins the log.
    """
    longest = len(program) // 2
    for length in (longest, longest // 2, longest // 4, 3, 2, 1):  # three users take turns to look
        for start in range(len(program) - length, 0, -length) if length else ():
            yield program[:start] + program[start + length :]
    for position, (name, given) in enumerate(program):
        for key, value in given.items():
            for less in _less(value):
                yield [*program[:position], (name, {**given, key: less}), *program[position + 1 :]]


def _less(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for position in range(len(value)):
            if len(value) > 1:
                yield value[:position] + value[position + 1 :]
        for position, each in enumerate(value):
            for less in _less(each):
                yield [*value[:position], less, *value[position + 1 :]]
    elif isinstance(value, dict) and "age_ms" in value:  # a record
        simple = {"headers": (), "age_ms": None, "value": "small"}
        for key, least in simple.items():
            if value[key] != least:
                yield {**value, key: least}
    elif isinstance(value, dict):
        for key in value:
            yield {name: each for name, each in value.items() if name != key}
