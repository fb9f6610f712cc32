# Each target works alone on a fresh machine: the environment is made when missing, and brought up to date
# when the lock file or the package's metadata changed. Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench

help:
	@echo "make demo   fit on the embedded data, print the scores, write demo/report.html"
	@echo "make test   lint, then run the tests and the docstrings' examples"
	@echo "make lint   style, types, and the order of the rooms"
	@echo "make bench  list the benchmarks"

demo: $(STAMP)
	@$(BIN)/setgrad demo --output demo

test: lint
	@$(BIN)/python -m pytest

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy src
	@$(BIN)/lint-imports

bench: $(STAMP)
	@$(BIN)/python -m benchmarks --help

# torch goes first and alone: resolved together with the rest, pip may look at other builds of it, which are
# gigabytes. The lock is its constraint, so what a build needs beyond the lock (CUDA libraries) still comes along.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setgrad needs Python 3.11 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@echo "installing into $(VENV) (once; a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -c requirements.lock torch
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
