# `make serve` and `make test` set up everything they need, in .venv beside this file.
# TORCH is installed first, so that no resolver picks another build; see README.md, "What is downloaded".

PYTHON ?= python3
TORCH ?= torch==2.13.0
TEST_JOBS ?= 2
ALONE := tests/flare tests/ignition tests/runtime tests/server
BIN := .venv/bin
PYTEST = $(BIN)/python -m pytest --durations=10
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export HF_HUB_OFFLINE := 1

.PHONY: serve test test-fast test-slow histories check format bench clean help

help:  ## Say what there is.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

serve: .venv/run.stamp  ## Serve the default model on http://127.0.0.1:8000 (ARGS="--port 9000 ..." are passed on).
	$(BIN)/flare run $(ARGS)

test: .venv/dev.stamp  ## Set up and run every test; see docs/how-to/test.md.
	$(call run-tests,every test,not gpu)

test-fast: .venv/dev.stamp  ## The short tests, for the inner loop.
	$(call run-tests,short tests,not gpu and not slow)

test-slow: .venv/dev.stamp  ## The long ones: real weights against transformers, fuzzing, long simulations.
	$(call run-tests,long tests,not gpu and slow)

# Both halves run whatever the first one says; workers take single tests, so that both end together.
define run-tests
@failed=0; \
echo "== $(1), $(TEST_JOBS) at a time, but those that must run alone"; \
OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PYTEST) -n $(TEST_JOBS) --dist worksteal \
  -m "$(2) and not alone" --ignore=tests/server || failed=1; \
echo "== $(1) that must run alone"; \
$(PYTEST) -m "$(2) and alone" $(ALONE) || failed=1; \
exit $$failed
endef

histories: .venv/dev.stamp  ## A million scheduler calls of random histories, every call checked (ten minutes or so).
	FLARE_HISTORY_PIECES=100 $(BIN)/python -m pytest tests/scheduler/test_histories.py -k million

check: .venv/dev.stamp  ## Format, lint, types, import layers, house rules.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/tidy.py

format: .venv/dev.stamp  ## Rewrite what can be rewritten.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev.stamp  ## Decision cost, one step of every shape, and serving; prints tables.
	$(BIN)/python benchmarks/plan_latency.py
	$(BIN)/python benchmarks/native_step.py
	$(BIN)/flare bench --start 'flare=$(BIN)/flare run --port {port}' -s readme --markdown

clean:  ## Remove the virtual environment and caches of the tools.
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .hypothesis .test-libraries

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; say PYTHON=/path/to/python3.11 make ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/run.stamp: pyproject.toml | .venv/bin/python
	@echo "Setting up .venv (about 1.2 GB on disk with the CPU build of PyTorch; once) ..."
	$(PIP) '$(TORCH)'
	$(PIP) --editable .
	@touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	@echo "Setting up .venv with the development tools (about 1.5 GB on disk; once) ..."
	$(PIP) '$(TORCH)'
	$(PIP) --editable '.[dev]'
	@touch $@ .venv/run.stamp
