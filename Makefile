# Each target works alone on a new machine: it creates the environment if it is missing, and updates it when the lock
# file or the package's metadata changed. Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs tutorials bench

# The pages that `make tutorials` runs; those of other libraries and the gallery need more packages.
PAGES ?= $(filter-out %/index.md,$(wildcard docs/tutorials/*.md))

help:
	@echo "make demo   fit on the embedded data, print the scores, write demo/report.html"
	@echo "make test   lint, then run the tests and the examples of the docstrings"
	@echo "make lint   style, types, and the order of the packages"
	@echo "make docs   build the documentation into site/"
	@echo "make tutorials  run the code of the tutorials, write its output into the pages (minutes);"
	@echo "                others: make tutorials PAGES=docs/gallery.md"
	@echo "make bench  list the benchmarks"

demo: $(STAMP)
	@$(BIN)/setgrad demo --output demo

test: lint
	@$(BIN)/python -m pytest

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(STAMP)
	@$(BIN)/zensical build --clean --strict

tutorials: $(STAMP)
	@$(BIN)/python scripts/run_pages.py $(PAGES)

bench: $(STAMP)
	@$(BIN)/python -m benchmarks --help

# torch is installed alone: together with the rest, pip may consider other builds of it, which take gigabytes. It comes
# last, when what it needs is there with the right hashes; the versions are constraints, and a CUDA build still brings
# its own libraries. The lock file is complete, so that nothing else has to be resolved.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setgrad needs Python 3.11 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@echo "installing into $(VENV) (once; a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@grep -v '^torch==' requirements.lock > $(VENV)/hashes.txt
	@sed -nE 's/^([^ #]+==[^ ]+).*/\1/p' requirements.lock > $(VENV)/versions.txt
	@$(PIP) install --require-hashes --no-deps -r $(VENV)/hashes.txt
	@$(PIP) install -c $(VENV)/versions.txt torch
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
