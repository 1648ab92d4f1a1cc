"""Contains the verb `metrics`: the metrics of a log as a table, as JSON, or for Prometheus."""

from __future__ import annotations

import click

from embedlog.exporters import prometheus
from embedlog.exporters.samples import samples
from embedlog.tools.cli.internal_topics import hidden_topics, internal_option, tell_hidden
from embedlog.tools.cli.invocation import current, open_log, verb
from embedlog.tools.cli.output import print_document, print_table


@verb()
@click.option("--prometheus", "exposed", is_flag=True, help="Print the text format of Prometheus.")
@internal_option()
def metrics(exposed: bool, include_internal: bool) -> int:
    """Print the metrics of the log: offsets and sizes of partitions, lags of groups and replicas.

    Sums over internal topics have names that begin with internal_.

    Totals of appends and reads are those of a process, here 0. JSON: a list of {"name", "labels",
    "value"}.
    """
    if exposed and current().json:
        raise click.UsageError("--prometheus and --json exclude each other")
    with open_log() as log:
        families = log.metrics(include_internal=include_internal)
        hidden = hidden_topics(log, include_internal)
    if exposed:
        click.echo(prometheus.text(families), nl=False)
    elif current().json:
        print_document(
            [
                {"name": sample.name, "labels": dict(sample.labels), "value": sample.value}
                for sample in samples(families)
            ]
        )
    else:
        rows = []
        for sample in samples(families):
            labels = " ".join(f"{name}={value}" for name, value in sample.labels.items())
            rows.append([sample.name, labels, sample.value])
        print_table(["name", "labels", "value"], rows)
        tell_hidden(hidden, "internal topic")
    return 0
