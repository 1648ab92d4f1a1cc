# The commands of a contributor. Each target first creates its environment and its outputs below .venv and build/.
# A missing tool (Python, compiler, network, Java, Maven) is reported in one line.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Tests and the demonstrations start many processes: without stored bytecode each of them compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
    $(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))
CC ?= cc
VENV ?= .venv
BIN := $(VENV)/bin
# `make demo` needs no tools of a contributor: it has an environment of its own until `make install` has made the full one.
DEMO_VENV := $(if $(wildcard $(VENV)/.built),$(VENV),.venv-demo)
RELEASE := build/release-tools
# Two workers more than cores: tests wait for timers, brokers and Spark about half of their time.
JOBS ?= $(shell echo $$(($$(nproc) + 2)))
NATIVE := setup.py pyproject.toml $(wildcard embedlog/_native/*/*.c embedlog/_native/*/*.h embedlog/_native/build.py)
# The C core with mutants, which the tests switch on. Only this environment has it: the build of a wheel never sets the variable.
TEST_BUILD := EMBEDLOG_TEST_BUILD=1
# A program imports a fraction of the modules of these packages: an import compiles its module.
INSTALL := -m pip install -q --disable-pip-version-check --no-compile
PIP := $(BIN)/python $(INSTALL)
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n $(JOBS) --dist loadgroup --no-loadscope-reorder
# In a fresh clone each worker would compile all test modules: they are compiled once, before the workers start.
STORED_BYTECODE := [ -d tests/__pycache__ ] || printf '%s\n' tests/*/ tests/test_*.py \
    | xargs -P $$(nproc) -n 18 $(PYTEST) --collect-only -qq >/dev/null 2>&1 || true
# A test that hangs fails after its own timeout. After the death of a worker xdist may wait without end (its issue 1378): then
# this timeout interrupts the run, which prints its report and fails.
WITHIN := timeout --foreground --signal=INT --kill-after=60
SANITIZE := build/sanitize
ARM_FLAGS := -O3 -std=c11 -fvisibility=hidden -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DPy_LIMITED_API=0x030B0000 \
    -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter -Wno-missing-field-initializers
CAMPAIGN := build/faults
comma := ,
FIGURES := build/figures.txt
KAFKAS := 4.4.0 4.3.1
# Tests create, sync and delete hundreds of thousands of small files: in memory, if it has two GB free. (A rented disk makes
# 250 syncs a second, so three workers would mostly wait.) The files of failed tests are kept.
MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 2000000 ] 2>/dev/null && echo /dev/shm)
IN_MEMORY = dir=$$(mktemp -d -p "$(MEMORY)" -t embedlog-tests-XXXXXX); chmod 755 $$dir; TMPDIR=$$dir
OR_KEPT = || { echo "embedlog: files of the failed tests are kept in $$dir$(HINT)" >&2; exit 1; }; rm -rf $$dir

# Spark needs Java; without it, its tests are skipped with a message.
EXTRAS := test,check$(if $(shell command -v java 2>/dev/null),$(comma)spark)
# What `make install` says before it installs: measured on CPython 3.11, x86-64.
SIZE = : about 100 packages and 1.5 GB$(if $(findstring spark,$(EXTRAS)),$(comma) half of it Spark)

fail = { echo 'embedlog: $(1)' >&2; exit 1; }

.PHONY: help install demo demo-spark test test-kafka test-spark test-faults test-sanitize test-threads test-arm test-slow \
    test-all fuzz check bench race race-pages docs site wheels test-wheels clean

help:
	@echo 'make demo           the standard library in three directories, one of them lost: write, tail, share, search, read'
	@echo 'make demo-spark     a demonstration with Spark: a web server'\''s log, each session written once, tables and a chart'
	@echo 'make test           the suite: below 8 minutes on two cores'
	@echo 'make test-kafka     the tests with a real Kafka, for each version: $(KAFKAS)'
	@echo 'make test-faults    all experiments, mutants and models: about two hours on two cores (RESUME=1 continues)'
	@echo 'make test-spark     the tests with Spark, in sessions and small clusters'
	@echo 'make test-sanitize  the suite with sanitizers for the C core (ASan, UBSan)'
	@echo 'make test-threads   the tests with threads without the GIL: FREE_THREADED_PYTHON, with ThreadSanitizer if it has that'
	@echo 'make fuzz           the C core with libFuzzer (clang, ASan, UBSan): FUZZ_RUNS executions of each harness'
	@echo 'make test-arm       the C core compiled for arm64, and run if there is an emulator'
	@echo 'make test-slow      the suite with its slow tests and the tests with a real Kafka'
	@echo 'make test-all       all of these tests, with their counts at the end'
	@echo 'make check          ruff and strict mypy; mypy and pyright over the code of the documents and the examples'
	@echo 'make bench          the benchmarks'
	@echo 'make race           the same workloads for Chronicle Queue, Kafka'\''s clients, SQLite, LMDB and others: 22 to 50 minutes'
	@echo 'make race-pages     write docs/race.md and its plots anew from docs/race/results.json, without a run'
	@echo 'make docs           generate the tables of docs/ from the code'
	@echo 'make site           the documentation site in build/site: open build/site/index.html'
	@echo 'make wheels         the sdist and the wheels of all platforms in dist/'
	@echo 'make test-wheels    the wheel of this machine in new environments without a compiler, for each Python: $(PYTHONS)'

# ---- the environment -------------------------------------------------------------------------------------------------

$(sort $(VENV)/.tools .venv-demo/.tools):
	@[ -n "$(PYTHON)" ] || $(call fail,no Python >= 3.11 on the path (looked for python3 and python3.11 to python3.14))
	@command -v $(CC) >/dev/null || $(call fail,no C compiler on the path: install gcc or clang (or set CC))
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(call fail,$(PYTHON) cannot make environments: install python3-venv)
	@$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
	    || $(call fail,$(PYTHON) has no Python.h: install python3-dev)
	@[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(INSTALL) 'setuptools>=77' 'cffi>=1.17' >$(@D)/install.txt 2>&1 \
	    || $(call fail,pip cannot fetch packages: is there a network and a package index? ($(@D)/install.txt))
	@touch $@

# An editable install; EXTRAS_HERE and BUILD_HERE belong to the environment. Editable, so the sources of the clone are used.
$(sort $(VENV)/.built .venv-demo/.built): %/.built: %/.tools $(NATIVE)
	@echo 'embedlog: installing into $(@D): the package, compiled here, with the packages of [$(EXTRAS_HERE)]$(SIZE_HERE)'
	@$(BUILD_HERE) $(@D)/bin/python $(INSTALL) --no-build-isolation -e '.[$(EXTRAS_HERE)]' \
	    >$(@D)/install.txt 2>&1 || { \
	    grep -qi 'error: command' $(@D)/install.txt \
	    && { grep -m 5 'error:' $(@D)/install.txt; $(call fail,the C core does not compile: see $(@D)/install.txt); } \
	    || $(call fail,pip cannot install the dependencies of pyproject.toml: see $(@D)/install.txt); }
	@touch $@

$(VENV)/.built: EXTRAS_HERE = $(EXTRAS)
$(VENV)/.built: SIZE_HERE = $(SIZE)
$(VENV)/.built: BUILD_HERE = $(TEST_BUILD)
.venv-demo/.built: EXTRAS_HERE = arrow,demo
.venv-demo/.built: BUILD_HERE = EMBEDLOG_TEST_BUILD=0

install: $(VENV)/.built

# The dependencies of Spark Connect: only the long tests of Spark need them.
$(VENV)/.connect: $(VENV)/.built
	@! command -v java >/dev/null || $(TEST_BUILD) $(PIP) --no-build-isolation -e '.[connect]' >$(VENV)/install.txt 2>&1 \
	    || $(call fail,pip cannot install the dependencies of Spark Connect: see $(VENV)/install.txt)
	@touch $@

# The oldest pyspark that the extra `spark` admits: a directory that the tests put in front of the installed one.
build/pyspark-oldest/.built: $(VENV)/.built
	@! command -v java >/dev/null || $(PIP) --upgrade --target $(@D) 'pyspark~=4.1.0' >$(VENV)/install.txt 2>&1 \
	    || $(call fail,pip cannot install the oldest pyspark: see $(VENV)/install.txt)
	@mkdir -p $(@D) && touch $@

# The tools of the documentation site. They are fetched once; the build itself needs no network.
$(VENV)/.docs: $(VENV)/.built pyproject.toml
	@$(TEST_BUILD) $(PIP) --no-build-isolation -e '.[docs]' >$(VENV)/install.txt 2>&1 \
	    || $(call fail,pip cannot install the documentation tools: see $(VENV)/install.txt)
	@touch $@

demo: $(DEMO_VENV)/.built
	@$(DEMO_VENV)/bin/python examples/demo $(ARGS)

# Java is checked before the installation. An environment from before Java has no Spark: then it is installed once more.
demo-spark:
	@command -v java >/dev/null || $(call fail,no java on the path: Spark needs Java 17)
	@$(MAKE) --no-print-directory install
	@$(BIN)/python -c 'import pyspark' 2>/dev/null || { rm $(VENV)/.built; $(MAKE) --no-print-directory install; }
	@$(BIN)/python examples/weblog_demo.py $(ARGS)

# ---- tests -----------------------------------------------------------------------------------------------------------

test: install
	@$(STORED_BYTECODE)
	@$(IN_MEMORY) $(WITHIN) 50m $(PYTEST) $(PARALLEL) -m 'not slow and not faults' $(ARGS) $(OR_KEPT)

# One broker per run. `make test` uses the first of these versions; this target and `make test-slow` use all of them.
test-kafka: install
	@for version in $(KAFKAS); do echo "=== Kafka $$version"; \
	    $(IN_MEMORY) EMBEDLOG_KAFKA=$$version $(PYTEST) -m kafka $(ARGS) $(OR_KEPT); done

test-spark: install $(VENV)/.connect build/pyspark-oldest/.built
	@command -v java >/dev/null || $(call fail,no java on the path: Spark needs Java 17)
	@$(IN_MEMORY) $(PYTEST) -m spark $(ARGS) $(OR_KEPT)

# RESUME=1 continues an interrupted run of the same code: it runs only the pieces that have not passed.
test-faults: HINT = ; RESUME=1 runs only the pieces that have not passed
test-faults: install
	@mkdir -p $(CAMPAIGN) && { [ -n "$(RESUME)" ] || rm -f $(CAMPAIGN)/*; }
	@[ -e $(CAMPAIGN)/seed ] || echo $$((RANDOM << 15 | RANDOM)) >$(CAMPAIGN)/seed
	@$(IN_MEMORY) EMBEDLOG_CAMPAIGN=$(CAMPAIGN) EMBEDLOG_SEED=$${EMBEDLOG_SEED:-$$(cat $(CAMPAIGN)/seed)} \
	    $(WITHIN) 5h $(PYTEST) $(PARALLEL) -v -m faults $(ARGS) || [ $$? = 5 -a -n "$(RESUME)" ] $(OR_KEPT)

# A separate build, so that the usual one is unchanged. A Java process cannot run with ASan's allocator.
test-sanitize: install
	@[ -e "$$($(CC) -print-file-name=libasan.so)" ] || $(call fail,$(CC) has no libasan: install the sanitizer runtime)
	@rm -rf $(SANITIZE)/reports && mkdir -p $(SANITIZE)/reports
	@$(TEST_BUILD) EMBEDLOG_SANITIZE=1 $(BIN)/python setup.py -q build --build-base $(SANITIZE) --build-lib $(SANITIZE)/lib \
	    >$(SANITIZE)/build.txt 2>&1 \
	    || { tail -5 $(SANITIZE)/build.txt; $(call fail,the C core does not compile with sanitizers: see $(SANITIZE)/build.txt); }
	@$(IN_MEMORY) $(WITHIN) 60m env LD_PRELOAD="$$($(CC) -print-file-name=libasan.so):$$($(CC) -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0:log_path=$(CURDIR)/$(SANITIZE)/reports/asan \
	    UBSAN_OPTIONS=print_stacktrace=1:log_path=$(CURDIR)/$(SANITIZE)/reports/ubsan EMBEDLOG_SANITIZE=1 \
	    $(PYTEST) $(PARALLEL) -p no:faulthandler -o timeout=900 -o 'pythonpath=$(SANITIZE)/lib .' \
	    -m 'not slow and not faults and not kafka and not spark' $(ARGS) $(OR_KEPT)
	@! compgen -G '$(SANITIZE)/reports/*' >/dev/null \
	    || { head -40 $(SANITIZE)/reports/*; $(call fail,the sanitizers found errors: see $(SANITIZE)/reports); }

# With a Python that was built --with-thread-sanitizer the extensions are too, and a report fails the target. lz4 is compiled.
# TSAN_OPTIONS of the caller are added: external_symbolizer_path=…/llvm-symbolizer, if clang does not find it itself.
FREE_THREADED_PYTHON ?= $(shell command -v python3.14t)
THREADS := build/threads
THREADS_PACKAGES := 'setuptools>=77' 'cffi>=2' numpy lz4 pyarrow 'pytest>=8.2,<9.2' pytest-benchmark pytest-timeout pytest-xdist \
    hypothesis xxhash
TSAN = suppressions=$(CURDIR)/tests/threads/suppressions.txt history_size=4 exitcode=0 log_path=$(CURDIR)/$(THREADS)/reports/tsan
THREAD_REPORTS = $(THREADS)/venv/bin/python -m tests.support.thread_reports $(THREADS)/reports
test-threads: ARGS ?= tests/threads
test-threads:
	@[ -n "$(FREE_THREADED_PYTHON)" ] || $(call fail,no free-threaded Python: set FREE_THREADED_PYTHON=…/python3.14t)
	@$(FREE_THREADED_PYTHON) -c 'import sys; sys.exit(sys._is_gil_enabled())' 2>/dev/null \
	    || $(call fail,$(FREE_THREADED_PYTHON) has a GIL)
	@mkdir -p $(THREADS); rm -rf $(THREADS)/reports; mkdir $(THREADS)/reports
	@[ -x $(THREADS)/venv/bin/python ] || $(FREE_THREADED_PYTHON) -m venv $(THREADS)/venv
	@$(THREADS)/venv/bin/python $(INSTALL) $(THREADS_PACKAGES) >$(THREADS)/install.txt 2>&1 \
	    || $(call fail,pip cannot install the packages of the tests: see $(THREADS)/install.txt)
	@sanitizer=$$($(THREADS)/venv/bin/python -c "import sysconfig; \
	        print('thread' if 'with-thread-sanitizer' in (sysconfig.get_config_var('CONFIG_ARGS') or '') else '')"); \
	    $(TEST_BUILD) EMBEDLOG_STRICT=1 EMBEDLOG_SANITIZE=$$sanitizer $(THREADS)/venv/bin/python setup.py -q build \
	        --build-base $(THREADS) --build-lib $(THREADS)/lib >$(THREADS)/build.txt 2>&1 \
	        || { tail -5 $(THREADS)/build.txt; $(call fail,the C core does not compile: see $(THREADS)/build.txt); }; \
	    $(IN_MEMORY) $(WITHIN) 120m env EMBEDLOG_SANITIZE=$$sanitizer \
	        TSAN_OPTIONS="$(TSAN) $${TSAN_OPTIONS:-}" \
	        $(THREADS)/venv/bin/python -m pytest $$([ -n "$$sanitizer" ] || echo '$(PARALLEL)') \
	        -p no:faulthandler -o timeout=1200 -o 'pythonpath=$(THREADS)/lib .' \
	        -m 'not slow and not faults and not kafka and not spark' $(ARGS) \
	    || { $(THREAD_REPORTS) || true; false; } $(OR_KEPT)
	@$(THREAD_REPORTS)

# A missing tool is reported and is no failure, because few machines have a cross compiler.
test-arm: $(VENV)/.tools
	@compiler=$$(command -v aarch64-linux-gnu-gcc \
	        || { command -v zig >/dev/null && echo 'zig cc -target aarch64-linux-musl'; } || true); \
	    [ -n "$$compiler" ] \
	        || { echo 'embedlog: no compiler for arm64: install gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, or zig'; exit 0; }; \
	    rm -rf build/arm64 && mkdir -p build/arm64/files; \
	    for source in $(foreach folder,codec system log objects,$(wildcard embedlog/_native/$(folder)/*.c)); do \
	        object=build/arm64/$$(basename $$(dirname $$source))/$$(basename $$source .c).o; mkdir -p $$(dirname $$object); \
	        $$compiler $(ARM_FLAGS) -Iembedlog/_native -c $$source -o $$object \
	            -I"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')"; \
	    done; \
	    $$compiler -static $(ARM_FLAGS) -Iembedlog/_native tests/native/selfcheck.c \
	        build/arm64/codec/*.o build/arm64/system/*.o build/arm64/log/*.o -o build/arm64/selfcheck -lpthread; \
	    echo 'embedlog: the C core compiles for arm64 without a warning'; \
	    command -v qemu-aarch64 >/dev/null || { echo 'embedlog: compiled for arm64, but not run: install qemu-user'; exit 0; }; \
	    qemu-aarch64 build/arm64/selfcheck build/arm64/files

# Ten million executions per harness take minutes each: FUZZ_JOBS run in parallel, FUZZ_ONLY selects some.
FUZZ_RUNS ?= 10000000
fuzz: install
	@FUZZ_RUNS=$(FUZZ_RUNS) $(BIN)/python tests/native/fuzz/drive.py

test-slow: install $(VENV)/.connect $(VENV)/.docs build/pyspark-oldest/.built
	@$(IN_MEMORY) $(WITHIN) 60m $(PYTEST) $(PARALLEL) -m 'not faults' $(ARGS) $(OR_KEPT)
	@for version in $(wordlist 2,9,$(KAFKAS)); do echo "=== Kafka $$version"; \
	    $(IN_MEMORY) EMBEDLOG_KAFKA=$$version $(WITHIN) 60m $(PYTEST) -m 'kafka and not faults' $(ARGS) $(OR_KEPT); done

# Every part runs, also after the failure of another one; then the counts of all parts are printed.
test-all: install check
	@mkdir -p $(dir $(FIGURES)); rm -f $(FIGURES); failed=; for part in test-slow test-sanitize test-arm test-faults; do \
	    echo "=== $$part" | tee -a $(FIGURES); \
	    EMBEDLOG_FIGURES=$(FIGURES) $(MAKE) --no-print-directory $$part || failed+=" $$part"; \
	done; cat $(FIGURES); [ -z "$$failed" ] || $(call fail,failed:$$failed)

check: install
	@$(BIN)/ruff check .
	@if command -v clang-format >/dev/null; then clang-format --dry-run --Werror embedlog/_native/*/*.[ch]; fi
	@$(BIN)/mypy
	@$(PYTEST) -q tests/project/test_types.py

# ---- benchmarks and documents ----------------------------------------------------------------------------------------

bench: install
	@$(BIN)/python -m benchmarks $(ARGS)

# The peers of the race; Chronicle Queue and a broker need Java 17 and Maven. A missing peer is named, and the others run.
$(VENV)/.race: $(VENV)/.built pyproject.toml
	@$(TEST_BUILD) $(PIP) --no-build-isolation -e '.[race]' >$(VENV)/install.txt 2>&1 \
	    || $(call fail,pip cannot install the peers of the race: see $(VENV)/install.txt)
	@$(PIP) 'honker>=0.2' >>$(VENV)/install.txt 2>&1 || echo 'honker is left out: no wheel fits, and it does not build without Rust'
	@touch $@

# Measured is what a wheel contains: a build without mutants, beside the usual one.
RACE_BUILD := build/race
race: install $(VENV)/.race
	@mkdir -p $(RACE_BUILD)
	@EMBEDLOG_TEST_BUILD=0 $(BIN)/python setup.py -q build --build-base $(RACE_BUILD) --build-lib $(RACE_BUILD)/lib \
	    >$(RACE_BUILD)/build.txt 2>&1 || $(call fail,the C core does not compile: see $(RACE_BUILD)/build.txt)
	@PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(RACE_BUILD)/lib:$(CURDIR) $(BIN)/python -m benchmarks.race $(ARGS)

race-pages: install
	@$(BIN)/python -m benchmarks.race --pages

docs: install
	@$(BIN)/python docs/generate.py

site: install $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'embedlog: the pages are in build/site'

# ---- wheels ----------------------------------------------------------------------------------------------------------

# Pythons of `make test-wheels`: those on the path, and those of pyenv.
PYTHONS ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3.15; do command -v $$name || true; done; \
    ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.1[1-9].*/bin/python 2>/dev/null)

$(RELEASE)/.tools: release/requirements.txt
	@[ -n "$(PYTHON)" ] || $(call fail,no Python >= 3.11 on the path)
	@echo 'embedlog: installing the tools of release/requirements.txt into $(RELEASE)'
	@$(PYTHON) -m venv $(RELEASE) && $(RELEASE)/bin/python $(INSTALL) -r $< >$(RELEASE)/install.txt 2>&1 \
	    || $(call fail,pip cannot install the tools of a release: see $(RELEASE)/install.txt)
	@touch $@

wheels: $(RELEASE)/.tools
	@$(RELEASE)/bin/python -m release.wheels

test-wheels:
	@compgen -G "dist/*manylinux*_$$(uname -m).whl" >/dev/null || $(call fail,no wheel of this machine in dist/: run make wheels)
	@$(PYTHON) -m release.trial $$(ls dist/*manylinux*_$$(uname -m).whl) $(PYTHONS)

clean:
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache embedlog/_native/*.so
