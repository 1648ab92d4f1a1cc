"""Selects the options that are meant for this direction among all that Spark passes, and refuses
unknown names.

Names are case-insensitive, and Spark passes them in lower case: a message has the documented
spelling. One error names all options that are refused, so that a ported program is repaired in one
step. Options of the other direction are ignored, because one table or view serves both. So is what
Spark adds for a table of its catalog: properties such as `provider` and `owner`, and each option a
second time after `option.`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import embedlog

SINK_ONLY = (  # options of the sink that the source does not have
    "topic",
    "transactionalId",
    "batchId",
    "timestamp",
    "partitioner",
    "compression.type",
    "kafka.compression.type",
    "shared",
    "stagingDirectory",
    "checkpointLocation",
    "queryName",
)
RENAMED = {  # names of other calls and options, in lower case
    "topic": "subscribe",
    "topics": "subscribe",
    "topicspattern": "subscribePattern",
    "pattern": "subscribePattern",
    "partitions": "assign",
    "directory": "path",
    "startoffset": "startingOffsets",
    "endoffset": "endingOffsets",
    "auto.offset.reset": "startingOffsets",
    "kafka.auto.offset.reset": "startingOffsets",
    "starttime": "startingTimestamp",
    "endtime": "endingTimestamp",
}
ELSEWHERE = (  # of Spark's Kafka source, without a meaning here
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
_ELSEWHERE = {name.lower(): name for name in ELSEWHERE}


def check_names(
    options: Mapping[str, str],
    documented: Mapping[str, str],
    others: Collection[str],
    owner: str,
    read: Callable[[str, str], Any],
) -> dict[str, Any]:
    """The values of the options by their documented names. Raises ConfigError that names every
    refused option.

    `known` maps lower-case names to documented ones; `others` are the lower-case names of the other
    direction; `owner` is "source" or "sink"; `read` makes the value of a documented name and its
    text, or raises ConfigError.
    """
    texts: dict[str, str] = {}
    clients: list[str] = []
    unknown: list[str] = []
    for name, text in _without_properties(options).items():
        lower = name.lower()
        if lower == "paths":  # Spark's name of several arguments of `load`, in JSON
            texts["path"] = str(text)
        elif lower in documented:
            texts[documented[lower]] = str(text)
        elif lower in others:
            continue
        elif _is_of_a_client(lower, documented):
            clients.append(_ELSEWHERE.get(lower, name))
        else:
            unknown.append(
                f"{name}: unknown option of the embedlog {owner}{_hint(lower, documented)}"
            )
    if clients:
        unknown.insert(
            0,
            f"{', '.join(clients)}: the {owner} has no broker and no client to configure: remove "
            "the option",
        )
    values: dict[str, Any] = {}
    refused: list[embedlog.ConfigError] = []
    for name, text in texts.items():
        try:
            values[name] = read(name, text)
        except embedlog.ConfigError as problem:
            refused.append(problem)
    if len(refused) == 1 and not unknown:
        raise refused[0]
    if unknown or refused:
        raise embedlog.ConfigError("; ".join([*unknown, *map(str, refused)]))
    return values


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options and properties of a table in Spark's catalog."""
    return any(name.lower() == "provider" for name in options)


def _without_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The options without the properties of a table. Spark repeats a table's options with a prefix,
    and not its properties.
    """
    if not is_table(options):
        return dict(options)
    lower = {name.lower() for name in options}
    return {
        name: text
        for name, text in options.items()
        if name.lower() == "path" or f"option.{name.lower()}" in lower
    }


def _is_of_a_client(lower: str, documented: Mapping[str, str]) -> bool:
    if RENAMED.get(lower, "").lower() in documented:
        return False
    return lower.startswith("kafka.") or lower in _ELSEWHERE


def _hint(lower: str, documented: Mapping[str, str]) -> str:
    meant = RENAMED.get(lower, "").lower()
    near: Iterable[str] = (
        [meant]
        if meant in documented
        else difflib.get_close_matches(lower, documented, n=1, cutoff=0.6)
    )
    return "".join(f"; did you mean {documented[name]}?" for name in near)
