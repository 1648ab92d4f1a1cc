"""Contains a small example of each addition that docs/contributing.md describes, step by step.

A step is the changes of one file: each a text of it and what takes its place. A new file has the
empty text before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

GENERATED: Final = "make docs"


class Step(NamedTuple):
    """The changes of one file: [(old text, new text)]. None for what `make docs` writes."""

    file: str
    changes: Sequence[tuple[str, str]] = ()


def before(text: str, added: str) -> tuple[str, str]:
    """The change that adds a text before one that is in the file."""
    return text, added + text


def apply(project: Path, step: Step) -> None:
    """Make the changes in a copy of the project. Raises AssertionError if a text is not there
    once.
    """
    path = project / step.file
    for old, new in step.changes:
        if not old:
            path.write_text(new)
            continue
        text = path.read_text()
        assert text.count(old) == 1, (
            f"{step.file} has {text.count(old)} times {old!r}: adapt this example"
        )
        path.write_text(text.replace(old, new))


# ---- a topic setting: one more limit of the size of a batch --------------------------------------

SETTING: Final = (
    Step(
        "embedlog/config/topic.py",
        [
            before(
                "    preallocate: bool = option(",
                "    batch_ceiling_bytes: int = option(\n"
                '        INT_MAX, "Another limit of a batch.", unit="bytes", low=0, high=INT_MAX,\n'
                '        differs="Not in Kafka: an example.",\n'
                "    )\n",
            )
        ],
    ),
    Step(
        "embedlog/config/topic.py",
        [
            before(
                "    log_preallocate: bool =",
                "    log_batch_ceiling_bytes: int = default_of(\n"
                '        TopicConfig, "batch_ceiling_bytes", differs="Not in Kafka: an example."\n'
                "    )\n",
            )
        ],
    ),
    Step(
        "tests/config/test_effects_topic.py",
        [
            before(
                '    "preallocate": Seen(',
                '    "batch_ceiling_bytes": Seen(\n'
                '        sent(), [(2**31 - 1, None), (100, "RecordTooLargeError")]\n'
                "    ),\n",
            )
        ],
    ),
    Step(
        "embedlog/config/topic.py",
        [
            (
                "return min(self.max_message_bytes, self.segment_bytes)",
                "return min(\n"
                "            self.max_message_bytes,\n"
                "            self.segment_bytes,\n"
                '            getattr(self, "batch_ceiling_bytes", INT_MAX),\n'
                "        )",
            )
        ],
    ),
    Step(GENERATED),
)

# ---- a verb of Log: the number of topics ----------------------------------------------------------------

VERB: Final = (
    Step(
        "embedlog/admin/administration.py",
        [
            before(
                "    def describe_topic(self, name",
                "    def count_topics(self) -> int:\n"
                '        """The number of topics, without internal ones."""\n'
                "        return len(self.topics())\n\n",
            )
        ],
    ),
    Step(
        "docs/reference/log.md",
        [
            before(
                "::: embedlog.Log.describe_topic\n",
                "::: embedlog.Log.count_topics\n\n```python\nassert log.count_topics() == 5\n```\n\n",
            )
        ],
    ),
    Step(
        "tests/interrupts/log_verbs.py",
        [
            before(
                '@verb("Log.sql")\n',
                '@verb("Log.count_topics")\n'
                "def count_topics(world: World) -> Use:\n"
                "    def call() -> None:\n"
                "        assert world.log.count_topics() > 0\n\n"
                "    return Use(call)\n\n\n",
            )
        ],
    ),
)

# ---- a verb of the command line: the same ---------------------------------------------------------

COMMAND: Final = (
    Step(
        "embedlog/tools/cli/verbs/tally.py",
        [
            (
                "",
                '"""Contains the verb `tally`."""\n\n'
                "from __future__ import annotations\n\n"
                "import click\n\n"
                "from embedlog.tools.cli.invocation import open_log, verb\n\n\n"
                "@verb()\n"
                "def tally() -> int:\n"
                '    """Print the number of topics.\n\n    JSON: the number.\n    """\n'
                "    with open_log() as log:\n"
                "        click.echo(len(log.topics()))\n"
                "    return 0\n",
            )
        ],
    ),
    Step(
        "embedlog/tools/cli/commands.py",
        [
            before(
                '    "delete-records": (\n        "delete_records",',
                '    "tally": ("tally", "Print the number of topics."),\n',
            )
        ],
    ),
    Step(
        "embedlog/tools/cli/examples.py",
        [
            before(
                '    "delete-records": (\n',
                '    "tally": (("embedlog -d data tally", "without internal topics"),),\n',
            )
        ],
    ),
    Step("docs/command-line.md", [before("| `delete-records` |", "| `tally` | a number |\n")]),
    Step("tests/tools/cli/test_examples.py", [before('    ["check"],\n', '    ["tally"],\n')]),
)

# ---- a codec: that of zlib -----------------------------------------------------------------------

CODEC: Final = (
    Step("embedlog/types.py", [('"lz4", "zstd")', '"lz4", "zstd", "deflate")')]),
    Step(
        "embedlog/format/compression.py",
        [
            before(
                "# ---- the table ---",
                "def _decompress_deflate(data: Buffer, limit: int) -> bytes:\n"
                "    unpacker = zlib.decompressobj()\n"
                "    plain = unpacker.decompress(data, limit + 1)\n"
                "    if len(plain) > limit:\n"
                "        raise LimitExceeded\n"
                "    if not unpacker.eof:\n"
                '        raise EOFError("the data end too early")\n'
                "    return plain\n\n\n",
            ),
            (
                "    _Codec(_compress_zstd, _decompress_zstd),\n",
                "    _Codec(_compress_zstd, _decompress_zstd),\n"
                "    _Codec(lambda data, _level: zlib.compress(data), _decompress_deflate),\n",
            ),
        ],
    ),
    Step(
        "docs/format.md",
        [
            ("3 lz4, 4 zstd; others", "3 lz4, 4 zstd, 5 deflate; others"),
            before(
                "\nIn the uncompressed section no byte may follow",
                "| 5 | deflate | one stream of zlib | | |\n",
            ),
        ],
    ),
    Step(GENERATED),
)

# ---- an error ------------------------------------------------------------------------------------

ERROR: Final = (
    Step(
        "embedlog/errors.py",
        [
            ("WakeupError  ReadOnlyError\n", "WakeupError  ReadOnlyError  TopicFullError\n"),
            before(
                "class ReadOnlyError(EmbedlogError):\n",
                "class TopicFullError(EmbedlogError):\n"
                '    """The topic takes no further record: use another one."""\n\n\n',
            ),
        ],
    ),
    Step(
        "embedlog/__init__.py",
        [
            ("    TopicExistsError,\n", "    TopicExistsError,\n    TopicFullError,\n"),
            ('    "TopicExistsError",\n', '    "TopicExistsError",\n    "TopicFullError",\n'),
        ],
    ),
    Step(
        "docs/reference/errors.md",
        [
            before("::: embedlog.ReadOnlyError\n", "::: embedlog.TopicFullError\n\n"),
            before(
                "assert issubclass(embedlog.ForkedError, embedlog.ClosedError)\n",
                "assert not embedlog.TopicFullError.retriable\n",
            ),
        ],
    ),
)

# ---- a metric: the number of directories ---------------------------------------------------------

METRIC: Final = (
    Step(
        "embedlog/admin/log_metrics.py",
        [
            before(
                '        "RecoveredLogs": int',
                '        "LogDirectoryCount": len(description.directories),\n',
            )
        ],
    ),
    Step(
        "embedlog/exporters/samples.py",
        [before('        "LogFlushRateAndTimeMs",\n', '        "LogDirectoryCount",\n')],
    ),
    Step(
        "docs/metrics.md",
        [
            before(
                "| `RecoveredLogs` |", "| `LogDirectoryCount` | gauge | directories of the log |\n"
            )
        ],
    ),
    Step(
        "tests/admin/test_log_metrics.py",
        [
            before(
                '        assert found["RecoveredLogs"] == 0\n',
                '        assert found["LogDirectoryCount"] == 1\n',
            )
        ],
    ),
)

# ---- a fault of the test build: a full disk ------------------------------------------------------

FAULT: Final = (
    Step(
        "embedlog/_native/api/testing.h",
        [("    EL_FAULT_HANG = 9\n", "    EL_FAULT_HANG = 9, EL_FAULT_FULL = 10\n")],
    ),
    Step(
        "embedlog/_native/testing/faults.c",
        [
            ("#include <fcntl.h>\n", "#include <errno.h>\n#include <fcntl.h>\n"),
            before(
                "    case EL_FAULT_SHORT:",
                # the number, so that the case compiles without its name
                "    case 10: return EL_SYSTEM_ERROR(ENOSPC);\n",
            ),
        ],
    ),
    Step(
        "tests/native/test_faults.py",
        [
            before(
                '    "delay": delays,\n', '    "full": ends("exited", -1000 - errno.ENOSPC, 0),\n'
            )
        ],
    ),
)

EXAMPLES: Final[Mapping[str, Sequence[Step]]] = {
    "A topic setting": SETTING,
    "A public verb of Log": VERB,
    "A verb of the command line": COMMAND,
    "A codec": CODEC,
    "An error": ERROR,
    "A metric": METRIC,
    "A fault of the test build": FAULT,
}
