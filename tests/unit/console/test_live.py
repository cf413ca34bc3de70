"""Streams of events, and a broker that goes away and comes back."""

from __future__ import annotations

import time
from http.client import HTTPResponse
from pathlib import Path

from oncelog.testing import BrokerProcess
from tests.unit.console.conftest import BROKER_SETTINGS, Browser, serving
from tests.waiting import wait_until


def next_number(stream: HTTPResponse) -> int:
    while True:
        line = stream.readline()
        assert line, "the stream has ended"
        if line.startswith(b"id: "):
            return int(line[4:])


def test_a_stream_tells_of_every_poll_and_goes_on_after_the_last_one_seen(browser: Browser) -> None:
    with browser.stream("/events") as stream:
        assert stream.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert stream.getheader("cache-control") == "no-store"
        first = next_number(stream)
        assert next_number(stream) > first
    with browser.stream("/events", {"Last-Event-ID": str(first)}) as stream:
        assert next_number(stream) > first


def test_other_sites_get_no_stream(browser: Browser) -> None:
    with browser.stream("/events", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}) as stream:
        assert stream.status == 403


def test_the_console_stops_at_once_while_streams_are_open(shared_broker: BrokerProcess) -> None:
    with serving(shared_broker.bootstrap_servers) as browser, browser.stream("/events") as stream:
        next_number(stream)
        stopped_s = time.monotonic()
    assert time.monotonic() - stopped_s < 20


def test_a_broker_that_is_killed_leaves_old_data_with_its_age_until_it_is_back(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", BROKER_SETTINGS)
    try:
        process.start()
        with serving(process.bootstrap_servers) as browser:
            assert browser.get("/").status == 200
            process.kill()
            details = browser.get("/brokers/1")
            assert (details.status, "The cluster does not answer" in details.text) == (503, True)
            wait_until(lambda: browser.get("/?format=json").json["status"]["failed_since_ms"] is not None)
            page = browser.get("/")
            assert page.status == 200
            assert "has not answered for" in page.text
            assert "What you see is from" in page.text
            process.start()
            wait_until(lambda: browser.get("/?format=json").json["status"]["stale"] is False)
            assert "has not answered for" not in browser.get("/").text
    finally:
        process.stop()
