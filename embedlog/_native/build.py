"""Builds `_core` from the C files of `codec`, `system` and `log`, declared by the headers of `api`.

- A header of `api` has no directives (except `native.h`, which includes the others): cffi and the C
  compiler read the same text.
- There is one binary per platform, not one per Python: the limited API. A free-threaded Python, which
  has none before 3.15, needs a binary of its own.
- Release builds never fail on a warning of a newer compiler; EMBEDLOG_STRICT=1, EMBEDLOG_SANITIZE=1
  (address, undefined) and EMBEDLOG_SANITIZE=thread are for development.
- Fault injection and mutants (`testing`) exist only in the test build: EMBEDLOG_TEST_BUILD=1, or an
  editable install without EMBEDLOG_TEST_BUILD=0; a wheel has neither.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from cffi import FFI

STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
FOLDER = Path(__file__).resolve().parent
CORE_FOLDERS = ("codec", "system", "log")

FLAGS = ["-O3", "-std=c11", "-fvisibility=hidden", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64"]
STRICT_FLAGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-function",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
]
# Frame pointers make the sanitizers' reports readable; -O1 keeps the lines of code apart.
# Python's own -fwrapv would hide overflows.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv"]
SANITIZE_FLAGS = {"1": SANITIZERS, "thread": ["-fsanitize=thread"]}
SANITIZE_LINK_FLAGS = {"1": ["-fsanitize=address,undefined"], "thread": ["-fsanitize=thread"]}
READABLE_FLAGS = ["-fno-omit-frame-pointer", "-O1", "-g"]
TEST_FLAGS = ["-DEMBEDLOG_TEST_BUILD"]


def is_test_build() -> bool:
    """Whether the core contains fault injection and mutants: EMBEDLOG_TEST_BUILD decides; the
    default is an editable install.
    """
    default = "1" if "editable_wheel" in sys.argv else "0"
    return os.environ.get("EMBEDLOG_TEST_BUILD", default) == "1"


def is_strict_build() -> bool:
    """Whether a warning of the compiler is an error."""
    return os.environ.get("EMBEDLOG_STRICT") == "1"


def compile_flags() -> list[str]:
    """Flags of both extension modules; the environment chooses the strict, the sanitized and the
    test build.
    """
    flags = list(FLAGS)
    if is_strict_build():
        flags += STRICT_FLAGS
    sanitizers = os.environ.get("EMBEDLOG_SANITIZE", "")
    if sanitizers in SANITIZE_FLAGS:
        flags += [*SANITIZE_FLAGS[sanitizers], *READABLE_FLAGS]
    if is_test_build():
        flags += TEST_FLAGS
    return flags


def link_flags() -> list[str]:
    """Flags for the linker that go with `compile_flags`."""
    return list(SANITIZE_LINK_FLAGS.get(os.environ.get("EMBEDLOG_SANITIZE", ""), []))


def core_sources() -> list[Path]:
    """C files of `_core`."""
    folders = [*CORE_FOLDERS, "testing"] if is_test_build() else CORE_FOLDERS
    return sorted(path for folder in folders for path in (FOLDER / folder).glob("*.c"))


def declarations() -> str:
    """Text of the `api/` headers for cffi."""
    skipped = {"native.h"} if is_test_build() else {"native.h", "testing.h"}
    headers = (path for path in sorted((FOLDER / "api").glob("*.h")) if path.name not in skipped)
    return "\n".join(path.read_text(encoding="utf-8") for path in headers)


def make_builder() -> FFI:
    builder = FFI()
    builder.cdef(declarations())
    options: dict[str, object] = {}
    if STABLE_ABI:
        options["py_limited_api"] = True
    elif is_strict_build():
        # cffi 2 defines it for a free-threaded Python twice, in two ways; the compiler warns
        options["undef_macros"] = ["_CFFI_NO_LIMITED_API"]
    builder.set_source(
        "embedlog._native._core",
        '#include "api/native.h"\n',
        # setuptools wants relative paths
        sources=[str(path.relative_to(FOLDER.parent.parent)) for path in core_sources()],
        include_dirs=[str(FOLDER)],
        depends=[str(path) for path in sorted(FOLDER.rglob("*.h"))],
        extra_compile_args=compile_flags(),
        extra_link_args=link_flags(),
        libraries=["pthread"],
        **options,
    )
    return builder


ffi = make_builder()
