"""The registry of mutants: defines, applies and undoes patches of named functions and methods of
the library.

M1  a mutant has one name and at least one patch of Python, one bit of the C core's test build, or
both M2  a replacement gets the original first, then the arguments of the call; its parameters have
the names of the original's M3  a patch reaches every module that imported the function by name,
also a module that is imported later M4  two mutants that are applied at the same time never patch
the same name
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from embedlog._native import calls

# The bits of `enum el_mutant` in the C core's test build.
C_BITS = {
    "skip_fsync": 0,
    "skip_dir_fsync": 1,
    "publish_before_write": 2,
    "ignore_short_write": 3,
    "no_owner_word": 4,
    "no_append_lock": 5,
    "no_identity": 6,
    "torn_publish": 7,
    "no_wake": 8,
    "no_crc_on_read": 9,
    "trust_copy": 10,
    "forgive_lapse": 11,
    "no_notice": 12,
    "no_fence": 13,
    "any_epoch_leads": 14,
    "stable_at_the_marker": 15,
    "any_settings": 16,
}


@dataclass(frozen=True)
class Patch:
    """One function or method of the library (``package.module:Class.method``) and its
    replacement.
    """

    path: str
    replacement: Callable[..., Any]

    @property
    def place(self) -> tuple[Any, str]:
        """The module or class that defines the name, and the name."""
        module, _, qualified = self.path.partition(":")
        owner, _, name = qualified.rpartition(".")
        return pkgutil.resolve_name(f"{module}:{owner}" if owner else module), name

    @property
    def original(self) -> Any:
        owner, name = self.place
        return vars(owner)[name]


PATCHES: dict[str, list[Patch]] = {}
# by mutant: patch, original, the object in its place
_applied: dict[str, list[tuple[Patch, Any, Any]]] = {}


def replaces(mutant: str, path: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the replacement of one function or method as a part of a mutant."""

    def register(replacement: Callable[..., Any]) -> Callable[..., Any]:
        PATCHES.setdefault(mutant, []).append(Patch(path, replacement))
        return replacement

    return register


def names() -> set[str]:
    return PATCHES.keys() | C_BITS.keys()


def apply_mutant(name: str) -> None:
    """Switch a rule off in this process. An empty name is none."""
    if not name or name in _applied:
        return
    if name not in names():
        raise KeyError(f"no mutant {name!r}")
    taken = {patch.path for every in _applied.values() for patch, _, _ in every}
    applied = _applied.setdefault(name, [])
    for patch in PATCHES.get(name, ()):
        assert patch.path not in taken, f"{name}: another mutant patches {patch.path}"
        original = patch.original
        applied.append((patch, original, _replaced(patch.replacement, original)))
    for patch, original, new in applied:
        _bind(patch, original, new)
    _set_bits()


def undo_mutant(name: str) -> None:
    """Switch the rule on again, if it is off."""
    for patch, original, new in reversed(_applied.pop(name, [])):
        _bind(patch, new, original)
    _set_bits()


def undo_mutants() -> None:
    for name in list(_applied):
        undo_mutant(name)


@contextlib.contextmanager
def mutated(*rules: str) -> Iterator[None]:
    """These rules are off in this process."""
    try:
        for name in rules:
            apply_mutant(name)
        yield
    finally:
        for name in rules:
            undo_mutant(name)


def is_mutated(name: str) -> bool:
    return name in _applied


def _set_bits() -> None:
    calls.lib.el_mutants(sum(1 << C_BITS[name] for name in _applied if name in C_BITS))


def _bind(patch: Patch, old: Any, new: Any) -> None:
    """Put one object in every place of another: a method has one place, a function may be imported
    by name.
    """
    owner, name = patch.place
    setattr(owner, name, new)
    if not inspect.ismodule(owner):
        return
    for module in [
        each
        for key, each in list(sys.modules.items())
        if key.partition(".")[0] in ("embedlog", "tests")
    ]:
        for bound in [key for key, value in vars(module).items() if value is old]:
            setattr(module, bound, new)


def _replaced(replacement: Callable[..., Any], original: Any) -> Any:
    """An object of the original's kind that calls the replacement."""
    if isinstance(original, property):
        return property(_replaced(replacement, original.fget))
    if isinstance(original, staticmethod | classmethod):
        return type(original)(_replaced(replacement, original.__func__))

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return replacement(original, *arguments, **keywords)

    return call
