# `make reproduce`: the main figures and tables at the smallest scale, on this machine, from nothing; `make reproduce-all`: all.
# `make look`: what is stored of scale `mini`, drawn again, with few packages and no torch (.venv-look). `make test`: the tests.
# Each makes its environment in this folder first, .venv for all but `look`, where it is not there or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SCALE ?= tiny
JOBS ?= 3
# Compiled modules are kept: a run starts dozens of processes, and the tests hundreds. What is seldom imported is left to its first import.
export PYTHONDONTWRITEBYTECODE :=
SELDOM := tests?|testing|transformers/models|lm_eval|pip|setuptools|mypyc?|nltk|sklearn|openai|networkx|chardet|jieba|peft|fontTools

.PHONY: reproduce reproduce-all look test lint
.DEFAULT_GOAL := reproduce

reproduce: $(VENV)/installed
	$(BIN)/python -m experiments run --scale $(SCALE)

reproduce-all: $(VENV)/installed
	$(BIN)/python -m experiments run all --scale $(SCALE)

look: SCALE = mini
look: export PYTHONDONTWRITEBYTECODE = 1  # it is small because nothing is compiled
look: $(VENV)-look/installed
	$(VENV)-look/bin/python -m experiments render --scale $(SCALE)

test: $(VENV)/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

$(VENV)/installed: requirements.txt
$(VENV)-look/installed: requirements-look.txt
$(VENV)/installed: COMPILE = $(BIN)/python -m compileall -qq -j 0 -x '/($(SELDOM))/' $(VENV)/lib || true  # on all cores, which pip does not
$(VENV)/installed $(VENV)-look/installed:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "error: Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; say make PYTHON=python3.12")'
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --upgrade pip  # old ones are slow to choose
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile -r $<
	@$(COMPILE)
	@touch $@
