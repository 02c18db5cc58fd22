# `make reproduce`: the main figures and tables at the smallest scale, on this machine, from nothing, into out/, compared with the
# published rows; `make reproduce-all`: all of them. `make test`: the tests; `make test-all`: also the long ones and a real SLURM.
# Each makes its environment in .venv first, where it is not there or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SCALE ?= tiny
JOBS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Compiled modules are kept: a run starts dozens of processes, and the tests hundreds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: reproduce reproduce-all test test-all lint
.DEFAULT_GOAL := reproduce

reproduce: $(VENV)/installed
	$(BIN)/python -m experiments run --scale $(SCALE)
	$(BIN)/python -m experiments compare out results --scale $(SCALE)

reproduce-all: $(VENV)/installed
	$(BIN)/python -m experiments run all --scale $(SCALE)
	$(BIN)/python -m experiments compare out results --scale $(SCALE)

test: $(VENV)/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(PYTEST)

test-all: test
	$(PYTEST) -m "long or slurm" tests
	$(PYTEST) beyond/tests

lint: $(VENV)/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

$(VENV)/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "error: Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; say make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet uv || true  # several times as fast; pip does without it
	$(BIN)/uv pip install --quiet --python $(BIN)/python -r $< || $(BIN)/python -m pip install --quiet -r $<
	@touch $@
