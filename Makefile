# make verify [IMPL=eager|my_port.py] [PROFILE=smoke] : judge an implementation
# make quick                                          : while you work: lint, types, every test that is no whole run
# make test                                           : everything a change must pass
PYTHON ?= python3
IMPL ?= eager
PROFILE ?= smoke
VENV ?= .venv
BIN := $(VENV)/bin
UNITS = $(BIN)/python -m pytest tests -n auto --dist worksteal --quiet
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
FACTS := pyproject.toml constraints.txt

# The type checker takes one core, and a minute by itself: it goes on beside the tests.
beside_types = $(MAKE) --no-print-directory lint types & $(1); tests=$$?; wait $$! && exit $$tests

# Sessions under test start hundreds of processes. Without compiled modules each compiles our
# modules and rewrites their assertions again: 3.6 s of CPU instead of 2.4 s for an empty session.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache

.DEFAULT_GOAL := help
.PHONY: help verify quick test lint types units vendors nightly bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

verify: $(VENV)/.base ## judge IMPL (default eager) with PROFILE (default smoke); "Error 1" means rejected
	@$(BIN)/kdaverify verify --impl '$(IMPL)' --profile '$(PROFILE)'

quick: $(VENV)/.all ## while you work: lint and types beside every test that is no whole run of the suites
	@$(call beside_types,$(UNITS) -m 'not whole_run')

test: $(VENV)/.all ## lint, types, our own tests, then the suites on every implementation that runs here
	@$(call beside_types,$(UNITS))
	@$(MAKE) --no-print-directory vendors

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.all
	$(BIN)/pyright --pythonpath $(BIN)/python

units: $(VENV)/.all
	$(UNITS)

vendors: $(VENV)/.all
	$(BIN)/python .ci/verify_all.py

nightly: lint types ## as test, with every case of the tests that rotate and every vendor
	$(UNITS) --every
	$(BIN)/python .ci/verify_all.py --all

bench: $(VENV)/.all ## the figures that the README quotes
	$(BIN)/python -m benchmarks

clean: ## remove everything that make and the tools wrote
	rm -rf $(VENV) build dist records .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps: a second call installs nothing. The package is installed in place, so edited code needs no new install.
$(VENV)/.base: $(FACTS) | $(BIN)/python
	@echo "installing kdaverify into $(VENV) (once)"
	$(PIP) --editable .
	@touch $@

# deltanet-tpu requires Python 3.12 and a TPU build of JAX; its Pallas kernel runs without either.
$(VENV)/.all: $(VENV)/.base
	@echo "installing every vendor that runs on this machine and our tools into $(VENV) (once)"
	$(PIP) --editable '.[transformers,onnxruntime,pallas,fla,parquet,pictures,html,ray,docs,mutation,dev]'
	$(PIP) --no-deps --ignore-requires-python deltanet-tpu==0.3.0
	@touch $@
