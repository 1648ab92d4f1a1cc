"""Contains the verb `mirror`: topics and group offsets from one log to another, or from and to a
Kafka cluster (MirrorMaker).

An interrupt or a termination ends the mirror after its current transaction, and the summary is
printed; a second one ends it at once. The status after an interrupt is 130, after a termination 0.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import click

from embedlog import ConfigError
from embedlog.mirror import Mirror, MirrorReport
from embedlog.tools.cli.arguments import parse_settings
from embedlog.tools.cli.invocation import current, directories, verb
from embedlog.tools.cli.output import print_document, print_table, size_of
from embedlog.tools.cli.progress import progress
from embedlog.tools.cli.terminal import tell

KAFKA = "kafka://"


@verb(exclusive=[("--group", "--groups")])
@click.option("--from", "source", metavar="PLACE", help="The source; that of -d if not given.")
@click.option(
    "--to",
    "target",
    metavar="PLACE",
    help="The target; that of -d if not given. An absent directory is created.",
)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="A topic of the source; may be repeated.",
)
@click.option(
    "--pattern", metavar="REGEX", help="Topics whose whole name matches; new ones are noticed."
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="A group whose offsets are copied; may be repeated.",
)
@click.option("--groups", "all_groups", is_flag=True, help="Copy the offsets of all groups.")
@click.option(
    "--follow",
    is_flag=True,
    help="Continue until a signal; otherwise the mirror ends at the present ends.",
)
@click.option("--prefix", default="", metavar="TEXT", help="The names of the copies begin so.")
@click.option(
    "--name", default="", help="Distinguishes mirrors of one source that run at the same time."
)
@click.option("--append", is_flag=True, help="Copy into topics that have other records.")
@click.option(
    "--skip-deleted",
    is_flag=True,
    help="Continue after records that were deleted before they were copied.",
)
@click.option(
    "--replication-factor", type=click.IntRange(min=1), help="Of topics that are created."
)
@click.option(
    "--from-property",
    "source_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the source's clients.",
)
@click.option(
    "--to-property",
    "target_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the target's clients.",
)
def mirror(source: str | None, target: str | None, follow: bool, **options: Any) -> int:
    """Copy topics to another log exactly once: all, or those that --topic and --pattern select.

    A PLACE is a directory, the directories of a set with ":" between them, or
    kafka://HOST:PORT[,HOST:PORT]. A second run continues after the first, also after a kill. JSON:
    {"from", "to", "records", "bytes", "seconds", "topics": [{"topic", "target", "records"}],
    "offsets": [{"group", "topic", "partition", "offset"}]}.
    """
    if source is None and target is None:
        raise click.UsageError(
            "--from and --to: expected at least one; the other one is that of -d"
        )
    if source is None:
        source = os.pathsep.join(directories())
    elif target is None:
        target = os.pathsep.join(directories())
    assert target is not None, "one of the two was given"
    began = time.monotonic()
    with (
        Mirror(
            _parse_location(source),
            _parse_location(target),
            topics=options["topics"],
            pattern=options["pattern"],
            groups=None if options["all_groups"] else options["groups"],
            name=options["name"],
            prefix=options["prefix"],
            append=options["append"],
            skip_deleted=options["skip_deleted"],
            replication_factor=options["replication_factor"],
            source_config=parse_settings(options["source_settings"], "--from-property"),
            target_config=parse_settings(options["target_settings"], "--to-property"),
            notice=_notice,
        ) as opened,
        _end_by_signals(opened) as ended,
        progress(unit="offsets") as advance,
    ):
        report = opened.run(follow=follow, progress=advance)
    _print(source, target, report, time.monotonic() - began)
    return 130 if ended.by == signal.SIGINT else 0


# HOST:PORT,…: as directories a set of HOST and PORT
_ADDRESS = re.compile(r"[^/:,]+:[0-9]{1,5}(,[^/:,]+:[0-9]{1,5})*")


def _parse_location(text: str) -> str | list[str]:
    """A place in the form of `Mirror`: several directories are a set."""
    if text.startswith(KAFKA):
        return text
    if _ADDRESS.fullmatch(text) and not os.path.exists(text):
        expected = f"kafka://{text} for a Kafka cluster, or directories that exist"
        raise ConfigError("place of a mirror", expected=expected, found=repr(text))
    directories = [directory for directory in text.split(os.pathsep) if directory]
    if not directories:
        raise ConfigError(
            "place of a mirror", expected="a directory, or kafka://HOST:PORT", found=repr(text)
        )
    return directories[0] if len(directories) == 1 else directories


def _notice(text: str) -> None:
    tell(f"embedlog: {text}")


@dataclass
class _EndSignal:
    """The signal that ended the mirror."""

    by: int | None = None


@contextmanager
def _end_by_signals(opened: Mirror) -> Iterator[_EndSignal]:
    """End the mirror in order by the first signal; the second one has its usual effect."""
    ended = _EndSignal()
    before: dict[int, Any] = {}

    def end(number: int, frame: FrameType | None) -> None:
        ended.by = number
        for other_number, handler in before.items():
            signal.signal(other_number, handler)
        opened.end()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(source: str, target: str, report: MirrorReport, seconds: float) -> None:
    if current().json:
        print_document(
            {
                "from": source,
                "to": target,
                "records": report.records,
                "bytes": report.size_bytes,
                "seconds": round(seconds, 3),
                "topics": [topic._asdict() for topic in report.topics],
                "offsets": [offset._asdict() for offset in report.offsets],
            }
        )
        return
    print_table(["topic", "target", "records"], report.topics)
    if report.offsets:
        print_table(["group", "topic", "partition", "offset"], report.offsets)
    tell(f"{report.records} records, {size_of(report.size_bytes)} in {seconds:.1f} s")
