"""The benchmark's drivers of other clients: what they count is what a reader of committed records finds."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from oncelog.bench.driver import consume
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.topics import create, delete
from oncelog.bench.measurement import Measurement
from oncelog.bench.workload import Workload
from peers.clients import java
from peers.clients.catalogue import CLIENTS, EVERYTHING
from tests.conformance.brokers import Broker

pytestmark = pytest.mark.usefixtures("java")
TRANSACTIONS = 12


def drive(job: Job) -> Measurement:
    module, _, name = job.workload.driver.partition(":")
    measurement: Measurement = getattr(importlib.import_module(module), name)(job)
    return measurement


@pytest.mark.parametrize("workload", CLIENTS.workloads, ids=lambda workload: workload.name)
def test_every_transaction_is_counted_and_found(
    broker: Broker, unique: Callable[[str], str], workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "WARM_UP", 3)
    few = replace(workload, transactions=TRANSACTIONS)
    job = Job("transactions", broker.bootstrap_servers, unique("t"), few)
    create(job)
    measured = drive(job)
    assert measured.problem == ""
    assert measured.distributions["commit_ms"].count == TRANSACTIONS
    assert measured.figures["transactions_per_s"] > 0
    committed = int(measured.figures["committed_records"])
    assert committed == TRANSACTIONS + (3 if workload.name == "transactions-java" else 0)
    assert consume.verify(replace(job, expected=committed)).problem == ""
    delete(job)


def test_a_java_client_that_fails_says_why(
    broker: Broker, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "WARM_UP", 0)
    impossible = replace(CLIENTS.workloads[0], transactions=-1)
    job = Job("transactions", broker.bootstrap_servers, unique("t"), impossible)
    create(job)
    assert "NegativeArraySize" in drive(job).problem
    delete(job)


def test_the_suite_has_them_behind_its_own_transactions() -> None:
    names = [group.name for group in EVERYTHING]
    assert names.index("clients") == names.index("transactions") + 1
    assert len(set(names)) == len(names)
