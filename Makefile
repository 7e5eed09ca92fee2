# Sets up .venv by itself. `make help` explains the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
CHAOS := $(VENV)/bin/chaos
SCENARIO ?= spot-evict
BACKEND ?= local
SUITE ?= pre-launch
ARGS ?=
ENGINES ?= docker slurm
BENCH_STEPS ?= 1000

.DEFAULT_GOAL := help

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make chaos SCENARIO=node-loss BACKEND=local ARGS='--seed 7'"

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version). Say which: make PYTHON=python3.12 …"; exit 4; }
	@echo "Setting up $(VENV) (once; PyTorch is large)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trainer,docker,kubernetes,load,s3]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trainer,docker,kubernetes,load,s3,dev]'
	@touch $@

.PHONY: setup
setup: $(VENV)/.ready ## The virtual environment

.PHONY: chaos
chaos: $(VENV)/.ready ## One scenario, scored: SCENARIO=spot-evict BACKEND=local ARGS=…
	@$(CHAOS) run $(SCENARIO) --backend $(BACKEND) $(ARGS)

.PHONY: gate
gate: $(VENV)/.ready ## A suite of scenarios as one yes or no: SUITE=pre-launch
	@$(CHAOS) gate $(SUITE) --backend $(BACKEND) $(ARGS)

.PHONY: test
test: $(VENV)/.ready-dev ## All tests
	@$(VENV)/bin/python -m pytest $(ARGS)

.PHONY: check
check: $(VENV)/.ready-dev ## Style, types and import rules
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/python -m pytest tests/test_import_rules.py

.PHONY: verdict-matrix
verdict-matrix: $(VENV)/.ready-dev ## Broken trainers and healthy ones: all judged rightly? RUNS=folder keeps the runs
	@PYTHONPATH=tests $(VENV)/bin/python -m mutants.matrix $(RUNS)

.PHONY: mutation
mutation: $(VENV)/.ready-dev ## Breaks the harness on purpose: what do tests notice? ARGS='--sample 300'
	@PYTHONPATH=tests $(VENV)/bin/python -m mutation $(ARGS)

.PHONY: bench
bench: $(VENV)/.ready ## Scoring at three sizes, restarts beside torchrun: BENCH_STEPS=10000 for ten million steps
	@for steps in $$(( $(BENCH_STEPS) / 10 )) $$(( $(BENCH_STEPS) / 3 )) $(BENCH_STEPS); do $(VENV)/bin/python benches/scoring.py --steps $$steps; done
	@$(VENV)/bin/python benches/restart.py

.PHONY: backends
backends: $(VENV)/.ready-dev ## Writes docs/backends.md again: which backend can do what
	@PYTHONPATH=tests $(VENV)/bin/python -m conformance.table

.PHONY: events-doc
events-doc: $(VENV)/.ready-dev ## Writes docs/events.md again: the vocabulary of the event log
	@PYTHONPATH=tests $(VENV)/bin/python -m docs.events_page

.PHONY: fuzz-inputs
fuzz-inputs: $(VENV)/.ready-dev ## Damages event logs and YAML files at random: is every answer a clear one? ARGS='1000 7'
	@PYTHONPATH=tests $(VENV)/bin/python -m fuzz $(ARGS)

.PHONY: heal
heal: $(VENV)/.ready ## Undoes whatever killed runs left behind
	@$(CHAOS) heal

.PHONY: doctor
doctor: $(VENV)/.ready ## What works on this machine
	@$(CHAOS) doctor

.PHONY: engines
engines: ## Installs and starts the real engines, and a browser (Debian, as root): ENGINES=docker for one of them
	@engines/provision.sh $(ENGINES) browser || exit 4
	@for engine in $(ENGINES); do engines/$$engine.sh start || exit 4; done

.PHONY: image
image: $(VENV)/.ready ## The image of Docker nodes: BASE_IMAGE=… for another base than this host's release
	@engines/image.sh

.PHONY: clean
clean: ## Removes the virtual environment and caches (not the reports)
	@rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
