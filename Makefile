PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests that share servers share a process; beyond a few processes each would start servers of its own for nothing.
ON_ALL_CORES := --numprocesses=logical --maxprocesses=4 --dist=loadscope

# A test that failed runs once more alone before it counts: see tests/once_more.py.

.PHONY: up test test-long lint bench docs demo-models clean

up: $(READY)  ## everything on this machine, with the demo models
	@$(BIN)/tiergate up

test: $(READY)  ## on all cores, in at most 12 minutes on two
	@$(BIN)/python -m tests.once_more $(ON_ALL_CORES) -m "not long"

test-long: $(READY)  ## the tests that take more than 20 seconds each
	@$(BIN)/python -m tests.once_more $(ON_ALL_CORES) -m long

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks.protocol
	$(BIN)/python -m benchmarks.gateway
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.streams

demo-models: $(READY)  ## retrain the demo's models and adapters; goes on where it stopped
	$(BIN)/python -m demo.train_all
	$(BIN)/python -m demo.evaluate --json demo/.work/report.json
	$(BIN)/python -m demo.cards

docs: $(READY)  ## docs/api.md from the gateway's OpenAPI document, docs/compatibility.md from the request types
	$(BIN)/python -m docs.api_reference
	$(BIN)/python -m docs.compatibility

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("tiergate needs Python 3.11 or newer; try make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --progress-bar on -e '.[worker,embedded,postgres,kafka,otel,dev]'
	$(BIN)/python -c 'from kernels.native import library; library()'  # compiled once, where the processor and a compiler allow
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
