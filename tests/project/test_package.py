"""The package from outside: its installed files, the message for an absent extra, the refusal on
other systems.
"""

from __future__ import annotations

import email
import importlib
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import embedlog
from embedlog import _platform
from release import contents, readme
from tests.conftest import ROOT
from tests.support.crowd import FREE_THREADED

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def python(
    program: str, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
    )


def test_one_version() -> None:
    assert embedlog.__version__ == PROJECT["version"]
    assert f"## {embedlog.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_both_extensions_are_limited_to_the_stable_abi() -> None:
    """Without the GIL, Python 3.14 has no stable ABI."""
    from embedlog._native import _core, _rows

    ending = sysconfig.get_config_var("EXT_SUFFIX") if FREE_THREADED else ".abi3.so"
    for module in (_core, _rows):
        assert str(module.__file__).endswith(ending), module.__file__


def test_spark_finds_the_format_wherever_a_program_is_started(tmp_path: Path) -> None:
    """It lists the modules on the path, which an import hook of an editable install is not."""
    done = python(
        "import pkgutil; print([module.name for module in pkgutil.iter_modules()])", cwd=tmp_path
    )
    assert "pyspark_embedlog" in done.stdout, done.stderr


def test_typed() -> None:
    assert (Path(embedlog.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(("module", "extra"), [("cramjam", "snappy"), ("pyarrow", "arrow")])
def test_an_absent_extra_is_named(golden: Path, module: str, extra: str) -> None:
    """Without the package the topic that needs it raises one typed error; everything else works."""
    program = f"""
import sys
sys.modules[{module!r}] = None  # as if it were not installed
import embedlog
with embedlog.open(sys.argv[1], read_only=True) as log:
    assert sum(1 for _ in log.scan("client-zstd").records()) == 400
    try:
        list(log.scan("client-snappy").records()) if {module!r} == "cramjam" else log.scan("client-zstd").to_arrow()
    except embedlog.MissingExtraError as error:
        assert isinstance(error, ImportError)
        print(error)
"""
    answer = python(program, str(golden / "clean" / "log"))
    assert answer.returncode == 0, answer.stderr
    assert f'pip install "embedlog[{extra}]"' in answer.stdout


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64"), ("win32", "AMD64")]
)
def test_elsewhere_it_says_so_in_one_line(system: str, machine: str) -> None:
    program = f"""
import os, platform, sys, types
sys.platform = {system!r}
platform.machine = lambda: {machine!r}
os.uname = lambda: types.SimpleNamespace(machine={machine!r})
import embedlog"""
    last = python(program).stderr.splitlines()[-1]
    assert last.startswith(
        "embedlog.errors.UnsupportedPlatformError: embedlog runs on Linux on x86-64 and arm64 only"
    )
    built = python(
        "import platform, runpy; platform.machine = lambda: "
        f"{machine!r}\nrunpy.run_path('setup.py')",
        cwd=ROOT,
    )
    if machine not in {"x86_64", "aarch64"}:
        assert (
            built.stderr.strip()
            == f"embedlog runs on Linux on x86-64 and arm64 only; this is linux on {machine}"
        )


def test_a_core_for_pythons_with_the_gil_is_refused_without_it(tmp_path: Path) -> None:
    """Its import would end the process with a segmentation fault."""
    assert _platform.foreign_core_reason(str(tmp_path), "t") is None
    (tmp_path / "_rows.abi3.so").touch()
    assert _platform.foreign_core_reason(str(tmp_path), "") is None
    assert f"this Python has no GIL, and the core in {tmp_path} was compiled" in str(
        _platform.foreign_core_reason(str(tmp_path), "t")
    )
    # its own core is found first
    (tmp_path / f"_rows{sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    importlib.invalidate_caches()
    assert _platform.foreign_core_reason(str(tmp_path), "t") is None


def test_a_free_threaded_python_before_3_14_is_refused_in_one_line() -> None:
    program = """
import runpy, setuptools, sys, sysconfig
sysconfig.get_config_var = lambda name: name == "Py_GIL_DISABLED"
sys.version_info = (3, 13)
runpy.run_path("setup.py")"""
    assert (
        python(program, cwd=ROOT)
        .stderr.strip()
        .startswith("embedlog needs CPython 3.14 or later without the GIL")
    )


def test_the_links_of_the_readme_work_on_a_package_index() -> None:
    """Each relative link names a file of the sources, and becomes absolute."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [each.split("#")[0] for each in readme.RELATIVE_LINK.findall(text)]
    assert targets
    assert [each for each in targets if not (ROOT / each).is_file()] == []
    description = readme.long_description()
    assert readme.RELATIVE_LINK.findall(description) == []
    for target in targets:
        assert (
            f"]({PROJECT['urls']['Source']}/blob/v{PROJECT['version']}/{target}" in description
        ), target


@pytest.mark.parametrize("name", ["open", "Log"])
def test_a_misspelt_option_is_refused_with_the_right_one(tmp_path: Path, name: str) -> None:
    assert hasattr(embedlog, name)
    with pytest.raises(embedlog.ConfigError, match=r"log\.segment\.bytes"):
        embedlog.open(tmp_path / "log", config={"log.segmnt.bytes": 1_000_000})
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
def test_make_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no `make` on the path")
    for missing, said in (
        ("PYTHON=", "no Python >= 3.11"),
        ("CC=no-such-compiler", "no C compiler"),
    ):
        command = [make, "-C", str(ROOT), "test", f"VENV={tmp_path / 'venv'}", missing]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert answer.returncode == 2
        assert (
            len(
                [
                    line
                    for line in answer.stderr.splitlines()
                    if line.startswith("embedlog: ") and said in line
                ]
            )
            == 1
        )
        assert not (tmp_path / "venv").exists()


def test_make_says_in_one_line_that_spark_needs_java(tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no `make` on the path")
    command = [make, "-C", str(ROOT), "demo-spark"]
    answer = subprocess.run(
        command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 2
    assert [line for line in answer.stderr.splitlines() if line.startswith("embedlog: ")] == [
        "embedlog: no java on the path: Spark needs Java 17"
    ]


# ---- the wheel -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, as pip would."""
    work = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(
        ".git", ".venv*", "build", "*.so", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, work / "source", ignore=left_out)
    options = ["-q", "--no-deps", "--no-build-isolation", "-w", str(work)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(work / "source")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr[-3000:]
    return next(work.glob("*.whl"))


@pytest.mark.slow
def test_one_wheel_serves_every_later_python(wheel: Path) -> None:
    assert re.fullmatch(
        rf"embedlog-{re.escape(embedlog.__version__)}-cp311-abi3-linux_\w+\.whl", wheel.name
    )


@pytest.mark.slow
def test_the_wheel_has_what_it_needs_and_no_more(wheel: Path) -> None:
    """Among others neither sources of C, nor fault injection and mutants."""
    assert contents.problems(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        head = email.message_from_bytes(
            archive.read(f"embedlog-{embedlog.__version__}.dist-info/METADATA")
        )
    extras = set(head.get_all("Provides-Extra", []))
    assert {
        "arrow",
        "cli",
        "connect",
        "demo",
        "duckdb",
        "pandas",
        "polars",
        "snappy",
        "spark",
    } <= extras
    assert head["Description-Content-Type"] == "text/markdown"


def made_extension(flags: int = 0) -> bytes:
    """An ELF file for x86-64 that has only a dynamic section, with these flags."""
    entries = struct.pack("<4Q", 30, flags, 0, 0)
    head = b"\x7fELF" + bytes(14) + struct.pack("<H12xQ14xHH6x", 62, 64, 56, 1)
    return head + struct.pack("<I4xQ16xQ16x", 2, 120, len(entries)) + entries


def made_wheel(
    folder: Path,
    *,
    abi: str = "cp311-abi3",
    platform: str = "manylinux_2_17_x86_64",
    **files: bytes | None,
) -> Path:
    """A wheel for x86-64 whose files are as they must be, except for those given (None: without the
    file).
    """
    info = "embedlog-1.0.dist-info"
    metadata = "Metadata-Version: 2.4\nRequires-Python: >=3.11\n" + "".join(
        f"Requires-Dist: {each}\n" for each in contents.REQUIRED
    )
    content: dict[str, bytes | None] = dict.fromkeys(contents.NEEDED, b"") | dict.fromkeys(
        contents.extensions(abi, platform), made_extension()
    )
    content |= {f"{info}/METADATA": metadata.encode(), f"{info}/licenses/LICENSE": b""} | files
    wheel = folder / f"embedlog-1.0-{abi}-{platform}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in content.items():
            if data is not None:
                archive.writestr(name, data)
    return wheel


@pytest.mark.parametrize("abi", ["cp311-abi3", "cp314-cp314t"])
def test_a_wheel_that_is_as_it_must_be_has_no_problem(tmp_path: Path, abi: str) -> None:
    assert contents.problems(made_wheel(tmp_path, abi=abi)) == []


@pytest.mark.parametrize(
    ("platform", "flags", "problems"),
    [("musllinux_1_2", 0, 0), ("musllinux_1_2", 16, 2), ("manylinux_2_17", 16, 0)],
)
def test_static_thread_local_variables_are_refused_for_musl(
    tmp_path: Path, platform: str, flags: int, problems: int
) -> None:
    """musl loads no such library after the start of a process; glibc does, if the variables are
    few.
    """
    names = contents.extensions("cp311-abi3", f"{platform}_x86_64")
    files = dict.fromkeys(names, made_extension(flags | 8))
    wheel = made_wheel(tmp_path, platform=f"{platform}_x86_64", **files)
    assert [
        each for each in contents.problems(wheel) if "musl refuses" in each
    ] == contents.problems(wheel)
    assert len(contents.problems(wheel)) == problems


def test_a_free_threaded_wheel_has_no_extension_of_the_stable_abi(tmp_path: Path) -> None:
    wheel = made_wheel(tmp_path).rename(
        tmp_path / "embedlog-1.0-cp314-cp314t-manylinux_2_17_x86_64.whl"
    )
    assert [each.split(": ")[1] for each in contents.problems(wheel)] == [
        "embedlog/_native/_core.cpython-314t-x86_64-linux-gnu.so is missing",
        "embedlog/_native/_rows.cpython-314t-x86_64-linux-gnu.so is missing",
    ]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("embedlog/_native/codec/scan.c", b"", "is a source of C"),
        ("embedlog/py.typed", None, "py.typed is missing"),
        (
            "embedlog/_native/_core.abi3.so",
            b"\x7fELF" + bytes(14) + b"\xb7\x00",
            "is not for the machine",
        ),
        (
            "embedlog/_native/_core.abi3.so",
            b"\x7fELF" + bytes(14) + b"\x3e\x00 el_fault_next",
            "a test build",
        ),
        ("tests/__init__.py", b"", "tests does not belong to the package"),
        ("embedlog-1.0.dist-info/METADATA", b"Requires-Python: >=3.11\n", "requires [], not"),
    ],
)
def test_a_wheel_with_too_much_or_too_little_is_refused(
    tmp_path: Path, name: str, data: bytes | None, said: str
) -> None:
    (problem,) = contents.problems(made_wheel(tmp_path, **{name: data}))
    assert said in problem


@pytest.mark.slow
def test_the_wheel_works_without_the_sources(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import embedlog
assert embedlog.__file__.startswith(sys.argv[1]), embedlog.__file__
with embedlog.open("log") as log:
    log.create_topic("t")
    with log.producer() as producer:
        assert producer.send("t", b"v").result(10).offset == 0
"""
    answer = python(program, str(tmp_path / "site"), cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
