"""Defines options: documented fields of an immutable class, checked when they are set.

- An option is documented once, at its field; error messages and the configuration page are
  generated from it.
- The name of a field is Kafka's name with "_" for "."; both spellings are accepted, but not both
  for one option.
- A value of a configuration has the type of its field and is within its range: its readers check
  nothing.
- No option is ignored: an accepted option has an effect. An unknown name is refused with the
  nearest known one, and a name of Kafka without a meaning here with the reason.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar, dataclass_transform

from embedlog.config.conversions import is_object
from embedlog.errors import ConfigError, UnknownOptionError

INT_MAX = 2**31 - 1
PARTITIONS_MAX = 1 << 20  # of a topic whose partitions are all local: each has a directory
LONG_MAX = 2**63 - 1

_WORDS = {
    "bool": "true or false",
    "text": "a text that is not empty",
    "partitioner": "a callable, an object with a method partition, or a class of one of them",
    "serializer": "a callable of the data, an object with serialize(topic, headers, data) or "
    "serialize(topic, data)",
    "deserializer": "a callable of the bytes, an object with deserialize(topic, headers, data) or "
    "deserialize(topic, data)",
    "objects": "a list",
    "mode": "permission bits that let the owner read and write, as a number or as a text of octal "
    "digits",
}
_TRUTH = {"true": True, "false": False}
_OLD_CHOICES = {
    "smallest": "earliest",
    "beginning": "earliest",
    "first": "earliest",
    "largest": "latest",
    "end": "latest",
}
_READERS: dict[type, Callable[[object], Any]] = {}
_CALLS = {
    "LogOptions": "embedlog.open()",
    "TopicOptions": "create_topic() and alter_topic()",
    "ProducerOptions": "log.producer()",
    "ConsumerOptions": "log.consumer()",
}


class Option(NamedTuple):
    """The definition of one option without name and default; messages and documents are generated
    from it.
    """

    doc: str
    # int, float, bool, text, choice, list, partitioner, serializer; objects: a list of anything; mode:
    # permission bits
    kind: str = "int"
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    also: tuple[int, ...] = ()  # values outside low..high with a special meaning
    optional: bool = False  # None is allowed
    pattern: str = ""  # further texts that a choice accepts …
    example: str = ""  # … and one of them
    differs: str = ""  # the difference from Kafka, with the reason; empty if there is none
    topic_option: str = ""  # the topic option whose default this log option is
    # values of other clients, and their meaning here
    spellings: tuple[tuple[object, object], ...] = ()

    def allowed(self) -> str:
        """The accepted values, in words."""
        if self.kind in ("choice", "list"):
            words = (
                "one of"
                if self.kind == "choice"
                else "a list out of"
                if self.choices
                else "a list of names"
            )
            text = " ".join(filter(None, (words, ", ".join(self.choices))))
            text += f", or such as {self.example}" if self.pattern else ""
        elif self.kind in ("int", "float"):
            text = ("an integer" if self.kind == "int" else "a number") + _range_words(
                self.low, self.high
            )
            text = " or ".join([text, *map(str, self.also)])
        else:
            text = _WORDS[self.kind]
        text += " or None" if self.optional else ""
        meanings = ", ".join(
            f"{_spelled(spelling)}: {_spelled(meant)}" for spelling, meant in self.spellings
        )
        return f"{text} ({meanings})" if meanings else text


class _Field(NamedTuple):
    """A field of a class until `configuration` has read it."""

    default: object
    option: Option


def option(default: object, doc: str, kind: str = "", **facts: Any) -> Any:
    """The field for an option; the default determines an empty `kind`."""
    if not kind:
        kind = {bool: "bool", int: "int", float: "float", tuple: "list"}[type(default)]
    return _Field(default, Option(doc, kind, **facts))


def default_of(cls: type[Options], name: str, **facts: Any) -> Any:
    """A log option that is the default of the topic option `name`, with the same default, type and
    range.
    """
    source = options_of(cls)[name]
    doc = f"Default of `{dotted(name)}` for topics that do not set it."
    default = facts.pop("default", getattr(cls, name))
    return _Field(default, source._replace(doc=doc, topic_option=dotted(name), **facts))


Class = TypeVar("Class")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def configuration(cls: type[Class]) -> type[Class]:
    """The class with its options, in the order of the fields after those of the base class.

    The methods are those of Options. `dataclass` is not used: it would generate methods for each
    class, which takes milliseconds.
    """
    fields = {name: field for name, field in vars(cls).items() if isinstance(field, _Field)}
    options: dict[str, Option] = dict(getattr(cls, "_options", {}))
    for name, field in fields.items():
        setattr(cls, name, field.default)
        options[name] = field.option
    setattr(cls, "_options", options)  # noqa: B010  (of every class)
    return cls


@configuration
class Options:
    """Base of all configurations; `given` has the fields that were set, in contrast to defaults.

    `given` is neither compared nor shown.
    """

    OWNER_NAME: ClassVar[str] = ""  # the owner of the options in messages, such as "a topic"
    # A regular expression that matches a whole dotted name → the reason why the option does not exist
    # here. Options come first, then the first pattern that matches.
    REFUSED: ClassVar[Mapping[str, str]] = {}
    # Dotted name in older or other clients → the name here, dotted or with underscores. It is only a
    # hint in the error: the value may have another unit.
    RENAMED: ClassVar[Mapping[str, str]] = {}
    # arguments of the call beside options, for hints at misspelt names
    ARGUMENTS: ClassVar[tuple[str, ...]] = ()

    _options: ClassVar[Mapping[str, Option]]

    given: frozenset[str] = frozenset()

    def __init__(self, *, given: frozenset[str] = frozenset(), **values: Any) -> None:
        options = options_of(type(self))
        unknown = values.keys() - options.keys()
        if unknown:
            raise TypeError(
                f"{type(self).__name__}.__init__() got an unexpected keyword argument "
                f"{min(unknown)!r}"
            )
        object.__setattr__(self, "given", given)
        for name, option in options.items():
            value = values[name] if name in values else getattr(type(self), name)
            object.__setattr__(self, name, _check_value(option, dotted(name), value))
        self._check_together()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        read = _reader(type(self))
        return bool(read(self) == read(other))

    def __hash__(self) -> int:
        return hash(_reader(type(self))(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in options_of(type(self)))
        return f"{type(self).__qualname__}({shown})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def _check_together(self) -> None:
        """Checks combinations of options; each class has its own."""

    def overrides(self) -> dict[str, str]:
        """The options that were set, in Kafka's form: {dotted name: text}."""
        return {
            name: text for name, text in self.as_kafka().items() if underscored(name) in self.given
        }

    def as_kafka(self) -> dict[str, str]:
        """All options with a value that has a text form: {dotted name: text}."""
        texts = {
            dotted(name): as_text(getattr(self, name), option.kind)
            for name, option in options_of(type(self)).items()
        }
        return {name: text for name, text in texts.items() if text is not None}


Config = TypeVar("Config", bound=Options)


def parse(
    cls: type[Config], mapping: Mapping[str, Any] | None = None, /, **keywords: Any
) -> Config:
    """A checked configuration from dotted or underscored names.

    `mapping` and `keywords` may both be given, with different options; other options have their
    defaults. Texts of numbers and booleans are accepted, and lists as texts with commas. Raises
    UnknownOptionError for an unknown or refused name, ConfigError for a name given twice, and for a
    value of a wrong type or range.
    """
    values = _values(cls, mapping, keywords)
    return cls(**values, given=frozenset(values))


def overlay(base: Config, mapping: Mapping[str, Any]) -> Config:
    """`base` with the options of `mapping` set; `given` has those of the mapping only. Raises as
    `parse` does.
    """
    values = _values(type(base), mapping, {})
    base_values = {name: getattr(base, name) for name in options_of(type(base))}
    return type(base)(**base_values | values, given=frozenset(values))


def _values(
    cls: type[Options], mapping: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> dict[str, Any]:
    options = options_of(cls)
    unchecked = by_field(cls, mapping, keywords)
    return {
        name: _check_value(options[name], dotted(name), value) for name, value in unchecked.items()
    }


def by_field(
    cls: type[Options], mapping: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """The given values by field name, unchecked. Raises as `parse` does for names."""
    if mapping is not None and not isinstance(mapping, Mapping):
        raise TypeError(
            f"the configuration of {cls.OWNER_NAME} is a mapping of names to values, not "
            f"{type(mapping).__name__}; "
            "other arguments are given by name"
        )
    values: dict[str, Any] = {}
    for key, value in [*(mapping or {}).items(), *keywords.items()]:
        name = known_name(cls, key)
        if name in values:
            raise ConfigError(
                f"{dotted(name)} is given twice: in two spellings, or in the mapping and as a "
                "keyword"
            )
        values[name] = value
    return values


def known_name(cls: type[Options], key: str) -> str:
    """The field that a dotted or underscored name means. Raises ConfigError for an unknown or
    refused one.
    """
    if not isinstance(key, str):
        raise ConfigError(f"the name of an option of {cls.OWNER_NAME} is a text", found=repr(key))
    name = underscored(key)
    if name not in options_of(cls):
        raise _unknown(cls, key)
    return name


def known_only(cls: type[Options], mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The options in `mapping` of this version; those of a newer version remain in their file."""
    options = options_of(cls)
    return {key: value for key, value in mapping.items() if underscored(key) in options}


def options_of(cls: type[Options]) -> Mapping[str, Option]:
    """The options of a configuration, by field name, in the order of the class."""
    return cls._options


def _reader(cls: type[Options]) -> Callable[[object], Any]:
    """A function for the values of all options."""
    if cls not in _READERS:
        _READERS[cls] = operator.attrgetter(*options_of(cls))
    return _READERS[cls]


def dotted(name: str) -> str:
    """Kafka's spelling of a field name."""
    return name.replace("_", ".")


def underscored(key: str) -> str:
    """Python's spelling of an option."""
    return key.replace(".", "_")


def as_text(value: object, kind: str = "") -> str | None:
    """A value as Kafka's files and tools write it; None for a value without a text form, such as a
    callable.
    """
    if kind == "mode":
        return f"{value:o}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value) if all(isinstance(item, str) for item in value) else None
    return str(value) if isinstance(value, (int, float, str)) else None


def rows(cls: type[Options]) -> list[tuple[str, str, str, str, str, str]]:
    """(name, default, allowed values, unit, effect, difference from Kafka) of every option, for the
    configuration page.
    """
    return [
        (
            dotted(name),
            as_text(getattr(cls, name), option.kind) or "none",
            option.allowed(),
            option.unit,
            option.doc,
            option.differs,
        )
        for name, option in options_of(cls).items()
    ]


def _range_words(low: float | None, high: float | None) -> str:
    if low is None:
        return "" if high is None else f" up to {high}"
    return f" from {low}" + ("" if high is None or high >= LONG_MAX else f" to {high}")


def _unknown(cls: type[Options], key: str) -> UnknownOptionError:
    name = dotted(key)
    for pattern, reason in cls.REFUSED.items():
        if re.fullmatch(pattern, name):
            return UnknownOptionError(f"{_short(key)} is not an option here: {reason}")
    for mine, option in options_of(cls).items():
        if name and option.topic_option == name:
            return UnknownOptionError(
                f"{key} is an option of a topic; the default of all topics is {dotted(mine)}"
            )
    meant = cls.RENAMED.get(name)
    if not meant and (calls := _calls_with(underscored(key))):
        return UnknownOptionError(
            f"{_short(key)} is not an option of {cls.OWNER_NAME}; it is one of "
            f"{' and '.join(calls)}"
        )
    near = (
        [underscored(meant)]
        if meant
        else nearest(underscored(key), [*cls.ARGUMENTS, *options_of(cls)])
    )
    hint = ""
    if near:
        spelling = dotted(near[0]) if "." in key and near[0] not in cls.ARGUMENTS else near[0]
        hint = f"; did you mean {spelling}?"
    return UnknownOptionError(f"{_short(key)} is not an option of {cls.OWNER_NAME}{hint}")


def _calls_with(name: str) -> list[str]:
    """The calls whose option this is."""
    from embedlog.config import typed_options  # for an error only

    own = {"ProducerOptions": {"key_serializer", "value_serializer"}}
    own["ConsumerOptions"] = {"key_deserializer", "value_deserializer", "group_id"}
    return [
        call
        for kind, call in _CALLS.items()
        if name in {*getattr(typed_options, kind).__annotations__, *own.get(kind, ())}
    ]


def _spelled(value: object) -> str:
    return "an empty text" if value == "" else str(value)


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """A list of the most similar known name; empty if there is none."""
    from difflib import get_close_matches  # for an error only

    return get_close_matches(name, names, n=1, cutoff=0.6)


def _check_value(option: Option, key: str, value: object) -> Any:
    """The value in the type of the option. Raises ConfigError with key, range and value."""
    for spelling, meant in option.spellings:
        if type(value) is type(spelling) and value == spelling:
            value = meant
    if value is None and option.optional:
        return None
    try:
        result = _CONVERTERS[option.kind](value)
        if option.kind in ("int", "float", "mode"):
            accepted = result in option.also or _within(option, result)
        elif option.kind == "list":
            accepted = _is_list_of(option.choices, result)
        elif option.kind == "choice":
            accepted = result in option.choices
            if not accepted and option.pattern:
                accepted = re.fullmatch(option.pattern, result) is not None
        else:
            accepted = True
    except (TypeError, ValueError):
        accepted = False
    if not accepted:
        raise ConfigError(
            key, expected=option.allowed(), found=_short(repr(value)) + _hint(option, value)
        )
    return result


def _hint(option: Option, value: object) -> str:
    """The probable meaning of a refused value, as a part of the message."""
    if isinstance(value, str) and option.kind == "choice":
        meant = _OLD_CHOICES.get(value.strip().lower())
        if not meant:
            similar = nearest(value.strip(), option.choices)
            meant = similar[0] if similar else None
        return f"; did you mean {meant!r}?" if meant in option.choices else ""
    from datetime import timedelta  # for an error only

    if option.unit and option.kind in ("int", "float") and isinstance(value, (str, timedelta)):
        return f"; the unit is {option.unit}: give a number"
    return ""


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:99] + "…"


def _within(option: Option, number: float) -> bool:
    if option.low is not None and number < option.low:
        return False
    return number <= (LONG_MAX if option.high is None else option.high)


def _is_list_of(choices: tuple[str, ...], names: tuple[Any, ...]) -> bool:
    distinct = set(names)
    if len(distinct) != len(names):
        return False
    if not choices:
        return True
    return bool(names) and distinct <= set(choices)


def _to_int(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?[0-9]+", value.strip()):
            raise ValueError
        return int(value)
    return operator.index(value)  # type: ignore[arg-type]


def _to_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    number = float(value)
    if number != number:
        raise ValueError
    return number


def _to_mode(value: object) -> int:
    return int(value, 8) if isinstance(value, str) else _to_int(value)


def _to_bool(value: object) -> bool:
    if isinstance(value, str):
        value = _TRUTH.get(value.strip().lower())
    if not isinstance(value, bool):
        raise TypeError
    return value


def _to_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    text = value.strip()
    # it is stored as UTF-8; for a lone surrogate this raises UnicodeEncodeError, a ValueError
    text.encode()
    if not text:
        raise ValueError
    return text


def _to_choice(value: object) -> str:
    if isinstance(value, Enum) and not isinstance(value, str):
        return value.name.lower()  # such as kafka-python's IsolationLevel
    return _to_text(str(value) if type(value) is int else value)


def _to_list(value: object) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise TypeError
    return tuple(value)


def _to_callable(value: object) -> Callable[..., Any]:
    if not callable(value):
        raise TypeError
    return value


def _to_partitioner(value: object) -> object:
    return value if callable(getattr(value, "partition", None)) else _to_callable(value)


def _to_serializer(value: object) -> object:
    return value if is_object(value, "serialize") else _to_callable(value)


def _to_deserializer(value: object) -> object:
    return value if is_object(value, "deserialize") else _to_callable(value)


_CONVERTERS: dict[str, Callable[[object], Any]] = {
    "int": _to_int,
    "float": _to_float,
    "mode": _to_mode,
    "bool": _to_bool,
    "text": _to_text,
    "choice": _to_choice,
    "list": _to_list,
    "objects": _to_list,
    "partitioner": _to_partitioner,
    "serializer": _to_serializer,
    "deserializer": _to_deserializer,
}
