# `make` lists what there is. Without make: the recipes are one line each.
.DEFAULT_GOAL := help
.PHONY: help install check test format clean
PYTHON := .venv/bin/python

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: .venv/bin/python  ## a virtual environment with everything that the tests need

check: install  ## ruff, import contracts and pyright: no servers, half a minute
	$(PYTHON) -m tests --check

test: install  ## what CI runs: check, then all tests against real servers
	$(PYTHON) -m tests

format: install  ## put the code into shape
	.venv/bin/ruff check --fix --quiet
	.venv/bin/ruff format

clean:  ## remove caches and builds; the virtual environment stays
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find deuz_workers tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[test]'
