"""A client of schema registries: Oncelog's, Confluent's, and those that speak the same HTTP.

What an id stands for never changes, so schemas are kept once they were fetched.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from oncelog.core.address import is_loopback
from oncelog.schemas.kinds import parse
from oncelog.schemas.schema import ParsedSchema, Reference, Schema
from oncelog.schemas.wire_format import SchemaName

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
KEPT_MAX: Final = 1000
"""Schemas that are kept; more of them are a mistake, such as a schema per record."""


class RegistryError(Exception):
    """The registry refused a request. `code` is its own, such as 40401 for a subject that it does not have."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (error {code})")
        self.code = code


class RegistryUnavailable(RegistryError):
    """The registry did not answer, or what answered is not a registry."""

    def __init__(self, message: str) -> None:
        super().__init__(0, message)
        self.args = (message,)


class Registered(NamedTuple):
    subject: str
    version: int
    id: int
    schema: Schema


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A registry does not redirect, and a password must not follow to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class RegistryClient:
    """Safe for threads. `url` may have a user and a password: https://user:password@host:port."""

    def __init__(self, url: str, *, ca_file: str | Path | None = None, timeout_s: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{_without_password(url)!r} is no address of a registry, such as http://127.0.0.1:8081")
        self._base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._timeout_s = timeout_s
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
        if is_loopback(parts.hostname):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)
        self._parsed: dict[SchemaName, tuple[Schema, ParsedSchema]] = {}
        self._ids: dict[tuple[str, Schema], int] = {}

    def register(self, subject: str, schema: Schema) -> int:
        """The id of a schema, which becomes the newest version of the subject if it is not one already."""
        known = self._ids.get((subject, schema))
        if known is None:
            known = int(self._call("POST", f"/subjects/{_part(subject)}/versions", schema.as_json())["id"])
            _keep(self._ids, (subject, schema), known)
        return known

    def look_up(self, subject: str, schema: Schema) -> Registered:
        """Raises RegistryError with the code 40403 if the subject does not have it."""
        return _registered(self._call("POST", f"/subjects/{_part(subject)}", schema.as_json()))

    def latest(self, subject: str) -> Registered:
        return _registered(self._call("GET", f"/subjects/{_part(subject)}/versions/latest"))

    def version(self, subject: str, number: int) -> Registered:
        """A version of a subject, also a deleted one: what was written with it is still there."""
        return _registered(self._call("GET", f"/subjects/{_part(subject)}/versions/{number}?deleted=true"))

    def subjects(self) -> list[str]:
        found: list[str] = self._call("GET", "/subjects")
        return found

    def versions(self, subject: str) -> list[int]:
        found: list[int] = self._call("GET", f"/subjects/{_part(subject)}/versions")
        return found

    def is_compatible(self, subject: str, schema: Schema) -> bool:
        """Whether it could be registered as the next version."""
        path = f"/compatibility/subjects/{_part(subject)}/versions"
        return bool(self._call("POST", path, schema.as_json())["is_compatible"])

    def schema(self, name: SchemaName) -> Schema:
        return self._known(name)[0]

    def parsed(self, name: SchemaName) -> ParsedSchema:
        """What encodes and decodes. Raises InvalidSchema for one that our libraries do not take."""
        return self._known(name)[1]

    def parse(self, schema: Schema) -> ParsedSchema:
        """Parse a schema, with its references from this registry."""
        return parse(schema, self._referenced)

    def _known(self, name: SchemaName) -> tuple[Schema, ParsedSchema]:
        known = self._parsed.get(name)
        if known is None:
            kind = "ids" if isinstance(name, int) else "guids"
            schema = Schema.from_json(self._call("GET", f"/schemas/{kind}/{name}"))
            known = (schema, self.parse(schema))
            _keep(self._parsed, name, known)
        return known

    def _referenced(self, reference: Reference) -> Schema:
        return self.version(reference.subject, reference.version).schema

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            refusal = _refusal(error, self._base)
            error.close()
            raise refusal from None
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            reason = getattr(reason, "strerror", None) or reason
            raise RegistryUnavailable(f"the registry {self._base} does not answer: {reason}") from error


def _refusal(error: urllib.error.HTTPError, base: str) -> RegistryError:
    try:
        found = json.loads(error.read(ANSWER_BYTES_MAX))
        return RegistryError(int(found["error_code"]), str(found["message"]))
    except (OSError, ValueError, KeyError, TypeError):
        return RegistryUnavailable(f"{base} answered {error.code} {error.reason}, and not as a registry does")


def _registered(found: Mapping[str, Any]) -> Registered:
    return Registered(str(found["subject"]), int(found["version"]), int(found["id"]), Schema.from_json(found))


def _keep(table: dict[Any, Any], key: Any, value: Any) -> None:
    if len(table) >= KEPT_MAX:
        table.clear()
    table[key] = value


def _part(text: str) -> str:
    return quote(text, safe="")


def _without_password(url: str) -> str:
    return url if "@" not in url else f"...@{url.rpartition('@')[2]}"
