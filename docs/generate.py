"""Writes what the documents take from the code: the configuration page and the tables of the layout page.

    python docs/generate.py            write anew
    python docs/generate.py --check    only say what is not current; exit 1 if anything is

In a page, whatever stands between `<!-- generated: NAME -->` and `<!-- end -->` comes from the function of that name below.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from embedlog import options
from embedlog.config import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig

DOCS = Path(__file__).resolve().parent
SECTION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NUMBERS = {2**63 - 1: "2^63 − 1 (never)", 2**31 - 1: "2^31 − 1"}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines.extend(list(row) for row in rows)
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def spelled(text: str) -> str:
    """A default or range with the numbers that stand for "never" made readable."""
    for number, words in NUMBERS.items():
        text = re.sub(rf"(?<!\d){number}(?!\d)", words, text)
    return text


def value(default: str, unit: str) -> str:
    return default if default in {"none", "true", "false"} else f"{spelled(default)} {unit}".strip()


def settings(cls: type[options.Options]) -> str:
    rows = (
        (f"`{name}`", value(default, unit), spelled(allowed), doc + (f" *{differs}*" if differs else ""))
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


def differences() -> str:
    """Every option that is not as in Kafka, with the reason."""
    rows = (
        (cls.WHOSE.split()[-1], f"`{name}`", value(default, unit), differs)
        for cls in (TopicConfig, LogConfig, ProducerConfig, ConsumerConfig)
        for name, default, _, unit, _, differs in options.rows(cls)
        if differs
    )
    return table(("of a", "name", "here", "in Kafka, and why"), rows)


def names_of(pattern: str) -> list[str]:
    """The names that a pattern such as `(a|b)\\.c|d\\..*` stands for: a.c, b.c, d.…"""
    if group := re.search(r"\(([^()]*)\)(\??)", pattern):
        choices = [*group[1].split("|"), *([""] if group[2] else [])]
        return [name for choice in choices for name in names_of(pattern[: group.start()] + choice + pattern[group.end() :])]
    return [name.replace("\\.", ".").replace(".*", "…").replace("s?", "s") for name in pattern.split("|")]


def refused() -> str:
    """Names of Kafka's that mean nothing without a server."""
    reasons: dict[str, list[str]] = {}
    for cls in (TopicConfig, LogConfig, ProducerConfig, ConsumerConfig):
        for pattern, reason in cls.REFUSED.items():
            seen = reasons.setdefault(reason, [])
            seen.extend(name for name in names_of(pattern) if name not in seen)
    return table(("names", "why not"), ((", ".join(f"`{name}`" for name in names), reason) for reason, names in reasons.items()))


def filled(text: str) -> str:
    """A page with its generated sections made anew."""
    return SECTION.sub(lambda found: f"{found[1]}{globals()[found[2]]()}{found[3]}", text)


def main() -> int:
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        if (new := filled(text)) != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new)
    print("\n".join(f"{'stale' if '--check' in sys.argv else 'written'}: {name}" for name in stale) or "all pages are current")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
