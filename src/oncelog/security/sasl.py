"""What all SASL mechanisms have in common: tokens go to and fro until it is clear who the client is, or it fails."""

from __future__ import annotations

from typing import Final, Protocol

from oncelog.core.named_tuple import NamedTuple

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


class AuthenticationFailed(Exception):
    """The text of the exception is for the operator's log: it never has a password or a token in it. `client_text` is
    for the client. With None it gets a text that is the same for an unknown user, a wrong password and a broken
    token."""

    def __init__(self, reason: str, *, client_text: str | None = None) -> None:
        super().__init__(reason)
        self.client_text = client_text


class Step(NamedTuple):
    token: bytes
    """For the client."""
    user: str | None = None
    """Set by the last step: who the client is."""
    ends_s: float | None = None
    """When what it has shown is no longer valid, in seconds since 1970."""
    refusal: str | None = None
    """Why the login will fail, if the client has to be told before it does; for the operator's log."""


class ServerMechanism(Protocol):
    def step(self, token: bytes) -> Step:
        """Takes a token of the client. Raises AuthenticationFailed."""


class ClientMechanism(Protocol):
    def first(self) -> bytes: ...

    def step(self, token: bytes) -> bytes | None:
        """Takes a token of the server; None when there is nothing left to say. Raises AuthenticationFailed."""


def check_authorization_id(authorization_id: str, user: str) -> None:
    """Nobody may act as somebody else."""
    if authorization_id and authorization_id != user:
        text = "the authorization id differs from the user name"
        raise AuthenticationFailed(text, client_text=f"Authentication failed: {text}")
