"""Named tuples and structures: as those of `typing` and `dataclasses`, which the package does not use in an opening."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import typing
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest

from embedlog._classes import NamedTuple, made, structure

T = TypeVar("T")


class Quick(NamedTuple):
    """A text."""

    name: str
    count: int = 3
    more: tuple[int, ...] | None = None

    @property
    def twice(self) -> int:
        return 2 * self.count

    def __str__(self) -> str:
        return f"{self.name}: {self.twice}"


class Usual(typing.NamedTuple):
    """A text."""

    name: str
    count: int = 3
    more: tuple[int, ...] | None = None

    @property
    def twice(self) -> int:
        return 2 * self.count

    def __str__(self) -> str:
        return f"{self.name}: {self.twice}"


class Typed(NamedTuple, Generic[T]):
    value: T


class Derived(Quick):
    __slots__ = ()

    def __new__(cls, name: str) -> Derived:
        return super().__new__(cls, name, 7)


@pytest.mark.parametrize(
    "read",
    [
        lambda cls: cls._fields,
        lambda cls: cls._field_defaults,
        lambda cls: typing.get_type_hints(cls),
        lambda cls: list(cls.__annotations__),
        lambda cls: (cls.__doc__, cls.__module__, cls.__mro__[1:], cls.__match_args__),
        lambda cls: repr(cls("a", 1)).partition("(")[1:],
        lambda cls: (str(cls("a")), cls("a").twice, cls("a") == ("a", 3, None), hash(cls("a"))),
        lambda cls: cls("a")._replace(count=5)._asdict(),
        lambda cls: tuple(pickle.loads(pickle.dumps(cls("a")))),
        lambda cls: isinstance(pickle.loads(pickle.dumps(cls("a"))), cls),
        lambda cls: hasattr(cls("a"), "__dict__"),
    ],
)
def test_a_named_tuple_is_that_of_typing(read: Callable[[Any], Any]) -> None:
    assert read(Quick) == read(Usual)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Quick()  # type: ignore[call-arg]


def test_a_named_tuple_has_its_qualified_name() -> None:
    class Inner(NamedTuple):
        value: int

    assert (Inner.__name__, Inner.__qualname__.rpartition(".")[2]) == ("Inner", "Inner")
    assert Inner.__qualname__.startswith("test_a_named_tuple_has")
    assert (Quick.__qualname__, Quick.__name__) == ("Quick", "Quick")


def test_named_tuples_can_be_generic_and_derived() -> None:
    assert Typed[int](5).value == 5
    assert Typed(5) == (5,)
    assert Derived("a") == ("a", 7, None)
    assert pickle.loads(pickle.dumps(Typed(5))) == Typed(5)


def test_a_default_before_a_field_without_one_is_refused() -> None:
    with pytest.raises(TypeError, match="Wrong: a field without a default follows one with a default"):

        class Wrong(NamedTuple):
            first: int = 1
            second: int  # type: ignore[misc]


@structure
class Quickly:
    """A text."""

    name: str
    count: int = 3
    rows: list[int] = made(factory=list)

    def total(self) -> int:
        return self.count + sum(self.rows)


@dataclasses.dataclass(slots=True, eq=False)
class Usually:
    """A text."""

    name: str
    count: int = 3
    rows: list[int] = dataclasses.field(default_factory=list)

    def total(self) -> int:
        return self.count + sum(self.rows)


@pytest.mark.parametrize("given", [{"name": "a"}, {"name": "a", "count": 4}, {"name": "a", "count": 4, "rows": [1, 2]}])
def test_a_structure_is_a_dataclass_with_slots(given: dict[str, Any]) -> None:
    for cls in (Quickly, Usually):
        for each in (cls(**given), cls(*given.values()), copy.copy(cls(**given)), pickle.loads(pickle.dumps(cls(**given)))):
            assert isinstance(each, cls)
            assert (each.name, each.count, each.rows) == ("a", given.get("count", 3), given.get("rows", []))
            assert each.total() == each.count + sum(each.rows)
        assert (cls.__doc__, cls.__slots__, cls.__module__) == ("A text.", ("name", "count", "rows"), __name__)
        assert cls("a") != cls("a")
        with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'name'"):
            cls()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'wrong'"):
            cls("a", wrong=1)  # type: ignore[call-arg]
        with pytest.raises(AttributeError):
            cls("a").wrong = 1  # type: ignore[union-attr]


def test_each_structure_has_a_default_of_its_own() -> None:
    first, second = Quickly("a"), Quickly("b")
    first.rows.append(1)
    assert second.rows == []
