"""Makes named tuples and structures in a part of the time that `typing` and `dataclasses` take: each start of a program waits.

CLASSES-1  type checkers see `typing.NamedTuple` and a dataclass
CLASSES-2  the annotations are not evaluated: every module has postponed annotations, so they are texts
CLASSES-3  a structure has `__init__` and no other method: it is compared by identity. Values that are compared are named tuples
CLASSES-4  integrations, descriptions and other modules that an opening does not import use `dataclasses`
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, dataclass_transform

T = TypeVar("T")

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    OF_NAMEDTUPLE = ("__module__", "__qualname__", "__annotations__")

    class _Made(type):
        """Makes a class that is derived from NamedTuple."""

        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
            types = members.get("__annotations__", {})
            with_default = [field for field in types if field in members]
            if with_default and with_default != list(types)[-len(with_default) :]:
                raise TypeError(f"{name}: a field without a default follows one with a default")
            defaults = [members[field] for field in with_default]
            made = namedtuple(name, types, defaults=defaults, module=members["__module__"])
            if bases != (_Fields,):
                made.__bases__ = tuple(tuple if base is _Fields else base for base in bases)
            made.__annotations__ = made.__new__.__annotations__ = types
            made.__qualname__ = members["__qualname__"]
            for each, value in members.items():
                if each not in types and each not in OF_NAMEDTUPLE:
                    setattr(made, each, value)
            if Generic in bases:
                made.__init_subclass__()
            return made

    _Fields = type.__new__(_Made, "_Fields", (), {})

    class NamedTuple:
        """As typing.NamedTuple."""

        def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
            return (_Fields,)

    NamedTuple = NamedTuple()


class _Factory:
    """A default that is made for each instance."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def made(*, factory: Callable[[], T]) -> T:
    """The field of a structure whose default is made for each instance."""
    return _Factory(factory)  # type: ignore[return-value]


@dataclass_transform(eq_default=False, field_specifiers=(made,))
def structure(cls: type[T]) -> type[T]:
    """The class with slots, and an `__init__` of its fields, as a dataclass."""
    members = {name: each for name, each in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    names = list(cls.__annotations__)
    defaults = {name: members.pop(name) for name in names if name in members}
    parameters = ", ".join(f"{name}=_defaults[{name!r}]" if name in defaults else name for name in names)
    values = (
        f"_defaults[{name!r}].make() if {name} is _defaults[{name!r}] else {name}"
        if isinstance(defaults.get(name), _Factory)
        else name
        for name in names
    )
    body = "".join(f"\n self.{name} = {value}" for name, value in zip(names, values, strict=True))
    space: dict[str, Any] = {"_defaults": defaults}
    exec(f"def __init__(self, {parameters}):{body}", space)
    init = members["__init__"] = space["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    members["__slots__"] = tuple(names)
    with_slots: type[T] = type(cls.__name__, cls.__bases__, members)
    return with_slots
