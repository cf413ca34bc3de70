"""What a handler knows of a request beside its body."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RequestContext:
    api_version: int
    client_id: str
    client_host: str
    connection_id: int
