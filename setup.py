"""Builds the two extension modules; everything else is said in pyproject.toml.

`_core` (cffi, API mode) holds the C core and knows no Python object; `_rows` (stable C API) makes and takes Python objects.
Both are limited to the ABI of Python 3.11, so one wheel per platform serves every later Python.

EMBEDLOG_STRICT=1 turns the compiler's warnings into errors, EMBEDLOG_SANITIZE=1 builds with ASan and UBSan.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("embedlog/_native")

if not sys.platform.startswith("linux") or platform.machine() not in {"x86_64", "aarch64"}:
    sys.exit(f"embedlog runs on Linux on x86-64 and arm64 only; this is {platform.system()} on {platform.machine()}")


def compile_flags() -> list[str]:
    """What the environment asks of the compiler beyond the usual."""
    flags = ["-std=c11", "-O3", "-g1", "-fvisibility=hidden"]
    flags += ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
    if os.environ.get("EMBEDLOG_STRICT"):
        flags += ["-Werror"]
    if os.environ.get("EMBEDLOG_SANITIZE"):
        flags += ["-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    return flags


def link_flags() -> list[str]:
    return ["-fsanitize=address,undefined"] if os.environ.get("EMBEDLOG_SANITIZE") else []


rows = Extension(
    "embedlog._native._rows",
    sources=sorted(str(path) for path in NATIVE.glob("rows*.c")),
    depends=sorted(str(path) for path in NATIVE.glob("*.h")),
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    extra_compile_args=compile_flags(),
    extra_link_args=link_flags(),
    py_limited_api=True,
)

setup(
    cffi_modules=[f"{NATIVE}/build.py:ffi"] if (NATIVE / "build.py").exists() else [],
    ext_modules=[rows] if rows.sources else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
