"""Contains the table of verbs and the group that imports the module of a verb when it is called.

`--help` of the program imports no verb. A script of Kafka that is not needed here has its reason in
the help, and as an error. One that has a verb here is named by the help of that verb, and by an
error.
"""

from __future__ import annotations

from importlib import import_module

import click

from embedlog.tools.cli.invocation import check_is_verb, shared_options

# the module below `verbs`, and the sentence of the help
VERBS = {
    "backup": ("directory.backup", "Copy a log that other processes may be writing."),
    "cat": ("consume", "Print the present records of a topic, and end."),
    "check": ("directory.check", "Read and compare all files of a log, and print what is damaged."),
    "configs": ("configs", "Print and change settings of topics (kafka-configs)."),
    "console": ("interactive.console", "Show a log in the terminal, or in a browser."),
    "consume": ("consume", "Print records as they arrive (kafka-console-consumer, kcat -C)."),
    "delete-records": (
        "delete_records",
        "Delete the oldest records of partitions (kafka-delete-records).",
    ),
    "du": ("directory.du", "Print the disk space of partitions (kafka-log-dirs)."),
    "directories": ("directories", "List, add, retire and replace the directories of a set."),
    "groups": ("groups", "List, describe, reset and delete groups (kafka-consumer-groups)."),
    "dump": ("directory.dump", "Print batches, records and indexes of files (kafka-dump-log)."),
    "elect": ("elect", "Elect leaders of partitions (kafka-leader-election)."),
    "export": ("export", "Write topics to parquet, Arrow, JSON lines or CSV files."),
    "grep": ("grep", "Print the records that match a pattern."),
    "handover": ("directory.handover", "Give the directory to a Kafka broker, and take it back."),
    "import": ("import_files", "Append rows of parquet, Arrow, JSON lines or CSV files to topics."),
    "ls": ("ls", "List topics, or the partitions of topics (kcat -L)."),
    "mirror": (
        "mirror",
        "Copy topics to another log, or from and to a Kafka cluster (MirrorMaker).",
    ),
    "metrics": ("metrics", "Print metrics as a table, or for Prometheus."),
    "offsets": ("offsets", "Print offsets of partitions by time (kafka-get-offsets)."),
    "perf": (
        "perf",
        "Measure a producer or a consumer (kafka-producer-perf-test, kafka-consumer-perf-test).",
    ),
    "produce": ("produce", "Send lines or files as records (kafka-console-producer, kcat -P)."),
    "query": ("query", "Print the offset of a time (kcat -Q)."),
    "reassign": (
        "reassign",
        "Move partitions to other directories of a set (kafka-reassign-partitions).",
    ),
    "repair": ("directory.check", "Repair damaged files of a log that is not open (--execute)."),
    "replicas": (
        "replicas",
        "Print leaders, ISRs and lags, compare and repair replicas (kafka-replica-verification).",
    ),
    "restore": ("directory.backup", "Copy a backup to an absent or empty directory."),
    "tail": ("consume", "Print the last records of a topic, and follow it."),
    "transactions": ("transactions", "List, describe and abort transactions (kafka-transactions)."),
    "verifiable": (
        "verifiable",
        "Send or read records, with a line of JSON for each (kafka-verifiable-producer, "
        "-consumer).",
    ),
    "who": (
        "processes",
        "List the processes that have the directory open, with their locks and waits.",
    ),
    "topics": ("topics", "Create, describe, change and delete topics (kafka-topics)."),
}
SCRIPTS = {
    "kafka-configs": "configs",
    "kafka-consumer-groups": "groups",
    "kafka-delete-records": "delete-records",
    "kafka-dump-log": "dump",
    "kafka-log-dirs": "du",
    "kafka-topics": "topics",
    "kafka-console-consumer": "consume",
    "kafka-console-producer": "produce",
    "kafka-get-offsets": "offsets",
    "kafka-transactions": "transactions",
    "kafka-leader-election": "elect",
    "kafka-reassign-partitions": "reassign",
    "kafka-replica-verification": "replicas",
    "kafka-producer-perf-test": "perf producer",
    "kafka-consumer-perf-test": "perf consumer",
    "kafka-mirror-maker": "mirror",
    "connect-mirror-maker": "mirror",
    "kafka-verifiable-producer": "verifiable producer",
    "kafka-verifiable-consumer": "verifiable consumer",
    "kcat": "consume, produce, query or ls",
}
NOT_NEEDED = {
    "kafka-server-start": "each process opens the directory itself",
    "kafka-server-stop": "each process closes the directory itself",
    "kafka-storage": "a directory is formatted when it is opened first; handover formats it for a broker",
    "zookeeper-server-start": "topics and their settings are in the directory",
    "zookeeper-server-stop": "topics and their settings are in the directory",
    "zookeeper-shell": "topics and their settings are in the directory",
}


class Program(click.Group):
    """All verbs; each module is imported by its call."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb. Raises UsageError for a script of Kafka."""
        if cmd_name in VERBS:
            module_name, _ = VERBS[cmd_name]
            module = import_module(f"embedlog.tools.cli.verbs.{module_name}")
            return next(
                member
                for member in vars(module).values()
                if isinstance(member, click.Command) and member.name == cmd_name
            )
        script = cmd_name.removesuffix(".sh")
        if script in NOT_NEEDED:
            raise click.UsageError(f"{script} is not needed: {NOT_NEEDED[script]}")
        if script in SCRIPTS:
            raise click.UsageError(f"{script} is the verb {SCRIPTS[script]}")
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            check_is_verb(args[0], self.list_commands(ctx), ctx, SCRIPTS)  # raises
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            sentences = {name: sentence for name, (_, sentence) in VERBS.items()}
            formatter.write_dl([(name, sentences[name]) for name in self.list_commands(ctx)])
        with formatter.section("Not needed"):
            formatter.write_dl(list(NOT_NEEDED.items()))


@click.group(cls=Program, name="embedlog")
@click.version_option(package_name="embedlog", prog_name="embedlog")
@shared_options
def program() -> None:
    """Inspect and change an embedded Kafka log.

    The directory is given by -d, or by EMBEDLOG_DIR. Exit status: 0 done, 1 nothing found or not
    done, 2 refused, 130 interrupted, 141 the reader of the output has ended.
    """
