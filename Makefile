# Every job of the project is a target; `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
MINUTES ?= 10

# Triton needs a C compiler only to launch compiled kernels, that is when one of these exists.
GPU_DEVICES ?= $(wildcard /dev/nvidia[0-9]* /dev/kfd /dev/dxg)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup verify explore test lint check gallery mutate contract-docs offline gpu bench clean active-python

# The code that runs is this tree, whatever is installed.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

ifeq ($(strip $(VENV)),)
PY := $(PYTHON)
SETUP := active-python
else
PY := $(VENV)/bin/python
SETUP := $(VENV)/.kda-verify-installed
LOG := $(VENV)/kda-verify-install.log
endif

# Modules a target imports, checked where nothing may be installed.
NEEDS := torch triton numpy hypothesis rich
test: NEEDS += pytest xdist
lint: NEEDS += ruff mypy
check: NEEDS += pytest xdist ruff mypy

# Shell fragments: each ends the recipe with one line on stderr when its condition does not hold.
fail = { echo "kda-verify: $(strip $(1))" >&2; exit 1; }
OLD_PYTHON = import sys; sys.exit(sys.version_info < (3, 10))

define need_python
command -v "$(1)" >/dev/null || $(call fail,python '$(1)' not found; name one of 3.10 or newer with PYTHON=); \
"$(1)" -c '$(OLD_PYTHON)' 2>/dev/null || $(call fail,'$(1)' is not a working Python 3.10 or newer; name one with PYTHON=)
endef

define need_compiler
if [ -n "$(GPU_DEVICES)" ] && [ "$$TRITON_INTERPRET" != 1 ]; then \
	if [ -n "$$CC" ]; then command -v "$$CC"; else command -v gcc || command -v clang; fi >/dev/null \
	|| $(call fail,no C compiler$${CC:+ '$$CC'}: Triton needs gcc$(,) clang or CC= to launch kernels on a GPU); \
fi
endef
, := ,

OFFLINE = Connection(Error|.*(refused|reset|broken|aborted))|timed out|name resolution|unreachable|ProxyError|Max retries|SSLError|setuptools.*versions: none

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

verify: setup ## Judge every kernel and print the verdicts (VENV= uses the active python; ARGS= adds flags)
	@$(need_compiler)
	@$(PY) -m kda_verify verify $(ARGS)

explore: setup ## Judge newly drawn cases for MINUTES=10
	@$(need_compiler)
	@$(PY) -m kda_verify verify --explore --minutes $(MINUTES)

test: setup ## Run the test suite in JOBS=2 processes (KDA_PROFILE= picks the profile)
	@$(need_compiler)
	@$(PY) -m pytest -n $(JOBS)

lint: setup ## Check style, formatting and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

check: lint test ## Lint, then test

gallery: setup ## Plant every known fault in a copy of the kernels and say which check finds it
	@$(need_compiler)
	@$(PY) -m kda_verify.faults.gallery --store $(or $(STORE),build/gallery.jsonl) $(ARGS)

mutate: setup ## Change kernels, contract, budget and comparison in small ways and count what is noticed
	@$(PY) -m kda_verify.mutation --store $(or $(STORE),build/mutation.jsonl) \
		--sample $(or $(SAMPLE),600) --seed $(or $(SEED),0) --workers $(JOBS) $(ARGS)

contract-docs: setup ## Write docs/contract.md from the contract's clauses
	@$(PY) -m kda_kernels.contract.markdown --write docs/contract.md

offline: setup ## Compile for every GPU target without a GPU and compare with the recorded resources
	@$(PY) -m kda_kernels.offline --check fixtures/resources.json

gpu: setup ## Judge the kernels compiled on this machine's GPU (VENV= uses the active torch)
	@$(need_compiler)
	@$(PY) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("kda-verify: torch " + torch.__version__ + " sees no GPU here")'
	@$(PY) -m kda_verify verify --profile gpu $(ARGS)

bench: setup ## Judge and time the kernels and their peers on this machine's GPU (ARGS= adds flags)
	@$(need_compiler)
	@$(PY) -m benchmarks --json $(or $(JSON),build/bench.json) $(ARGS)

setup: $(SETUP) ## Create .venv and install what the other targets need, once (they do it themselves)

clean: ## Remove caches and build output, never the environment
	@rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find kda_ref kda_kernels kda_verify property_tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

active-python:
	@$(call need_python,$(PYTHON))
	@"$(PYTHON)" -c 'import sys; from importlib.util import find_spec; gone = [m for m in sys.argv[1:] if not find_spec(m)]; gone and sys.exit("kda-verify: " + sys.executable + " lacks " + ", ".join(gone) + "; install them there, or leave VENV= out")' $(NEEDS)

# An environment that exists is reused and never removed.
$(VENV)/.kda-verify-installed: pyproject.toml constraints.txt
	@if [ ! -x "$(PY)" ]; then \
		[ ! -e "$(VENV)/bin" ] || $(call fail,'$(VENV)' holds no python that runs; move it away and run make again); \
		$(call need_python,$(PYTHON)); \
		"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || $(call fail,'$(PYTHON)' lacks the venv module; install it (python3-venv on Debian)); \
		"$(PYTHON)" -m venv "$(VENV)" >/dev/null 2>&1 || $(call fail,'$(PYTHON) -m venv $(VENV)' failed; run it by hand to see why); \
	fi
	@$(call need_python,$(PY))
	@echo "kda-verify: installing into $(VENV); the first time takes minutes (log: $(LOG))"
	@"$(PY)" -m pip install -c constraints.txt -e '.[dev,peers]' >"$(LOG)" 2>&1 || { \
		if grep -qE '$(OFFLINE)' "$(LOG)"; then \
			$(call fail,pip cannot download: no network$(,) or no package index in reach; run make again when there is (log: $(LOG))); \
		fi; \
		$(call fail,pip install failed: $$( grep -m 1 ERROR: "$(LOG)" || tail -n 1 "$(LOG)") (log: $(LOG))); }
	@touch "$@"
