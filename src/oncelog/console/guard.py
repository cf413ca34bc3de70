"""Who may ask the console what: checks before a request, and headers on every answer.

A console on loopback can still be reached by web pages of others, through the browser of whoever visits them. So

- the Host header must name this machine, or be a name that the console was given: a page whose name was bound to
  127.0.0.1 afterwards is refused;
- a request that another site's page makes is refused, unless it is a visitor who follows a link;
- a request that may change something must come from a page of the console;
- an answer may load nothing from elsewhere, and may not be framed.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oncelog.http_server import is_own_name, origin_host

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


class Guard:
    """ASGI middleware. The nonce of an answer is in `request.state.nonce`."""

    def __init__(self, app: ASGIApp, host_names: Collection[str] = ()) -> None:
        self._app = app
        self._host_names = host_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})["nonce"] = nonce

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_headers(MutableHeaders(scope=message), nonce)
            await send(message)

        problem = refusal(scope["method"], Headers(scope=scope), self._host_names)
        if problem:
            await PlainTextResponse(f"{problem}\n", 403)(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)


def add_headers(headers: MutableHeaders, nonce: str) -> None:
    headers["Content-Security-Policy"] = _POLICY.format(nonce=nonce)
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "same-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers.setdefault("Cache-Control", "no-store")


def refusal(method: str, headers: Headers, host_names: Collection[str] = ()) -> str:
    """Why a request is refused; empty if it is not."""
    host = headers.get("host", "")
    if not is_own_name(host, host_names):
        return f"The console answers to the names of this machine alone, such as 127.0.0.1, not to {host!r}."
    site = headers.get("sec-fetch-site")
    if method in SAFE_METHODS:
        if site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            return "Pages of other sites may not read from the console."
        return ""
    origin = headers.get("origin")
    if origin is not None and origin_host(origin) != host:
        return "Changes are made from pages of the console alone: this request comes from another site."
    if site != "same-origin" and origin is None:
        return "Changes are made from pages of the console alone: this request does not say where it comes from."
    if site is not None and site != "same-origin":
        return "Changes are made from pages of the console alone: this request comes from another site."
    return ""
