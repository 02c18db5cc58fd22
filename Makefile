# `make reproduce`: the main figures and tables at the smallest scale, on this machine, from nothing; `make reproduce-all`: all.
# `make test`: the tests. Each makes .venv in this folder first where it is not there or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SCALE ?= tiny
JOBS ?= 2

.PHONY: reproduce reproduce-all test lint
.DEFAULT_GOAL := reproduce

reproduce: $(VENV)/installed
	$(BIN)/python -m experiments run --scale $(SCALE)

reproduce-all: $(VENV)/installed
	$(BIN)/python -m experiments run all --scale $(SCALE)

test: $(VENV)/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

$(VENV)/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "error: Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; say make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.txt
	@touch $@
