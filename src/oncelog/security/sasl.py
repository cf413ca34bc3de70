"""What all SASL mechanisms have in common: tokens go to and fro until it is clear who the client is, or it fails."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


class AuthenticationFailed(Exception):
    """`told` is the text for the client, None for the one that tells an unknown user from a wrong password no more than
    from a broken token. The exception's own text is for the operator's log: it never has a password or a token."""

    def __init__(self, reason: str, *, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


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
        raise AuthenticationFailed(text, told=f"Authentication failed: {text}")
