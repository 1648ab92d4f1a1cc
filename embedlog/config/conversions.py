"""Adapts serializers and deserializers: callables of the data, and objects with a method
`serialize` or `deserialize`.

The parameters of a method decide once what it gets: (topic, headers, data) as in kafka-python 3, or
(topic, data) as in its earlier versions. A method whose parameters are unknown gets three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Convert: TypeAlias = Callable[[str, list[Any], Any], Any]  # of topic, headers, data


def is_object(converter: object, method: str) -> bool:
    """Whether it has this method. Raises TypeError for a class whose method needs an instance: an
    instance was meant.
    """
    has_method = callable(getattr(converter, method, None))
    if has_method and isinstance(converter, type) and not _is_bound(converter, method):
        raise TypeError(f"an instance of {converter.__name__} is expected, not the class")
    return has_method


def _is_bound(converter: type, method: str) -> bool:
    """Whether the method of a class needs no instance."""
    # late, as below: most programs convert nothing, or with functions
    from inspect import getattr_static

    return isinstance(getattr_static(converter, method), (classmethod, staticmethod))


def by_method(converter: object, method: str) -> Convert | None:
    """The method as a function of topic, headers and data; None for an object without it."""
    if converter is None or not is_object(converter, method):
        return None
    convert: Convert = getattr(converter, method)
    if _parameter_count(convert) != 2:
        return convert
    of_two: Callable[[str, Any], Any] = getattr(converter, method)
    return lambda topic, headers, data: of_two(topic, data)


def _parameter_count(method: Callable[..., Any]) -> int:
    """The parameters that can be given by position; 3 if that is unknown."""
    import inspect

    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return 3
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 3
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional for each in parameters)
