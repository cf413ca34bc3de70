"""What a handler knows of a request beside its body, and the answer that is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


@dataclass(slots=True)
class Peer:
    """The two ends of a connection, as far as an answer can depend on them."""

    client_host: str
    local_host: str
    """The address of ours that the client reached: what to tell it to come back to, when we listen on all."""
    connected: bool = True
    """Whether anybody is there to be answered."""


class HangUp(Enum):
    """Of a request without an answer that failed: closing its connection is all that can tell the client."""

    HANG_UP = auto()


HANG_UP: Final = HangUp.HANG_UP


@dataclass(slots=True)
class RequestContext:
    api_version: int
    client_id: str
    peer: Peer
