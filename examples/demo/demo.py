"""The main job of the demo: several processes write real text into a topic of three directories and
read it again.

    python examples/demo            the sources of this Python's standard library: one record
                                    per line, keyed by module
    python examples/demo PATH       a text file of your own: one record per line, keyed by the
                                    first word
    python examples/demo --json     the figures as JSON

- Two processes write while a third one reads, and one of the three directories is lost and returns.
  Then three processes share the topic as a group, and one is killed. Then this process searches by
  offset and time, and reads everything into Arrow.
- Each key has one writer, so that the order of its lines can be checked, not only their number.
- "every line came back" is printed only after every key and line was compared with the source.
- The demo uses public names only.
- The directory is lost when a quarter of the lines is acknowledged, and no writer writes its last
  lines before the loss.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import random
import sys
import sysconfig
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeAlias

import replicas
from group import GroupError, make_table, read_as_group
from replicas import DIRECTORY_COUNT, IN_SYNC_MIN, Loss, ReplicaError

import embedlog

TOPIC = "lines"
PARTITION_COUNT = 4
WRITER_COUNT = 2
LINES_PER_CALL = 20_000
LOOKUPS = 200
STALLED_S = 60.0  # longer without progress is a failure

Line = tuple[bytes, bytes]  # key, text
Counter: TypeAlias = "Synchronized[int]"


class DemoError(Exception):
    """The records differ from the source, or a process of the demo has ended."""


# ---- the text --------------------------------------------------------------------------------------------------------


def find_modules(root: Path) -> Iterator[tuple[bytes, Path]]:
    """Name and file of every module of the standard library, in a fixed order."""
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts and "dist-packages" not in path.parts:
            yield ".".join(path.relative_to(root).with_suffix("").parts).encode(), path


def lines_of(data: bytes) -> list[bytes]:
    """The lines without their line ends."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def read_source(
    path: Path | None, is_own: Callable[[bytes], bool] = lambda key: True
) -> Iterator[Line]:
    """Key and text of every line whose key is `is_own`, in order."""
    if path is None:
        for name, module in find_modules(Path(sysconfig.get_path("stdlib"))):
            if is_own(name):
                yield from zip(itertools.repeat(name), lines_of(module.read_bytes()))
    else:
        with path.open("rb") as file:
            for line in file:
                key = line.split(None, 1)[0] if line.strip() else b""
                if is_own(key):
                    yield key, line.removesuffix(b"\n")


# ---- the processes ---------------------------------------------------------------------------------------------------


def write(
    paths: list[str], path: Path | None, number: int, total: int, written: Counter, lost: Event
) -> None:
    """Writer `number`: appends the lines of its own keys and returns when they are on stable
    storage.
    """
    silence_warnings()
    lines = read_source(path, lambda key: zlib.crc32(key) % WRITER_COUNT == number)
    chunk_lines = min(LINES_PER_CALL, max(1, total // 12))
    with embedlog.open(paths, create=False) as log, log.producer() as producer:
        chunk = list(itertools.islice(lines, chunk_lines))
        while chunk:
            if written.value >= total // 3 and not lost.wait(STALLED_S):
                raise DemoError(f"no directory was lost within {STALLED_S:.0f} s")
            keys, values = zip(*chunk, strict=True)
            producer.send_batch(TOPIC, list(values), keys=list(keys)).result(STALLED_S)
            written.value += len(chunk)
            chunk = list(itertools.islice(lines, chunk_lines))
        log.flush(TOPIC)


def tail(paths: list[str], read_count: Counter, stop: Event) -> None:
    """Read from the beginning; return when `stop` is set and no more records arrive."""
    silence_warnings()
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "max_poll_records": LINES_PER_CALL}
    with embedlog.open(paths, create=False) as log, log.consumer(TOPIC, **settings) as consumer:
        while True:
            # read before the poll, so that records written before `stop` are still read
            is_stopping = stop.is_set()
            records = consumer.poll(timeout=0.05)
            read_count.value += len(records)
            if is_stopping and not records:
                return


def silence_warnings() -> None:
    """Leave out the warnings about the lost directory: the demo itself reports the loss."""
    logging.getLogger("embedlog").setLevel(logging.ERROR)


@contextmanager
def run_processes(*processes: Any) -> Iterator[None]:
    """Run processes; none survives the block."""
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def find_running(processes: Iterable[Any]) -> list[Any]:
    """The running processes. Raises DemoError if one has failed."""
    for process in processes:
        if process.exitcode:
            raise DemoError(f"{process.name} exited with {process.exitcode}")
    return [process for process in processes if process.exitcode is None]


def write_and_tail(
    paths: list[str], loss: Loss, path: Path | None, total: int, show: Progress
) -> dict[str, float]:
    """Run two writers and a reader, and lose a directory; return the duration of each."""
    spawn = multiprocessing.get_context("spawn")  # as separate programs: nothing is inherited
    counters: list[Counter] = [spawn.Value("q", 0) for _ in range(WRITER_COUNT + 1)]
    stop = spawn.Event()
    lost = spawn.Event()
    reader = spawn.Process(target=tail, args=(paths, counters[-1], stop), name="tail")
    writers = [
        spawn.Process(
            target=write,
            args=(paths, path, number, total, counters[number], lost),
            name=f"writer {number + 1}",
        )
        for number in range(WRITER_COUNT)
    ]
    begun_s = written_s = 0.0
    last_total = -1
    progress_s = time.perf_counter()
    with run_processes(reader, *writers):
        while find_running([reader, *writers]):
            counts = [counter.value for counter in counters]
            now_s = time.perf_counter()
            if not begun_s and any(counts):
                begun_s = now_s
            if sum(counts) != last_total:
                last_total = sum(counts)
                progress_s = now_s
            if now_s - progress_s > STALLED_S:
                raise DemoError(
                    f"no progress for {STALLED_S:.0f} s: written {counts[:-1]}, read {counts[-1]} "
                    f"of {total}"
                )
            show(written=sum(counts[:-1]), tailed=counts[-1])
            if not loss.is_lost and sum(counts[:-1]) >= total // 4:
                loss.lose(sum(counts[:-1]))
                lost.set()
            if loss.is_lost:
                loss.note_if_out()
            if not written_s and not find_running(writers):
                written_s = now_s
                stop.set()
            reader.join(0.02)
        if counters[-1].value != total:
            raise DemoError(f"{total} lines were written, the tail saw {counters[-1].value}")
        show(written=total, tailed=total)
    ended_s = time.perf_counter()
    loss.give_back(total)
    return {"write_s": max(written_s - begun_s, 1e-9), "tail_lag_s": ended_s - written_s}


# ---- what can be found -----------------------------------------------------------------------------------------------


def find_by_offset(log: embedlog.Log, show: Progress) -> float:
    """Seconds per read of one random offset."""
    rng = random.Random(1)
    ends = [partition.log_end_offset for partition in log.describe_topic(TOPIC).partitions]
    filled = [number for number, end in enumerate(ends) if end]
    tps = {number: embedlog.TopicPartition(TOPIC, number) for number in filled}
    begun_s = time.perf_counter()
    # reads only the batch with the record
    with log.consumer(max_poll_records=1, max_partition_fetch_bytes=1) as consumer:
        consumer.assign(list(tps.values()))
        for count in range(LOOKUPS):
            number = rng.choice(filled)
            offset = rng.randrange(ends[number])
            consumer.pause(*tps.values())
            consumer.resume(tps[number])
            consumer.seek(tps[number], offset)
            (record,) = consumer.poll(timeout=5)
            if (record.partition, record.offset) != (number, offset):
                raise DemoError(
                    f"asked for offset {offset} of partition {number}, got {record.offset} of "
                    f"{record.partition}"
                )
            show(found=count + 1)
    return (time.perf_counter() - begun_s) / LOOKUPS


def find_by_time(log: embedlog.Log, first_ms: int, last_ms: int) -> float:
    """Seconds per search for a time in all partitions; each result is checked against the record
    before it.
    """
    rng = random.Random(2)
    times_ms = [rng.randint(first_ms, last_ms) for _ in range(LOOKUPS // PARTITION_COUNT)]
    tps = [embedlog.TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)]
    spent_s = 0.0
    with log.consumer(max_poll_records=1, max_partition_fetch_bytes=1) as consumer:
        for time_ms in times_ms:
            begun_s = time.perf_counter()
            results = consumer.offsets_for_times(dict.fromkeys(tps, time_ms))
            spent_s += time.perf_counter() - begun_s
            for tp, result in results.items():
                if result is None:
                    before = consumer.end_offsets([tp])[tp] - 1
                elif result.timestamp_ms < time_ms:
                    raise DemoError(f"{tp}: asked for {time_ms}, found {result}")
                else:
                    before = result.offset - 1
                if before < 0:
                    continue
                consumer.assign([tp])
                consumer.seek(tp, before)
                if consumer.poll(timeout=5)[0].timestamp_ms >= time_ms:
                    raise DemoError(
                        f"{tp}: asked for {time_ms}, but offset {before} is not before it"
                    )
    return spent_s / len(times_ms)


# ---- everything, as columns ------------------------------------------------------------------------------------------


def read_all(log: embedlog.Log) -> tuple[Any, float]:
    """The whole topic as an Arrow table, and the duration in seconds."""
    begun_s = time.perf_counter()
    table = log.scan(TOPIC, columns=["partition", "offset", "timestamp", "key", "value"]).to_arrow()
    return table, time.perf_counter() - begun_s


def check(table: Any, lines: list[Line]) -> None:
    """Check that the table has exactly the keys and lines of the source, in order within each key.
    Raises DemoError.
    """
    import pyarrow as pa

    def sort(keys: Any, order: Any, values: Any) -> Any:
        by_key = pa.table({"key": keys, "order": order, "value": values}).sort_by(
            [("key", "ascending"), ("order", "ascending")]
        )
        return by_key.select(["key", "value"])

    keys, values = zip(*lines, strict=True) if lines else ((), ())
    written = sort(
        pa.array(keys, pa.binary()),
        pa.array(range(len(lines)), pa.int64()),
        pa.array(values, pa.binary()),
    )
    read = sort(table["key"], table["offset"], table["value"])
    if read.num_rows != written.num_rows:
        raise DemoError(f"{written.num_rows} lines were written, {read.num_rows} came back")
    for name in ("key", "value"):
        if not read[name].combine_chunks().equals(written[name].combine_chunks()):
            raise DemoError(f"the {name}s that were read differ from those that were written")


# ---- output ----------------------------------------------------------------------------------------------------------

Progress = Callable[..., None]


@contextmanager
def progress_bars(total: int) -> Iterator[Progress]:
    """A progress bar for each step; none without the package `rich`."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bars
    except ImportError:
        yield lambda **counts: None
        return
    console = Console(stderr=True)
    with Bars(
        TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), console=console
    ) as bars:
        steps = {
            "written": bars.add_task(f"{WRITER_COUNT} processes write", total=total),
            "tailed": bars.add_task("a third one reads them", total=total),
            "grouped": bars.add_task("a group of three, one killed", total=total),
            "found": bars.add_task("records found by offset", total=LOOKUPS),
        }

        def show(**counts: int) -> None:
            for name, count in counts.items():
                bars.update(steps[name], completed=count)

        yield show


def make_rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and text of each line of the report."""
    count = figures["lines"]
    size = figures["bytes"]
    group = figures["group"]
    loss = figures["replicas"]

    def rate(seconds: float) -> str:
        return f"{count / seconds / 1e6:.2f} M lines/s, {size / seconds / 1e6:.0f} MB/s"

    return [
        ("lines", f"{count:,} in {figures['keys']:,} keys"),
        (
            "bytes",
            f"{size:,} of text, {figures['stored_bytes']:,} in each directory (zstd, "
            f"{figures['segments']} segments)",
        ),
        (
            "directories",
            f"{DIRECTORY_COUNT}, each with a copy; a line is acknowledged when at least "
            f"{IN_SYNC_MIN} have it",
        ),
        (
            f"written by {WRITER_COUNT} processes, synced",
            f"{figures['write_s']:.2f} s: {rate(figures['write_s'])}",
        ),
        (
            f"{loss['lost']} was lost while they wrote",
            f"{loss['acknowledged_before']:,} lines were acknowledged; it led {loss['led']} "
            f"partitions; out of every ISR after {loss['out_s'] * 1000:.0f} ms",
        ),
        ("written without it", f"{loss['acknowledged_without']:,} lines"),
        (
            f"{loss['lost']} came back",
            "it copied what it had missed, and was in every ISR after "
            f"{loss['joined_s'] * 1000:.0f} ms",
        ),
        (
            "the reader was done",
            f"{figures['tail_lag_s'] * 1000:.0f} ms after the writers had left",
        ),
        (
            "read by a group of three",
            f"{group['read_s']:.2f} s, {group['killed']} killed on the way: lag {group['lag']}, "
            f"{group['skipped']} lines skipped, {group['read_again']:,} read again",
        ),
        ("its partitions had moved", f"{group['moved_s'] * 1000:.0f} ms after it was killed"),
        ("found by offset", f"{figures['find_by_offset_s'] * 1e6:.0f} µs each, as a Record"),
        (
            "found by time",
            f"{figures['find_by_time_s'] * 1e6:.0f} µs each, in {PARTITION_COUNT} partitions",
        ),
        ("read whole into Arrow", f"{figures['read_s']:.2f} s: {rate(figures['read_s'])}"),
        (
            "acknowledged lines lost",
            f"{figures['lost_lines']}: each directory, opened alone, has every line",
        ),
        ("every line came back", "yes, in order" if figures["every_line_came_back"] else "NO"),
    ]


def print_report(figures: dict[str, Any]) -> None:
    rows = make_rows(figures)
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {text}" for name, text in rows))
    print("\n".join(["", *replicas.make_table(figures["replicas"])]))
    print("\n".join(["", *make_table(figures["group"], TOPIC)]))


# ---- the job ---------------------------------------------------------------------------------------------------------


def run(directory: str, path: Path | None, show_bars: bool = True) -> dict[str, Any]:
    """Run the whole job in directories below `directory`; return the figures."""
    silence_warnings()
    lines = list(read_source(path))
    if not lines:
        raise DemoError("the source has no lines")
    paths = replicas.directories_in(directory)
    settings = {"compression.type": "zstd", "min.insync.replicas": str(IN_SYNC_MIN)}
    with embedlog.open(paths) as log:
        log.create_topic(
            TOPIC, PARTITION_COUNT, config=settings, replication_factor=DIRECTORY_COUNT
        )
    with progress_bars(len(lines)) if show_bars else nullcontext(lambda **counts: None) as show:
        figures: dict[str, Any] = {
            "lines": len(lines),
            "bytes": sum(len(key) + len(line) for key, line in lines),
            "keys": len({key for key, _ in lines}),
        }
        with embedlog.open(paths) as log:
            loss = Loss(log, TOPIC)
            figures |= write_and_tail(paths, loss, path, len(lines), show)
            figures["replicas"] = loss.figures
            figures["group"] = read_as_group(log, paths, directory, TOPIC, show)
        with embedlog.open(paths, read_only=True) as log:
            table, figures["read_s"] = read_all(log)
            times = table["timestamp"].cast("int64").to_numpy()
            figures["find_by_offset_s"] = find_by_offset(log, show)
            figures["find_by_time_s"] = find_by_time(log, int(times.min()), int(times.max()) + 1)
            segments = list(Path(paths[0]).glob(f"{TOPIC}-*/*.log"))
            figures["segments"] = len(segments)
            figures["stored_bytes"] = sum(segment.stat().st_size for segment in segments)
    check(table, lines)
    figures["every_line_came_back"] = True
    replicas.compare(paths, TOPIC, table)
    figures["lost_lines"] = 0
    return figures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python examples/demo", description="real text into a topic and out again"
    )
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        help="a text file of your own instead of the standard library's sources",
    )
    parser.add_argument(
        "--keep",
        metavar="DIRECTORY",
        help="keep the log in directories below this one, which must be new or empty",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON, and no progress"
    )
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="embedlog-demo-") as scratch:
            directory = options.keep or os.path.join(scratch, "log")
            figures = run(directory, options.path, show_bars=not options.json)
    except (DemoError, GroupError, ReplicaError, embedlog.EmbedlogError, OSError) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        print_report(figures)
    return 0
