"""The registry over HTTP: requests in JSON, checked for where they come from.

A registry on loopback can still be reached by web pages of others, through the browser of whoever visits them. So the
Host header must name this machine, or be a name that the registry was given, and a request that a browser makes for
the page of another site is refused. Clients that are no browsers say nothing of pages.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import unquote

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oncelog.http_server import is_own_name, origin_host
from oncelog.registry.answers import Call, Text, find, is_known
from oncelog.registry.errors import Refusal
from oncelog.registry.store import Store
from oncelog.schemas.registry_client import MEDIA_TYPE

CONTENT_TYPES: Final = (
    MEDIA_TYPE,
    "application/vnd.schemaregistry+json",
    "application/json",
    "application/octet-stream",
)
"""Of requests, as Confluent's registry takes them."""
BODY_BYTES_MAX: Final = 1_000_000
"""A record of the topic must hold it."""
BODY_S: Final = 10.0
THREADS: Final = 40
"""More than will wait for the cluster at a time: schemas that are known must be served meanwhile."""
logger = logging.getLogger("oncelog.registry")


class Application:
    """ASGI."""

    def __init__(self, store: Store, host_names: Collection[str] = (), users: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._host_names = host_names
        self._users = users
        """Passwords by name; None lets everybody in."""
        self._threads: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = _json(await self._answer(request))
        except Refusal as refusal:
            response = _json({"error_code": refusal.code, "message": refusal.message}, refusal.status)
        except (TimeoutError, ClientDisconnect):
            response = _json({"error_code": 408, "message": "the request did not arrive"}, 408)
        except Exception:  # A fault in one answer must not cost the others their server.
            logger.exception("%s %s failed", scope["method"], scope["path"])
            response = _json({"error_code": 50001, "message": "the registry failed: see its log"}, 500)
        await response(scope, receive, send)

    def knows(self, headers: Headers) -> bool:
        if self._users is None:
            return True
        scheme, _, encoded = headers.get("authorization", "").partition(" ")
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return False
        expected = self._users.get(name, "")
        is_right = hmac.compare_digest(password.encode(), expected.encode())
        return scheme.lower() == "basic" and name in self._users and is_right

    async def _answer(self, request: Request) -> Any:
        problem = refusal(request.headers, self._host_names)
        if problem:
            raise Refusal(403, problem)
        if not self.knows(request.headers):
            raise Refusal(401, "The registry wants a user and a password.")
        path = _path(request.scope)
        found = find(request.method, path)
        if found is None and is_known(path):
            raise Refusal(405, "HTTP 405 Method Not Allowed")
        if found is None:
            raise Refusal(404, "HTTP 404 Not Found")
        answer, names = found
        call = Call(self._store, names, dict(request.query_params), await _body(request))
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(THREADS)
        return await anyio.to_thread.run_sync(answer, call, limiter=self._threads)


def refusal(headers: Headers, host_names: Collection[str] = ()) -> str:
    """Why a request is refused; empty if it is not."""
    host = headers.get("host", "")
    if not is_own_name(host, host_names):
        return f"The registry answers to the names of this machine alone, such as 127.0.0.1, not to {host!r}."
    if origin_host(headers.get("origin", f"http://{host}")) != host:
        return "Pages of other sites may not use the registry."
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "Pages of other sites may not use the registry."
    return ""


def _path(scope: Scope) -> list[str]:
    """Parts of the path; a subject may have a slash, which is %2F there."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return [unquote(part) for part in raw.decode("ascii", "replace").partition("?")[0].strip("/").split("/")]


async def _body(request: Request) -> dict[str, Any]:
    data = b""
    async with asyncio.timeout(BODY_S):
        async for chunk in request.stream():
            data += chunk
            if len(data) > BODY_BYTES_MAX:
                raise Refusal(413, f"the request has more than {BODY_BYTES_MAX} bytes")
    if not data:
        return {}
    content_type = request.headers.get("content-type", MEDIA_TYPE).partition(";")[0].strip().lower()
    if content_type not in CONTENT_TYPES:
        raise Refusal(415, f"HTTP 415 Unsupported Media Type: send {MEDIA_TYPE}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body of the request is not JSON") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body of the request must be a JSON object")
    return found


def _json(value: Any, status: int = 200) -> Response:
    text = value.text if isinstance(value, Text) else json.dumps(value, ensure_ascii=False)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="oncelog registry"'
    return Response(text, status, headers, MEDIA_TYPE)
