# `make demo` shows what comes out; `make test` proves that it is right. Both make the virtual
# environment in .venv first, when it is not there or older than pyproject.toml.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Stages follow each other, also under `make -j`.
.NOTPARALLEL:

# The Python that .venv is made with.
PYTHON ?= python3
# Options of the demo: make demo DEMO="--steps 50 --checkpointing".
DEMO ?=
# Options of pytest: make pytest PYTEST="-k view".
PYTEST ?=
# Tests are spread over this many processes, whole files each. They are of one thread mostly, and
# those that start several processes mostly wait.
JOBS ?= 2
SPREAD = -n $(JOBS) --dist loadfile --no-loadscope-reorder
# What the oldest supported torch has to pass.
OLDEST_TORCH ?= 2.8.0
# The last with a tracer of its own for torch.fx, which is tested, too.
OLDEST_TRANSFORMERS ?= <5
OLDEST_TESTS ?= tests/tracker tests/order $(wildcard tests/distributed/test_[cfot]*.py)

VENV := .venv
OLDEST_VENV := .venv-oldest
READY := $(VENV)/.installed
OLDEST_READY := $(OLDEST_VENV)/.installed

.PHONY: help
help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

.PHONY: demo
demo: $(READY) ## Train a small GPT and show where each step's time went
	@$(VENV)/bin/otel-modtrack demo $(DEMO)

.PHONY: test
test: lint backends pytest test-oldest ## Run every check: lint, tests with coverage, the oldest torch
	@echo "make test: PASSED (lint, types, tests, oldest torch)"

.PHONY: lint
lint: $(READY) ## Check style, format and types
	@echo "== Lint"
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@cd frontend && if ! command -v npm >/dev/null; then \
		echo "== Skipped: checks of frontend/, for npm is missing"; \
	elif [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --silent; then \
		npm run --silent check; \
	else \
		echo "== Skipped: checks of frontend/, for its tools could not be installed"; \
	fi

.PHONY: pytest
pytest: $(READY) ## Run the tests with branch coverage
	@echo "== Tests"
	@$(VENV)/bin/python -m pytest $(SPREAD) --cov --cov-report=term $(PYTEST)

.PHONY: test-oldest
test-oldest: $(OLDEST_READY) ## Run the tracker's tests on the oldest supported torch
	@echo "== Tests on torch $(OLDEST_TORCH): $(OLDEST_TESTS)"
	@$(OLDEST_VENV)/bin/python -m pytest $(SPREAD) $(OLDEST_TESTS)

# Without Go there is nothing to build: the tests that need the programs say so, and are skipped.
.PHONY: backends
backends: ## Build Jaeger and a Collector from Go modules, into a cache, unless they are there
	@echo "== Backends"
	@scripts/backends/build.sh || case $$? in \
		3|4) echo "== Skipped: tests against the real Jaeger and Collector" ;; \
		*) exit 1 ;; esac

.PHONY: jaeger
jaeger: ## Run a real Jaeger and a Collector until Ctrl-C, without Docker
	@scripts/backends/run.sh

.PHONY: bench
bench: $(READY) ## Measure the overhead per module call, collective and export, of metrics, and the page
	@$(VENV)/bin/python benchmarks/overhead.py
	@$(VENV)/bin/python benchmarks/collectives.py
	@$(VENV)/bin/python benchmarks/metrics.py
	@if command -v go >/dev/null; then $(VENV)/bin/python benchmarks/export.py; fi
	@if command -v chromium >/dev/null; then $(VENV)/bin/python benchmarks/page.py; fi

.PHONY: page
page: ## Build the page of `view --html` from frontend/ (needs Node 20 or newer)
	@cd frontend && npm ci && npm run check && npm run build

.PHONY: pictures
pictures: $(READY) ## Take the README's pictures anew (needs chromium)
	@$(VENV)/bin/python scripts/pictures.py

.PHONY: format
format: $(READY) ## Rewrite the code in the project's style
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

.PHONY: clean
clean: ## Remove the virtual environments and everything that was generated
	rm -rf $(VENV) $(OLDEST_VENV) frontend/node_modules build dist .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache benchmarks/results modtrack-demo.jsonl
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml scripts/make_venv.sh
	@scripts/make_venv.sh $(VENV) "$(PYTHON)" demo,test,dev
	@touch $@

$(OLDEST_READY): pyproject.toml scripts/make_venv.sh scripts/find_oldest_python.sh
	@oldest=$$(PYTHON="$(PYTHON)" scripts/find_oldest_python.sh); \
	scripts/make_venv.sh $(OLDEST_VENV) "$$oldest" test "torch==$(OLDEST_TORCH)" \
		"transformers$(OLDEST_TRANSFORMERS)"
	@touch $@
