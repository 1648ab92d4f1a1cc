"""Contains the verb `groups`, with the options and columns of kafka-consumer-groups.

- `--reset-offsets` writes only with `--execute`.
- A plan that `--export` prints is accepted by `--from-file`.
- Each group is changed by itself; the status is 1 if one of them could not be changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import embedlog
from embedlog import GroupDescription, Log, TopicPartition
from embedlog.tools.cli.arguments import (
    action_options,
    complete_group_ids,
    complete_topic_names,
    complete_words,
    parse_numbers,
    parse_time_ms,
)
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.option_words import text_in_options
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.readable import ReadableMembers, numbers_of
from embedlog.tools.cli.reset_plans import decode_plan, encode_plan
from embedlog.tools.cli.terminal import tell

_ACTIONS = ("list", "describe", "delete", "delete-offsets", "reset-offsets")
STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Assigning",
    "Reconciling",
)
TYPES = ("classic", "consumer", "share", "streams")
_TARGETS = (
    "--to-earliest",
    "--to-latest",
    "--to-current",
    "--to-offset",
    "--shift-by",
    "--to-datetime",
    "--by-duration",
    "--from-file",
)
_EXCLUSIVE = (
    _TARGETS,
    ("--dry-run", "--execute"),
    ("--group", "--all-groups"),
    ("--topic", "--all-topics"),
    ("--members", "--offsets", "--state"),
)


def _add_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        action_options(dict.fromkeys(_ACTIONS, "")),
        click.option(
            "--group", "ids", multiple=True, shell_complete=complete_group_ids, help="A group."
        ),
        click.option("--all-groups", is_flag=True, help="All groups."),
        click.option("--members", is_flag=True, help="Describe members."),
        click.option("--offsets", is_flag=True, help="Describe offsets (the default)."),
        click.option(
            "--state",
            is_flag=False,
            flag_value="",
            metavar="[STATE,…]",
            shell_complete=complete_words(*STATES),
            help="Describe or list states.",
        ),
        click.option(
            "--type",
            "kind",
            is_flag=False,
            flag_value="",
            metavar="[TYPE,…]",
            shell_complete=complete_words(*TYPES),
            help="List types.",
        ),
        click.option("--verbose", is_flag=True, help="Describe the partitions of members."),
        click.option(
            "--topic",
            "topics",
            multiple=True,
            shell_complete=complete_topic_names,
            metavar="TOPIC[:N,…]",
        ),
        click.option("--all-topics", is_flag=True, help="All partitions with a committed offset."),
        click.option("--to-earliest", "to", flag_value="earliest", help="The first record."),
        click.option("--to-latest", "to", flag_value="latest", help="The end."),
        click.option("--to-current", "to", flag_value="current", help="The committed offset."),
        click.option("--to-offset", type=int, help="This offset."),
        click.option("--shift-by", type=int, help="Records forward, or back."),
        click.option("--to-datetime", help="ISO 8601, UTC without a zone."),
        click.option("--by-duration", metavar="PnDTnHnMnS", help="The time before now."),
        click.option(
            "--from-file",
            type=click.File("r", encoding="utf-8", errors="replace"),
            help="A plan of --export.",
        ),
        click.option("--dry-run", is_flag=True, help="Print the new offsets only (the default)."),
        click.option("--execute", is_flag=True, help="Commit the new offsets."),
        click.option("--export", is_flag=True, help="Print the new offsets as CSV."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@verb(exclusive=_EXCLUSIVE)
@_add_options
def groups(action: str | None, ids: tuple[str, ...], all_groups: bool, **options: Any) -> int:
    """List (the default), describe, delete and reset consumer groups.

    JSON of --list: {"group", "type", "state"} for each group. JSON of --describe: {"group", "type",
    "state", "assignor", "generation", "lag", "members", "partitions"} for each group. JSON of
    --reset-offsets and --delete-offsets: {"group", "topic", "partition", "offset"} for each
    partition.
    """
    action = action or "list"
    if action != "list" and not ids and not all_groups:
        raise click.UsageError(f"--{action} needs --group or --all-groups")
    if options["export"] and current().json:
        raise click.UsageError("--export and --json exclude each other")
    writes = action in ("delete", "delete-offsets") or (
        action == "reset-offsets" and options["execute"]
    )
    with open_log(read_only=not writes) as log:
        names = log.groups() if all_groups or action == "list" else list(ids)
        if not names:
            tell(
                f"embedlog: there is no group in {log.path}: one exists from the first poll or "
                "commit of a member on"
            )
        if action == "list":
            return _list(log, names, options)
        if action == "describe":
            readable = ReadableMembers()
            descriptions = list(readable.describe_each(names, log.describe_group))
            status = max(_describe(descriptions, options), readable.status(True))
            _tell_share_groups(descriptions)
            return status
        if action == "delete":
            return _delete(log, names)
        if action == "delete-offsets":
            return _delete_offsets(log, names, options)
        return _reset(log, names, options)


def select_partitions(log: Log, arguments: tuple[str, ...]) -> list[TopicPartition]:
    """The partitions of TOPIC or TOPIC:0,1. Raises UnknownTopicOrPartitionError for an absent
    topic.
    """
    partitions = []
    for argument in arguments:
        topic, sign, text = argument.partition(":")
        numbers = parse_numbers(text, "--topic") if sign else None
        existing = numbers_of(log, topic, numbers)
        if numbers is None:
            numbers = existing
        partitions += [TopicPartition(topic, number) for number in numbers]
    return partitions


# ---- reads ---------------------------------------------------------------------------------------


def _list(log: Log, names: list[str], options: dict[str, Any]) -> int:
    readable = ReadableMembers()
    descriptions = list(readable.describe_each(names, log.describe_group))
    states = _parse_words(options["state"])
    types = _parse_words(options["kind"])
    if states:
        descriptions = [group for group in descriptions if group.state.lower() in states]
    if types:
        descriptions = [group for group in descriptions if group.type.lower() in types]
    if names and not descriptions and readable.is_whole:
        tell(f"embedlog: none of {len(names)} groups has such a state or type")
    columns = ["group", "type", "state"]
    rows = [[group.group_id, group.type, group.state] for group in descriptions]
    if current().json:
        print_document([dict(zip(columns, row, strict=True)) for row in rows])
    elif options["state"] is None and options["kind"] is None:
        click.echo("".join(f"{group.group_id}\n" for group in descriptions), nl=False)
    else:
        print_table(columns, rows)
    return readable.status(bool(descriptions))


def _parse_words(text: str | None) -> set[str]:
    """The words of a list such as Empty,Stable, in small letters."""
    return {word.strip().lower() for word in (text or "").split(",")} - {""}


def document_of_group(group: GroupDescription) -> dict[str, Any]:
    """A description with stable keys."""
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "generation": group.generation,
        "lag": group.lag,
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "topics": list(member.topics),
                "assignment": [list(tp) for tp in member.assignment],
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": partition.position,
                "log_end_offset": partition.log_end_offset,
                "lag": partition.lag,
                "member": partition.member_id,
                "metadata": partition.committed.metadata if partition.committed else None,
            }
            for partition in group.partitions
        ],
    }


def _describe(groups: list[GroupDescription], options: dict[str, Any]) -> int:
    if current().json:
        print_document([document_of_group(group) for group in groups])
    elif options["state"] is not None:
        rows = [
            [group.group_id, group.assignor, group.state, len(group.members)] for group in groups
        ]
        print_table(["group", "assignment-strategy", "state", "#members"], rows)
    elif options["members"]:
        _print_members(groups, with_assignment=options["verbose"])
    else:
        _print_partitions(groups)
    return 0 if groups else 1


def _print_members(groups: list[GroupDescription], *, with_assignment: bool) -> None:
    columns = ["group", "consumer-id", "group-instance-id", "host", "client-id", "#partitions"]
    if with_assignment:
        columns.append("assignment")
    rows = []
    for group in groups:
        for member in group.members:
            row: list[Any] = [
                group.group_id,
                member.member_id,
                member.instance_id,
                member.client_host,
                member.client_id,
                len(member.assignment),
            ]
            if with_assignment:
                row.append(_assignment_text(member) or None)
            rows.append(row)
    print_table(columns, rows)


def _print_partitions(groups: list[GroupDescription]) -> None:
    columns = [
        "group",
        "topic",
        "partition",
        "current-offset",
        "log-end-offset",
        "lag",
        "consumer-id",
        "host",
        "client-id",
    ]
    rows = []
    for group in groups:
        members = {member.member_id: member for member in group.members}
        for partition in group.partitions:
            reader = members.get(partition.member_id or "")
            rows.append(
                [
                    group.group_id,
                    partition.topic,
                    partition.partition,
                    partition.position,
                    partition.log_end_offset,
                    partition.lag,
                    partition.member_id,
                    None if reader is None else reader.client_host,
                    None if reader is None else reader.client_id,
                ]
            )
    print_table(columns, rows)


def _tell_share_groups(groups: list[GroupDescription]) -> None:
    """Say where the positions of share groups are: they have no committed offsets."""
    for group in groups:
        if group.type == "share" and not current().json:
            text = (
                "its positions are in __share_group_state, which embedlog dump "
                "--share-group-state-decoder prints"
            )
            tell(f"embedlog: {group.group_id} is a share group: {text}")


def _assignment_text(member: embedlog.MemberDescription) -> str:
    """The partitions of a member in Kafka's form: t(0,1), u(2)."""
    topics: dict[str, list[int]] = {}
    for tp in member.assignment:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return ", ".join(
        f"{topic}({','.join(map(str, sorted(numbers)))})"
        for topic, numbers in sorted(topics.items())
    )


# ---- changes -------------------------------------------------------------------------------------


def _change_each(names: list[str], change: Callable[[str], None]) -> list[str]:
    """Changes each group; returns those that were changed, after a line for each of the others."""
    changed = []
    for name in names:
        try:
            change(name)
        except embedlog.EmbedlogError as error:
            tell(f"embedlog: {name}: {text_in_options(error)}")
        else:
            changed.append(name)
    return changed


def _delete(log: Log, names: list[str]) -> int:
    deleted = _change_each(names, log.delete_group)
    if current().json:
        print_document(deleted)
    elif deleted:
        listed = ", ".join(f"'{name}'" for name in deleted)
        click.echo(f"Deletion of requested consumer groups ({listed}) was successful.")
    return 0 if deleted and len(deleted) == len(names) else 1


def _delete_offsets(log: Log, names: list[str], options: dict[str, Any]) -> int:
    if not options["topics"]:
        raise click.UsageError("--delete-offsets needs --topic")
    tps = select_partitions(log, options["topics"])
    offsets_before = {name: log.group_offsets(name) for name in names}
    changed = _change_each(names, lambda name: log.delete_group_offsets(name, tps))
    rows = []
    for name in changed:
        offsets = offsets_before[name]
        rows += [(name, tp, offsets[tp].offset) for tp in tps if tp in offsets]
    _print_offsets(rows, "deleted-offset")
    return 0 if rows and len(changed) == len(names) else 1


def _reset(log: Log, names: list[str], options: dict[str, Any]) -> int:
    plan = None if options["from_file"] is None else decode_plan(options["from_file"], names)
    target = _reset_target(options, plan is not None)
    if plan is None and not (options["topics"] or options["all_topics"]):
        raise click.UsageError("--reset-offsets needs --topic or --all-topics")
    partitions = select_partitions(log, options["topics"]) if options["topics"] else None
    rows: list[tuple[str, TopicPartition, int]] = []

    def reset(name: str) -> None:
        to = target
        if plan is not None:
            to = plan.get(name)
            if to is None:
                return
        try:
            offsets = log.reset_group_offsets(
                name, partitions, to=to, dry_run=not options["execute"]
            )
        except embedlog.ConfigError:
            if options["by_duration"] is None:
                raise
            text = (
                "--by-duration: expected PnDTnHnMnS such as P1DT12H, found "
                f"{options['by_duration']!r}"
            )
            raise click.UsageError(text) from None
        rows.extend((name, tp, committed.offset) for tp, committed in sorted(offsets.items()))

    changed = _change_each(names, reset)
    if options["export"]:
        click.echo(encode_plan(rows, with_group=len(names) > 1), nl=False)
    else:
        _print_offsets(rows, "new-offset")
    if not options["execute"] and not options["export"]:
        tell("Nothing was changed: --execute commits these offsets.")
    return 0 if rows and len(changed) == len(names) else 1


def _reset_target(options: dict[str, Any], has_plan: bool) -> Any:
    """The argument `to` of a reset. Raises UsageError if none is given; the command line has at
    most one.
    """
    if has_plan:
        return {}
    if options["to"] is not None:
        return options["to"]
    if options["to_offset"] is not None:
        return {"offset": options["to_offset"]}
    if options["shift_by"] is not None:
        return {"shift": options["shift_by"]}
    if options["to_datetime"] is not None:
        return {"time": parse_time_ms(options["to_datetime"], "--to-datetime")}
    if options["by_duration"] is not None:
        return {"duration": options["by_duration"]}
    raise click.UsageError(
        "--reset-offsets needs one of --to-…, --shift-by, --by-duration and --from-file"
    )


def _print_offsets(rows: list[tuple[str, TopicPartition, int]], column: str) -> None:
    if current().json:
        print_document(
            [
                {"group": group, "topic": tp.topic, "partition": tp.partition, "offset": offset}
                for group, tp, offset in rows
            ]
        )
    else:
        print_table(
            ["group", "topic", "partition", column],
            [[group, *tp, offset] for group, tp, offset in rows],
        )
