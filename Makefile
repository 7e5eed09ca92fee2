# Sets up .venv by itself. `make help` explains the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
CHAOS := $(PY) -m harness
TOOL := PYTHONPATH=tests:tools $(PY) -m
SCENARIO ?= spot-evict
BACKEND ?= local
SUITE ?= pre-launch
PLAN ?= pre-launch
OLD ?= .
ARGS ?=
ENGINES ?= docker slurm
export PYTHONDONTWRITEBYTECODE :=  # one run starts dozens of programs: they share what was compiled
WORKERS ?= 6
QUICK = -m 'not slow and not wheel' --ignore tests/report/test_report_browser.py $(FAST) $(ARGS)
FAST := $(addprefix tests/,adopt campaign cli diagnosis docs explore forecast fuzz gameday gate judge log matrix plan preflight report run spec theory timeline trainers test_import_rules.py test_plugins.py)
BENCH_STEPS ?= 1000

.DEFAULT_GOAL := help
USED := chaos gate gameday doctor setup

.PHONY: help help-all
help: ## The targets that users need
	@awk -F ':.*## ' '/^[a-z-]+:.*## / && index(" $(USED) ", " " $$1 " ") {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make chaos SCENARIO=node-loss BACKEND=local ARGS='--seed 7'"
	@echo "  make help-all       lists the other targets, for who changes the harness (CONTRIBUTING.md)"
help-all: ## All targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

PIP := $(PY) -m pip --disable-pip-version-check
# What takes long is said; PyTorch is large.
TELL_PIP := awk '/\([0-9.]+ MB\)$$/ || sub(/^Installing collected.*/, "Installing") {sub(/^ */, "  "); print; fflush()}'
EXTRAS := trainer,docker,kubernetes,load,s3,fuzz,gameday,metrics,otel,mlflow,gpu

# An environment holds the path of the checkout that it was made in: in its scripts, and where it finds this package.
# .ready tells that path. In a copied or moved checkout it is another one, and all of that is written again.
MADE_IN := $(shell cat $(VENV)/.ready 2>/dev/null)

$(VENV)/.ready: pyproject.toml constraints.txt requirements.txt $(if $(filter $(CURDIR),$(MADE_IN)),,another-place)
	@echo "Setting up $(VENV) (once; some minutes)"
	@$(PIP) --version >/dev/null 2>&1 || { \
		$(PYTHON) -c 'import sys; sys.exit(not sys.version_info >= (3, 11))' 2>/dev/null || \
			{ echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Say which: make PYTHON=python3.12 …"; exit 4; }; \
		$(PYTHON) -m venv --clear $(VENV); }
	@[ -z "$(MADE_IN)" ] || grep -lIrF '$(MADE_IN)/$(VENV)' $(VENV)/bin | xargs --no-run-if-empty sed -i 's|$(MADE_IN)/$(VENV)|$(CURDIR)/$(VENV)|'
	@$(PIP) install --quiet --require-hashes -r requirements.txt
	@set -o pipefail; $(PIP) install -c constraints.txt -e '.[$(EXTRAS)]' | $(TELL_PIP)
	@pwd >$@

.PHONY: another-place
another-place:

$(VENV)/.ready-dev: $(VENV)/.ready
	@set -o pipefail; $(PIP) install -c constraints.txt -e '.[$(EXTRAS),dev]' | $(TELL_PIP)
	@touch $@

.PHONY: lock
lock: ## Writes requirements.txt again: the core dependencies with their digests
	@$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@{ head -n 1 requirements.txt; $(VENV)-lock/bin/python -m uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate; } > requirements.new
	@mv requirements.new requirements.txt && rm -rf $(VENV)-lock

.PHONY: release
release: ## Checks, builds wheel and source archive twice, lists the dependencies (SBOM), and makes the tag; pushes nothing
	@tools/release.sh ready
	@$(MAKE) --no-print-directory check fast
	@$(PYTHON) -m venv $(VENV)-release && $(VENV)-release/bin/python -m pip install --quiet --disable-pip-version-check -r tools/release.txt
	@for part in build verify tag; do PYTHON=$(CURDIR)/$(VENV)-release/bin/python tools/release.sh $$part || exit; done

.PHONY: setup
setup: $(VENV)/.ready ## The virtual environment

# The last line of a run: make itself turns every failure into 2.
TELL = code=$$?; case $$code in 0) what=pass;; 1) what=fail;; 2) what='a mistake in a file or on the command line';; \
	3) what='inconclusive or invalid';; 4) what='this machine cannot run it';; 130) what='stopped by you';; \
	*) what='not expected';; esac; echo "exit code of chaos: $$code ($$what)"; exit $$code

.PHONY: chaos
chaos: $(VENV)/.ready ## One scenario, scored: SCENARIO=spot-evict BACKEND=local ARGS=…
	@$(CHAOS) run $(SCENARIO) --backend $(BACKEND) $(ARGS); $(TELL)

.PHONY: gate
gate: $(VENV)/.ready ## A suite of scenarios as one yes or no: SUITE=pre-launch
	@$(CHAOS) gate $(SUITE) --backend $(BACKEND) $(ARGS); $(TELL)

.PHONY: gameday
gameday: $(VENV)/.ready ## A schedule of scenarios on one job, with a live page: PLAN=pre-launch BACKEND=local ARGS=…
	@$(CHAOS) gameday $(PLAN) --backend $(BACKEND) $(ARGS); $(TELL)

.PHONY: test
test: $(VENV)/.ready-dev ## All tests, by six workers (tools/groups.py says which one does what): WORKERS=0 for none
	@$(PY) -m pytest $(if $(OUTCOMES),--outcomes=$(OUTCOMES)) --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder --durations 30 --durations-min 5 $(ARGS)

.PHONY: fast
fast: $(VENV)/.ready-dev ## The tests that start nothing: under a minute
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist loadscope $(QUICK)

.PHONY: coverage
coverage: $(VENV)/.ready-dev ## Which lines of harness/ the tests of `make fast` run, in one process: build/coverage/index.html
	@mkdir -p build/coverage && $(PY) -m coverage run -m pytest $(QUICK)
	@$(PY) -m coverage html --quiet && $(PY) -m coverage report --format=total

.PHONY: properties
properties: $(VENV)/.ready-dev ## The properties, with other examples each time: what fails is kept, and fails again
	@$(PY) -m pytest -m hypothesis --hypothesis-profile other-examples --numprocesses $(WORKERS) $(ARGS)

.PHONY: format
format: $(VENV)/.ready-dev ## Formats the code and mends what can be mended by itself
	@$(PY) -m ruff check --quiet --fix . || true
	@$(PY) -m ruff format --quiet .

.PHONY: check
check: $(VENV)/.ready-dev ## Style, types and import rules
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m pytest tests/test_import_rules.py

.PHONY: verdict-matrix
verdict-matrix: $(VENV)/.ready-dev ## Broken trainers and healthy ones: all judged rightly? RUNS=folder keeps the runs
	@$(TOOL) verdict_matrix $(RUNS)

.PHONY: mutation
mutation: $(VENV)/.ready-dev ## Breaks the harness on purpose: what do tests notice? ARGS='--sample 300'
	@$(TOOL) mutation $(ARGS)

.PHONY: ruler
ruler: $(VENV)/.ready-dev ## What another version of the judge says otherwise: OLD=a checkout ARGS='--folder FOLDER'
	@$(TOOL) ruler --old $(OLD) $(ARGS)

.PHONY: margins
margins: $(VENV)/.ready-dev ## How near healthy and broken runs come to each threshold of the judge: ARGS='--folder FOLDER'
	@$(TOOL) margins $(ARGS)

.PHONY: kills
kills: $(VENV)/.ready-dev ## Kills runs at random moments: is anything left? ARGS='--count 200 --backends local,docker,slurm'
	@$(TOOL) kills $(ARGS)

.PHONY: alerting-day
alerting-day: $(VENV)/.ready-dev ## Real faults under a real Prometheus: does each alert fire and resolve? Takes 3 minutes
	@$(TOOL) alerting_day

.PHONY: stacks
stacks: $(VENV)/.ready-dev ## Example trainers killed and resumed under observation: STACKS=a virtual environment with them
	@$(TOOL) stacks $(STACKS) $(ARGS)

.PHONY: bench
bench: $(VENV)/.ready ## Scoring at three sizes, a forecast, restarts beside torchrun: BENCH_STEPS=10000 for ten million steps
	@for steps in $$(( $(BENCH_STEPS) / 10 )) $$(( $(BENCH_STEPS) / 3 )) $(BENCH_STEPS); do $(PY) benches/scoring.py --steps $$steps; done
	@$(PY) benches/forecast.py
	@$(PY) benches/restart.py

.PHONY: league
league: $(VENV)/.ready ## Known training stacks against faults: ARGS='--stacks dcp --tries 1'
	@$(PY) -m benches.league $(ARGS)

.PHONY: bug
bug: $(VENV)/.ready ## Public bugs in released code, found by the shipped commands: NAME=lookahead-weights shows one again; no NAME lists them
	@$(PY) -m benches.bugs $(NAME)

.PHONY: healthy
healthy: $(VENV)/.ready ## Healthy jobs over all scenarios and stacks: is one accused? Takes hours, and goes on where it ended: ARGS='--busy --at-once 2'
	@$(PY) -m benches.healthy $(ARGS)

.PHONY: docs
docs: $(VENV)/.ready-dev $(VENV)-site/.ready ## Writes again what is generated of docs/, and builds the site: build/site/index.html
	@$(TOOL) pages
	@$(VENV)-site/bin/sphinx-build -q -W --keep-going -c tools/site docs build/site

$(VENV)-site/.ready: tools/site/requirements.txt
	@$(PYTHON) -m venv $(VENV)-site && $(VENV)-site/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: simulated-search
simulated-search: $(VENV)/.ready-dev ## Simulated jobs under drawn faults, healthy and broken: all judged rightly? ARGS='10000 7'
	@$(TOOL) simulated_search $(ARGS)

.PHONY: damaged-inputs
damaged-inputs: $(VENV)/.ready-dev ## Damages event logs and YAML files at random: is every answer a clear one? ARGS='1000 7'
	@$(TOOL) damaged_inputs $(ARGS)

.PHONY: heal
heal: $(VENV)/.ready ## Undoes whatever killed runs left behind: ARGS=--dry-run only names it
	@$(CHAOS) heal $(ARGS)

.PHONY: doctor
doctor: $(VENV)/.ready ## What works on this machine
	@$(CHAOS) doctor

.PHONY: engines
engines: ## Installs what tests need, and starts the real engines (Debian, as root): ENGINES=docker for one of them
	@engines/provision.sh $(ENGINES) browser monitoring tests || exit 4
	@for engine in $(ENGINES); do engines/$$engine.sh start || exit 4; done

.PHONY: fresh
fresh: ## These commands on a machine that has nothing else (Debian, as root): PYTHON=3.13 ARGS='--only user'
	@PYTHON= engines/provision.sh fresh || exit 4
	@PYTHON=$(PYTHON) engines/fresh.sh $(ARGS)

.PHONY: image
image: $(VENV)/.ready ## The image of Docker nodes: BASE_IMAGE=… for another base than this host's release
	@engines/image.sh

.PHONY: clean
clean: ## Removes the virtual environment and caches (not the reports)
	@rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
