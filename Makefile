# make train   set everything up and train the quickstart team; make train UV=uv installs by uv
# make coach-model  fetch a 1.5B model that can be its coach
# make test    the default test suite
# make check   lint, types, import contracts, tests
# make up      the services in Docker; make down stops them

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Packages are compiled once all are there, by all cores; some bring files that no Python 3 compiles.
UV ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install --no-compile
INSTALL := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(PIP))
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

# Plain `make` says what there is: the lines above.
.PHONY: help setup train coach-model test test-slow test-nightly test-wheel test-docker check lint types imports format up down clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(VENV)/.cpu

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "MAPPA needs Python 3.11: install it, or name it with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch comes first and with what it needs: on some indexes its build brings CUDA libraries.
$(VENV)/.cpu: $(BIN)/python requirements/cpu.lock pyproject.toml
	@echo "installing the packages of requirements/cpu.lock into $(VENV) (a few minutes, once)"
	$(INSTALL) "$$(grep '^torch==' requirements/cpu.lock)"
	$(INSTALL) --no-deps -r requirements/cpu.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	$(COMPILE)
	@touch $@

$(VENV)/.dev: $(VENV)/.cpu requirements/dev.lock
	$(INSTALL) --no-deps -r requirements/dev.lock
	$(COMPILE)
	@touch $@

train: setup
	$(BIN)/mappa train --config configs/quickstart.yaml

# A language model for `mappa train --config configs/quickstart_llm_coach.yaml`: 1.1 GB to fetch.
coach-model: setup
	$(BIN)/mappa coach-model

# Two at once, a file to one process: most tests wait rather than compute. In the order of the
# folders the long runs come first, so that neither process waits for the other's at the end.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

# All slow tests on a machine by night (.ci/nightly), or those of TESTS: one process, Ctrl-C heard
# whoever starts it (a shell's background job ignores it, and tests interrupt runs with it), and how
# long it took.
test-nightly: $(VENV)/.dev
	@begun=$$(date +%s); \
	env --default-signal=INT $(BIN)/python -m pytest -m slow --durations=0 --durations-min=10 $(TESTS); \
	code=$$?; \
	echo "nightly: $(or $(TESTS),all slow tests) took $$(( ($$(date +%s) - begun + 30) / 60 )) min"; \
	exit $$code

# Builds the wheel and installs it, with what it asks for, into an environment of its own.
test-wheel: $(VENV)/.dev
	$(BIN)/python -m pytest -m wheel

# Needs a Docker Engine and the image of infra/sandbox.
test-docker: $(VENV)/.dev
	$(BIN)/python -m pytest -m docker

check: lint types imports test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/basedpyright --pythonpath $(BIN)/python

imports: $(VENV)/.dev
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

up:
	docker-compose up --detach --build

down:
	docker-compose down

clean:
	rm -rf $(VENV) build *.egg-info
