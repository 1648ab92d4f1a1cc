"""The workloads and their scales.

A workload is one turn of each peer, repeated. A rate is in records/s: more is better. A latency is
in µs: less is better.
"""

from __future__ import annotations

from dataclasses import dataclass

KB = 1000
MB = 1000_000
GB = 1000_000_000
BATCH_BYTES = 1 << 20  # of one batch of rows, at most


@dataclass(frozen=True)
class Scale:
    """How much of everything a run does."""

    name: str
    rounds: int
    total_bytes: int  # of values that a turn appends or reads at most
    seconds: float  # of a turn at most
    fill_seconds: float
    samples: int  # of a latency
    sizes: tuple[int, ...]  # of the workloads `size`, in bytes
    every_kind: bool = False  # all record sizes with both kinds of values and both codecs


SCALES = {
    each.name: each
    for each in (
        Scale("quick", 1, 200 * KB, 0.2, 5.0, 20, (100 * KB,)),
        Scale("default", 3, 100 * MB, 0.4, 1.0, 300, ()),
        Scale(
            "full", 5, 500 * MB, 5.0, 30.0, 2000, (10 * MB, 100 * MB, GB, 10 * GB), every_kind=True
        ),
    )
}


@dataclass(frozen=True)
class Workload:
    """What a turn does; `key` names it in the results."""

    group: str
    turn: str  # a key of `turn.TURNS`; "tail" is a writer and a reader
    title: str
    record_bytes: int = 100
    kind: str = "random"
    codec: str = "none"
    durable: bool = False
    threads: int = 1
    processes: int = 1
    latency: bool = False
    spin: bool = False
    total_bytes: int = 0  # 0: that of the scale

    @property
    def store(self) -> str:
        """The filled store that it reads; empty if it appends to a new one."""
        if self.group not in ("read", "point") and not self.turn.startswith("read/"):
            return ""
        size = f"/{size_text(self.total_bytes)}" if self.total_bytes else ""
        return f"{size_text(self.record_bytes)}/{self.kind}/{self.codec}{size}"

    @property
    def key(self) -> str:
        parts = [self.turn, size_text(self.record_bytes), self.kind, self.codec]
        if self.turn == "durable":
            parts.append(f"threads={self.threads}")
        if self.turn == "processes":
            parts.append(f"processes={self.processes}")
        if self.spin:
            parts.append("spin")
        if self.total_bytes:
            parts.append(size_text(self.total_bytes))
        return "/".join(parts)

    @property
    def batch(self) -> int:
        return max(1, min(1000, BATCH_BYTES // self.record_bytes))


def size_text(size: int) -> str:
    for unit, name in ((GB, "GB"), (MB, "MB"), (KB, "kB")):
        if size >= unit:
            return f"{size / unit:g} {name}".replace(" ", "")
    return f"{size}B"


GROUPS = {
    "append": "Appends into the page cache",
    "read": "Reads of whole stores",
    "point": "Point reads",
    "tail": "From one process to another",
    "durable": "Durable appends",
    "processes": "Several processes",
    "json": "JSON-like text, with and without zstd",
    "size": "Sizes of the store",
}
WAYS = {
    "append/each": "one call for each record",
    "append/batch": "in batches",
    "append/columns": "from Arrow columns",
    "read/records": "as Python objects",
    "read/columns": "as Arrow columns",
}


def _append(turn: str, record_bytes: int, **more: object) -> Workload:
    return Workload("append", turn, f"append {WAYS[turn]}", record_bytes, **more)  # type: ignore[arg-type]


def _read(turn: str, record_bytes: int, **more: object) -> Workload:
    return Workload("read", turn, f"read {WAYS[turn]}", record_bytes, **more)  # type: ignore[arg-type]


def _kinds(scale: Scale) -> list[Workload]:
    """Text and compression: of one size, or of all."""
    found = []
    sizes = (100, KB, 100 * KB) if scale.every_kind else (KB,)
    for record_bytes in sizes:
        for kind, codec in (("json", "none"), ("json", "zstd"), ("random", "zstd")):
            if kind == "json" or scale.every_kind:
                for turn in ("append/batch", "read/records"):
                    verb = turn.partition("/")[0]
                    found.append(
                        Workload("json", turn, f"{verb} {WAYS[turn]}", record_bytes, kind, codec)
                    )
    return found


def _sizes(scale: Scale) -> list[Workload]:
    return [
        Workload("size", turn, f"{turn.partition('/')[0]} {WAYS[turn]}", KB, total_bytes=total)
        for total in scale.sizes
        for turn in ("append/batch", "read/records")
    ]


def workloads(scale: Scale) -> list[Workload]:
    """All workloads of a scale, those of one store together."""
    return [
        _append("append/each", 100),
        _append("append/batch", 100),
        _append("append/columns", 100),
        _append("append/batch", KB),
        _append("append/columns", KB),
        _append("append/batch", 100 * KB),
        _read("read/records", 100),
        _read("read/columns", 100),
        Workload("point", "offset", "read one record at a random offset", latency=True),
        Workload("point", "time", "read one record at a random time", latency=True),
        _read("read/records", KB),
        _read("read/columns", KB),
        _read("read/records", 100 * KB),
        Workload("tail", "acknowledged", "append one record, until it is kept", latency=True),
        Workload("tail", "tail", "from the append to a reader in another process", latency=True),
        Workload("tail", "tail", "from the append to a reader that spins", latency=True, spin=True),
        Workload("durable", "durable", "durable appends by 1 writer", durable=True),
        Workload("durable", "durable", "durable appends by 16 writers", durable=True, threads=16),
        *(
            Workload(
                "processes", "processes", f"append by {n} process{'es' * (n > 1)}", processes=n
            )
            for n in (1, 2, 4)
        ),
        *_kinds(scale),
        *_sizes(scale),
    ]
