# Every target makes the virtual environment first, once; after that only a change of pyproject.toml or constraints.txt does.
PYTHON ?= python3
VENV   ?= .venv

BIN       := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Compiled programs are kept between processes.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.1
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES ?= -1

.PHONY: help demo test slow faults reproduce lint docs bench clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo "Another Python: make test PYTHON=python3.12 VENV=.venv312"

demo: $(INSTALLED) ## fit real data that eight sites hold; draws demo/demo.png
	@$(BIN)/fedhybrid demo

test: $(INSTALLED) ## the tests, without the long tier
	@$(BIN)/python -m pytest -n 2 --dist loadfile --durations=15 --durations-min=5

slow: $(INSTALLED) ## the long tier of the tests
	@$(BIN)/python -m pytest -m slow -n 2 --dist loadfile

faults: $(INSTALLED) ## kills and attacks on real Flower processes, one after the other
	@$(BIN)/python -m pytest -m faults

reproduce: $(INSTALLED) ## the paper's figures, with a full search; most of an hour
	@$(BIN)/fedhybrid reproduce

lint: $(INSTALLED) ## ruff (rules and format) and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(INSTALLED) ## the documentation as a site, build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

bench: $(INSTALLED) ## the benchmarks
	@$(BIN)/python benchmarks/core.py

clean: ## remove caches and outputs; the virtual environment stays
	@rm -rf .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist demo reproduced compared
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing fedhybrid and what it needs into $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

$(BIN)/pip:
	@echo "Creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
