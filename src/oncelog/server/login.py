"""SASL in front of the dispatcher: what a client may send until it is known who it is.

| state | takes | then |
| --- | --- | --- |
| START | ApiVersions, answered by the dispatcher; SaslHandshake | START; TOKENS |
| TOKENS | SaslAuthenticate, or bare tokens after a handshake of version 0 | TOKENS until the mechanism is done; OPEN |
| OPEN | everything; SaslHandshake if the session ends: the client logs in again | OPEN; TOKENS |
| FAILED | nothing: the answer is held back for a while, then the connection is closed | - |

Before OPEN no other request is decoded. Whoever logs in again must do so with the same mechanism and as the same user.
A session that has ended takes nothing but a handshake: the connection is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.api import decode_request, encode_response, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import RequestHeader, frame_response, frame_whole, parse_request_header
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from oncelog.protocol.schema import Message
from oncelog.security.oauthbearer import (
    Bearer,
    OAuthBearerServer,
    TokenRefused,
    UnknownKey,
    check_token,
    check_unsecured_token,
)
from oncelog.security.plain import PlainServer
from oncelog.security.sasl import OAUTHBEARER, PLAIN, AuthenticationFailed, ServerMechanism, Step
from oncelog.security.scram import ScramCredential, ScramMechanism, ScramServer, ScramUser
from oncelog.security.scram_decoys import Decoys, shared_secret
from oncelog.server import audit
from oncelog.server.context import Peer
from oncelog.server.dispatch import Buffers, LastAnswer, UnservedRequest
from oncelog.server.failed_logins import FailedLogins

if TYPE_CHECKING:
    from oncelog.core.clock import Scheduler
    from oncelog.core.config import Settings
    from oncelog.core.worker import Worker
    from oncelog.server.dispatch import Front
    from oncelog.server.key_set import KeySet
    from oncelog.server.listener import Listener

log = logging.getLogger("oncelog.server")

BETWEEN_LOGINS_MIN_MS: Final = 1000
_REFUSED: Final = "Authentication failed during authentication due to invalid credentials with SASL mechanism %s"
"""Kafka's text. It must be the same whatever is wrong."""
_HANDSHAKE_KEY: Final = ApiKey.SASL_HANDSHAKE.to_bytes(2, "big")


class State(Enum):
    START = auto()
    TOKENS = auto()
    OPEN = auto()
    FAILED = auto()


@dataclass(slots=True)
class Logins:
    """What the logins of a node share: of a broker, or of a controller."""

    front: Front
    """For those who have logged in."""
    settings: Callable[[], Settings]
    scheduler: Scheduler
    steady_ms: Callable[[], int]
    users: Callable[[], Mapping[ScramUser, ScramCredential]]
    """Another mapping when users have changed."""
    secret: Callable[[], bytes]
    """Random bytes of this node."""
    new_nonce: Callable[[], str]
    on_failure: Callable[[], None]
    is_alone: bool
    """Whether no other node has the same users."""
    failed: FailedLogins = field(default_factory=FailedLogins)
    key_sets: dict[str, KeySet] = field(default_factory=dict)
    """Of listeners whose clients have tokens, by name."""
    _decoys: tuple[Mapping[ScramUser, ScramCredential], Decoys] | None = field(default=None, init=False)

    @property
    def decoys(self) -> Decoys:
        """For unknown users, who cannot be told from known ones. They are not made anew for each login."""
        users = self.users()
        if self._decoys is None or self._decoys[0] is not users:
            shared = None if self.is_alone else shared_secret(users.values())
            stored = ((user.mechanism, credential) for user, credential in users.items())
            self._decoys = users, Decoys(shared or self.secret(), stored)
        return self._decoys[1]

    def read_keys(self, listeners: Sequence[Listener], worker: Worker) -> None:
        for listener in listeners:
            if listener.oauth is None:
                continue
            if not listener.oauth.keys_url:
                log.warning(
                    "listener %s takes tokens without a signature: anybody can log in as anybody", listener.name
                )
                continue
            from oncelog.server.key_set import KeySet

            self.key_sets[listener.name] = keys = KeySet(listener.oauth, self.scheduler, worker)
            keys.start()


class Login:
    """One per connection. `serve` is the dispatcher's, and the dispatcher is behind it."""

    def __init__(self, logins: Logins, listener: Listener) -> None:
        self._logins = logins
        self._listener = listener
        self.state = State.START
        self._mechanism_name = ""
        self._mechanism: ServerMechanism | None = None
        self._has_bare_tokens = False
        self._user: str | None = None
        self._ends_ms: int | None = None
        self._last_login_ms = 0
        self._lifetime_ms = 0
        self._is_failure_logged = False

    def serve(self, frame: memoryview, peer: Peer) -> Buffers | Promise[Buffers | None] | None:
        if self.state is State.OPEN and (self._ends_ms is None or frame[:2] != _HANDSHAKE_KEY):
            if self._ends_ms is not None and self._now_ms() >= self._ends_ms:
                # Answers to what it asked in time are still sent.
                log.info("closing a connection of %s: its session has ended without another login", peer.principal)
                return LastAnswer()
            return self._logins.front.serve(frame, peer)
        if self.state is State.TOKENS and self._has_bare_tokens:
            return self._take_bare(bytes(frame), peer)
        header, position = parse_request_header(frame)
        return self._take(header, frame[position:], frame, peer)

    def _take(
        self, header: RequestHeader, body: memoryview, frame: memoryview, peer: Peer
    ) -> Buffers | Promise[Buffers | None] | None:
        key, version = ApiKey.SASL_HANDSHAKE, header.api_version
        if header.api_key == ApiKey.API_VERSIONS and self.state is State.START:
            return self._logins.front.serve(frame, peer)
        if header.api_key == key and key.first <= version <= key.last and self.state is not State.FAILED:
            request = cast(SaslHandshakeRequest, decode_request(key, version, body))
            return self._shake_hands(header, request.mechanism, peer)
        key = ApiKey.SASL_AUTHENTICATE
        if header.api_key == key and key.first <= version <= key.last and self.state is State.TOKENS:
            step = cast(SaslAuthenticateRequest, decode_request(key, version, body))
            return self._take_token(header, step.auth_bytes, peer)
        raise UnservedRequest(
            f"API key {header.api_key} version {version} came where a login was due; listener {self._listener.name} "
            f"is {self._listener.protocol.value}"
        )

    # The handshake

    def _shake_hands(self, header: RequestHeader, mechanism: str, peer: Peer) -> Buffers | Promise[Buffers | None]:
        code = self._handshake_problem(mechanism)
        mechanisms = [] if code is ErrorCode.ILLEGAL_SASL_STATE else list(self._listener.mechanisms)
        answer = _framed(header, SaslHandshakeResponse(error_code=code, mechanisms=mechanisms))
        if code:
            return self._fail(answer, f"the handshake for {mechanism!r} got {code.name}", peer)
        self._mechanism_name = mechanism
        self._mechanism = self._new_mechanism(mechanism)
        self._has_bare_tokens = header.api_version == 0
        self.state = State.TOKENS
        return answer

    def _handshake_problem(self, mechanism: str) -> ErrorCode:
        if self.state is State.TOKENS:
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self._listener.mechanisms:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if self.state is State.OPEN and (
            mechanism != self._mechanism_name or self._now_ms() - self._last_login_ms < BETWEEN_LOGINS_MIN_MS
        ):
            return ErrorCode.ILLEGAL_SASL_STATE
        return ErrorCode.NONE

    def _new_mechanism(self, name: str) -> ServerMechanism:
        if name == PLAIN:
            return PlainServer(self._listener.passwords)
        if name == OAUTHBEARER:
            return OAuthBearerServer(self._check_bearer)
        users, mechanism = self._logins.users(), ScramMechanism.of(name)
        return ScramServer(
            mechanism,
            lambda user: users.get(ScramUser(user, mechanism)),
            nonce=self._logins.new_nonce(),
            make_up=partial(self._logins.decoys.credential, mechanism),
        )

    def _check_bearer(self, token: str) -> Bearer:
        oauth, now_s = self._listener.oauth, self._logins.scheduler.now_ms() / 1000
        keys = self._logins.key_sets.get(self._listener.name)
        if oauth is None or (oauth.keys_url and keys is None):
            raise TokenRefused("there are no keys")
        if keys is None:
            return check_unsecured_token(token, oauth.rules, now_s)
        try:
            return check_token(token, keys.keys, oauth.rules, now_s)
        except UnknownKey as error:
            keys.miss(error.key_id)
            raise

    # Tokens

    def _take_token(self, header: RequestHeader, token: bytes, peer: Peer) -> Buffers | Promise[Buffers | None]:
        try:
            step = self._step(token, peer)
        except AuthenticationFailed as error:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            text = error.client_text or _REFUSED % self._mechanism_name
            answer = _framed(header, SaslAuthenticateResponse(error_code=code, error_message=text))
            return self._fail(answer, str(error), peer)
        lifetime_ms = self._lifetime_ms if step.user is not None else 0
        return _framed(
            header,
            SaslAuthenticateResponse(error_message=None, auth_bytes=step.token, session_lifetime_ms=lifetime_ms),
        )

    def _take_bare(self, token: bytes, peer: Peer) -> Buffers | Promise[Buffers | None]:
        try:
            step = self._step(token, peer)
        except AuthenticationFailed as error:
            return self._fail([], str(error), peer)
        return frame_whole(step.token)

    def _step(self, token: bytes, peer: Peer) -> Step:
        if self._mechanism is None:
            raise AuthenticationFailed("a token without a handshake")
        step = self._mechanism.step(token)
        if step.refusal is not None:
            # Now, because a client that tries tokens need not come back for the end.
            self._tell_failure(step.refusal, peer)
        if step.user is not None:
            self._open(step.user, step.ends_s, peer)
        return step

    def _open(self, user: str, ends_s: float | None, peer: Peer) -> None:
        if self._user not in (None, user):
            text = "Cannot change principals during re-authentication"
            raise AuthenticationFailed(f"user {self._user!r} logged in again as {user!r}", client_text=text)
        self._last_login_ms = self._now_ms()
        reauth_ms = self._listener.reauth_ms.get(self._mechanism_name, 0)
        lifetimes_ms = [reauth_ms] if reauth_ms else []
        if ends_s is not None:
            lifetimes_ms.append(max(1, int(ends_s * 1000) - self._logins.scheduler.now_ms()))
        self._lifetime_ms = min(lifetimes_ms, default=0)
        self._ends_ms = self._last_login_ms + self._lifetime_ms if lifetimes_ms else None
        self._user, self._mechanism, self.state = user, None, State.OPEN
        peer.principal, peer.is_known = f"User:{user}", True
        log.debug("%s logged in from %s with %s", peer.principal, peer.client_host, self._mechanism_name)

    # Failure

    def _fail(self, answer: Buffers, reason: str, peer: Peer) -> Promise[Buffers | None]:
        """Held back: whoever tries passwords is to wait, also for the connection to end."""
        self.state = State.FAILED
        self._logins.on_failure()
        self._tell_failure(reason, peer)
        promise: Promise[Buffers | None] = Promise()
        first_ms = self._logins.settings().integer("connection.failed.authentication.delay.ms")
        delay_ms = self._logins.failed.delay_ms(peer.client_host, first_ms, self._now_ms())
        self._logins.scheduler.call_later_ms(delay_ms, lambda: promise.resolve(LastAnswer(answer)))
        return promise

    def _tell_failure(self, reason: str, peer: Peer) -> None:
        """Once for each login."""
        if self._is_failure_logged:
            return
        self._is_failure_logged = True
        audit.tell_failed_login(peer.client_host, self._listener.name, self._mechanism_name, reason)

    def _now_ms(self) -> int:
        return self._logins.steady_ms()


def _framed(header: RequestHeader, response: Message) -> Buffers:
    key, version = header.api_key, header.api_version
    buffers = encode_response(key, version, response)
    return frame_response(header.correlation_id, response_header_version(key, version), buffers)
