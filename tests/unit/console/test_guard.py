"""Requests that are refused before any page is made, and the headers that every answer has."""

from __future__ import annotations

import re

import pytest
from starlette.datastructures import Headers

from oncelog.console.guard import refusal
from oncelog.console.pages import brokers
from oncelog.console.settings import parse_listen
from oncelog.testing import BrokerProcess
from tests.unit.console.conftest import Browser, serving

HERE = "127.0.0.1:8080"


@pytest.mark.parametrize("host", [HERE, "localhost:8080", "localhost", "[::1]:8080", "127.0.0.2:1"])
def test_names_of_this_machine_are_answered(host: str) -> None:
    assert refusal("GET", Headers({"host": host})) == ""


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "10.0.0.1:8080", "localhost.evil", "[::1"]
)
def test_other_names_are_refused(host: str) -> None:
    assert "this machine" in refusal("GET", Headers({"host": host}))


@pytest.mark.parametrize(
    ("headers", "is_allowed"),
    [
        ({"origin": f"http://{HERE}"}, True),
        ({"origin": f"http://{HERE}", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://[::1"}, False),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "http://evil.example", "sec-fetch-site": "same-origin"}, False),
        ({"origin": f"http://{HERE}", "sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),
    ],
)
def test_a_change_must_come_from_a_page_of_the_console(headers: dict[str, str], is_allowed: bool) -> None:
    assert (refusal("POST", Headers({"host": HERE, **headers})) == "") is is_allowed


@pytest.mark.parametrize(
    ("site", "mode", "is_allowed"),
    [
        ("same-origin", "cors", True),
        ("none", "navigate", True),
        ("cross-site", "navigate", True),
        ("cross-site", "no-cors", False),
        ("cross-site", "cors", False),
        ("same-site", "no-cors", False),
    ],
)
def test_other_sites_may_link_but_not_read(site: str, mode: str, is_allowed: bool) -> None:
    headers = Headers({"host": HERE, "sec-fetch-site": site, "sec-fetch-mode": mode})
    assert (refusal("GET", headers) == "") is is_allowed


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "localhost:0", "[::1]:80"])
def test_the_console_listens_on_loopback(text: str) -> None:
    assert parse_listen(text)[1] == int(text.rpartition(":")[2])


@pytest.mark.parametrize("text", ["0.0.0.0:8080", "10.1.2.3:80", ":8080", "example.org:80", "127.0.0.1", "[::]:80"])
def test_and_nowhere_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"loopback|HOST:PORT"):
        parse_listen(text)


def test_a_rebound_name_gets_nothing(browser: Browser) -> None:
    answer = browser.get("/", Host="evil.example")
    assert answer.status == 403
    assert "Overview" not in answer.text


def test_every_answer_has_a_policy_that_loads_nothing_from_elsewhere(browser: Browser) -> None:
    for path in ("/", "/nothing-here", "/static/console.css", "/topics?format=json"):
        headers = browser.get(path).headers
        policy = re.sub(r"'nonce-[\w-]{22}'", "'nonce-*'", headers["content-security-policy"])
        assert dict(rule.split(" ", 1) for rule in policy.split("; ")) == {
            "default-src": "'none'",
            "script-src": "'nonce-*'",
            "style-src": "'nonce-*'",
            "img-src": "'self' data:",
            "connect-src": "'self'",
            "form-action": "'self'",
            "frame-ancestors": "'none'",
            "base-uri": "'none'",
        }, path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store" or path.startswith("/static/")


def test_a_fault_of_the_console_has_a_page_with_the_policy_and_without_details(
    shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(brokers, "broker_list", fail)
    with serving(shared_broker.bootstrap_servers) as browser:
        answer = browser.get("/brokers")
        assert (answer.status, "A fault of the console" in answer.text) == (500, True)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "secret" not in answer.text
        assert browser.get("/").status == 200


def test_pages_name_no_other_host_and_their_scripts_have_the_nonce(browser: Browser) -> None:
    answer = browser.get("/")
    nonce = re.search(r"script-src 'nonce-([^']+)'", answer.headers["content-security-policy"])
    assert nonce is not None
    assert f'src="/static/console.js" nonce="{nonce[1]}"' in answer.text
    for text in (answer.text, *(browser.get(f"/static/{name}").text for name in ("console.css", "console.js"))):
        assert re.findall(r"(?:src|href)=\"(?!/|#|\?)|url\(\s*['\"]?http|import\(|style=\"", text) == []
    assert browser.get("/").headers["content-security-policy"] != answer.headers["content-security-policy"]


def test_a_first_page_is_small(browser: Browser) -> None:
    sizes = [len(browser.get(path).text) for path in ("/", "/static/console.css", "/static/console.js")]
    assert sum(sizes) < 50_000
