"""Builds the two extension modules; pyproject.toml has all other settings.

`_core` (cffi, API mode) is the C core without Python objects; `_rows` (stable C API) makes and
takes Python objects. Both are limited to the ABI of Python 3.11, so one wheel per platform works
with every later Python. A free-threaded Python (3.14t) has no stable ABI: it gets a wheel of its
own. The variables EMBEDLOG_STRICT, EMBEDLOG_SANITIZE and EMBEDLOG_TEST_BUILD select special builds
(embedlog/_native/build.py).
"""

from __future__ import annotations

import platform
import runpy
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("embedlog/_native")

if not sys.platform.startswith("linux") or platform.machine() not in {"x86_64", "aarch64"}:
    sys.exit(
        f"embedlog runs on Linux on x86-64 and arm64 only; this is {sys.platform} on "
        f"{platform.machine()}"
    )

if sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14):
    sys.exit("embedlog needs CPython 3.14 or later without the GIL (docs/installation.md)")

# Both modules contain checksums, hashes, the sealing of headers and the clocks.
SHARED = [NATIVE / "codec" / name for name in ("crc32c.c", "header.c", "murmur2.c", "xxh3.c")] + [
    NATIVE / "system" / "clock.c"
]

core = runpy.run_path(str(NATIVE / "build.py"))
rows = Extension(
    "embedlog._native._rows",
    sources=sorted(str(path) for path in [*NATIVE.glob("objects/*.c"), *SHARED]),
    include_dirs=[str(NATIVE)],
    depends=sorted(str(path) for path in NATIVE.rglob("*.h")),
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if core["STABLE_ABI"] else [],
    extra_compile_args=core["compile_flags"](),
    extra_link_args=core["link_flags"](),
    py_limited_api=core["STABLE_ABI"],
)

setup(
    long_description=runpy.run_path("release/readme.py")["long_description"](),
    long_description_content_type="text/markdown",
    cffi_modules=[f"{NATIVE}/build.py:ffi"],
    ext_modules=[rows],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if core["STABLE_ABI"] else {},
)
