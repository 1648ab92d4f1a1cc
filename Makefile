# Everything a contributor needs; each target creates what it lacks below .venv and build/.
# Every missing tool (Python, compiler, network, Java, Maven) is reported in one line.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
    $(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))
CC ?= cc
VENV ?= .venv
BIN := $(VENV)/bin
# One worker more than cores: tests wait for clocks, brokers and Spark about half of their time.
JOBS ?= $(shell echo $$(($$(nproc) + 1)))
NATIVE := setup.py pyproject.toml $(wildcard embedlog/_native/*/*.c embedlog/_native/*/*.h embedlog/_native/build.py)
# The C core with mutants, which the tests switch on. Only this environment gets it: a wheel never sets the variable.
TEST_BUILD := EMBEDLOG_TEST_BUILD=1
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n $(JOBS) --dist loadgroup
# A test that hangs fails by itself. A worker that dies may leave xdist waiting for ever (its issue 1378): then the run is
# interrupted, says what it knows, and has failed.
WITHIN := timeout --foreground --signal=INT --kill-after=60
SANITIZE := build/sanitize
ARM_FLAGS := -O3 -std=c11 -fvisibility=hidden -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DPy_LIMITED_API=0x030B0000 \
    -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter -Wno-missing-field-initializers
CAMPAIGN := build/faults
comma := ,
FIGURES := build/figures.txt
KAFKAS := 4.3.1 4.4.0
# Tests make, sync and delete hundreds of thousands of small files: in memory, where there are two GB of it. (Rented disks do
# 250 syncs a second: three workers wait for them more than they work.) What failed is kept.
MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 2000000 ] 2>/dev/null && echo /dev/shm)
IN_MEMORY = dir=$$(mktemp -d -p "$(MEMORY)" -t embedlog-tests-XXXXXX); chmod 755 $$dir; TMPDIR=$$dir
OR_KEPT = || { echo "embedlog: files of the failed tests are kept in $$dir$(HINT)" >&2; exit 1; }; rm -rf $$dir

# Spark needs Java; where there is none, its tests say so and are left out.
EXTRAS := test,check$(if $(shell command -v java 2>/dev/null),$(comma)spark)

say_no = { echo 'embedlog: $(1)' >&2; exit 1; }

.PHONY: help install demo demo-spark test test-kafka test-spark test-faults test-sanitize test-arm test-slow \
    test-all fuzz check bench docs clean

help:
	@echo 'make demo           write, tail, share, search and read the standard library as a topic: a few seconds'
	@echo 'make demo-spark     a web server'\''s log through Spark, each session written once: tables and a chart'
	@echo 'make test           the suite: below 8 minutes on two cores'
	@echo 'make test-kafka     all that asks a real Kafka, of each version: $(KAFKAS)'
	@echo 'make test-faults    all experiments, mutants and models: about two hours on two cores (RESUME=1 goes on)'
	@echo 'make test-spark     all that needs Spark, in sessions and small clusters'
	@echo 'make test-sanitize  the suite with every line of C watched (ASan, UBSan)'
	@echo 'make fuzz           the C core under fuzzers (clang, ASan, UBSan): FUZZ_RUNS executions of each harness'
	@echo 'make test-arm       the C core compiled for arm64, and run where there is an emulator'
	@echo 'make test-slow      the suite with its slow tests and all that asks a real Kafka'
	@echo 'make test-all       all of these, with the figures of all at the end'
	@echo 'make check          ruff and strict mypy; mypy and pyright over the code of the documents'
	@echo 'make bench          the benchmarks'
	@echo 'make docs           write anew what docs/ takes from the code'

# ---- what everything needs -------------------------------------------------------------------------------------------

$(VENV)/.tools:
	@[ -n "$(PYTHON)" ] || $(call say_no,no Python >= 3.11 on the path (looked for python3 and python3.11 to python3.14))
	@command -v $(CC) >/dev/null || $(call say_no,no C compiler on the path: install gcc or clang (or set CC))
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(call say_no,$(PYTHON) cannot make environments: install python3-venv)
	@$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
	    || $(call say_no,$(PYTHON) has no Python.h: install python3-dev)
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(PIP) 'setuptools>=77' 'cffi>=1.17' >$(VENV)/install.txt 2>&1 \
	    || $(call say_no,pip cannot fetch packages: is there a network and a package index? ($(VENV)/install.txt))
	@touch $@

$(VENV)/.built: $(VENV)/.tools $(NATIVE)
	@echo 'embedlog: installing into $(VENV)'
	@$(TEST_BUILD) $(PIP) --no-build-isolation -e '.[$(EXTRAS)]' >$(VENV)/install.txt 2>&1 || { \
	    grep -qi 'error: command' $(VENV)/install.txt \
	    && { grep -m 5 'error:' $(VENV)/install.txt; $(call say_no,the C core does not compile: see $(VENV)/install.txt); } \
	    || $(call say_no,pip cannot install what pyproject.toml asks for: see $(VENV)/install.txt); }
	@touch $@

install: $(VENV)/.built

# What Spark Connect needs beside Spark: for the long tests of Spark alone.
$(VENV)/.connect: $(VENV)/.built
	@! command -v java >/dev/null || $(TEST_BUILD) $(PIP) --no-build-isolation -e '.[connect]' >$(VENV)/install.txt 2>&1 \
	    || $(call say_no,pip cannot install what Spark Connect needs: see $(VENV)/install.txt)
	@touch $@

demo: install
	@$(BIN)/python -m embedlog.demo $(ARGS)

# Asked before anything is installed. An environment that was made before there was Java has no Spark yet: then once more.
demo-spark:
	@command -v java >/dev/null || $(call say_no,no java on the path: Spark needs Java 17)
	@$(MAKE) --no-print-directory install
	@$(BIN)/python -c 'import pyspark' 2>/dev/null || { rm $(VENV)/.built; $(MAKE) --no-print-directory install; }
	@$(BIN)/python examples/weblog_demo.py $(ARGS)

# ---- tests -----------------------------------------------------------------------------------------------------------

test: install
	@$(IN_MEMORY) $(WITHIN) 50m $(PYTEST) $(PARALLEL) -m 'not slow and not faults' $(ARGS) $(OR_KEPT)

# One broker a run. `make test` asks the first of these versions; the others are asked here and by `make test-slow`.
test-kafka: install
	@for version in $(KAFKAS); do echo "=== Kafka $$version"; \
	    $(IN_MEMORY) EMBEDLOG_KAFKA=$$version $(PYTEST) -m kafka $(ARGS) $(OR_KEPT); done

test-spark: install $(VENV)/.connect
	@command -v java >/dev/null || $(call say_no,no java on the path: Spark needs Java 17)
	@$(IN_MEMORY) $(PYTEST) -m spark $(ARGS) $(OR_KEPT)

# RESUME=1 goes on where a run of the same code was broken off: what has passed since is not run again.
test-faults: HINT = ; RESUME=1 leaves out what passed
test-faults: install
	@mkdir -p $(CAMPAIGN) && { [ -n "$(RESUME)" ] || rm -f $(CAMPAIGN)/*; }
	@[ -e $(CAMPAIGN)/seed ] || echo $$((RANDOM << 15 | RANDOM)) >$(CAMPAIGN)/seed
	@$(IN_MEMORY) EMBEDLOG_CAMPAIGN=$(CAMPAIGN) EMBEDLOG_SEED=$${EMBEDLOG_SEED:-$$(cat $(CAMPAIGN)/seed)} \
	    $(WITHIN) 5h $(PYTEST) $(PARALLEL) -v -m faults $(ARGS) || [ $$? = 5 -a -n "$(RESUME)" ] $(OR_KEPT)

# A build of its own, so that the usual one stays as it is. A Java process cannot live under ASan's allocator.
test-sanitize: install
	@[ -e "$$($(CC) -print-file-name=libasan.so)" ] || $(call say_no,$(CC) has no libasan: install the sanitizer runtime)
	@rm -rf $(SANITIZE)/reports && mkdir -p $(SANITIZE)/reports
	@$(TEST_BUILD) EMBEDLOG_SANITIZE=1 $(BIN)/python setup.py -q build --build-base $(SANITIZE) --build-lib $(SANITIZE)/lib \
	    >$(SANITIZE)/build.txt 2>&1 \
	    || { tail -5 $(SANITIZE)/build.txt; $(call say_no,the C core does not compile with sanitizers: see $(SANITIZE)/build.txt); }
	@$(IN_MEMORY) $(WITHIN) 60m env LD_PRELOAD="$$($(CC) -print-file-name=libasan.so):$$($(CC) -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0:log_path=$(CURDIR)/$(SANITIZE)/reports/asan \
	    UBSAN_OPTIONS=print_stacktrace=1:log_path=$(CURDIR)/$(SANITIZE)/reports/ubsan EMBEDLOG_SANITIZE=1 \
	    $(PYTEST) $(PARALLEL) -p no:faulthandler -o timeout=900 -o 'pythonpath=$(SANITIZE)/lib .' \
	    -m 'not slow and not faults and not kafka and not spark' $(ARGS) $(OR_KEPT)
	@! compgen -G '$(SANITIZE)/reports/*' >/dev/null \
	    || { head -40 $(SANITIZE)/reports/*; $(call say_no,the sanitizers complain: see $(SANITIZE)/reports); }

# A missing tool is reported and is no failure: few machines have a cross compiler.
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

test-slow: install $(VENV)/.connect
	@$(IN_MEMORY) $(WITHIN) 60m $(PYTEST) $(PARALLEL) -m 'not faults' $(ARGS) $(OR_KEPT)
	@for version in $(wordlist 2,9,$(KAFKAS)); do echo "=== Kafka $$version"; \
	    $(IN_MEMORY) EMBEDLOG_KAFKA=$$version $(WITHIN) 60m $(PYTEST) -m 'kafka and not faults' $(ARGS) $(OR_KEPT); done

# Every part runs, whatever becomes of the others; then all the figures together.
test-all: install check
	@mkdir -p $(dir $(FIGURES)); rm -f $(FIGURES); failed=; for part in test-slow test-sanitize test-arm test-faults; do \
	    echo "=== $$part" | tee -a $(FIGURES); \
	    EMBEDLOG_FIGURES=$(FIGURES) $(MAKE) --no-print-directory $$part || failed+=" $$part"; \
	done; cat $(FIGURES); [ -z "$$failed" ] || $(call say_no,failed:$$failed)

check: install
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(PYTEST) -q tests/project/test_types.py

# ---- measuring and writing -------------------------------------------------------------------------------------------

bench: install
	@$(BIN)/python -m benchmarks $(ARGS)

docs: install
	@$(BIN)/python docs/generate.py

clean:
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache embedlog/_native/*.so
