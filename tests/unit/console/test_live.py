"""Streams of events, and a broker that goes away and comes back."""

from __future__ import annotations

import time
from http.client import HTTPResponse
from pathlib import Path

import pytest

from oncelog.client import Admin, ClientConfig, Producer, TopicPartition
from oncelog.core.errors import KafkaError
from oncelog.monitoring.offsets import partition_offsets
from oncelog.monitoring.visible_records import count_visible
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
    assert time.monotonic() - stopped_s < 60


def test_a_broker_that_is_killed_leaves_old_data_with_its_age_until_it_is_back(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", BROKER_SETTINGS)
    try:
        process.start()
        with serving(process.bootstrap_servers, timeout_ms=5_000) as browser:
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


def test_pages_of_what_polls_have_seen_are_there_while_the_broker_is_away(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", BROKER_SETTINGS)
    place = TopicPartition("tea", 0)
    try:
        process.start()
        client = ClientConfig(bootstrap_servers=process.bootstrap_servers, default_api_timeout_ms=5_000)
        with Admin(client) as admin, Producer({"bootstrap.servers": process.bootstrap_servers}) as producer:
            admin.create_topics([place.topic])
            producer.send(place.topic, b"x").result(30)
            admin.alter_group_offsets("drinkers", {place: 0})
            offsets = partition_offsets(admin, [place])[place]
            with serving(process.bootstrap_servers, timeout_ms=5_000) as browser:
                wait_until(lambda: browser.get("/groups/drinkers").status == 200)
                process.kill()
                wait_until(lambda: browser.get("/?format=json").json["status"]["failed_since_ms"] is not None)
                for path in ("/topics/tea", "/groups", "/groups/drinkers", "/brokers", "/brokers/1"):
                    page = browser.get(path)
                    assert (page.status, "What you see is from" in page.text) == (200, True), path
                (row,) = browser.data("/groups")["rows"]
                assert (row["lag"], row["to_read"]) == (1, None)
                assert "its settings are not known" in browser.get("/topics/tea").text
                assert browser.data("/groups/drinkers")["offsets"][0]["lag"] == 1
            began_s = time.monotonic()
            with pytest.raises(KafkaError):
                count_visible(admin, place, 0, offsets)
            assert time.monotonic() - began_s < 45, "it waits no longer than other questions"
    finally:
        process.kill()
