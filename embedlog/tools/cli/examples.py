"""Contains the examples that `--help` of each verb shows: a command line, and what it does."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "backup": (("embedlog -d data backup copy", "a consistent copy, while programs write"),),
    "cat": (
        ("embedlog -d data cat web", "all values, oldest first"),
        (
            "embedlog -d data cat web -o -5 -f '%o %k=%s\\n'",
            "the last 5 of each partition, with offset and key",
        ),
        ("embedlog -d data cat web -o s@2026-01-31 --json", "from a date on, as JSON lines"),
    ),
    "check": (("embedlog -d data check", "the status is 1 if a file is damaged"),),
    "configs": (
        ("embedlog -d data configs --topic web --all", "all settings with their origin"),
        (
            "embedlog -d data configs --topic web --alter --add-config retention.ms=86400000",
            "keep records for a day",
        ),
    ),
    "console": (("embedlog console data", "topics, records, groups and damage in the terminal"),),
    "consume": (
        ("embedlog -d data consume -t web", "the records that arrive from now on"),
        ("embedlog -d data consume -t web -G readers --from-beginning", "as a member of a group"),
        (
            "embedlog -d data consume -t web -e -o stored -X group.id=readers",
            "what the group has not read yet",
        ),
    ),
    "delete-records": (
        ("embedlog -d data delete-records --topic web --partition 0 --before-offset 100", ""),
    ),
    "directories": (
        (
            "embedlog -d disk1 -d disk2 directories --add disk3 --replicate 3",
            "a third directory with a copy of everything",
        ),
        (
            "embedlog -d disk1 -d disk2 -d disk3 directories --replace 2",
            "on a new disk at the path of the lost one",
        ),
    ),
    "du": (("embedlog -d data du --topic-list web", "the size of each partition of a topic"),),
    "dump": (
        ("embedlog -d data dump web-0 --print-data-log", "batches and records of a partition"),
        (
            "embedlog dump --files data/__consumer_offsets-0/00000000000000000000.log "
            "--offsets-decoder",
            "",
        ),
    ),
    "elect": (
        ("embedlog -d disk1 -d disk2 elect --all-topic-partitions", "the preferred leaders"),
    ),
    "export": (
        ("embedlog -d data export files web --format jsonl", "the topic web as files/web/….jsonl"),
    ),
    "grep": (
        ("embedlog -d data grep 'error|timeout' web", "values that match"),
        ("embedlog -d data grep -c '' web", "the number of records"),
    ),
    "groups": (
        ("embedlog -d data groups --describe --group readers", "committed offsets and lags"),
        (
            "embedlog -d data groups --reset-offsets --group readers --topic web --to-earliest "
            "--execute",
            "",
        ),
    ),
    "handover": (("embedlog -d data handover to-kafka --dry-run", "what a broker would get"),),
    "import": (
        ("embedlog -d data import -t web events.jsonl --create", "JSON lines with a value each"),
        ("embedlog -d data import files", "the topics of an export"),
    ),
    "ls": (
        ("embedlog -d data ls", "topics with their records and sizes"),
        ("embedlog -d data ls web", "the partitions of a topic"),
    ),
    "metrics": (("embedlog -d data metrics --prometheus", "the text format of Prometheus"),),
    "mirror": (
        (
            "embedlog mirror --from data --to kafka://localhost:9092 --topic web",
            "a copy in a Kafka cluster",
        ),
    ),
    "offsets": (
        (
            "embedlog -d data offsets --topic web --time earliest",
            "the first offset of each partition",
        ),
    ),
    "perf": (
        ("embedlog -d data perf producer --topic web --num-records 100000 --record-size 100", ""),
        ("embedlog -d data perf consumer --topic web --num-records 100000", ""),
    ),
    "produce": (
        ("echo hello | embedlog -d data produce -t web", "a record for each line"),
        ("embedlog -d data produce -t web -K : -l lines.txt", "lines of key, :, value"),
    ),
    "query": (("embedlog -d data query -t web:0:2026-01-31T12:00", "the offset of a time"),),
    "reassign": (
        ("embedlog -d disk1 -d disk2 reassign --execute --reassignment-json-file plan.json", ""),
    ),
    "repair": (("embedlog -d data repair", "what would be repaired; --execute does it"),),
    "replicas": (("embedlog -d disk1 -d disk2 replicas", "leaders, ISRs and lags"),),
    "restore": (("embedlog -d data restore copy", "data is absent or empty"),),
    "tail": (
        ("embedlog -d data tail web -n 20", "the last 20 of each partition, then what arrives"),
    ),
    "topics": (
        ("embedlog -d data topics --create --topic web --partitions 3", "makes the directory, too"),
        ("embedlog -d data topics --describe --topic web", ""),
    ),
    "transactions": (
        (
            "embedlog -d data transactions --open",
            "those that readers of committed records wait for",
        ),
    ),
    "verifiable": (("embedlog -d data verifiable producer --topic web --max-messages 10", ""),),
    "who": (("embedlog -d data who", "the processes that have the directory open"),),
}


def example_lines(verb: str) -> list[str]:
    """The lines of the examples of a verb: each command, and what it does below it."""
    lines = []
    for command, text in EXAMPLES.get(verb, ()):
        lines.append(command)
        if text:
            lines.append(f"    {text}")
    return lines
