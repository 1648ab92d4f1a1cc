"""Writes what is made from the code: the configuration page, the tables of the layout page, the
types of the options.

    python docs/generate.py            write anew
    python docs/generate.py --check    only report stale pages; exit 1 if there are any

In a page, the text between `<!-- generated: NAME -->` and `<!-- end -->` comes from the function of
that name below.
"""

from __future__ import annotations

import json
import re
import statistics
import struct
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from embedlog.config import options
from embedlog.config.client import ConsumerConfig, ProducerConfig
from embedlog.config.topic import LogConfig, TopicConfig
from embedlog.spark.read_options import OPTIONS, SourceOption
from embedlog.spark.write_options import WRITE_OPTIONS
from embedlog.storage import control_page, manifest

DOCS = Path(__file__).resolve().parent
SYSTEM_HEADER = DOCS.parent / "embedlog" / "_native" / "api" / "log.h"
SECTION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NUMBERS = {2**63 - 1: "2^63 − 1 (never)", 2**31 - 1: "2^31 − 1"}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines.extend(list(row) for row in rows)
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def spelled(text: str) -> str:
    """A default or range with the numbers that stand for "never" made readable."""
    for number, words in NUMBERS.items():
        text = re.sub(rf"(?<!\d){number}(?!\d)", words, text)
    return text


def value(default: str, unit: str) -> str:
    return default if default in {"none", "true", "false"} else f"{spelled(default)} {unit}".strip()


def settings(cls: type[options.Options]) -> str:
    rows = (
        (
            f"`{name}`",
            value(default, unit),
            spelled(allowed),
            doc + (f" *{differs}*" if differs else ""),
        )
        for name, default, allowed, unit, doc, differs in options.rows(cls)
    )
    return table(("name", "default", "values", "meaning"), rows)


def topic_settings() -> str:
    return settings(TopicConfig)


def log_settings() -> str:
    return settings(LogConfig)


def producer_settings() -> str:
    return settings(ProducerConfig)


def consumer_settings() -> str:
    return settings(ConsumerConfig)


def spark_options() -> str:
    """Every option of the Spark source."""
    return options_of(OPTIONS)


def spark_write_options() -> str:
    """Every option of the Spark sink."""
    return options_of(WRITE_OPTIONS)


def options_of(known: dict[str, SourceOption]) -> str:
    modes = {(True, True): "both", (True, False): "batch", (False, True): "stream"}
    rows = (
        (f"`{name}`", modes[option.batch, option.stream], option.default, option.doc)
        for name, option in known.items()
    )
    return table(("option", "in", "default", "meaning"), rows)


def differences() -> str:
    """Every option that is not as in Kafka, with the reason."""
    rows = (
        (cls.OWNER_NAME.split()[-1], f"`{name}`", value(default, unit), differs)
        for cls in (TopicConfig, LogConfig, ProducerConfig, ConsumerConfig)
        for name, default, _, unit, _, differs in options.rows(cls)
        if differs
    )
    return table(("component", "option", "embedlog", "Kafka, and reason"), rows)


def names_of(pattern: str) -> list[str]:
    """The names that a pattern such as `(a|b)\\.c|d\\..*` stands for: a.c, b.c, d.…"""
    if group := re.search(r"\(([^()]*)\)(\??)", pattern):
        choices = [*group[1].split("|"), *([""] if group[2] else [])]
        return [
            name
            for choice in choices
            for name in names_of(pattern[: group.start()] + choice + pattern[group.end() :])
        ]
    return [
        name.replace("\\.", ".").replace(".*", "…").replace("s?", "s")
        for name in pattern.split("|")
    ]


def refused() -> str:
    """Names of Kafka's that mean nothing without a server."""
    reasons: dict[str, list[str]] = {}
    for cls in (TopicConfig, LogConfig, ProducerConfig, ConsumerConfig):
        for pattern, reason in cls.REFUSED.items():
            seen = reasons.setdefault(reason, [])
            seen.extend(name for name in names_of(pattern) if name not in seen)
    return table(
        ("names", "reason"),
        ((", ".join(f"`{name}`" for name in names), reason) for reason, names in reasons.items()),
    )


# ---- byte maps -----------------------------------------------------------------------------------

CODES = {"b": "i8", "h": "i16", "H": "u16", "i": "i32", "I": "u32", "q": "i64", "Q": "u64"}


def byte_map(layout: struct.Struct, fields: str) -> str:
    """Position, type and name of each field of a struct; `fields` names them in order, separated by
    commas.
    """
    codes = re.findall(r"(\d*)([a-zA-Z])", layout.format.lstrip(">"))
    rows, position, names = [], 0, [name.strip() for name in fields.split(",")]
    for count, code in codes:
        size = struct.calcsize(f">{count}{code}")
        if code == "x":
            rows.append((str(position), f"{size} bytes", "zeros"))
        else:
            rows.append(
                (str(position), f"{size} bytes" if code == "s" else CODES[code], names.pop(0))
            )
        position += size
    if names or position != layout.size:
        raise ValueError(f"{layout.format} does not have the fields {fields}")
    return table(("position", "type", "field"), rows)


def manifest_head() -> str:
    return byte_map(
        manifest._HEAD, "`ELOGMNFT`, version, CRC-32C of these 32 bytes with zeros here, topic id"
    )


def manifest_entry() -> str:
    fields = (
        "kind: 1 sealed; 2 the active segment as an orderly close left it; 3 the log start,"
        "flags: 1 no gaps between offsets; 2 the digest is known,"
        "base offset, size of the `.log` in bytes, next offset, largest timestamp, the offset "
        "that has it, digest (below),"
        "entries of the offset index, entries of the time index, entries of the transaction "
        "index, created (ms), leader epoch,"
        "digest of the transaction index (0: not known), smallest timestamp (-1: not known), "
        "lateness (ms; below)"
    )
    return byte_map(manifest._ENTRY, fields)


def durable_slot() -> str:
    fields = (
        "`ELOGDUR1`, sequence, topic id, durable offset, base offset of its segment, CRC-32C of "
        "all before"
    )
    return byte_map(control_page._SLOT, fields)


def commented_fields(name: str) -> list[tuple[str, str, str]]:
    """Type, name and comment of the fields of a struct in the system header."""
    text = SYSTEM_HEADER.read_text()
    body = re.search(rf"typedef struct \{{([^}}]*)\}} {name};", text)
    if body is None:
        raise ValueError(f"no struct {name} in {SYSTEM_HEADER.name}")
    above_field = r"(?:^ +/\* ((?:[^*]|\*(?!/))*) \*/\n)?"
    beside_field = r"[ ]*(?:/\* (.*?) \*/)?$"
    fields = re.findall(
        above_field + r"^ +(u?)int(\d+)_t (\w+);" + beside_field, body[1], re.MULTILINE
    )
    return [
        (
            "ui"[not sign] + bits,
            f"`{field}`",
            " ".join((above or beside).replace(" * ", " ").split()),
        )
        for above, sign, bits, field, beside in fields
    ]


def published_tuple() -> str:
    return table(("type", "field", ""), commented_fields("el_tuple"))


def layers() -> str:
    """The dependency directions that the tests check the imports against."""
    units = tomllib.loads((DOCS.parent / "tests" / "project" / "dependencies.toml").read_text())[
        "unit"
    ]
    rows = (
        (
            f"`{unit['name']}`",
            unit["purpose"],
            ", ".join(f"`{name}`" for name in unit["may"]) or "nothing",
        )
        for unit in units
    )
    return table(("unit, from the bottom up", "purpose", "may import"), rows)


# ---- measured figures that several pages name ----------------------------------------------------

FIGURES = tomllib.loads((DOCS / "figures.toml").read_text())
RACE = DOCS / "race" / "results.json"


def costs() -> str:
    """The table of the README."""
    append, scan, send, batch, records = (
        FIGURES[name] for name in ("append", "scan", "send", "send_batch", "records")
    )
    result, poll = FIGURES["result"], FIGURES["poll"]
    rows = (
        (
            "append Arrow columns, 1 kB / 100 B",
            f"{append['mb_1000']} / {append['mb_100']} MB/s",
            append["ratio"],
        ),
        (
            "scan into Arrow with checksums, 1 kB / 100 B",
            f"{scan['mb_1000']:,} / {scan['mb_100']} MB/s",
            scan["ratio"],
        ),
        (
            "`send()` / `send_batch` of a list",
            f"{send['millions']} / {batch['millions']} million records/s",
            f"{send['ratio']} × / {batch['ratio']} × `produce()` of confluent-kafka",
        ),
        (
            "iterate records in Python",
            f"{records['millions']} million records/s",
            f"{records['ratio']} × confluent-kafka's `consume(10000)`",
        ),
        ("`send().result()`, p50 / p99", f"{result['p50']} / {result['p99']} µs", result["ratio"]),
        (
            "`send()` to `poll` in another process, p50 / p99",
            f"{poll['p50']} / {poll['p99']} µs",
            poll["ratio"],
        ),
        ("a transaction of 1,000 records over 4 partitions", "1.3–2.4 ms", ""),
    )
    return table(("operation", "absolute", "ratio"), rows)


def absolute_figures() -> str:
    """The same figures, with those for 1 kB beside them."""
    append, scan, result = FIGURES["append"], FIGURES["scan"], FIGURES["result"]
    rows = [
        (
            name,
            f"{part['mb_100']} MB/s, {part['records_100']} million records/s",
            f"{part['mb_1000']:,} MB/s",
        )
        for name, part in (
            ("append from Arrow columns", append),
            ("scan into Arrow with checksums", scan),
        )
    ]
    rows += [
        (name, f"{FIGURES[key]['millions']} million records/s", "")
        for name, key in (
            ("`send()` one by one, with `flush()`", "send"),
            ("`send_batch` of a list of `bytes`", "send_batch"),
            ("iterating records", "records"),
        )
    ]
    rows.append(("`send().result()`, p50 / p99", f"{result['p50']} / {result['p99']} µs", ""))
    rows.append(("a transaction of one record, p50", "0.6 ms", ""))
    rows.append(
        ("`send().result()` with `flush.messages=1`, p50", "3.4 ms, one sync of that disk", "")
    )
    return table(("operation", "100 B", "1 kB"), rows)


def comparison() -> str:
    """embedlog beside two others: Kafka's client by the figures of the README, Chronicle Queue by
    the race.
    """
    measured = json.loads(RACE.read_text())["figures"]
    rows = []
    for name, key in (
        ("append of columns / one by one", "append/columns/100B/random/none"),
        ("records as objects of Python / Java", "read/records/100B/random/none"),
    ):
        ours, theirs = (
            statistics.median(measured[key][peer]["records_s"]) / 1e6
            for peer in ("embedlog", "chronicle")
        )
        rows.append(
            (
                "Chronicle Queue, Java ([race](../race.md))",
                name,
                f"{ours:.1f} M/s",
                f"{theirs:.1f} M/s",
                f"{ours / theirs:.2g}",
            )
        )
    kafka = "Kafka with confluent-kafka, local broker"
    for name, key in (("`send` / `produce`", "send"), ("records", "records")):
        rows.append((kafka, name, f"{FIGURES[key]['millions']} M/s", "", FIGURES[key]["ratio"]))
    return table(("compared with", "workload", "embedlog", "the other", "ratio"), rows)


# ---- the types of the options --------------------------------------------------------------------

TYPED_OPTIONS = DOCS.parent / "embedlog" / "config" / "typed_options.py"
TYPED_HEAD = '''"""Defines the options as keywords for editors and type checkers; generated by docs/generate.py.

- A key is the name of an option with underscores, with the type of its values. Texts of numbers,
  and values that no type can describe (`by_duration:…`), belong in the `config` mapping.
- Serializers and deserializers are not included: they are separate arguments that make `Producer`
  and `Consumer` generic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from embedlog.config.callables import Partitioner

__all__ = ["ConsumerOptions", "LogOptions", "ProducerOptions", "TopicOptions"]
'''
OWN_ARGUMENTS = {
    "key_serializer",
    "value_serializer",
    "key_deserializer",
    "value_deserializer",
    "group_id",
}
KINDS = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "text": "str",
    "mode": "int | str",
    "partitioner": "Partitioner",
    "objects": "Sequence[Any]",
}


def type_of(known: options.Option) -> str:
    """What a type checker is to let through for an option."""
    numbers = [choice for choice in known.choices if re.fullmatch(r"-?\d+", choice)]
    choices = ", ".join([*(f'"{choice}"' for choice in known.choices), *numbers])
    if known.kind == "choice":
        found = f"Literal[{choices}]"
    elif known.kind == "list":
        found = f"Literal[{choices}] | Sequence[Literal[{choices}]]" if choices else "Sequence[str]"
    else:
        found = KINDS[known.kind]
    nothing = known.optional or any(given is None for given, _ in known.spellings)
    return found + (" | None" if nothing else "")


def typed_options() -> str:
    """The module `typed_options`."""
    text = TYPED_HEAD
    for cls in (LogConfig, TopicConfig, ProducerConfig, ConsumerConfig):
        name = cls.__name__.replace("Config", "Options")
        title = f"Options of {cls.OWNER_NAME}: docs/configuration.md describes each."
        text += f'\n\nclass {name}(TypedDict, total=False):\n    """{title}"""\n\n'
        text += "".join(
            f"    {field}: {type_of(known)}\n"
            for field, known in options.options_of(cls).items()
            if field not in OWN_ARGUMENTS
        )
    return text


def filled(text: str) -> str:
    """A page with its generated sections made anew."""
    return SECTION.sub(lambda found: f"{found[1]}{globals()[found[2]]()}{found[3]}", text)


def main() -> int:
    made = {
        path: filled(path.read_text())
        for path in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    } | {TYPED_OPTIONS: typed_options()}
    stale = []
    for path, text in made.items():
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    print(
        "\n".join(f"{'stale' if '--check' in sys.argv else 'written'}: {name}" for name in stale)
        or "all pages are current"
    )
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
