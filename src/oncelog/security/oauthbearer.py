"""OAUTHBEARER (RFC 7628): a token that an authority has signed (a JWT) says who somebody is, and for how long.

    n,[a=authorization id],^Aauth=Bearer TOKEN[^Aname=value]*^A^A        ^A is the byte 1

A token that is refused is answered with JSON, to which the client answers ^A, and only then the login fails. Algorithms
are those of key pairs, never `none` and never a shared secret. Whatever is missing is a refusal: a signature, a known
key, the times, the audience and the issuer that are expected.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from oncelog.core.dataclass import dataclass
from oncelog.security.sasl import AuthenticationFailed, Step, check_authorization_id

ALGORITHMS: Final = frozenset(
    {*(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)), "EdDSA"}
)
TOKEN_BYTES_MAX: Final = 65_536
KEY_ID_CHARS_MAX: Final = 1000
KEYS_MAX: Final = 1000
_FIRST: Final = re.compile(rb"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01){1,100})\x01")
_BEARER: Final = re.compile(r"Bearer +(?P<token>[A-Za-z0-9_.=-]+)", re.IGNORECASE)
_INVALID: Final = b'{"status":"invalid_token"}'


class TokenRefused(Exception):
    """The text is for the operator's log: it never has the token in it."""


class UnknownKey(TokenRefused):
    def __init__(self, key_id: str) -> None:
        super().__init__("the token is signed with a key that is not in the set")
        self.key_id = key_id


class Bearer(NamedTuple):
    user: str
    ends_s: float
    """When the token is refused, by this clock."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    audiences: tuple[str, ...] = ()
    """One of them must be in the token; none if that was waived."""
    issuer: str | None = None
    """None if that was waived."""
    skew_s: int = 30
    subject_claim: str = "sub"


class VerifyKey(NamedTuple):
    key: Any
    algorithm: str | None
    """None if the set does not say."""


def parse_key_set(content: bytes) -> dict[str, VerifyKey]:
    """The keys of a JWKS by their ids. Raises ValueError. What cannot verify a signature is left out."""
    from jwt import PyJWK, PyJWTError

    found: dict[str, VerifyKey] = {}
    document = _json(content)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError("it has no list of keys, or too many")
    for entry in entries:
        if not _can_verify(entry):
            continue
        try:
            found[entry["kid"]] = VerifyKey(PyJWK(entry).key, entry.get("alg"))
        except PyJWTError:
            continue  # of a kind that is not known here, or damaged; the others are good all the same
    if not found:
        raise ValueError("it has no key that can verify a signature")
    return found


def _can_verify(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
        return False
    if not isinstance(entry.get("alg"), str | None):
        return False
    return entry.get("kty") != "oct" and "d" not in entry and entry.get("use", "sig") == "sig"


def _json(content: bytes) -> object:
    """Raises ValueError, also for what is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_token(token: str, keys: Mapping[str, VerifyKey], rules: TokenRules, now_s: float) -> Bearer:
    """Raises TokenRefused."""
    import jwt
    from jwt.api_jws import PyJWS

    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise TokenRefused("it is no token") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused(f"algorithm {str(algorithm)[:20]!r} is not allowed")
    if not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARS_MAX:
        raise TokenRefused("the token does not say which key it is signed with")
    key = keys.get(key_id)
    if key is None:
        raise UnknownKey(key_id)
    if key.algorithm not in (None, algorithm):
        raise TokenRefused(f"the key is one for {key.algorithm}, and the token says {algorithm}")
    try:
        payload = PyJWS(algorithms=[algorithm]).decode(token, key.key, algorithms=[algorithm])
    except (jwt.PyJWTError, TypeError, ValueError):
        raise TokenRefused("the signature is wrong") from None
    return _check_claims(payload, rules, now_s)


def check_unsecured_token(token: str, rules: TokenRules, now_s: float) -> Bearer:
    """For development only: anybody can make such a token."""
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        raise TokenRefused("it is no token without a signature")
    try:
        header, payload = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts[:2])
        fields = _json(header)
    except (binascii.Error, ValueError):
        raise TokenRefused("it is no token") from None
    if not isinstance(fields, dict) or fields.get("alg") != "none":
        raise TokenRefused("it says that it is signed, and has no signature")
    return _check_claims(payload, rules, now_s)


def _check_claims(payload: bytes, rules: TokenRules, now_s: float) -> Bearer:
    try:
        claims = _json(payload)
    except ValueError:
        raise TokenRefused("its claims are no JSON") from None
    if not isinstance(claims, dict):
        raise TokenRefused("its claims are no JSON object")
    expires_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
    if expires_s + rules.skew_s <= now_s:
        raise TokenRefused("it has expired")
    if max(issued_s, _time(claims, "nbf") if "nbf" in claims else issued_s) - rules.skew_s > now_s:
        raise TokenRefused("it is not valid yet")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused("its issuer is another one")
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    if rules.audiences and not set(rules.audiences) & {each for each in named if isinstance(each, str)}:
        raise TokenRefused("it is for another audience")
    user = claims.get(rules.subject_claim)
    if not isinstance(user, str) or not user.strip():
        raise TokenRefused(f"it has no {rules.subject_claim}")
    return Bearer(user, expires_s + rules.skew_s)


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise TokenRefused(f"it has no {name}, or not as a number of seconds")
    return float(value)


class OAuthBearerServer:
    def __init__(self, check: Callable[[str], Bearer]) -> None:
        """`check` raises TokenRefused."""
        self._check = check
        self._refusal: AuthenticationFailed | None = None

    def step(self, token: bytes) -> Step:
        if self._refusal is not None:
            raise self._refusal
        authorization_id, bearer_token = _parse_first(token)
        try:
            bearer = self._check(bearer_token)
        except TokenRefused as error:
            self._refusal = AuthenticationFailed(str(error))
            return Step(_INVALID, refusal=str(error))
        check_authorization_id(authorization_id, bearer.user)
        return Step(b"", bearer.user, bearer.ends_s)


def _parse_first(token: bytes) -> tuple[str, str]:
    """Authorization id and bearer token."""
    found = _FIRST.fullmatch(token) if len(token) <= TOKEN_BYTES_MAX else None
    if found is None:
        raise AuthenticationFailed("the token is not of the form of OAUTHBEARER")
    try:
        pairs = dict(pair.split("=", 1) for pair in found["pairs"].decode().split("\x01") if pair)
        authorization_id = (found["authzid"] or b"").decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("the token is not UTF-8") from None
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise AuthenticationFailed("the token has no bearer token in it")
    return authorization_id, bearer["token"]


class OAuthBearerClient:
    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def step(self, token: bytes) -> bytes | None:
        """A broker that says why it refuses is answered, so that it ends the login."""
        return b"\x01" if token else None
