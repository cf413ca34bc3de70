"""PLAIN (RFC 4616): one token, `authorization id NUL user NUL password` in UTF-8."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from oncelog.security.sasl import AuthenticationFailed, Step, check_authorization_id


class PlainServer:
    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def step(self, token: bytes) -> Step:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed("the token is not UTF-8") from None
        if len(parts) != 3:
            raise AuthenticationFailed(f"the token has {len(parts)} parts, not 3")
        authorization_id, user, password = parts
        if not user or not password:
            raise AuthenticationFailed("the user name or the password is empty")
        # An unknown user costs as much as a known one. No password is empty, so that of nobody never matches.
        expected = self._passwords.get(user, "")
        if not hmac.compare_digest(password.encode(), expected.encode()):
            raise AuthenticationFailed(f"user {user!r} is unknown, or the password is wrong")
        check_authorization_id(authorization_id, user)
        return Step(b"", user)


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    def first(self) -> bytes:
        return f"\0{self._user}\0{self._password}".encode()

    def step(self, token: bytes) -> bytes | None:
        return None
