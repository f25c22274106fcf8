# Two commands: `make serve` answers real prompts on 127.0.0.1:8000, `make test` checks everything. Each sets up what it needs.

PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= smollm2-135m-instruct
SERVE_FLAGS ?=
TEST_WORKERS ?= 2

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
NATIVE := CMakeLists.txt $(shell find octavo/kernels/csrc -type f)

.PHONY: serve chat test test-fast test-slow sanitize sanitize-thread lint bench install dev clean help
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt $(NATIVE)
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt $(NATIVE)
	$(PIP) -e '.[dev]'
	@touch $(VENV)/.installed $@

install: $(VENV)/.installed  ## virtual environment with Octavo in it
dev: $(VENV)/.dev  ## the same, with what the tests need

serve: $(VENV)/.installed  ## serve MODEL (default: a small chat model, pulled on first use)
	$(BIN)/octavo serve $(MODEL) $(SERVE_FLAGS)

chat: $(VENV)/.installed  ## talk to MODEL in the terminal
	$(BIN)/octavo chat $(MODEL)

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check octavo tests benchmarks examples
	$(BIN)/mypy

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow" -n $(TEST_WORKERS) --durations=10

test-slow: $(VENV)/.dev  ## tests that need minutes
	$(BIN)/python -m pytest -m slow --durations=10

test: lint test-fast  ## lint, types and the fast tests (pulls three small checkpoints, 840 MB, once)

sanitize: $(VENV)/.dev  ## tests of the native code under gcc's address and undefined-behaviour sanitizers
	$(BIN)/python tests/sanitize.py address,undefined

sanitize-thread: $(VENV)/.dev  ## tests of the native thread pool under gcc's thread sanitizer
	$(BIN)/python tests/sanitize.py thread

bench: $(VENV)/.installed  ## host cost of a step, kernels against their floors, cpu against reference backend (under 2 minutes)
	$(BIN)/python benchmarks/host_step.py --steps 200 --requests 500
	$(BIN)/octavo bench kernels --short
	$(BIN)/python benchmarks/backends.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
