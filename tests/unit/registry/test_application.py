"""Who may ask the registry, and requests that are malformed."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.datastructures import Headers

from oncelog.registry.application import BODY_BYTES_MAX, Application, refusal


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({"host": "127.0.0.1:8081"}, False),
        ({"host": "localhost:8081"}, False),
        ({"host": "[::1]:8081"}, False),
        ({"host": "registry.example:8081"}, False),
        ({"host": "evil.example"}, True),
        ({}, True),
        ({"host": "[["}, True),
        ({"host": "127.0.0.1:8081", "origin": "http://127.0.0.1:8081"}, False),
        ({"host": "127.0.0.1:8081", "origin": "http://evil.example"}, True),
        ({"host": "127.0.0.1:8081", "origin": "null"}, True),
        ({"host": "127.0.0.1:8081", "sec-fetch-site": "cross-site"}, True),
        ({"host": "127.0.0.1:8081", "sec-fetch-site": "none"}, False),
    ],
)
def test_who_may_ask(headers: dict[str, str], is_refused: bool) -> None:
    assert bool(refusal(Headers(headers), {"registry.example"})) == is_refused


def ask(registry: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection(urlsplit(registry).netloc, timeout=30)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


MALFORMED: list[tuple[str, str, Any, int]] = [
    ("GET", "/nothing", None, 404),
    ("PATCH", "/subjects", None, 405),
    ("DELETE", "/schemas/ids/1", None, 405),
    ("GET", "/schemas/ids/x", None, 404),
    ("GET", "/subjects?limit=x", None, 422),
    ("GET", "/subjects/s/versions/0", None, 422),
    ("POST", "/subjects/s/versions", b"{", 400),
    ("POST", "/subjects/s/versions", b"[]", 400),
    ("POST", "/subjects/s/versions", b"[" * 100_000, 400),
    ("POST", "/subjects/s/versions", {}, 422),
    ("POST", "/subjects/s/versions", b'{"schema": "\\ud800"}', 422),
    ("POST", "/subjects/s/versions", {"schema": '{"type": "string", "doc": "\\ud800"}'}, 422),
    ("POST", "/subjects/s/versions", {"schema": "{}", "schemaType": "JSON", "references": [{}]}, 422),
    ("POST", "/subjects/%00/versions", {"schema": '"int"'}, 422),
    ("POST", "/subjects/s/versions", {"schema": '"int"', "references": 5}, 422),
    ("POST", "/subjects/s/versions", b"x" * (BODY_BYTES_MAX + 1), 413),
    ("PUT", "/config", {"normalize": True}, 422),
    ("PUT", "/mode/s", {"mode": "WHATEVER"}, 422),
]


def test_malformed_requests_are_refused(registry: str) -> None:
    for method, path, body, status in MALFORMED:
        found, answer = ask(registry, method, path, body)
        assert (found, method, path) == (status, method, path)
        assert answer["error_code"]
        assert answer["message"]


def test_other_types_of_content_are_refused(registry: str) -> None:
    schema, path = {"schema": '"int"'}, "/subjects/s/versions"
    for name in ("text/plain", "application/x-www-form-urlencoded"):
        assert ask(registry, "POST", path, schema, **{"Content-Type": name})[0] == 415
    assert ask(registry, "GET", "/subjects") == (200, [])
    for name in ("application/vnd.schemaregistry.v1+json", "application/json; charset=utf-8"):
        assert ask(registry, "POST", path, schema, **{"Content-Type": name})[0] == 200


def test_a_page_of_another_site_changes_nothing(registry: str) -> None:
    schema = {"schema": '"int"'}
    assert ask(registry, "POST", "/subjects/s/versions", schema, Origin="http://evil.example")[0] == 403
    assert ask(registry, "GET", "/subjects") == (200, [])
    assert ask(registry, "POST", "/subjects/s/versions", schema)[0] == 200


def test_a_subject_may_have_a_slash(registry: str) -> None:
    assert ask(registry, "POST", "/subjects/a%2Fb/versions", {"schema": '"int"'})[0] == 200
    assert ask(registry, "GET", "/subjects/a%2Fb/versions/latest/schema") == (200, "int")


def test_users_log_in_if_there_are_some() -> None:
    application = Application(None, (), {"alice": "secret"})  # type: ignore[arg-type]
    assert not application.knows(Headers({}))
    assert not application.knows(Headers({"authorization": "Basic YWxpY2U6d3Jvbmc="}))
    assert not application.knows(Headers({"authorization": "Basic !"}))
    assert not application.knows(Headers({"authorization": "Bearer secret"}))
    assert not application.knows(Headers({"authorization": "Basic Ym9iOnNlY3JldA=="}))
    assert application.knows(Headers({"authorization": "Basic YWxpY2U6c2VjcmV0"}))
    assert Application(None).knows(Headers({}))  # type: ignore[arg-type]
