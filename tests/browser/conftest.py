"""A real Chromium on a real console, on Oncelog and on Apache Kafka.

Needs the extra `browser-tests` and a Chromium of the system. Where one is missing the tests are skipped, except under
`make test-browser`, which sets ONCELOG_BROWSER=required: there it is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Admin, ClientConfig, NewTopic, Producer, TopicPartition
from oncelog.testing import broker
from peers.kafka.kafka import KafkaServer, kafka_available
from tests.unit.console.conftest import BROKER_SETTINGS, serving

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
TOPIC = "orders"
SETTINGS_OF_KAFKA = ("offsets.topic.num.partitions", "transaction.state.log.num.partitions")


def missing(what: str) -> None:
    if os.environ.get("ONCELOG_BROWSER") == "required":
        pytest.fail(f"{what} is missing")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright: pip install 'oncelog[browser-tests]'")
    path = next((found for name in CHROMIUMS if (found := shutil.which(name)) is not None), None)
    if path is None:
        missing("a Chromium on the PATH")
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session", params=["oncelog", "kafka"])
def world(request: pytest.FixtureRequest, chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker, Oncelog and Apache Kafka, with a group and transactions of every outcome."""
    if request.param == "oncelog":
        with broker(BROKER_SETTINGS) as process:
            fill(process.bootstrap_servers)
            yield process.bootstrap_servers
        return
    if (reason := kafka_available()) is not None:
        missing(f"Apache Kafka, {reason},")
    settings = {name: str(BROKER_SETTINGS[name]) for name in SETTINGS_OF_KAFKA}
    with KafkaServer(tmp_path_factory.mktemp("kafka"), properties=settings) as server:
        fill(server.bootstrap_servers)
        yield server.bootstrap_servers


def fill(servers: str) -> None:
    with Admin(ClientConfig(bootstrap_servers=servers)) as admin:
        admin.create_topics([NewTopic(TOPIC, 2)])
        producers = [transactional(servers, f"shop-{number}") for number in range(3)]
        for turn in range(12):
            for producer in producers:
                producer.begin_transaction()
                producer.send(TOPIC, f"order {turn}".encode(), key=b"k", partition=turn % 2)
                producer.flush()
            for number, producer in enumerate(producers):
                (producer.abort_transaction if (turn + number) % 5 == 0 else producer.commit_transaction)()
        admin.alter_group_offsets("billing", {TopicPartition(TOPIC, 0): 3, TopicPartition(TOPIC, 1): 2})
        for producer in producers:
            producer.close()


def transactional(servers: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions()
    return producer


@pytest.fixture
def slow(world: str) -> Iterator[Producer]:
    """A producer with an open transaction on orders-1."""
    producer = transactional(world, "slow-importer")
    producer.begin_transaction()
    producer.send(TOPIC, b"late", partition=1)
    producer.flush()
    yield producer
    producer.close(timeout_ms=2_000)


@pytest.fixture
def address(world: str, tmp_path: Path) -> Iterator[str]:
    with serving(world, tmp_path / "audit.jsonl") as browser:
        yield f"http://{browser.host}"


@pytest.fixture
def tab(chromium: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Makes tabs. Errors on their consoles and requests to other hosts fail the test at its end."""
    contexts, troubles = [], []

    def make(width: int = 1280, scheme: str = "light") -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, base_url=address)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda one: None if one.url.startswith(address) else troubles.append(f"asks {one.url}"))
        return page

    yield make
    for context in contexts:
        context.close()
    assert troubles == []
