# `make demo` and `make test` do all of their own set-up; all they need is a Python from 3.11 to 3.14.
# Florin lives in .venv here, with the newest of these for which everything is to be had. The engines' environment
# (3.5 GB) is made once in the user's cache.

PYTHON ?= python3.14 python3.13 python3.12 python3.11 python3 python
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FAST := tests/unit tests/contract tests/property tests/integration tests/field tests/browser tests/tools
# What a second Python is most likely to do otherwise, and cheap: the judgements and parsers, and no process.
ON_A_SECOND_PYTHON := $(addprefix tests/unit/adapters/,checks engine_agent reconcile security sources) \
  $(addprefix tests/unit/gateway/,dataplane dialects fields routing tenants)
# Most fast tests wait for most of their time: more of them than processors run at once. What is left of a worker's
# tests when another has none goes to that one (tests/conftest.py).
WORKERS ?= 5
PYTEST_FAST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(FAST)
PYTEST_ENGINE = $(BIN)/python -m pytest tests/engine
ARGS ?=
# The longest first.
LINTERS := lint-types lint-style lint-layers lint-dependencies lint-site
IN_PAIRS = $(MAKE) --no-print-directory --jobs 2 --output-sync=target
# Container images often set it. Each process of the tests would compile every module anew, and there are thousands.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-long tools-verified check check-python check-second-python lint $(LINTERS) compiled fast-tests engine-tests-fleet engine-tests-rest docs bench bench-peers bench-placement bench-fairness loadtest fuzz bystander clients-newest chaos soak lock clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo                 the whole system here, with real vLLM engines, until Ctrl-C'
	@echo 'make demo ARGS="--exit"   the same, played once'
	@echo 'make test                 every test, real engines included'
	@echo 'make test-long            the same with both databases, whole crash matrices and random search; takes hours'
	@echo 'make clients-newest       the examples of docs/clients with the newest clients: which pages broke'
	@echo 'make tools-verified       the tests of tools (tests/tools/), which other commands leave out until a tool changes'
	@echo 'make check                lint, types, layers, documentation and the fast tests; some on a second Python, too'
	@echo 'make check-python PYTHON=python3.12   types and all fast tests on that Python'
	@echo 'make lint                 the same without the tests'
	@echo 'make docs                 the documentation as a site, in site/; strict about links'
	@echo 'make bench                what Florin costs per request, beside relays that do nothing else'
	@echo 'make bench-peers          the same beside vllm-router, smg and LiteLLM, which it installs (1 GB)'
	@echo 'make bench-placement      scheduling policies on two real engines, the same requests for each'
	@echo 'make bench-fairness       a flood on two real engines, with and without the fair queue'
	@echo 'make loadtest             a steady mixed load on the demo'
	@echo 'make fuzz                 rubbish from every side for a minute (ARGS="--seconds 3600" for longer)'
	@echo 'make bystander            how long a customer waits while each small attack runs (ARGS="--workers 1")'
	@echo 'make chaos                50 kills and other faults under load, and what must hold (ARGS="--seed N")'
	@echo 'make soak                 ten minutes of steady load, and what grows (ARGS="--hours N" for longer)'
	@echo 'make lock                 write the lock files anew; ARGS=--upgrade takes newer versions'
	@echo 'make clean                remove what these made in this directory'

demo: $(READY)
	@$(BIN)/florin demo $(ARGS)

test: $(READY) compiled
	@$(BIN)/python -m deploy.demo.model
	@mkdir -p .cache
	@$(MAKE) --no-print-directory --jobs 3 $(if $(FAST),fast-tests) engine-tests-fleet engine-tests-rest
	@if [ "$$(cat .cache/engine-tests-fleet .cache/engine-tests-rest | tr -d '\n')" = 55 ]; then \
	  echo 'ARGS select no engine test.' >&2; exit 1; \
	fi

# Beside each other: the fast tests wait for a third of their time, and an engine's start takes one processor. Each line
# is shown when it is complete, with the part that it is of: --output-sync would show nothing until a part has ended,
# after minutes. The pipe hides pytest's exit status, so it is kept in a file; 5 means that ARGS leave no test.
fast-tests: PART = $(PYTEST_FAST)
engine-tests-fleet engine-tests-rest: MAY_BE_EMPTY = |5
engine-tests-fleet: PART = $(PYTEST_ENGINE) -m fleet $(ARGS)
engine-tests-rest: PART = $(PYTEST_ENGINE) -m 'not fleet' $(ARGS)
fast-tests engine-tests-fleet engine-tests-rest:
	@rm -f .cache/$@; \
	{ $(PART) 2>&1; echo $$? >.cache/$@; } | \
	  while IFS= read -r line; do printf '%s: %s\n' $(patsubst %-tests,%,$(@:engine-tests-%=%)) "$$line"; done; \
	status=$$(cat .cache/$@) && case $$status in 0$(MAY_BE_EMPTY)) ;; *) exit $$status;; esac

test-long:
	@FLORIN_TESTS=long $(MAKE) --no-print-directory test

tools-verified: $(READY)
	FLORIN_TESTS=long $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/tools $(ARGS)
	@$(BIN)/python -m tests.support.verified

check: $(READY)
	@$(IN_PAIRS) $(LINTERS) compiled
	$(PYTEST_FAST) $(ARGS)
	@$(MAKE) --no-print-directory check-second-python

check-second-python: $(READY)
	@python=$$($(BIN)/python -m tests.tools.second_python); \
	if [ -z "$$python" ]; then echo 'No second Python from 3.11 to 3.14 is installed here.'; exit; fi; \
	echo "With $$("$$python" --version):"; "$$python" -m pytest -q $(ON_A_SECOND_PYTHON)

# In an environment of its own. The types that mypy knows of Python's own modules are that version's, too.
check-python:
	@$(MAKE) --no-print-directory types-and-fast-tests VENV=.venv-$(notdir $(firstword $(PYTHON))) PYTHON="$(PYTHON)"

types-and-fast-tests: $(READY)
	$(BIN)/mypy --python-version $$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	$(PYTEST_FAST) $(ARGS)

lint: $(READY)
	@$(IN_PAIRS) $(LINTERS)

lint-types:
	$(BIN)/mypy

# Workers begin together, and each would compile everything.
compiled: $(READY)
	@$(BIN)/python -m pytest --noconftest -p tests.support.compiled

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-layers:
	$(BIN)/lint-imports

lint-dependencies:
	$(BIN)/deptry .
	$(BIN)/deptry loadtests tests --exclude '\.venv' --ignore DEP002,DEP004

lint-site:
	$(BIN)/zensical build --strict

docs: $(READY)
	$(BIN)/python -m tests.tools.docs
	$(BIN)/zensical build --strict

bench: $(READY)
	@$(BIN)/python -m loadtests.overhead $(ARGS)
	@$(BIN)/python -m loadtests.overhead.limits

bench-peers: $(READY)
	@$(BIN)/python -m loadtests.overhead --peers $(ARGS)

bench-placement: $(READY)
	@$(BIN)/python -m loadtests.placement $(ARGS)

bench-fairness: $(READY)
	@$(BIN)/python -m loadtests.fairness $(ARGS)

loadtest: $(READY)
	@$(BIN)/python -m loadtests.run_locust $(ARGS)

fuzz: $(READY)
	@$(BIN)/python -m loadtests.fuzz $(ARGS)

bystander: $(READY)
	@$(BIN)/python -m loadtests.fuzz.bystander $(ARGS)

clients-newest: $(READY)
	@FLORIN_CLIENTS=newest CI=true $(BIN)/python -m pytest -n 0 -q --tb=short -rf tests/engine/test_clients.py $(ARGS)

chaos: $(READY)
	@$(BIN)/python -m loadtests.chaos $(ARGS)

soak: $(READY)
	@$(BIN)/python -m loadtests.soak $(ARGS)

# Needs no .venv: after a merge, the lock file may be the very thing that cannot be installed.
lock:
	@for python in $(PYTHON); do \
	  "$$python" -c '' 2>/dev/null && exec "$$python" tests/tools/lock.py $(ARGS); \
	done; echo 'No Python is found.' >&2; exit 1

clean:
	rm -rf .venv .venv-* site .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
	@echo "The engines' environment and the demo's models stay in $${XDG_CACHE_HOME:-$$HOME/.cache}/florin."

# Anew when the pins or the project's own description change. The mark is written last: an interrupted
# installation is gone through again.
$(READY): requirements.lock pyproject.toml
	@deploy/install.sh $(VENV) $(PYTHON)
	@touch $@
