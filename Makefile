# A thin front over CMake: each target installs what it needs.

BUILD   ?= build
JOBS    ?= $(shell nproc)
VENV    := .venv/bin/python
CCACHE  := $(shell command -v ccache)
LAUNCH  := $(if $(CCACHE),-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
export CCACHE_SLOPPINESS = pch_defines,time_macros
export PYTHONPATH := $(CURDIR)/python:$(PYTHONPATH)
export CLEAVE_BUILD_DIR := $(abspath $(BUILD))

.PHONY: all dependencies build test test-all bench demo docs format clean help

all: build

help:
	@echo "make build      installs what is missing and builds everything"
	@echo "make demo       trains GPT-2 (124M) for 20 steps, beside PyTorch"
	@echo "make test       the tests: lit, unit and Python"
	@echo "make test-all   the same, with the long proofs in full"
	@echo "make bench      step time and memory beside PyTorch's, of two devices"
	@echo "                also beside JAX's; compile time"
	@echo "make docs       the generated reference pages"
	@echo "make format     clang-format over the sources"

dependencies:
	@scripts/install-dependencies.sh

$(BUILD)/build.ninja: CMakeLists.txt CMakePresets.json | dependencies
	cmake --preset default -B $(BUILD) $(LAUNCH) \
	  -DPython_EXECUTABLE=$(abspath $(VENV))

build: dependencies $(BUILD)/build.ninja
	ninja -C $(BUILD) -j $(JOBS)

test: build
	$(VENV) test/run.py --build $(BUILD)

test-all: build
	CLEAVE_TEST_ALL=1 $(VENV) test/run.py --build $(BUILD)

# Without JAX, its contestants are left out.
bench: build
	-$(VENV) -m pip install --quiet --disable-pip-version-check \
	  -r benchmarks/requirements.txt
	ninja -C $(BUILD) cleave-communicator-bench
	$(VENV) benchmarks/run.py --build $(BUILD)
	$(VENV) benchmarks/devices.py --build $(BUILD)
	$(VENV) benchmarks/compile_time.py --build $(BUILD)

demo: build
	$(VENV) examples/demo.py --build $(BUILD)

docs: build
	$(BUILD)/bin/cleave-status > docs/Status.md

format:
	git ls-files '*.h' '*.cpp' | xargs clang-format-22 -i

clean:
	rm -rf $(BUILD)
