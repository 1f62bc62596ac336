# Everything here works on a fresh clone with Python >= 3.11 and pip; repeated calls are quick.
PYTHON ?= python3
VENV   ?= .venv
# The CPU build of torch is pinned: plain `torch` pulls gigabytes of CUDA. On a GPU machine: make venv TORCH=torch
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: venv demo test test-slow lint format bench-sampling bench-rewards bench-evolving clean

venv: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet "$(TORCH)" -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/collab demo

test: $(STAMP)
	$(BIN)/python -m pytest -q

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m "slow and not vllm"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-sampling: $(STAMP)
	$(BIN)/python -m tests.benchmarks.sampling

bench-rewards: $(STAMP)
	$(BIN)/python -m tests.benchmarks.rewards

bench-evolving: $(STAMP)
	$(BIN)/python -m tests.benchmarks.evolving

clean:
	rm -rf $(VENV) build dist outputs
