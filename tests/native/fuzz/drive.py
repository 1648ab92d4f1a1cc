"""Builds the fuzz harnesses, makes seeds of the golden directories, runs each harness and counts
executions: `make fuzz`.

Every harness is a libFuzzer program with ASan and UBSan around the C core, without Python. A
finding stops its harness, is kept in build/fuzz/found and fails the whole. `FUZZ_RUNS` executions
each, `FUZZ_JOBS` harnesses at a time, `FUZZ_ONLY` names some.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from embedlog.errors import EmbedlogError
from embedlog.format import compression
from embedlog.format.record_batch import Chain, scan
from embedlog.format.record_columns import CODEC_MASK, HEADER_SIZE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "embedlog" / "_native"
CORE = sorted(
    path for folder in ("codec", "system", "log") for path in (NATIVE / folder).glob("*.c")
)
OUT = ROOT / "build" / "fuzz"
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-function",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
]
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
]
FLAGS = ["-g", "-O2", "-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", *WARNINGS, *SANITIZERS]
MISSING = (
    "no clang with libFuzzer: apt-get install clang libclang-rt-14-dev (or the libclang-rt-dev of "
    "your clang)"
)
LENGTH_MAX = 2048
CONTROLS = 96  # numbers are read from the end of an input: so many bytes after the seed
SEEDS_MAX = 400


def fail(words: str) -> None:
    sys.exit(f"embedlog: {words}")


# ---- build ---------------------------------------------------------------------------------------


def run(*words: str | Path) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        if "libclang_rt" in done.stderr:
            fail(MISSING)
        fail(f"the fuzz harnesses do not compile:\n{done.stderr}")


def build(clang: str) -> list[Path]:
    library: list[Path] = []
    programs: list[Path] = []
    for source in CORE:
        library.append(OUT / "objects" / source.parent.name / f"{source.stem}.o")
        library[-1].parent.mkdir(parents=True, exist_ok=True)
        run(
            clang,
            *FLAGS,
            "-fsanitize=fuzzer-no-link",
            f"-I{NATIVE}",
            "-c",
            source,
            "-o",
            library[-1],
        )
    for source in sorted(HERE.glob("*.c")):
        program = OUT / source.stem
        run(
            clang,
            *FLAGS,
            "-fsanitize=fuzzer",
            f"-I{NATIVE}",
            source,
            *library,
            "-o",
            program,
            "-lpthread",
        )
        programs.append(program)
    return programs


# ---- seeds ---------------------------------------------------------------------------------------


def golden_files() -> Iterator[tuple[str, bytes]]:
    for archive in sorted((ROOT / "tests" / "data").glob("golden*.tar.xz")):
        with tarfile.open(archive) as files:
            for member in files:
                if member.isfile() and (content := files.extractfile(member)):
                    yield member.name, content.read()


def batches_of(raw: bytes) -> Iterator[bytes]:
    """Each batch of a log as stored, and a compressed one also without its codec."""
    found = scan(raw, Chain(gaps_allowed=True))
    for row in found.batches:
        start = int(row["position"])
        size = int(row["size"])
        batch = raw[start : start + size]
        number = int(row["attributes"]) & CODEC_MASK
        yield batch
        if number and row["magic"] == 2:
            try:
                body = bytes(
                    memoryview(compression.decompress(number, batch[HEADER_SIZE:], 1 << 26)).cast(
                        "B"
                    )
                )
            except EmbedlogError:
                continue  # a codec that is not installed
            attributes = struct.pack(">h", int(row["attributes"]) & ~CODEC_MASK)
            yield (
                batch[:8]
                + struct.pack(">i", HEADER_SIZE - 12 + len(body))
                + batch[12:21]
                + attributes
                + batch[23:61]
                + body
            )


def seeds(rng: random.Random) -> tuple[list[bytes], list[bytes]]:
    """Short batches and runs of them; pieces of indexes."""
    batches: set[bytes] = set()
    runs: set[bytes] = set()
    indexes: set[bytes] = set()
    for name, raw in golden_files():
        if name.endswith(".log"):
            short = [batch for batch in batches_of(raw) if len(batch) <= LENGTH_MAX - CONTROLS]
            batches.update(short)
            for start in range(0, len(short), 3):
                run_of = b"".join(short[start : start + 3])
                if len(run_of) <= LENGTH_MAX - CONTROLS:
                    runs.add(run_of)
        elif name.endswith((".index", ".timeindex")):
            indexes.add(raw.rstrip(b"\0")[: LENGTH_MAX // 2])
    chosen = rng.sample(sorted(batches), min(SEEDS_MAX, len(batches))) + rng.sample(
        sorted(runs), min(SEEDS_MAX // 2, len(runs))
    )
    return chosen, sorted(indexes)[:SEEDS_MAX]


def write_seeds(rng: random.Random) -> None:
    data, indexes = seeds(rng)
    if not data or not indexes:
        fail("the golden directories in tests/data have no batches")
    for program in sorted(HERE.glob("*.c")):
        folder = OUT / "corpus" / program.stem
        folder.mkdir(parents=True, exist_ok=True)
        for number, raw in enumerate(indexes if program.stem == "search" else data):
            front = bytes(240) if program.stem == "page" else b""
            controls = bytes(CONTROLS - 2) + bytes(
                (rng.choice((0, rng.randrange(256))), rng.choice((0, 2, rng.randrange(256))))
            )
            (folder / f"seed-{number:04d}").write_bytes(front + raw + controls)


# ---- runs ----------------------------------------------------------------------------------------


def fuzz(program: Path, runs: int, seed: int) -> tuple[str, int, str]:
    """Name, executions, and the finding ("" for none)."""
    found = OUT / "found"
    name = program.name
    found.mkdir(exist_ok=True)
    words = [
        program,
        OUT / "corpus" / name,
        f"-runs={runs}",
        f"-seed={seed}",
        f"-max_len={LENGTH_MAX + 256}",
        "-timeout=20",
    ]
    words += [
        "-rss_limit_mb=3072",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={found}/{name}-",
    ]
    log = OUT / f"{name}.txt"
    with log.open("w") as out:
        environment = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1"}
        code = subprocess.run(
            [str(word) for word in words], stdout=out, stderr=out, env=environment
        ).returncode
    text = log.read_text(errors="replace")
    counted = re.search(r"number_of_executed_units: *(\d+)", text)
    executions = int(counted[1]) if counted else 0
    return name, executions, "" if code == 0 else f"exit status {code}, see {log} and {found}"


def main() -> None:
    clang = os.environ.get("FUZZ_CC") or shutil.which("clang")
    if not clang:
        fail(MISSING)
    assert clang
    runs = int(os.environ.get("FUZZ_RUNS", "10000000"))
    jobs = int(os.environ.get("FUZZ_JOBS", str(os.cpu_count() or 1)))
    seed = int(os.environ.get("EMBEDLOG_SEED", "0")) % 2**31 or random.randrange(1, 2**31)
    only = os.environ.get("FUZZ_ONLY", "").split()
    print(f"fuzz: EMBEDLOG_SEED={seed}, {runs:,} executions each", flush=True)
    shutil.rmtree(OUT, ignore_errors=True)
    programs = [program for program in build(clang) if not only or program.name in only]
    write_seeds(random.Random(seed))
    failed = False
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in concurrent.futures.as_completed(
            pool.submit(fuzz, program, runs, seed) for program in programs
        ):
            name, executions, finding = done.result()
            failed |= bool(finding) or executions < runs
            print(
                f"fuzz: {name:10} {executions:12,} executions, {finding or 'no finding'}",
                flush=True,
            )
    if failed:
        fail("a fuzzer found an error")


if __name__ == "__main__":
    main()
