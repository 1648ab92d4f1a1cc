"""The walls of the house: who may import whom, who sees the C library, and that nobody imports in a circle.

The table is the one of the contributor's guide (docs/contributing.md), which is checked against it.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "embedlog"

# A module imports from its own line (never in a circle) or from lines above; never from below.
LAYERS: dict[str, str] = {
    "what can go wrong, what can be set": "_platform edges errors options keywords client_options config recurring typed_options",
    "the native core": "_native",
    "bytes and files": "arrow_layout buffers columns compaction compression decoding encoding files holders isolation legacy"
    " lockorder locks primitives record snappy values",
    "small files beside the log": "checkpoint digests identity index layout manifest page",
    "one segment": "segment",
    "one partition": (
        "aborted admission adoption cleaner cleaning closing comparing cutting epochs evidence handles history home leftovers"
        " marking partition presence producers pruning reader recovery retention rolling segments sequencing sync tail"
        " transaction_index"
    ),
    "named partitions": "place topic topic_files",
    "state machines over internal topics": (
        "assignors commit_rules consumer_protocol deciding feeding group group_records group_view groups internal_topic liveness"
        " modern_group offsets ownership replica resetting sweeping transaction_records transaction_state transaction_view"
        " transactions watching"
    ),
    "one open directory": "admin children directory group_admin housekeeper log",
    "the public verbs": (
        "accumulator aio aio_consumer aio_listeners aio_producer appenders arrow_in assigning attendance awaiting backup"
        " batch chunks columns_in committing consumer consumer_interceptors consumer_metrics delivery fetcher figures"
        " group_figures handover lookup losses membership partitioners pins positions producer producer_interceptors readahead"
        " reading"
        " scan sending serializers shipping splitting stops subscription transactional truncation turns waiting"
    ),
    "the front door": "front __init__",
    "guests": "__main__ cli demo demo_group duckdb polars spark testing",
}
FLOOR = {room: number for number, rooms in enumerate(LAYERS.values()) for room in rooms.split()}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(dotted: str) -> str:
    """`embedlog.a.b` belongs to room `a`; `embedlog` itself is the front door."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def dotted_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def for_types_only(tree: ast.Module) -> set[ast.AST]:
    """What stands below `if TYPE_CHECKING`: two halves of one room may know each other's types."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {inner for block in blocks for inner in ast.walk(block)}


def imports(path: Path, types: bool = True) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything of ours that a module imports, wherever in it; without `types`, at run time only."""
    tree = ast.parse(path.read_text())
    skipped = set() if types else for_types_only(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "embedlog")
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "embedlog"):
            assert not node.level, f"{path}:{node.lineno}: imports are written in full"
            for alias in node.names:
                inside = PACKAGE / f"{'/'.join((node.module or '').split('.')[1:])}" / alias.name
                is_module = inside.with_suffix(".py").exists() or inside.is_dir() or alias.name in {"_core", "_rows"}
                yield node.lineno, f"{node.module}.{alias.name}" if is_module else str(node.module)


def graph() -> dict[str, set[str]]:
    return {dotted_name(path): {name for _, name in imports(path, types=False)} for path in modules()}


def test_every_room_has_its_floor() -> None:
    missing = sorted({room_of(dotted_name(path)) for path in modules()} - FLOOR.keys())
    assert not missing, f"rooms that the table does not know: {missing}"


@pytest.mark.parametrize("path", modules(), ids=dotted_name)
def test_imports_go_downwards(path: Path) -> None:
    own = FLOOR[room_of(dotted_name(path))]
    wrong = [f"{path.name}:{line} imports {name}" for line, name in imports(path) if FLOOR[room_of(name)] > own]
    assert not wrong


def test_nobody_imports_in_a_circle() -> None:
    tuple(graphlib.TopologicalSorter(graph()).static_order())  # raises CycleError with the circle in it


def test_the_c_library_is_seen_from_one_room_only() -> None:
    seeing = {dotted_name(path) for path in modules() for _, found in imports(path) if found.endswith("._core")}
    assert {room_of(name) for name in seeing} <= {"_native"}


def test_guests_use_the_front_door() -> None:
    """What lies above the front door imports `embedlog` and no underscore name."""
    for path in modules():
        if FLOOR[room_of(dotted_name(path))] > FLOOR["__init__"]:
            private = [name for _, name in imports(path) if any(part.startswith("_") for part in name.split("."))]
            assert not private, f"{path.name} imports {private}"


def test_importing_brings_no_extra_along() -> None:
    """`import embedlog` needs none of the extras and starts none of the slow modules."""
    heavy = ["pyarrow", "cramjam", "rich", "click", "pyspark", "asyncio", "multiprocessing", "concurrent.futures"]
    program = f"import sys, embedlog; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"
