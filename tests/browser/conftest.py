"""A real Chromium on a real console, on Oncelog and on Apache Kafka.

Needs the extra `browser-tests` and a Chromium of the system. Where one is missing the tests are skipped, except in CI
and under `make test-browser`: there it is a failure. `make test` runs a few of them, `make test-browser` all
(ONCELOG_BROWSER=all).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client import Admin, ClientConfig, NewTopic, OffsetAndMetadata, Producer, TopicPartition
from oncelog.core.sink_note import Note
from oncelog.testing import broker
from peers.kafka.kafka import KafkaServer, kafka_available
from tests.unit.console.conftest import BROKER_SETTINGS, serving

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
TOPIC = "orders"
SLOW_TIMEOUT_MS = 600_000
"""All pages are looked at while a transaction is open, on a busy machine too."""
SETTINGS_OF_KAFKA = ("offsets.topic.num.partitions", "transaction.state.log.num.partitions")


IS_WHOLE = os.environ.get("ONCELOG_BROWSER") == "all"
SHORT_FORM = {
    "test_no_page_has_an_accessibility_fault_or_is_wider_than_the_screen[oncelog-320-light]",
    "test_no_page_has_an_accessibility_fault_or_is_wider_than_the_screen[oncelog-1280-dark]",
    "test_the_timeline_follows_a_transaction_to_its_end[oncelog]",
    "test_the_timeline_follows_a_transaction_to_its_end[kafka]",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.name not in SHORT_FORM and not IS_WHOLE:
            item.add_marker(pytest.mark.skip(reason="make test-browser"))


def missing(what: str) -> None:
    """Skip, or fail where it must be there: in CI, and where all of these tests were asked for."""
    if IS_WHOLE or os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing")
    pytest.skip(f"{what} is missing")


def chromium_path() -> str | None:
    return next((found for name in CHROMIUMS if (found := shutil.which(name)) is not None), None)


def launch_arguments() -> list[str]:
    return ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Playwright has an event loop run in this thread as long as it is open: tests elsewhere could not run theirs."""
    try:
        from playwright.sync_api import expect, sync_playwright
    except ImportError:
        missing("playwright: pip install 'oncelog[browser-tests]'")
    path = chromium_path()
    if path is None:
        missing("a Chromium on the PATH")
    expect.set_options(timeout=120_000)  # a busy machine takes its time
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=launch_arguments(), timeout=180_000)
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=["oncelog", "kafka"])
def world(request: pytest.FixtureRequest, chromium: Any) -> Iterator[str]:
    """The address of a broker, Oncelog and Apache Kafka, with a group and transactions of every outcome."""
    if request.param == "oncelog":
        with broker(BROKER_SETTINGS) as process:
            fill(process.bootstrap_servers)
            yield process.bootstrap_servers
        return
    if (reason := kafka_available()) is not None:
        missing(f"Apache Kafka, {reason},")
    settings = {name: str(BROKER_SETTINGS[name]) for name in SETTINGS_OF_KAFKA}
    # Its folder is on pictures of the documentation.
    with tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True) as folder:
        server = KafkaServer(Path(folder), properties=settings)
        try:
            server.start()
            fill(server.bootstrap_servers)
            yield server.bootstrap_servers
        finally:
            server.kill()  # nobody needs its folder


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
        run_pipeline(servers, admin)


def run_pipeline(servers: str, admin: Admin) -> None:
    """Micro-batches as Oncelog's sink commits them, the second one at the second attempt."""
    admin.create_topics([NewTopic("invoices", 1)])
    place, writer = TopicPartition(TOPIC, 0), "sink-of-orders-writer"
    producer = transactional(servers, writer)
    for batch, is_committed in ((0, True), (1, False), (1, True)):
        producer.begin_transaction()
        producer.send("invoices", b"invoice")
        producer.flush()
        note = Note("b2c7-invoices", batch, writer=writer).to_text()
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(5 * batch + 5, metadata=note)}, "sink-of-orders")
        (producer.commit_transaction if is_committed else producer.abort_transaction)()
    producer.close()


def transactional(servers: str, name: str, timeout_ms: int = 60_000) -> Producer:
    settings = {"transactional.id": name, "transaction.timeout.ms": timeout_ms}
    producer = Producer({"bootstrap.servers": servers, **settings})
    producer.init_transactions()
    return producer


@pytest.fixture
def slow(world: str) -> Iterator[Producer]:
    """A producer with an open transaction on orders-1."""
    producer = transactional(world, "slow-importer", SLOW_TIMEOUT_MS)
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
        page.set_default_timeout(120_000)
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda one: None if one.url.startswith(address) else troubles.append(f"asks {one.url}"))
        return page

    yield make
    for context in contexts:
        context.close()
    assert troubles == []
