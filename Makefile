# Every target sets itself up on a machine that has Python 3.11+, make and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
STAMP := $(VENV)/.installed
WORKERS ?= auto
SIZE ?= cores

.PHONY: demo test test-accelerator check docs bench soak matrix clean

# torch first and by its exact version: a range could replace the build of this machine by one for GPUs.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt torch==2.13.0
	@$(PIP) install -c constraints.txt -e ".[test,check,docs,demo,plots]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/headwise demo

test: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not soak and not accelerator"

test-accelerator: $(STAMP)
	@$(BIN)/python -m pytest -m accelerator

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/python -m pytest -q -m "not slow" tests/test_docs.py
	@$(BIN)/python tests/audit.py

# A site that opens from the folder, search included; a warning, such as a broken link, is an error.
docs: $(STAMP)
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs site
	@echo "Open site/index.html"

bench: $(STAMP)
	@$(BIN)/python benchmarks/run.py --size $(SIZE) --json benchmarks.json

# Hours: hundreds of kills, tens of thousands of bad inputs, and errors put into the code to see that tests notice.
soak: $(STAMP)
	@$(PIP) install atheris || echo "atheris cannot be installed here"
	@HEADWISE_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) -m soak
	@$(BIN)/python tests/badinput/fuzz.py --seconds 600
	@$(BIN)/python tests/mutation.py

# Not run where this was written: needs several Pythons and a package index that has every version.
matrix:
	@$(PYTHON) tests/matrix.py

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .hypothesis
