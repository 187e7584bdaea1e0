# One entry for people and CI. `make setup` needs Python 3.11 or later, pip and make; everything else comes with it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SEEDS  ?= 800
FRESH  ?= 200
MINUTES ?= 60
JOBS   ?= 2
PACKAGES := tandem router prefill_worker decode_worker kv_transfer
STAMP  := $(VENV)/.tandem-setup

.PHONY: setup demo up test sim sim-long drills drills-full soak equality check bench protos constraints clean help

help:
	@echo "make setup   create $(VENV) with everything (CPU torch where there is no GPU)"
	@echo "make demo    one chat request through prefill, transfer and decode, explained"
	@echo "make up      router, one prefill and two decode workers with the demo model on port 8000"
	@echo "make test    the tests        make sim    $(SEEDS) simulated runs with faults, and $(FRESH) of today"
	@echo "make sim-long   more than 100,000 simulated requests with faults, half of them on 16 workers"
	@echo "make drills  every fault at every stage on real processes, judged; drills-full: 20 rounds each with torch"
	@echo "make soak    mixed load and faults for MINUTES=$(MINUTES): memory and descriptors flat, no answer wrong"
	@echo "make equality   tokens of prefill + transfer + decode against one engine, 200 prompts and more"
	@echo "make check   lint, types, layers, generated code      make bench   measured limits"

$(STAMP): pyproject.toml constraints.txt tools/setup_environment.py
	$(PYTHON) tools/setup_environment.py $(VENV)
	@touch $(STAMP)

setup: $(STAMP)

demo: setup
	$(BIN)/tandem demo

up: setup
	$(BIN)/tandem up --model demo --prefill 1 --decode 2 --port 8000

test: setup
	$(BIN)/pytest -n $(JOBS) --dist loadfile

sim: setup
	$(BIN)/tandem sim --seeds $(SEEDS) --fresh $(FRESH) --kept tests/sim/kept_seeds.txt

sim-long: setup
	$(BIN)/tandem sim --seeds 1000 --first-seed 10000 --kills 2
	$(BIN)/tandem sim --seeds 100 --first-seed 20000 --requests 500 --prefill 8 --decode 8 --kills 4

drills: setup
	$(BIN)/python -m tools.drills

drills-full: setup
	$(BIN)/python -m tools.drills --full --markdown docs/drills.md --json build/drills.json

soak: setup
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

equality: setup
	$(BIN)/python -m tools.equality

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES) tools benchmarks
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_protos.py --check

bench: setup
	$(BIN)/python -m benchmarks

protos: setup
	$(BIN)/python tools/generate_protos.py

constraints:
	$(PYTHON) tools/setup_environment.py --freeze $(VENV)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
