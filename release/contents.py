"""Contains the checks of the files, tags and metadata of a wheel, which also run over the wheels of
a release workflow.

- a wheel has both extension modules, the types and the Spark entry, and neither C sources nor test
  code
- it has no symbol and no text of fault injection and mutants
- one wheel serves every later Python of its platform: the stable ABI of Python 3.11. A
  free-threaded Python has one of its own
- an extension for musl has no thread-local variable of the initial-exec model: musl loads none
  after the start of a process
"""

from __future__ import annotations

import email
import re
import struct
import sys
import zipfile
from pathlib import Path

# Names and texts of fault injection and mutants (`embedlog/_native/testing`).
TEST_NAMES = (
    b"mutant",
    b"el_fault",
    b"el_before",
    b"el_after",
    b"el_point",
    b"torn-publish",
    b"before-unlock",
)
NEEDED = {"embedlog/py.typed", "embedlog/_native/_rows.pyi", "pyspark_embedlog/__init__.py"}
REQUIRED = {"cffi", "lz4", "numpy", "zstandard"}
NAME = re.compile(
    r"embedlog-(?P<version>[^-]+)-(?P<abi>cp311-abi3|cp314-cp314t)-(?P<platforms>[\w.]+)\.whl"
)
# e_machine, a number of two bytes at byte 18 of an ELF file
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
PT_DYNAMIC = 2
DT_FLAGS = 30
DF_STATIC_TLS = 0x10


def problems(wheel: Path) -> list[str]:
    """What is wrong with this wheel, one line each; an empty list if nothing is."""
    name = NAME.fullmatch(wheel.name)
    if name is None:
        return [
            f"{wheel.name}: the name is neither embedlog-VERSION-cp311-abi3-PLATFORM.whl nor that "
            "of cp314-cp314t"
        ]
    modules = extensions(name["abi"], name["platforms"])
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        found = [f"{missing} is missing" for missing in sorted({*NEEDED, *modules} - names)]
        found += [
            f"{extra} is a source of C" for extra in sorted(names) if extra.endswith((".c", ".h"))
        ]
        metadata = f"embedlog-{name['version']}.dist-info"
        tops = {each.split("/")[0] for each in names} - {
            "embedlog",
            "pyspark_embedlog",
            "embedlog.libs",
            metadata,
        }
        found += [f"{top} does not belong to the package" for top in sorted(tops)]
        for extension in names.intersection(modules):
            found += _extension_problems(extension, archive.read(extension), name["platforms"])
        found += _metadata_problems(archive.read(f"{metadata}/METADATA"))
        if not any(each.endswith("/LICENSE") for each in names):
            found.append("LICENSE is missing")
    return [f"{wheel.name}: {each}" for each in found]


def extensions(abi: str, platforms: str) -> tuple[str, ...]:
    """Both extension modules, with the ending of the ABI."""
    machine = next((machine for machine in ELF_MACHINES if platforms.endswith(machine)), "")
    ending = "abi3" if abi.endswith("abi3") else f"cpython-314t-{machine}-linux-gnu"
    return tuple(f"embedlog/_native/{name}.{ending}.so" for name in ("_core", "_rows"))


def _extension_problems(name: str, binary: bytes, platforms: str) -> list[str]:
    found = [
        f"{name} contains {text.decode()}: a test build" for text in TEST_NAMES if text in binary
    ]
    machine = next((machine for machine in ELF_MACHINES if platforms.endswith(machine)), None)
    number = int.from_bytes(binary[18:20], "little")
    if binary[:4] != b"\x7fELF" or machine is None or number != ELF_MACHINES[machine]:
        found.append(f"{name} is not for the machine of {platforms}: ELF machine {number}")
    elif platforms.startswith("musllinux") and has_static_tls(binary):
        found.append(f"{name} has thread-local variables that musl refuses: initial-exec")
    return found


def has_static_tls(binary: bytes) -> bool:
    """Whether this ELF file of 64 bits has the flag DF_STATIC_TLS in its dynamic section."""
    (headers,) = struct.unpack_from("<Q", binary, 32)  # e_phoff
    size, count = struct.unpack_from("<HH", binary, 54)  # e_phentsize, e_phnum
    for header in range(headers, headers + size * count, size):
        # p_type, p_offset, p_filesz
        kind, offset, length = struct.unpack_from("<I4xQ16xQ", binary, header)
        if kind == PT_DYNAMIC:
            entries = struct.iter_unpack("<QQ", binary[offset : offset + length])
            return any(tag == DT_FLAGS and value & DF_STATIC_TLS for tag, value in entries)
    return False


def _metadata_problems(text: bytes) -> list[str]:
    head = email.message_from_bytes(text)
    found = []
    if head["Requires-Python"] != ">=3.11":
        found.append(f"Requires-Python is {head['Requires-Python']}, not >=3.11")
    requirements = head.get_all("Requires-Dist", [])
    required = {re.split(r"[>=;\[ ]", each)[0] for each in requirements if "extra ==" not in each}
    if required != REQUIRED:
        found.append(f"requires {sorted(required)}, not {sorted(REQUIRED)}")
    return found


def main(arguments: list[str]) -> int:
    wheels = [Path(each) for each in arguments]
    found = [line for wheel in wheels for line in problems(wheel)]
    print(*found or [f"{len(wheels)} wheels are as they must be"], sep="\n")
    return 1 if found or not wheels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
