"""Contains the verb `elect`, with the options of kafka-leader-election."""

from __future__ import annotations

import click

from embedlog import ElectionNotNeededError, TopicPartition
from embedlog.tools.cli.arguments import topic_option
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table
from embedlog.tools.cli.reassignment import read_partitions
from embedlog.tools.cli.terminal import tell


@verb(exclusive=[("--topic", "--all-topic-partitions", "--path-to-json-file")])
@click.option(
    "--election-type",
    type=click.Choice(["preferred", "unclean"], case_sensitive=False),
    default="preferred",
    help="The first node of the assignment (the default), or a replica outside the ISR, which can "
    "lose records.",
)
@topic_option(help="The topic of the partition.")
@click.option("--partition", type=int, help="The partition.")
@click.option("--all-topic-partitions", is_flag=True, help="All partitions of all topics.")
@click.option(
    "--path-to-json-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Kafka's list of partitions.",
)
@click.option("--node", type=int, help="The node of the new leader, for unclean.")
def elect(
    election_type: str,
    topic: str | None,
    partition: int | None,
    all_topic_partitions: bool,
    path_to_json_file: str | None,
    node: int | None,
) -> int:
    """Elect leaders of partitions.

    JSON: a list of {"topic", "partition", "leader"} of the partitions with a new leader.
    """
    if topic is None and not all_topic_partitions and path_to_json_file is None:
        raise click.UsageError("give one of --topic, --all-topic-partitions, --path-to-json-file")
    partitions: list[tuple[str | None, int | None]] = [(topic, partition)]
    if path_to_json_file is not None:
        partitions = [(tp.topic, tp.partition) for tp in read_partitions(path_to_json_file)]
    leaders: dict[TopicPartition, int] = {}
    with open_log(read_only=False) as log:
        for name, number in partitions:
            try:
                leaders |= log.elect(
                    name,
                    number,
                    preferred=election_type == "preferred",
                    unclean=election_type == "unclean",
                    node=node,
                )
            except ElectionNotNeededError as reason:
                tell(f"embedlog: {reason}")
    if current().json:
        print_document(
            [
                {"topic": tp.topic, "partition": tp.partition, "leader": leader}
                for tp, leader in leaders.items()
            ]
        )
    elif leaders:
        print_table(
            ("topic", "partition", "leader"),
            [(tp.topic, tp.partition, leader) for tp, leader in leaders.items()],
        )
    return 0
