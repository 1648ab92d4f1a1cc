"""Contains the verb `groups`, with the options and columns of kafka-consumer-groups.

GROUPSVERB-1  `--reset-offsets` writes only with `--execute`
GROUPSVERB-2  a plan that `--export` prints is accepted by `--from-file`
GROUPSVERB-3  each group is changed by itself; the status is 1 if one of them could not be changed
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import embedlog
from embedlog import GroupDescription, Log, TopicPartition
from embedlog.cli.arguments import actions, group_ids, numbers, time_ms, topic_names, words
from embedlog.cli.invocation import current, open_log, verb
from embedlog.cli.option_words import in_options
from embedlog.cli.output import document, table
from embedlog.cli.readable import Readable, numbers_of
from embedlog.cli.reset_plans import exported, imported
from embedlog.cli.terminal import tell

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


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        actions(dict.fromkeys(_ACTIONS, "")),
        click.option("--group", "ids", multiple=True, shell_complete=group_ids, help="A group."),
        click.option("--all-groups", is_flag=True, help="All groups."),
        click.option("--members", is_flag=True, help="Describe members."),
        click.option("--offsets", is_flag=True, help="Describe offsets (the default)."),
        click.option(
            "--state",
            is_flag=False,
            flag_value="",
            metavar="[STATE,…]",
            shell_complete=words(*STATES),
            help="Describe or list states.",
        ),
        click.option(
            "--type",
            "kind",
            is_flag=False,
            flag_value="",
            metavar="[TYPE,…]",
            shell_complete=words(*TYPES),
            help="List types.",
        ),
        click.option("--verbose", is_flag=True, help="Describe the partitions of members."),
        click.option(
            "--topic", "topics", multiple=True, shell_complete=topic_names, metavar="TOPIC[:N,…]"
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
    for each in reversed(options):
        function = each(function)
    return function


@verb(exclusive=_EXCLUSIVE)
@_options
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
            readable = Readable()
            found = list(readable.each(names, log.describe_group))
            status = max(_describe(found, options), readable.status(True))
            _tell_share_groups(found)
            return status
        if action == "delete":
            return _delete(log, names)
        if action == "delete-offsets":
            return _delete_offsets(log, names, options)
        return _reset(log, names, options)


def scope(log: Log, given: tuple[str, ...]) -> list[TopicPartition]:
    """The partitions of TOPIC or TOPIC:0,1. Raises UnknownTopicOrPartitionError for an absent
    topic.
    """
    found = []
    for each in given:
        topic, sign, text = each.partition(":")
        named = numbers(text, "--topic") if sign else None
        known = numbers_of(log, topic, named)
        found += [TopicPartition(topic, number) for number in (known if named is None else named)]
    return found


# ---- reads ---------------------------------------------------------------------------------------


def _list(log: Log, names: list[str], options: dict[str, Any]) -> int:
    readable = Readable()
    described = list(readable.each(names, log.describe_group))
    for chosen, attribute in ((options["state"], "state"), (options["kind"], "type")):
        wanted = {text.strip().lower() for text in (chosen or "").split(",")} - {""}
        described = [
            each for each in described if not wanted or getattr(each, attribute).lower() in wanted
        ]
    if names and not described and readable.whole:
        tell(f"embedlog: none of {len(names)} groups has such a state or type")
    if current().json:
        document(
            [{"group": each.group_id, "type": each.type, "state": each.state} for each in described]
        )
    elif options["state"] is None and options["kind"] is None:
        click.echo("".join(f"{each.group_id}\n" for each in described), nl=False)
    else:
        table(
            ["group", "type", "state"],
            [[each.group_id, each.type, each.state] for each in described],
        )
    return readable.status(bool(described))


def as_json(group: GroupDescription) -> dict[str, Any]:
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
                "member": each.member_id,
                "instance": each.instance_id,
                "client": each.client_id,
                "host": each.client_host,
                "topics": list(each.topics),
                "assignment": [list(tp) for tp in each.assignment],
            }
            for each in group.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "offset": each.position,
                "log_end_offset": each.log_end_offset,
                "lag": each.lag,
                "member": each.member_id,
                "metadata": each.committed.metadata if each.committed else None,
            }
            for each in group.partitions
        ],
    }


def _describe(found: list[GroupDescription], options: dict[str, Any]) -> int:
    if current().json:
        document([as_json(each) for each in found])
    elif options["state"] is not None:
        states = [[each.group_id, each.assignor, each.state, len(each.members)] for each in found]
        table(["group", "assignment-strategy", "state", "#members"], states)
    elif options["members"]:
        columns = ["group", "consumer-id", "group-instance-id", "host", "client-id", "#partitions"]
        verbose = options["verbose"]
        table(
            [*columns, "assignment"] if verbose else columns,
            [
                [
                    each.group_id,
                    member.member_id,
                    member.instance_id,
                    member.client_host,
                    member.client_id,
                    len(member.assignment),
                    *([_assigned(member) or None] if verbose else []),
                ]
                for each in found
                for member in each.members
            ],
        )
    else:
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
        members = {
            (each.group_id, member.member_id): member for each in found for member in each.members
        }
        rows: list[list[Any]] = []
        for each in found:
            for place in each.partitions:
                reader = members.get((each.group_id, place.member_id or ""))
                rows.append(
                    [
                        each.group_id,
                        place.topic,
                        place.partition,
                        place.position,
                        place.log_end_offset,
                        place.lag,
                        place.member_id,
                        reader and reader.client_host,
                        reader and reader.client_id,
                    ]
                )
        table(columns, rows)
    return 0 if found else 1


def _tell_share_groups(found: list[GroupDescription]) -> None:
    """Say where the positions of share groups are: they have no committed offsets."""
    for each in found:
        if each.type == "share" and not current().json:
            text = (
                "its positions are in __share_group_state, which embedlog dump "
                "--share-group-state-decoder prints"
            )
            tell(f"embedlog: {each.group_id} is a share group: {text}")


def _assigned(member: embedlog.MemberDescription) -> str:
    """The partitions of a member in Kafka's form: t(0,1), u(2)."""
    topics: dict[str, list[int]] = {}
    for tp in member.assignment:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return ", ".join(
        f"{topic}({','.join(map(str, sorted(found)))})" for topic, found in sorted(topics.items())
    )


# ---- changes -------------------------------------------------------------------------------------


def _each(names: list[str], change: Callable[[str], None]) -> list[str]:
    """Changes each group; returns those that were changed, after a line for each of the others."""
    done = []
    for name in names:
        try:
            change(name)
        except embedlog.EmbedlogError as error:
            tell(f"embedlog: {name}: {in_options(error)}")
        else:
            done.append(name)
    return done


def _delete(log: Log, names: list[str]) -> int:
    done = _each(names, log.delete_group)
    if current().json:
        document(done)
    elif done:
        listed = ", ".join(f"'{name}'" for name in done)
        click.echo(f"Deletion of requested consumer groups ({listed}) was successful.")
    return 0 if done and len(done) == len(names) else 1


def _delete_offsets(log: Log, names: list[str], options: dict[str, Any]) -> int:
    if not options["topics"]:
        raise click.UsageError("--delete-offsets needs --topic")
    tps = scope(log, options["topics"])
    before = {name: log.group_offsets(name) for name in names}
    done = _each(names, lambda name: log.delete_group_offsets(name, tps))
    rows = [
        (name, tp, before[name][tp].offset) for name in done for tp in tps if tp in before[name]
    ]
    _print_offsets(rows, "deleted-offset")
    return 0 if rows and len(done) == len(names) else 1


def _reset(log: Log, names: list[str], options: dict[str, Any]) -> int:
    plan = None if options["from_file"] is None else imported(options["from_file"], names)
    target = _target(options, plan is not None)
    if plan is None and not (options["topics"] or options["all_topics"]):
        raise click.UsageError("--reset-offsets needs --topic or --all-topics")
    places = scope(log, options["topics"]) if options["topics"] else None
    rows: list[tuple[str, TopicPartition, int]] = []

    def reset(name: str) -> None:
        to = target if plan is None else plan.get(name, {})
        if plan is None or to:
            try:
                found = log.reset_group_offsets(name, places, to=to, dry_run=not options["execute"])
            except embedlog.ConfigError:
                if options["by_duration"] is None:
                    raise
                text = (
                    "--by-duration: expected PnDTnHnMnS such as P1DT12H, found "
                    f"{options['by_duration']!r}"
                )
                raise click.UsageError(text) from None
            rows.extend((name, tp, place.offset) for tp, place in sorted(found.items()))

    done = _each(names, reset)
    if options["export"]:
        click.echo(exported(rows, with_group=len(names) > 1), nl=False)
    else:
        _print_offsets(rows, "new-offset")
    if not options["execute"] and not options["export"]:
        tell("Nothing was changed: --execute commits these offsets.")
    return 0 if rows and len(done) == len(names) else 1


def _target(options: dict[str, Any], has_plan: bool) -> Any:
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
        return {"time": time_ms(options["to_datetime"], "--to-datetime")}
    if options["by_duration"] is not None:
        return {"duration": options["by_duration"]}
    raise click.UsageError(
        "--reset-offsets needs one of --to-…, --shift-by, --by-duration and --from-file"
    )


def _print_offsets(rows: list[tuple[str, TopicPartition, int]], column: str) -> None:
    if current().json:
        document(
            [
                {"group": group, "topic": tp.topic, "partition": tp.partition, "offset": offset}
                for group, tp, offset in rows
            ]
        )
    else:
        table(
            ["group", "topic", "partition", column],
            [[group, *tp, offset] for group, tp, offset in rows],
        )
