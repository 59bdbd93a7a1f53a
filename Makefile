# Two commands do all the set-up: `make bench` and `make test`. LLCOLL_ENV may name an environment elsewhere.
VENV ?= .venv
LLCOLL_ENV ?= $(VENV)
PYTHON ?=
NPROC ?= 2
PYTEST_ARGS ?=

ENV := $(abspath $(LLCOLL_ENV))
PY := $(ENV)/bin/python
PINS := $(shell sha256sum requirements-dev.txt | cut -c1-16)
STAMP := $(ENV)/.llcoll-$(PINS)

# In place, found through PYTHONPATH: nothing of this clone stays behind in an environment that others share.
export PYTHONPATH := $(CURDIR)/python$(if $(PYTHONPATH),:$(PYTHONPATH))
export PATH := $(ENV)/bin:$(PATH)
export OMP_NUM_THREADS ?= 1
# The simulator is built once it has sources; LLCOLL_SIM=0 leaves it out.
LLCOLL_SIM ?= $(if $(wildcard csrc/sim/*.cpp),1,0)

.PHONY: help env build bench test check format wheel clean
help:
	@echo "make bench   set up, build, run the main job on $(NPROC) ranks (NPROC=n, BENCH_ARGS=...)"
	@echo "make test    set up, build, run the whole test suite (PYTEST_ARGS=...)"
	@echo "make check   every linter and formatter;  make format  applies the formatters"
	@echo "make build | wheel | clean"

$(STAMP): requirements-dev.txt .ci/make-env
	@.ci/make-env "$(ENV)" requirements-dev.txt $(PYTHON)

env: $(STAMP)

build: $(STAMP)
	@mkdir -p build
	@LLCOLL_SIM=$(LLCOLL_SIM) flock build/.lock $(PY) setup.py -q build_ext --inplace >build/build.log || \
	  { grep -E -A 6 'error:|FAILED' build/build.log | head -80; echo "build failed: build/build.log"; exit 1; }

bench: build
	$(ENV)/bin/torchrun --standalone --nproc-per-node $(NPROC) -m llcoll.bench $(BENCH_ARGS)

test: build
	$(PY) -m pytest tests $(PYTEST_ARGS)

check: $(STAMP)
	@.ci/check $(PY)

format: $(STAMP)
	@.ci/check --fix $(PY)

wheel: $(STAMP)
	@LLCOLL_SIM=0 $(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls -l dist/*.whl

clean:
	rm -rf build dist python/*.egg-info python/llcoll/*.so
	find python tests benchmarks -name __pycache__ -type d -exec rm -rf {} +
