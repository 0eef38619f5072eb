# Every target sets itself up on a machine that has Python 3.11+, make and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
STAMP := $(VENV)/.installed
WORKERS ?= auto

.PHONY: demo test check bench soak screenshots clean

# torch first and by its exact version: a plain range would pull a GPU build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt torch==2.13.0
	@$(PIP) install -c constraints.txt -e ".[test,check,demo,plots]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/headwise demo

test: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not accelerator"

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/python -m pytest -q -m "not slow" tests/test_docs.py

bench: $(STAMP)
	@$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
