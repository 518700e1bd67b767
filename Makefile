# Fulcrum: `make` alone prints what there is.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SUITE ?= digits
METHODS ?=
SEEDS ?=
JOBS ?=
DATA ?= data
TABLE ?=
WHEEL_FILE ?=
DEVICES ?= auto
BENCH ?=
FUZZ ?= 2000
FUZZ_SEED ?= 0
BASE ?= main
CAMPAIGN ?= ssd-main
MINUTES ?=
ARGS ?=
comma := ,
# pages from docs/, README.md and the code; a broken link, anchor or name is an error
DOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
# a worker a core, each on one thread: most of a test is starting something
WORKERS = --numprocesses auto --maxprocesses 8 --dist worksteal
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS)

.PHONY: help install benchmark test quick long mutants check pages docs tutorials fuzz rehearse soak ranks scenarios parity parity-libraries computed regress board site publish privacy costs campaign bench gpu wheel clean

help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  SUITE=digits METHODS=fedavg,ssd SEEDS=0,1 DATA=folder DEVICES=2 JOBS=1 narrow down or widen `make benchmark`.'
	@echo '  BENCH=floor,peers,views,ranks,scale,million,terms,startup,evaluation,threads,libraries chooses what `make bench` measures.'

install: $(VENV)/.installed  ## make .venv with the pinned versions

$(VENV)/.installed: constraints.txt setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

benchmark: install  ## run a suite (SUITE=digits, ARGS="federation.rounds=2 output=short") and print its board
	$(BIN)/python -m benchmark run suite=$(SUITE) data.root=$(DATA) devices=$(DEVICES) \
		$(if $(METHODS),methods=$(METHODS)) $(if $(SEEDS),seeds=$(SEEDS)) $(if $(JOBS),jobs=$(JOBS)) $(ARGS)

test: install  ## all tests but the long ones
	$(PYTEST)

quick: install  ## the tests of the files that differ from a branch (BASE=main), for the loop of writing
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.quick $(BASE) $(WORKERS)

long: install  ## the tests that `make test` leaves out, each of minutes: an hour
	$(PYTEST) -m long

mutants: install  ## plant some 340 faults into the code and count those that no test notices (ARGS="jobs=2"): hours
	$(BIN)/python -m tests.mutants $(ARGS)

check: install  ## format, lint, types, the import rule, known-bad versions of dependencies, and the pages' links
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m benchmark.audit.dependencies
	$(DOCS)

pages: install  ## write what follows from a new method, objective or protocol: tables, golden numbers, privacy and cost sheet
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmark.audit.pages
	OMP_NUM_THREADS=2 $(BIN)/python -m leaderboards.error_rates
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.test_kernels

docs: install  ## build the documentation and its reference into site/ and open it in a browser
	$(DOCS)
	$(BIN)/python -m webbrowser -t "file://$(CURDIR)/site/index.html"

tutorials: install  ## run the notebooks of docs/tutorials and save them with their outputs (ARGS=own-method): three minutes
	PYTHONPATH=docs $(BIN)/python -m generate.run_notebooks $(ARGS)

fuzz: install  ## FUZZ=2000 hostile commands, as many records, 1,000 folders of images, 200 damaged runs: ten minutes
	FUZZ=$(FUZZ) FUZZ_SEED=$(FUZZ_SEED) $(PYTEST) tests/fuzz tests/leaderboards/test_hostile_records.py --timeout 1800

rehearse: install  ## every method, objective and planted fault on a GPU simulated on the CPU: a quarter of an hour
	$(PYTEST) tests/test_device.py tests/test_kernels.py tests/test_planted_faults.py tests/methods/test_on_gpu.py -m "long or not long"

soak: install  ## 100 kills of runs of eight methods, and ten minutes of two processes that are killed at random
	$(BIN)/python -m pytest -m long tests/fuzz/test_kills.py

ranks: install  ## the tests that run on two ranks
	$(BIN)/python -m pytest -m ranks

scenarios: install  ## two rounds of every paper's setting at full model size: most of an hour
	$(PYTEST) tests/benchmark/experiment/test_scenarios.py -m "long or not long" -k two_rounds

parity: install  ## compare methods with their authors' codes, write docs/reference/parity.md: a quarter of an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmark parity accelerator=cpu

parity-libraries: install  ## compare with the libraries people install, write docs/reference/libraries.md (ARGS=newest=true: what has changed): some minutes
	$(BIN)/python -m benchmark.parity.libraries $(ARGS)

computed: install  ## measure again the published numbers whose computations take minutes (NAMES="simulated/fedsc-rate")
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmark.audit.computations $(NAMES)

regress: install  ## fail where a number moved: golden runs, verdicts, committed tables (TABLE=file.md)
	$(BIN)/python -m benchmark regress $(if $(TABLE),table=$(TABLE))

board: install  ## print the committed results and write leaderboards/README.md and its site
	$(BIN)/python -m benchmark board

site: board  ## write the board and open its site in a browser
	$(BIN)/python -m webbrowser -t "file://$(CURDIR)/leaderboards/site/index.html"

publish: install  ## the records as a Weights & Biases dashboard, offline first
	$(BIN)/python -m benchmark publish

privacy: install  ## write what leaves a client under every method into docs/reference/privacy-sheet.md
	$(BIN)/python -m benchmark privacy

costs: install  ## count what a client pays under every method into docs/reference/cost-sheet.md: half an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmark costs

campaign: install  ## run CAMPAIGN=ssd-main for MINUTES=30, resumed by the next call (docs/how-to/campaigns.md)
	$(BIN)/python -m benchmark campaign $(CAMPAIGN) data.root=$(DATA) devices=$(DEVICES) \
		$(if $(MINUTES),minutes=$(MINUTES)) $(ARGS)

bench: install  ## measure speed beside a bare loop and other frameworks (BENCH=floor,ranks), write docs/reference/performance.md
	$(BIN)/python -m benchmark.speed $(subst $(comma), ,$(BENCH))

gpu: install  ## all that a half hour on a GPU can tell, in `gpu/` (MINUTES=25; without a GPU a rehearsal; docs/how-to/gpu.md)
	$(BIN)/python -m benchmark.speed gpu minutes=$(or $(minutes),$(MINUTES),25) data.root=$(DATA) $(ARGS)

wheel: install  ## build the wheel (or WHEEL_FILE=), install it with all it needs, and run its commands: half an hour
	WHEEL=install WHEEL_FILE=$(WHEEL_FILE) $(BIN)/python -m pytest -m long -s tests/test_wheel.py

clean:  ## remove what checks and tests leave behind
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build site *.egg-info
