"""Writes the page of the race from its results: lost rows first, absolute figures beside ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .plots import FILES, SIZE_FILES
from .sizes import MEASURES as SIZE_MEASURES
from .sizes import UNITS, growth
from .workloads import size_text

OURS = "embedlog"
Results = dict[str, Any]
MEASURES = {
    "records_s": ("records/s", True),
    "p50_us": ("µs, p50", False),
    "p99_us": ("µs, p99", False),
}
FLAT = 1.5  # the largest cost over the smallest, of one that counts as flat on a shared machine
BUSY = 2.5  # a load above this comes from other programs
EVEN = 0.05  # of a ratio: below this difference a row is neither won nor lost


@dataclass(frozen=True)
class Row:
    """A peer in a workload: its figures beside embedlog's."""

    workload: dict[str, Any]
    measure: str
    peer: str
    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        """Above 1 embedlog is the better one."""
        ours = statistics.median(self.ours)
        theirs = statistics.median(self.theirs)
        return ours / theirs if MEASURES[self.measure][1] else theirs / ours


def rows(results: Results) -> Iterator[Row]:
    """All pairs of embedlog and a peer that both have figures."""
    for workload in results["workloads"]:
        figures = results["figures"].get(workload["key"], {})
        for measure in workload["measures"]:
            ours = figures.get(OURS, {}).get(measure)
            for peer, found in figures.items():
                if ours and peer != OURS and measure in found:
                    yield Row(workload, measure, peer, ours, found[measure])


# ---- texts -----------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three significant digits."""
    for factor, unit in ((1e6, " M"), (1e3, " k")):
        if value >= factor:
            return (
                f"{value / factor:.3g}{unit}"
                if value / factor < 1000
                else f"{value / factor:,.0f}{unit}"
            )
    return f"{value:.3g}"


def times(ratio: float) -> str:
    """A ratio, also a very small one."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.1g}" if ratio < 0.01 else f"{ratio:.3f}"


def spread(values: list[float]) -> str:
    """Median, least and most."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))}–{number(max(values))})"


def table(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines += [list(row) for row in body]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def name_of(workload: dict[str, Any]) -> str:
    """What a workload does, with everything that differs from the usual."""
    parts = [workload["title"], size_text(workload["record"])]
    if workload["kind"] != "random":
        parts.append("JSON")
    if workload["codec"] != "none":
        parts.append(workload["codec"])
    if workload["size"]:
        parts.append(size_text(workload["size"]))
    return ", ".join(parts)


def title(results: Results, peer: str) -> str:
    return str(results["peers"][peer]["title"])


# ---- sections --------------------------------------------------------------------------------------------------------


def conditions(found: dict[str, str]) -> str:
    """Time, commit and load of a part."""
    return (
        f"{found['date']}, commit {found['commit']}, {found['minutes']} minutes, files on "
        f"{found['files']}. "
        "Load of the machine (1, 5, 15 minutes): "
        f"{found['load_before']} before, {found['load_after']} after.\n\n"
    )


def machine(results: Results) -> str:
    """Machine and versions."""
    where = results["machine"]
    text = (
        f"{where['cores']} cores of {where['cpu']}, {where['memory']}, Linux {where['kernel']}, "
        f"CPython {where['python']}, "
        f"{where['core']}; broker: Kafka {results['kafka']}. Scale `{results['scale']}`, "
        f"{results['rounds']} repetitions.\n\n"
    )
    loads = [
        group["conditions"][name]
        for group in results["groups"].values()
        for name in ("load_before", "load_after")
    ]
    if max(float(each.split()[1]) for each in loads) > BUSY:
        text += (
            f"**The machine was busy**: the race itself makes a load of 1 to {BUSY:g}, and other "
            "programs made the rest. "
            "Absolute figures are far below those of a quiet machine, spreads are wide, and a "
            "ratio near 1 says nothing. "
            "Peers that wait for another process (a broker, a reader) lose most.\n"
        )
    return text


def lost(results: Results) -> str:
    """The comparisons in which embedlog is worse, the worst one first."""
    found = [
        (
            row.ratio,
            name_of(row.workload),
            title(results, row.peer),
            MEASURES[row.measure][0],
            spread(row.ours),
            spread(row.theirs),
        )
        for row in rows(results)
    ] + list(spark_rows(results))
    worse = sorted(each for each in found if each[0] < 1 - EVEN)
    if not worse:
        return "No row is lost in this run.\n"
    intro = (
        f"embedlog is worse in {len(worse)} of {len(found)} comparisons, by more than {EVEN:.0%}; "
        "the worst one is first.\n\n"
    )
    body = ([*texts, times(ratio)] for ratio, *texts in worse)
    return intro + table(("workload", "peer", "unit", "embedlog", "peer's", "ratio"), body)


def spark_rows(results: Results) -> Iterator[tuple[float, str, str, str, str, str]]:
    """The absolute figures of the Spark comparison, as rows of `lost`."""
    for each in results.get("spark", {}).get("figures", ()):
        ours = each["detail"]["ours"]
        theirs = each["detail"]["theirs"]
        label = f"Spark: {each['name'].removeprefix('rival/spark-kafka/')}"
        yield (
            ours / theirs,
            label,
            "Spark's Kafka connector",
            "rows/s",
            number(ours),
            number(theirs),
        )


def group(results: Results, name: str) -> str:
    """All workloads of a group: the peers of each in the order of their ratios, then those that
    cannot do it.
    """
    body: list[list[str]] = []
    for workload in (each for each in results["workloads"] if each["group"] == name):
        figures = results["figures"].get(workload["key"], {})
        for measure in workload["measures"]:
            label = name_of(workload)
            unit = MEASURES[measure][0]
            ours = figures.get(OURS, {})
            if measure in ours:
                body.append([label, "**embedlog**", unit, spread(ours[measure]), "1"])
                label = ""
            mine = [
                row for row in rows(results) if row.workload is workload and row.measure == measure
            ]
            for row in sorted(mine, key=lambda row: row.ratio):
                ratio = times(row.ratio)
                body.append([label, title(results, row.peer), unit, spread(row.theirs), ratio])
                label = ""
        for reason, peers in reasons(results, figures).items():
            body.append(["", ", ".join(peers), "–", reason, "–"])
    return table(
        ("workload", "store", "unit", "median (least–most)", "embedlog is … times as good"), body
    )


def reasons(results: Results, figures: dict[str, Any]) -> dict[str, list[str]]:
    """Why some peers have no figure, with their names."""
    found: dict[str, list[str]] = {}
    for peer, each in figures.items():
        if reason := each.get("lacks") or (f"failed: {each['failed']}" if "failed" in each else ""):
            found.setdefault(reason, []).append(title(results, peer))
    return found


def stores(results: Results) -> str:
    """The size of the filled stores on the disk."""
    body = []
    for store, found in results["stores"].items():
        for peer, each in sorted(
            found.items(), key=lambda pair: pair[1]["disk_bytes"] / pair[1]["bytes"]
        ):
            share = f"{each['disk_bytes'] / each['bytes']:.2f}"
            body.append([store, title(results, peer), f"{each['records']:,}", share])
    return table(
        (
            "store: record, kind, codec",
            "peer",
            "records",
            "bytes on the disk for each byte of values",
        ),
        body,
    )


def peers(results: Results) -> str:
    body = []
    for each in results["peers"].values():
        version = f"not installed: {each['install']}" if each["missing"] else each["version"]
        body.append(
            [
                each["title"],
                version,
                each["language"],
                each["checksum"],
                each["settings"],
                each["durable"],
            ]
        )
    return table(("peer", "version", "language", "checksums", "settings", "durable appends"), body)


# One sentence for each curve of the sizes that is not flat.
EXPLAINED = {
    (
        "bytes",
        "scan_us",
    ): "10 MB are 5 ms, less than a slice of the scheduler; larger scans share the processor "
    "with other load.",
    (
        "bytes",
        "point_us",
    ): "10 MB nearly fit into the verified batches that are kept; above, a read verifies a batch "
    "of up to 1 MiB.",
    ("bytes", "memory_mib"): "The buffers of scans grow to their bound.",
    ("bytes", "open_ms"): "It does not follow the number: other load.",
    ("bytes", "descriptors"): "10 GB are ten segments.",
    (
        "partitions",
        "append_us",
    ): "Records for random partitions share few batches, and the first one opens its partition.",
    ("partitions", "scan_us"): "A scan opens each partition: about 0.4 ms.",
    (
        "partitions",
        "point_us",
    ): "With many partitions few batches and files are at hand; each read opens and verifies.",
    ("partitions", "memory_mib"): "About 20 kB for each partition in use.",
    ("partitions", "open_ms"): "The file of topics has a line for each partition.",
    (
        "partitions",
        "descriptors",
    ): "They grow to the bound of `max.open.files` (400), which keeps those of used partitions.",
    (
        "segments",
        "append_us",
    ): "A segment of 16 kB is full after about 130 records. A new one copies the table of all: 3 "
    "ms for 100,000.",
    ("segments", "scan_us"): "Each segment has 16 records and costs its opening: about 0.3 ms.",
    ("segments", "point_us"): "A read opens the segment of its offset, unless it was used before.",
    ("segments", "open_ms"): "It does not follow the number: other load.",
    ("segments", "memory_mib"): "About 0.8 kB for each segment.",
    ("segments", "descriptors"): "They grow to the bound of one partition.",
}


def sizes(results: Results) -> str:
    """The cost over the size: a plot and a table for each dimension."""
    parts = []
    for dimension, found in results["sizes"]["dimensions"].items():
        parts.append(f"![Cost over the number of {dimension}](race/{SIZE_FILES[dimension]})\n\n")
        head = [UNITS[dimension], *(SIZE_MEASURES.values())]
        body = (
            [f"{int(size):,}", *(spread(each[name]) for name in SIZE_MEASURES)]
            for size, each in found.items()
        )
        parts.append(table(head, body) + "\n")
        for name, text in SIZE_MEASURES.items():
            grown = growth([each[name] for each in found.values()])
            sentence = EXPLAINED.get((dimension, name), "")
            change = "flat" if grown < FLAT else f"×{grown:.2g}"
            parts.append(f"- {text}: {change}. {sentence}".rstrip() + "\n")
        parts.append("\n")
    return "".join(parts)


HEAD = """# Race

The same workloads for embedlog and for other logs, queues and stores, interleaved in one run, each turn in a process of its own.
`make race` repeats it: about 22 minutes on a quiet machine with two cores, and 50 beside a load of 16.
`make race ARGS="--scale full"` goes up to 10 GB and takes hours. Of it, the groups *Sizes of the store* and *Cost over size*
were run: `--only size --rounds 1` with some of the peers, and `--only cost --rounds 2` in memory (`TMPDIR=/dev/shm`). The group
of all kinds of values was run with the stores of the default scale: `--only json --every-kind --rounds 1`.
`make race-pages` writes this page and its plots anew from `docs/race/results.json`, without a run.
A ratio above 1 means that embedlog is better: more records/s, or fewer µs.

- Every peer appends the same values. Each store that is read was verified before: the number and the checksum of all values.
- A rate ends when everything that was appended is kept: in the page cache, or on stable storage for durable appends.
- Before the clock starts, each peer has appended or read one record; a JVM has run for 0.7 s.
- Readers touch each value. A point read is compared with the value that was appended.

"""


SIZES_INTRO = """embedlog alone, as `make race ARGS="--only cost"` measures it: records of 1 kB for bytes, 20,000 records of
100 bytes in all partitions together, and segments of 16 kB. *Flat* means that the largest is below 1.5 times
the smallest, by the least value of each size: other load only adds to a cost.

"""


def spark(found: dict[str, Any]) -> str:
    """Spark's Kafka connector against the Spark data source, or why it did not run."""
    if "lacks" in found:
        return f"Spark's Kafka connector: – ({found['lacks']})\n"
    body = []
    for each in sorted(found["figures"], key=lambda each: float(each["value"])):
        detail = each["detail"]
        ratios = [f"{detail['ours'] / detail['theirs']:.2f}", f"{each['value']:.2f}"]
        figures = [number(detail["ours"]), number(detail["theirs"]), *ratios]
        body.append([each["name"].removeprefix("rival/spark-kafka/"), *figures])
    intro = f"""Spark's Kafka connector (Spark {found["version"]}, `local[2]`, batches of 1 MB, `acks=1`) with a local broker, and
`format("embedlog")` in Spark {found["ours"]}. The last column is the ratio of both to parquet in the same session.

"""
    return (
        intro
        + conditions(found["conditions"])
        + table(
            (
                "operation",
                "embedlog, rows/s",
                "connector, rows/s",
                "ratio",
                "ratio, each relative to parquet",
            ),
            body,
        )
    )


def page(results: Results) -> str:
    """The whole page."""
    parts = [HEAD, machine(results), "\n## Lost\n\n", lost(results)]
    for name, found in results["groups"].items():
        picture = f"![{found['title']}](race/{FILES[name]})\n\n"
        parts.append(
            "\n## "
            f"{found['title']}\n\n{conditions(found['conditions'])}{picture}{group(results, name)}"
        )
    if results.get("spark"):
        parts += ["\n## Spark\n\n", spark(results["spark"])]
    if results.get("sizes"):
        parts += [
            "\n## Cost over size\n\n",
            SIZES_INTRO,
            conditions(results["sizes"]["conditions"]),
            sizes(results),
        ]
    parts += ["\n## Sizes on the disk\n\n", stores(results), "\n## Peers\n\n", peers(results)]
    return "".join(parts)
