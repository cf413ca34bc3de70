"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), both sides, in Kafka's dialect.

    client  n,,n=user,r=<client nonce>                       the gs2 header, then client-first-bare
    server  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client  c=<base64 of the gs2 header>,r=<both nonces>,p=<proof>
    server  v=<signature>

    salted = PBKDF2(password, salt, iterations)
    client key = HMAC(salted, "Client Key")         stored key = H(client key)
    server key = HMAC(salted, "Server Key")
    signed = client-first-bare , server-first , client-final without proof
    proof = client key XOR HMAC(stored key, signed)         signature = HMAC(server key, signed)

The broker keeps salt, iterations, stored key and server key, never the password, and computes no PBKDF2.

As in Kafka there is no channel binding (`n` only), names and passwords are UTF-8 as they are, without SASLprep, and
`,` and `=` in names are written `=2C` and `=3D`. Unlike Kafka, a user that is not known gets a salt like any other
(`security.scram_decoys`), and fails at the proof: so nobody learns which users there are. `c=` is checked, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from oncelog.security.sasl import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    AuthenticationFailed,
    Step,
    check_authorization_id,
)

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Most that Kafka lets a user have."""
CLIENT_ITERATIONS_MAX: Final = 100_000
"""Most that our client computes: a broker must not be able to keep it busy."""
SALT_BYTES: Final = 16
TOKEN_BYTES_MAX: Final = 8_192
"""A server keeps what it was told until the proof comes, which may be long, and from anybody."""

_NAME: Final = r"(?:[^\x00,=]|=2C|=3D)+"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^\x00,]+)*))"
)
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/]+={0,2}),i=(?P<iterations>[1-9][0-9]{0,8})(?:,.*)?"
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/]+={0,2}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^\x00,]+)*?)"
    r",p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)


_SASL_NAMES: Final = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}


class ScramMechanism(IntEnum):
    """The number is that of the protocol and of Kafka's records."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return _SASL_NAMES.get(self, self.name)  # another broker may have one that is not known here

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @classmethod
    def of(cls, sasl_name: str) -> ScramMechanism:
        return next(mechanism for mechanism in cls if mechanism.sasl_name == sasl_name)

    @property
    def digest_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size

    def digest(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    def mac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Milliseconds of work."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


class ScramUser(NamedTuple):
    name: str
    mechanism: ScramMechanism


class ScramCredential(NamedTuple):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def credential_of_salted(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    stored_key = mechanism.digest(mechanism.mac(salted_password, b"Client Key"))
    return ScramCredential(salt, stored_key, mechanism.mac(salted_password, b"Server Key"), iterations)


def make_credential(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    return credential_of_salted(mechanism, mechanism.salted_password(password, salt, iterations), salt, iterations)


class ScramServer:
    """`find` gives the credential of a user, None for nobody; `make_up` that of nobody; `nonce` is used once."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        *,
        nonce: str,
        make_up: Callable[[str], ScramCredential],
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._make_up = make_up
        self._user: str | None = None
        self._is_known = False
        self._is_over = False
        self._gs2 = self._client_first = self._server_first = ""

    def step(self, token: bytes) -> Step:
        if self._is_over:
            raise AuthenticationFailed("a token came after the last one")
        if len(token) > TOKEN_BYTES_MAX:
            raise AuthenticationFailed(f"a token of {len(token)} bytes came, {TOKEN_BYTES_MAX} are allowed")
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("the token is not UTF-8") from None
        if self._user is None:
            return self._take_first(text)
        self._is_over = True
        return self._take_final(text, self._user)

    def _take_first(self, text: str) -> Step:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("the first token of the client is malformed")
        user = _unescaped(match["user"])
        check_authorization_id(_unescaped(match["authzid"] or ""), user)
        if ",tokenauth=true" in match["extensions"].lower():
            raise AuthenticationFailed("delegation tokens are not supported")
        # In any case: the time that it takes tells nothing either.
        found, made_up = self._find(user), self._make_up(user)
        self._is_known = found is not None
        self._credential = found or made_up
        self._user, self._gs2, self._client_first = user, match["gs2"], match["bare"]
        self._nonce = match["nonce"] + self._nonce
        salt = base64.b64encode(self._credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return Step(self._server_first.encode())

    def _take_final(self, text: str, user: str) -> Step:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("the last token of the client is malformed")
        # Before the proof: one that was recorded has another nonce.
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the last token of the client has another nonce")
        if _decoded(match["binding"]) != self._gs2.encode():
            raise AuthenticationFailed("the channel binding is not that of the first token")
        signed = f"{self._client_first},{self._server_first},{match['unproved']}".encode()
        if not self._is_proved(_decoded(match["proof"]), signed) or not self._is_known:
            raise AuthenticationFailed(f"user {user!r} is unknown, or the password is wrong")
        signature = self._mechanism.mac(self._credential.server_key, signed)
        return Step(b"v=" + base64.b64encode(signature), user)

    def _is_proved(self, proof: bytes, signed: bytes) -> bool:
        signature = self._mechanism.mac(self._credential.stored_key, signed)
        if len(proof) != len(signature):
            return False
        return hmac.compare_digest(self._mechanism.digest(_xor(proof, signature)), self._credential.stored_key)


class ScramClient:
    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_escaped(user)},r={nonce}"
        self._expected: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def step(self, token: bytes) -> bytes | None:
        """Take the client's message, return the answer. The first call takes milliseconds of PBKDF2."""
        if self._expected is None:
            return self._take_first(token.decode(errors="replace"))
        if not hmac.compare_digest(token, self._expected):
            raise AuthenticationFailed("the broker does not know the password: it may be somebody else's")
        return None

    def _take_first(self, text: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("the first token of the broker is malformed")
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the broker answered with a nonce that does not continue the client's")
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the broker asks for {iterations} iterations; {ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX} are accepted"
            )
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, _decoded(match["salt"]), iterations)
        client_key = mechanism.mac(salted, b"Client Key")
        unproved = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{unproved}".encode()
        proof = _xor(client_key, mechanism.mac(mechanism.digest(client_key), signed))
        signature = mechanism.mac(mechanism.mac(salted, b"Server Key"), signed)
        self._expected = b"v=" + base64.b64encode(signature)
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("a field is not base64") from None
