# Every target makes what it needs: a virtual environment in .venv, then the package in it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# A worker that is done takes over tests of the other: one long test leaves no core idle.
TESTS  := $(BIN)/python -m pytest -n 2 --dist worksteal -q
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-slow test-matrix lint bench clean
.DEFAULT_GOAL := help

help: ## this text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: $(VENV)/.demo ## from nothing: train a small net on digits, fit SLU, print and plot what it detects
	$(BIN)/slu demo

test: $(VENV)/.test ## from nothing: all tests but the slow ones, and the examples of README and docstrings
	$(TESTS) -m "not slow"

test-slow: $(VENV)/.test ## from nothing: the slow tests (memory in fresh processes, killed fits, statistics over many seeds)
	$(TESTS) -m slow

test-matrix: $(VENV)/.test ## the slow tests with every fault of their matrices, of which test-slow tries a part
	SLU_MATRIX=whole $(TESTS) -m slow tests/faults tests/core/test_checkpoint.py tests/core/test_rounding.py

lint: $(VENV)/.lint ## style, types, and the layers of the imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/.test ## what things cost, as ratios taken in one run
	$(BIN)/python -m benchmarks

clean: ## remove the virtual environment and what the tools left
	rm -rf $(VENV) build experiments/build .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.test: pyproject.toml experiments/pyproject.toml constraints.txt requirements-oracles.txt | $(BIN)/python
	$(PIP) -e '.[test]' -e './experiments[transformers]'
	$(PIP) --no-deps -r requirements-oracles.txt
	touch $@

$(VENV)/.lint: pyproject.toml experiments/pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[test,lint]' -e './experiments[transformers]'
	touch $@
