"""Contains the verb `dump`, with the options and the lines of kafka-dump-log."""

from __future__ import annotations

import json
from pathlib import Path

import click

from embedlog.tools.cli.arguments import complete_partition_names
from embedlog.tools.cli.invocation import current, directories, verb
from embedlog.tools.cli.terminal import tell
from embedlog.tools.dump.files import DECODERS, DumpOptions, dump, partition_files
from embedlog.tools.dump.segments import Content

ABSENT = (
    "--key-decoder-class",
    "--value-decoder-class",
    "--cluster-metadata-decoder",
    "--remote-log-metadata-decoder",
)


def _refuse(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value:
        decoded = "text, offsets, transactions and the state of share groups"
        raise click.UsageError(
            f"{parameter.opts[0]}: there are decoders of {decoded}; kafka-dump-log of Kafka has "
            "this one"
        )


def _refuse_absent_options(function: click.decorators.FC) -> click.decorators.FC:
    for name in ABSENT:
        is_flag = not name.endswith("class")
        function = click.option(
            name, is_flag=is_flag, hidden=True, expose_value=False, callback=_refuse
        )(function)
    return function


@verb(
    name="dump",
    exclusive=[("--offsets-decoder", "--transaction-log-decoder", "--share-group-state-decoder")],
)
@click.argument(
    "partitions", nargs=-1, metavar="[TOPIC-N]…", shell_complete=complete_partition_names
)
@click.option(
    "--files",
    "names",
    multiple=True,
    metavar="FILE,…",
    help="Files of any directory, instead of partitions of -d.",
)
@click.option("--print-data-log", is_flag=True, help="Print keys and values.")
@click.option("--deep-iteration", is_flag=True, help="Print a line for each record.")
@click.option("--offsets-decoder", is_flag=True, help="Decode records of __consumer_offsets.")
@click.option(
    "--transaction-log-decoder", is_flag=True, help="Decode records of __transaction_state."
)
@click.option(
    "--share-group-state-decoder", is_flag=True, help="Decode records of __share_group_state."
)
@click.option(
    "--skip-record-metadata",
    is_flag=True,
    help="Of records, print key and value only; no control records.",
)
@click.option(
    "--verify-index-only",
    is_flag=True,
    help="Compare indexes with their logs, and print no entries.",
)
@click.option(
    "--index-sanity-check", is_flag=True, help="Check indexes as a broker does at its start."
)
@click.option(
    "--max-message-size",
    type=click.IntRange(1),
    default=5 << 20,
    help="The largest batch that an index may name.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=2**31 - 1,
    help="Bytes of batches that are printed of each log.",
)
@_refuse_absent_options
def dump_verb(
    partitions: tuple[str, ...],
    names: tuple[str, ...],
    print_data_log: bool,
    deep_iteration: bool,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    share_group_state_decoder: bool,
    skip_record_metadata: bool,
    verify_index_only: bool,
    index_sanity_check: bool,
    max_message_size: int,
    max_bytes: int,
) -> int:
    """Print batches, records, indexes and snapshots of files, and compare indexes with their logs.

    The files are read without locks. Exit status 1: a file is damaged, or contradicts another one.
    As with kafka-dump-log, contradictions and gaps between offsets are printed on standard error.

    JSON lines: the same names and values as the text; {"dumping"} begins a file, {"problem"}
    reports damage.
    """
    if bool(partitions) == bool(names):
        raise click.UsageError("give either partitions such as TOPIC-0, or --files")
    flags = {
        "offsets": offsets_decoder,
        "transactions": transaction_log_decoder,
        "share": share_group_state_decoder,
    }
    chosen = next((name for name, is_given in flags.items() if is_given), "text")
    contents = print_data_log or chosen != "text"
    content = Content(
        contents or deep_iteration,
        DECODERS[chosen] if contents else None,
        not skip_record_metadata,
        max_bytes,
    )
    options = DumpOptions(content, verify_index_only, index_sanity_check, max_message_size)
    if names:
        paths = [Path(name) for argument in names for name in argument.split(",")]
    else:
        paths = _files_of(partitions)
    is_good = True
    for line in dump(paths, options):
        is_good = is_good and line.good
        if current().json:
            click.echo(json.dumps(line.facts, ensure_ascii=False))
        elif line.aside:
            tell(line.text)
        else:
            click.echo(line.text)
    return 0 if is_good else 1


def _files_of(partitions: tuple[str, ...]) -> list[Path]:
    """The files of partitions in all directories of the invocation. Raises UsageError for a
    partition that none has.
    """
    files = []
    for name in partitions:
        folders = [Path(directory) / name for directory in directories()]
        folders = [folder for folder in folders if folder.is_dir()]
        if not folders:
            text = (
                "expected TOPIC-NUMBER, such as web-0; embedlog ls TOPIC lists the partitions of "
                "a topic"
            )
            raise click.UsageError(f"no partition {name} in {', '.join(directories())}: {text}")
        files += [path for folder in folders for path in partition_files(folder)]
    return files
