# A thin front over CMake: each target installs what it needs.

BUILD   ?= build
JOBS    ?= $(shell nproc)
VENV    := .venv/bin/python
# Asked when CMake is first run: `dependencies` may just have installed it.
LAUNCH   = $(if $(shell command -v ccache),-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# What one checkout compiled serves another in a different folder.
export CCACHE_SLOPPINESS = pch_defines,time_macros
export CCACHE_BASEDIR    = $(CURDIR)
export CCACHE_NOHASHDIR  = 1
export PYTHONPATH := $(CURDIR)/python:$(PYTHONPATH)
export CLEAVE_BUILD_DIR := $(abspath $(BUILD))

.PHONY: all dependencies build wheel test lint check-lit check-unit check-py test-all bench cuda-bundle test-cuda bench-cuda loss-cuda sanitize-cuda all-cuda keep-cuda demo examples docs format clean help

all: build

help:
	@echo "make build      installs what is missing and builds everything"
	@echo "make wheel      a wheel for machines without LLVM, in $(BUILD)/wheel"
	@echo "make demo       trains GPT-2 (124M) for 20 steps, beside PyTorch"
	@echo "make examples   runs the examples, and draws their pictures again"
	@echo "make test       the tests: lit, unit and Python"
	@echo "make test-all   the same, with the long proofs in full"
	@echo "make check-lit | check-unit | check-py FILTER=words"
	@echo "                one suite; of it the tests whose names have the words"
	@echo "make lint       clang-format, ruff, mypy and words"
	@echo "make bench      step time and memory beside PyTorch's, of two devices"
	@echo "                also beside JAX's; compile time"
	@echo "make test-cuda  equality with the CPU on this machine's GPU"
	@echo "make bench-cuda step time and memory on this machine's GPU, beside"
	@echo "                PyTorch's; rates of kernels"
	@echo "make loss-cuda  losses of bf16 training on it, beside PyTorch's in f32"
	@echo "make sanitize-cuda  a small model under compute-sanitizer, if it is there"
	@echo "make all-cuda   all of these but the losses in one call of nine minutes"
	@echo "make keep-cuda ARCHIVE=all.tgz  puts what it leaves into the repository"
	@echo "make cuda-bundle  a folder that does these on a machine without Cleave"
	@echo "make docs       the generated reference pages, and the site in $(BUILD)/docs/site"
	@echo "make format     clang-format over the sources"

dependencies:
	@scripts/install-dependencies.sh

$(BUILD)/build.ninja: CMakeLists.txt CMakePresets.json | dependencies
	cmake --preset default -B $(BUILD) $(LAUNCH) \
	  -DPython_EXECUTABLE=$(abspath $(VENV))

build: dependencies $(BUILD)/build.ninja
	ninja -C $(BUILD) -j $(JOBS)

# LLVM, MLIR and LLD are linked in, oneDNN and the OpenMP runtime come with it. PyTorch stays a
# package of its own; libmpi is that of the MPI which starts the processes.
WHEEL = $(BUILD)/wheel
wheel: dependencies
	mkdir -p $(WHEEL)
	test -x $(WHEEL)/venv/bin/python || $(VENV) -m venv $(WHEEL)/venv
	$(WHEEL)/venv/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r requirements-wheel.txt
	rm -rf $(WHEEL)/built $(WHEEL)/*.whl
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(WHEEL)/venv/bin/python -m pip wheel . \
	  --no-deps --no-build-isolation --disable-pip-version-check -w $(WHEEL)/built \
	  -C cmake.args="--preset=wheel" -C build-dir=build-static \
	  $(if $(LAUNCH),-C cmake.define.CMAKE_C_COMPILER_LAUNCHER=ccache \
	    -C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
	PATH=$(abspath $(WHEEL))/venv/bin:$$PATH $(WHEEL)/venv/bin/auditwheel repair \
	  --plat manylinux_2_36_x86_64 --exclude libgomp.so.1 --exclude libmpi.so.40 \
	  -w $(WHEEL) $(WHEEL)/built/*.whl
	$(WHEEL)/venv/bin/python scripts/check_wheel.py $(WHEEL)/*.whl

test: build
	$(VENV) test/run.py --build $(BUILD)

# Forms of C++, and mistakes and types in Python, that need no build.
lint: dependencies
	git ls-files '*.h' '*.cpp' | xargs clang-format-22 --dry-run -Werror
	$(VENV) -m ruff check
	$(VENV) -m mypy
	$(VENV) scripts/check_words.py

check-lit check-unit check-py: check-%: build
	$(VENV) test/run.py --build $(BUILD) --suite $(patsubst py,python,$*) $(if $(FILTER),--filter "$(FILTER)")

# Without SciPy and scikit-learn, what needs them is left out.
test-all: build
	-$(VENV) -m pip install --quiet --disable-pip-version-check \
	  -r examples/requirements.txt
	CLEAVE_TEST_ALL=1 $(VENV) test/run.py --build $(BUILD)

# Without JAX, its workers are left out.
bench: build
	-$(VENV) -m pip install --quiet --disable-pip-version-check \
	  -r benchmarks/requirements.txt
	ninja -C $(BUILD) cleave-communicator-bench cleave-attention-bench
	$(BUILD)/bin/cleave-attention-bench
	$(VENV) benchmarks/run.py --build $(BUILD)
	$(VENV) benchmarks/precision.py --build $(BUILD)
	$(VENV) benchmarks/devices.py --build $(BUILD)
	$(VENV) benchmarks/experts.py
	$(VENV) benchmarks/scans.py
	$(VENV) benchmarks/compile_time.py --build $(BUILD)

# For a machine with a GPU; the folder that they make can be carried to one. FLAGS are those of
# run_bundle.py.
cuda-bundle: build
	$(VENV) benchmarks/gpu/bundle.py --build $(BUILD) --out $(BUILD)/cuda-bundle

test-cuda: cuda-bundle
	$(VENV) $(BUILD)/cuda-bundle/run_bundle.py test $(FLAGS)

bench-cuda: cuda-bundle
	$(VENV) $(BUILD)/cuda-bundle/run_bundle.py bench $(FLAGS)

loss-cuda: cuda-bundle
	$(VENV) $(BUILD)/cuda-bundle/run_bundle.py loss $(FLAGS)

all-cuda: cuda-bundle
	$(VENV) $(BUILD)/cuda-bundle/run_bundle.py all --out $(BUILD)/cuda-results $(FLAGS)

ARCHIVE ?= $(BUILD)/cuda-results/all.tgz
keep-cuda:
	$(VENV) benchmarks/gpu/keep_results.py $(ARCHIVE) $(FLAGS)

sanitize-cuda: cuda-bundle
	$(VENV) $(BUILD)/cuda-bundle/run_bundle.py sanitize $(FLAGS)

demo: build
	$(VENV) examples/demo.py --build $(BUILD)

examples: build
	$(VENV) -m pip install --quiet --disable-pip-version-check \
	  -r examples/requirements.txt
	$(VENV) examples/gallery.py

docs: build
	$(BUILD)/bin/cleave-status > docs/Status.md
	$(BUILD)/bin/cleave-status --attributes > docs/Attributes.md
	$(VENV) scripts/write_options.py > docs/Options.md.new
	mv docs/Options.md.new docs/Options.md
	$(VENV) scripts/write_groups.py > docs/groups.py.new
	mv docs/groups.py.new python/cleave/compiler/groups.py
	test -x $(BUILD)/docs/venv/bin/python || python3 -m venv $(BUILD)/docs/venv
	$(BUILD)/docs/venv/bin/python -m pip install --quiet \
	  --disable-pip-version-check -r requirements-docs.txt
	$(BUILD)/docs/venv/bin/python scripts/build_docs.py --build $(BUILD)

format:
	git ls-files '*.h' '*.cpp' | xargs clang-format-22 -i

clean:
	rm -rf $(BUILD)
