# SPDX-License-Identifier: Apache-2.0
# A thin door: the work is done by CMakePresets.json, pyproject.toml and the scripts in cmake/. `make help`
# says what is here.
TORCH ?= torch==2.13.0
ARGS ?=
export TORCH

python := build/venv/bin/python
PYTHON ?= $(python)
installed := build/venv/.ringcast
inputs := $(shell find CMakeLists.txt pyproject.toml README.md LICENSE ringcast.map cmake include ring shm channel gpu \
                       python tools docs/man \
                       -not -path '*/__pycache__*' 2>/dev/null)

.NOTPARALLEL:
.PHONY: help deps deps-test deps-build build demo test test-all faults pythons lint format docs coverage soak bench bench-docs gpu-test
.PHONY: vllm-compat sglang-compat engines peers wheels wheels-test install uninstall deb abi clean distclean
.DEFAULT_GOAL := help

help:
	@echo 'make demo       tensor dicts from one process to three, through ringcast and through gloo (ARGS="--world 8")'
	@echo 'make test       what every change must pass: C (plain, part of it with ASan + UBSan or TSan), Python'
	@echo 'make test-all   the other tests too: less and more than this machine has, models, fuzzing, valgrind, aarch64'
	@echo 'make faults     plants the faults of tests/faults/, one at a time: does a test fail? (ARGS="AREA... --only NAME")'
	@echo 'make pythons    the Python tests on each Python from 3.10 to 3.15 that is here or in a newer Debian (ARGS=3.14)'
	@echo 'make lint       clang-format, ruff, shellcheck, codespell (part of make test), then clang-tidy and gcc -fanalyzer'
	@echo 'make format     formats C and Python: clang-format and ruff'
	@echo 'make docs       the documentation site, build/docs/site: guides, reference of C and Python; links checked'
	@echo 'make coverage   what the tests reach of C and of Python: build/coverage/report, docs/coverage.md; some 10 minutes'
	@echo 'make soak       kills, frames, codec, loops, fuzzing, model: at length (KILLS=10000 SOAK_SECONDS=3600)'
	@echo 'make build      the library in build/release, the Python package in build/venv'
	@echo 'make install    the C library, its headers and the command line (PREFIX=/usr/local DESTDIR=); make uninstall'
	@echo 'make deb        Debian packages of the library, the command line and the Python package, in dist/deb'
	@echo 'make abi        the library beside that of the last release, by abidiff: does a program of then run with it?'
	@echo 'make bench      the benchmarks (ARGS="--benchmark_filter=...")'
	@echo 'make bench-docs measures docs/benchmarks.md anew on this machine, some minutes; nothing else should run'
	@echo '                (with a Python that imports vLLM: PYTHON=... ARGS="--vllm FOLDER", docs/benchmarks.md)'
	@echo 'make gpu-test   on a machine with a GPU: what only a real one can show; results in build/gpu/out (docs/gpu.md)'
	@echo 'make vllm-compat, sglang-compat: their own tests or callers, fetched into build/compat, with ringcast in place'
	@echo 'make engines    whole engines on CPUs, as they are and with ringcast in turns: same tokens, times, CPU; docs/engines.md'
	@echo '                (ENGINE=vllm or sglang; QUICK=1: minutes, once what is fetched into build/engines is there)'
	@echo 'make peers      ringcast and its peers, all measured in one run; docs/peers.md (QUICK=1: minutes, no page; what is'
	@echo '                fetched the first time, gigabytes, is in build/peers; ARGS="--only zmq-push")'
	@echo 'make wheels     dist/: the source distribution, and a wheel for each Python, for x86-64 and 64-bit Arm'
	@echo '                (ARGS="3.11 3.12": only these); make wheels-test tries them in a clean Debian, as root'
	@echo 'make deps       all Debian packages and all of build/venv; the others install what they need (TORCH= leaves torch out)'
	@echo 'make clean      removes build/ but for build/venv; distclean removes that too'

# Three levels, each of which contains the one before: to build, to test, and all the rest.
deps:
	@cmake/deps.sh all

deps-test:
	@cmake/deps.sh test

deps-build:
	@cmake/deps.sh build

# deps-build leaves the file alone when it has nothing to do; the recipe makes make look at it again.
build/venv/.requirements: deps-build
	@:

$(installed): build/venv/.requirements $(inputs)
	$(python) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
	  --config-settings=build-dir=build/python .
	@touch $@

build: deps-build $(installed)
	cmake --preset release
	cmake --build --preset release

# Needs a C compiler and CMake, and fetches nothing.
install:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' cmake/install.sh

uninstall:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' cmake/install.sh uninstall

# ARGS=COMMIT compares with another commit than the last release.
abi:
	@cmake/abi.sh $(ARGS)

# As root or with sudo: installs what the build lacks.
deb:
	@cmake/deb.sh

demo: build
	$(python) examples/tp_workers.py $(ARGS)

test: deps-test $(installed)
	@cmake/test.sh

test-all: deps $(installed)
	@cmake/test-all.sh

# ARGS: areas and options of tests/faults/run.py.
faults: deps-test
	@$(python) tests/faults/run.py $(ARGS)

# ARGS: versions and options of cmake/pythons.sh.
pythons: deps
	@cmake/pythons.sh $(ARGS)

# These take what is there: make deps installs the tools.
lint:
	@cmake/lint.sh
	@cmake/analyze.sh

format:
	@cmake/lint.sh format

docs:
	@cmake/docs.sh

# ARGS=--page writes the figures into docs/coverage.md, ARGS=--report reports the last run again.
coverage: deps $(installed)
	@cmake/coverage.sh $(ARGS)

soak: deps $(installed)
	@cmake/soak.sh

bench: deps-test build
	@test -x build/release/bench/ringcast_bench || \
	  { echo 'The benchmarks need Google Benchmark (Debian: libbenchmark-dev).' >&2; exit 1; }
	build/release/bench/ringcast_bench $(ARGS)

bench-docs: build
	$(PYTHON) -c 'import matplotlib' 2>/dev/null || $(PYTHON) -m pip install -q --disable-pip-version-check matplotlib
	$(PYTHON) bench/report.py $(ARGS)

# Needs a compiler, CMake and Python, and fetches nothing. ARGS="doctor probes" runs only these.
gpu-test:
	@cmake/gpu-test.sh $(ARGS)

# The newest two versions. Fetches gigabytes the first time. ARGS="--version 0.33.0" takes another.
vllm-compat: build
	$(python) tests/compat/vllm.py $(ARGS)

sglang-compat: build
	$(python) tests/compat/sglang.py $(ARGS)

# Fetches gigabytes the first time. ENGINE, QUICK and what ARGS may be: bench/engines/run.sh and run.py beside it.
engines: deps-test $(installed)
	@ENGINE='$(ENGINE)' QUICK='$(QUICK)' bench/engines/run.sh $(ARGS)

# What ARGS may be: bench/peers/run.py --help.
peers: build
	@QUICK='$(QUICK)' bench/peers/prepare.sh $(ARGS)

# Takes a compiler from PyPI, and headers and liburing from Debian.
wheels:
	@cmake/wheels.sh $(ARGS)

# What ARGS may be: cmake/wheels-test.sh.
wheels-test:
	@cmake/wheels-test.sh $(ARGS)

clean:
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 -not -name venv -exec rm -rf --one-file-system {} +

distclean:
	rm -rf --one-file-system build dist
