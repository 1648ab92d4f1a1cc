"""One turn of a peer, in this process: `python -m benchmarks.race.turn PEER WORKLOAD JOB`.

T1  it prints "ready" when everything is open, begins when a line "go" arrives, and answers with one
line of JSON T2  a rate ends when everything appended is kept; afterwards the records in the store
are counted T3  a rate looks at the clock once in a batch; a value that is read is touched, and its
bytes are counted T4  before the clock starts, each peer has appended or read one record: it is
connected, and its code is loaded
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from . import data
from .job import BASE_MS, Job
from .peers import PEERS, Peer
from .peers.aiokafka_peer import AiokafkaPeer

SENT = struct.Struct("<q")
EACH_MOST = 10_000  # singles of one transaction, for peers that have some
Answer = dict[str, Any]


def ready() -> None:
    print("ready", flush=True)
    if sys.stdin.readline() != "go\n":
        sys.exit(1)


def limited(job: Job, batch: int) -> Iterator[list[bytes]]:
    """The values in batches, until one of the job's limits."""
    yield from until(job.seconds, data.pieces(data.load(job.values), job.count, batch))


def until(seconds: float, pieces: Iterator[Any]) -> Iterator[Any]:
    """The pieces for so many seconds after the second one is asked for: the first is prepared
    before the clock starts.
    """
    yield next(pieces)
    end = time.perf_counter() + seconds
    for piece in pieces:
        if time.perf_counter() > end:
            return
        yield piece


def appended(
    peer: Peer,
    pieces: Iterator[Any],
    append: Callable[[Any], None],
    size_of: Callable[[Any], int],
    warm: bool = True,
) -> Answer:
    """Append all pieces. The first is taken before the clock starts, and its first value is
    appended (T4).
    """
    peer.begin()
    first = next(pieces)
    records = 0
    size = 0
    if warm:
        append(first[:1])
        peer.finish()
    ready()
    began = time.perf_counter_ns()
    piece = first
    while piece is not None:
        append(piece)
        records += len(piece)
        size += size_of(piece)
        piece = next(pieces, None)
    peer.finish()
    ended = time.perf_counter_ns()
    span = {"began_ns": began, "ended_ns": ended, "stored": peer.stored(), "warm": int(warm)}
    return {"records": records, "bytes": size, "seconds": (ended - began) / 1e9} | span


def bytes_of(values: list[bytes]) -> int:
    return sum(map(len, values))


def append_each(peer: Peer) -> Answer:
    return appended(
        peer, limited(peer.job, min(peer.job.batch * 10, EACH_MOST)), peer.append_each, bytes_of
    )


def append_batch(peer: Peer) -> Answer:
    return appended(peer, limited(peer.job, peer.job.batch), peer.append_batch, bytes_of)


def append_columns(peer: Peer) -> Answer:
    """Slices of one Arrow array, which is made before the clock starts."""
    import pyarrow as pa

    job = peer.job
    values = pa.array(data.load(peer.job.values), pa.binary())

    def slices() -> Iterator[Any]:
        left = job.count
        at = 0
        while left > 0:
            part = values.slice(at, min(job.batch * peer.SLICE, left))
            yield part
            left -= len(part)
            at = (at + len(part)) % len(values)

    return appended(
        peer, until(job.seconds, slices()), peer.append_columns, lambda part: part.nbytes
    )


def fill(peer: Peer) -> Answer:
    sent = 0

    def append(values: list[bytes]) -> None:
        nonlocal sent
        peer.append_timed(values, BASE_MS + sent)
        sent += len(values)

    found = appended(peer, limited(peer.job, peer.job.batch), append, bytes_of, warm=False)
    peer.settle()
    return found


def acknowledged(peer: Peer) -> Answer:
    """One record after the other: each is kept before the next."""
    values = data.load(peer.job.values)
    peer.begin()
    peer.acknowledged(values[0])
    ready()
    times = []
    for number in range(peer.job.samples):
        value = values[number % len(values)]
        began = time.perf_counter_ns()
        peer.acknowledged(value)
        times.append(time.perf_counter_ns() - began)
    return latencies(times)


def durable(peer: Peer) -> Answer:
    """Threads with one record in flight each; asyncio's client has tasks."""
    job = peer.job
    value = data.load(peer.job.values)[0]
    peer.begin()
    peer.acknowledged(value)
    counts = [0] * job.threads
    ready()
    began = time.perf_counter()
    if isinstance(peer, AiokafkaPeer):
        counts[0] = peer.acknowledged_by_tasks(value, job.threads, job.seconds)
    else:
        run_threads(peer, value, counts, began + job.seconds)
    took = time.perf_counter() - began
    return {"records": sum(counts), "seconds": took, "stored": peer.stored(), "warm": 1}


def run_threads(peer: Peer, value: bytes, counts: list[int], end: float) -> None:
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            mine = peer.for_thread()
            while time.perf_counter() < end:
                mine.acknowledged(value)
                counts[number] += 1
            if mine is not peer:
                mine.close()
        except BaseException as problem:  # noqa: BLE001 (raised in the main thread)
            failed.append(problem)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def read_records(peer: Peer) -> Answer:
    job = peer.job
    peer.open_reader()
    peer.warm_reader()
    ready()
    began = time.perf_counter()
    end = began + job.seconds
    records = 0
    size = 0
    for values in peer.records(0):
        for value in values:
            size += len(value)
        records += len(values)
        if records >= job.count or time.perf_counter() > end:
            break
    return {"records": records, "bytes": size, "seconds": time.perf_counter() - began}


def read_columns(peer: Peer) -> Answer:
    job = peer.job
    peer.open_reader()
    peer.warm_columns()
    ready()
    began = time.perf_counter()
    end = began + job.seconds
    records = 0
    size = 0
    for values in peer.columns():
        size += values.nbytes
        records += len(values)
        if records >= job.count or time.perf_counter() > end:
            break
    return {"records": records, "bytes": size, "seconds": time.perf_counter() - began}


def verify(peer: Peer) -> Answer:
    """Number and checksum of all values."""
    peer.open_reader()
    ready()
    found = records = 0
    for values in peer.records(0):
        found = zlib.crc32(b"".join(values), found)
        records += len(values)
        if records >= peer.job.count:
            break
    return {"records": records, "checksum": found}


def points(peer: Peer, read: Callable[[int], bytes]) -> Answer:
    """Reads at random; each value is compared with the one that was appended."""
    job = peer.job
    values = data.load(peer.job.values)
    rng = random.Random(1)
    peer.open_reader()
    for _ in range(min(20, job.samples)):
        read(rng.randrange(job.count))
    ready()
    times = []
    for _ in range(job.samples):
        offset = rng.randrange(job.count)
        began = time.perf_counter_ns()
        found = read(offset)
        times.append(time.perf_counter_ns() - began)
        assert found == values[offset % len(values)], offset
        if sum(times) > 3e9 * job.seconds:
            break
    return latencies(times)


def offset(peer: Peer) -> Answer:
    return points(peer, peer.value_at)


def since(peer: Peer) -> Answer:
    return points(peer, lambda number: peer.value_since(BASE_MS + number))


def tail_writer(peer: Peer) -> Answer:
    """Appends its clock's time once in a millisecond; both processes have the same clock."""
    job = peer.job
    peer.begin()
    rest = bytes(job.record_bytes - SENT.size)
    peer.acknowledged(SENT.pack(0) + rest)  # its code is loaded
    ready()
    for _ in range(job.samples):
        time.sleep(0.001)
        peer.acknowledged(SENT.pack(time.monotonic_ns()) + rest)
    return {"records": job.samples}


def tail_reader(peer: Peer) -> Answer:
    samples = peer.job.samples
    found = peer.follow()
    next(found)
    ready()
    times: list[int] = []
    for values in found:
        now = time.monotonic_ns()
        times += [now - sent for value in values if (sent := SENT.unpack_from(value)[0])]
        if len(times) >= samples:
            break
    return latencies(times[samples // 10 :])


def latencies(times_ns: list[int]) -> Answer:
    times = sorted(times_ns)
    at = min(len(times) - 1, int(len(times) * 0.99))
    return {
        "samples": len(times),
        "p50_us": times[len(times) // 2] / 1e3,
        "p99_us": times[at] / 1e3,
    }


TURNS: dict[str, Callable[[Peer], Answer]] = {
    "append/each": append_each,
    "append/batch": append_batch,
    "append/columns": append_columns,
    "processes": append_batch,
    "fill": fill,
    "verify": verify,
    "acknowledged": acknowledged,
    "durable": durable,
    "read/records": read_records,
    "read/columns": read_columns,
    "offset": offset,
    "time": since,
    "tail/writer": tail_writer,
    "tail/reader": tail_reader,
}


def main() -> None:
    name, workload, job = sys.argv[1:]
    peer = PEERS[name](Job.of_json(job))
    try:
        found = TURNS[workload](peer)
    finally:
        peer.close()
    print(json.dumps(found | {"peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


if __name__ == "__main__":
    main()
