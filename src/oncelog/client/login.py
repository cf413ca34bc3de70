"""Logging in with SASL on a connection whose broker's versions are known."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from oncelog.client.config import ClientConfig
from oncelog.client.errors import KafkaError, error_of
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from oncelog.security.oauthbearer import OAuthBearerClient
from oncelog.security.plain import PlainClient
from oncelog.security.sasl import OAUTHBEARER, PLAIN, AuthenticationFailed, ClientMechanism
from oncelog.security.scram import ScramClient, ScramMechanism

if TYPE_CHECKING:
    from oncelog.client.connection import Connection

_NONCE_BYTES: Final = 24


async def log_in(connection: Connection, config: ClientConfig) -> int:
    """After how many milliseconds the broker wants another login, 0 for never.

    Raises KafkaError, which is not retried, if the broker does not let us in, or is not who it should be.
    """
    await _shake_hands(connection, config)
    mechanism = await asyncio.to_thread(_mechanism, config)
    token: bytes | None = mechanism.first()
    while token is not None:
        request = SaslAuthenticateRequest(auth_bytes=token)
        answer = await connection.call(request, SaslAuthenticateResponse, goes_ahead=True)
        if answer.error_code:
            raise error_of(answer.error_code, f"{connection}: {answer.error_message or 'the login failed'}")
        try:
            # SCRAM computes for milliseconds, as many as the broker says.
            token = await asyncio.to_thread(mechanism.step, bytes(answer.auth_bytes))
        except AuthenticationFailed as error:
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{connection}: {error}") from None
    return answer.session_lifetime_ms


async def _shake_hands(connection: Connection, config: ClientConfig) -> None:
    request = SaslHandshakeRequest(mechanism=config.sasl_mechanism or "")
    answer = await connection.call(request, SaslHandshakeResponse, goes_ahead=True)
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        raise error_of(answer.error_code, f"{connection} does not take {config.sasl_mechanism}, but {offered}")
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise error_of(answer.error_code, f"nobody logs in at {connection}: its security.protocol is without SASL")
    if answer.error_code:
        raise error_of(answer.error_code, f"{connection}: the login failed")


def _mechanism(config: ClientConfig) -> ClientMechanism:
    if config.sasl_mechanism == OAUTHBEARER:
        return OAuthBearerClient(_token(config.sasl_oauthbearer_token_endpoint_url or ""))
    user, password = config.credentials
    if config.sasl_mechanism == PLAIN:
        return PlainClient(user, password)
    mechanism = ScramMechanism.of(config.sasl_mechanism or "")
    return ScramClient(mechanism, user, password, nonce=secrets.token_urlsafe(_NONCE_BYTES))


def _token(url: str) -> str:
    """Read at each login: whoever renews it writes a new file."""
    path = Path(unquote(urlsplit(url).path))
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        text = f"no token can be read from {path}: {getattr(error, 'strerror', None) or 'it is not text'}"
        raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, text) from None
