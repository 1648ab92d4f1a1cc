"""Builder of `_core`: every C file of this folder that is not a `rows*.c`, declared by the `api_*.h` files.

B1  an `api_*.h` file has no directives, so that cffi and the C compiler read the same text and cannot drift apart
B2  one binary per platform, not one per Python: the limited API
B3  release builds never fail on a warning of a newer compiler; EMBEDLOG_STRICT=1 and EMBEDLOG_SANITIZE=1 are for development
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

ROOM = Path(__file__).resolve().parent

FLAGS = ["-O3", "-std=c11", "-fvisibility=hidden", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64"]
STRICT_FLAGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
# Frame pointers make the sanitizers' reports readable; -O1 keeps the lines of code apart.
# Python's own -fwrapv would hide overflows.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv"]
SANITIZE_FLAGS = [*SANITIZERS, "-fno-omit-frame-pointer", "-O1", "-g"]
SANITIZE_LINK_FLAGS = ["-fsanitize=address,undefined"]


def compile_flags() -> list[str]:
    """Flags of both extension modules; the environment chooses the strict and the sanitised build."""
    flags = list(FLAGS)
    if os.environ.get("EMBEDLOG_STRICT") == "1":
        flags += STRICT_FLAGS
    if os.environ.get("EMBEDLOG_SANITIZE") == "1":
        flags += SANITIZE_FLAGS
    return flags


def link_flags() -> list[str]:
    """Flags for the linker that go with `compile_flags`."""
    return list(SANITIZE_LINK_FLAGS) if os.environ.get("EMBEDLOG_SANITIZE") == "1" else []


def core_sources() -> list[str]:
    """C files of `_core`, relative to the project's root as setuptools wants them."""
    root = ROOM.parent.parent
    names = (path for path in sorted(ROOM.glob("*.c")) if not path.name.startswith(("rows", "_core")))
    return [str(path.relative_to(root)) for path in names]


def make() -> FFI:
    builder = FFI()
    builder.cdef("\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOM.glob("api_*.h"))))
    builder.set_source(
        "embedlog._native._core",
        '#include "native.h"\n',
        sources=core_sources(),
        include_dirs=[str(ROOM)],
        depends=[str(path) for path in sorted(ROOM.glob("*.h"))],
        extra_compile_args=compile_flags(),
        extra_link_args=link_flags(),
        libraries=["pthread"],
        py_limited_api=True,
    )
    return builder


ffi = make()
