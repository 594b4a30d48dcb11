# Every command prepares .venv first, where it is missing or older than pyproject.toml or constraints.txt.
#   make train ARGS="experiment=cifar10_vit_tiny seed=1"
#   make test PYTHON=/opt/python3.12/bin/python
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup train eval bench test test-all lint gpu-check clean

ARGS :=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two processes of one thread each: small tests gain nothing from threads that wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
# What `make bench` measures is one W&B group.
STAMP := make_bench_$(shell date +%Y-%m-%d_%H-%M-%S)
SMALL := $(BIN)/python bench.py trainer=cpu logger.wandb.group=$(STAMP)

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## prepare .venv and nothing more

train: $(READY) ## train (experiment=digits, unless ARGS says otherwise) and print the eval.py line
	$(BIN)/python train.py $(or $(ARGS),experiment=digits)

eval: $(READY) ## evaluate: ARGS="ckpt_path=runs/…/checkpoints/best.ckpt"
	$(BIN)/python eval.py $(ARGS)

bench: $(READY) ## measure attention, step, accuracy and loading, all small, or ARGS="bench=attention"
ifeq ($(ARGS),)
	$(SMALL) bench=attention_length bench.rounds=3 bench.seconds=1
	$(SMALL) bench=attention_quick bench.rounds=3
	$(SMALL) bench=step bench.seconds=10
	$(SMALL) bench=accuracy trainer.max_epochs=5 bench.target=0.6
	$(SMALL) bench=data bench.images=512 bench.rounds=3 bench.seconds=1
else
	$(BIN)/python bench.py $(ARGS)
endif

test: $(READY) ## the tests that take a few seconds each
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(READY) ## every test that this machine can run
	$(PYTEST) $(ARGS)

gpu-check: $(READY) ## on a machine with a GPU: the tests that need one, then the bench
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python bench.py trainer=gpu "bench.shapes=[[256,3,64,64],[64,3,197,64],[8,6,1024,64]]" \
	  "bench.dtypes=[bfloat16]" bench.rounds=5 $(ARGS)

lint: $(READY) ## ruff's rules and ruff's format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean: ## remove .venv, caches and build output; runs/ and data/ stay
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Looked for only when .venv is made. Asking each one rather than trusting its name: the python3.12 of a version
# manager may exist and not run, and Debian's python3 may lack ensurepip.
find_python = for python in python3 python3.13 python3.12 python3.11; do \
	  $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    && { command -v $$python; exit; }; \
	done

# The stamp goes first and comes back last, so an install that stopped half-way is started again.
$(READY): pyproject.toml constraints.txt
	@rm -f $@
	@python="$${PYTHON:-$$($(find_python))}"; \
	  if [ -z "$$python" ]; then \
	    echo "error: no Python 3.11 or newer with venv found; install one, or name it: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "preparing $(VENV) with $$python (a few minutes, the first time)"; \
	  "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-input \
	  --constraint constraints.txt --editable ".[dev]"
	@touch $@
