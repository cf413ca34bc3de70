"""OAUTHBEARER: which tokens are taken, that everything else is refused, and how a refusal goes to and fro."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from jwt.algorithms import RSAAlgorithm

from oncelog.security.oauthbearer import (
    Bearer,
    OAuthBearerClient,
    OAuthBearerServer,
    TokenRefused,
    TokenRules,
    UnknownKey,
    check_token,
    check_unsecured_token,
    parse_key_set,
)
from oncelog.security.sasl import AuthenticationFailed, Step
from tests.unit.security.tokens import AUDIENCE, ISSUER, Authority

NOW_S = 1_800_000_000.0
RULES = TokenRules((AUDIENCE,), ISSUER)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def check(authority: Authority, token: str, rules: TokenRules = RULES) -> Bearer:
    return check_token(token, parse_key_set(authority.key_set()), rules, NOW_S)


def test_a_token_of_the_authority_is_taken(authority: Authority) -> None:
    assert check(authority, authority.token(NOW_S)) == Bearer("ann", NOW_S + 3600 + RULES.skew_s)
    by_curve = authority.token(NOW_S, key=authority.ec, key_id="e", algorithm="ES256", aud=["other", AUDIENCE])
    assert check(authority, by_curve).user == "ann"
    own_claim = authority.token(NOW_S, email="ann@example.org")
    assert check(authority, own_claim, TokenRules((AUDIENCE,), ISSUER, 30, "email")).user == "ann@example.org"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": int(NOW_S) - 31}, "expired"),
        ({"iat": int(NOW_S) + 31}, "not valid yet"),
        ({"nbf": int(NOW_S) + 31}, "not valid yet"),
        ({"exp": None}, "no exp"),
        ({"iat": None}, "no iat"),
        ({"exp": "soon"}, "no exp"),
        ({"exp": True}, "no exp"),
        ({"aud": "others"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": {"oncelog": 1}}, "another audience"),
        ({"iss": "https://elsewhere.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"sub": None}, "no sub"),
        ({"sub": " "}, "no sub"),
        ({"sub": 7}, "no sub"),
        ({"key_id": None}, "which key"),
        ({"key_id": "x" * 1001}, "which key"),
    ],
)
def test_what_is_missing_or_wrong_is_a_refusal(authority: Authority, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(TokenRefused, match=why):
        check(authority, forged(authority, **changes))


def forged(authority: Authority, **changes: Any) -> str:
    """Signed with the right key, whatever is in it: PyJWT checks some claims when it encodes."""
    key_id = changes.pop("key_id", "r")
    claims = {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "iat": int(NOW_S), "exp": int(NOW_S) + 3600, **changes}
    payload = json.dumps({name: value for name, value in claims.items() if value is not None}).encode()
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.api_jws.encode(payload, authority.rsa, algorithm="RS256", headers=headers)


def test_times_may_differ_by_the_skew(authority: Authority) -> None:
    check(authority, forged(authority, exp=int(NOW_S) - 29, iat=int(NOW_S) + 29))


def test_a_signature_of_somebody_else_or_of_none_is_refused(authority: Authority) -> None:
    stranger = Authority()
    with pytest.raises(TokenRefused, match="signature is wrong"):
        check(authority, stranger.token(NOW_S))
    with pytest.raises(UnknownKey):
        check(authority, stranger.token(NOW_S, key_id="new"))
    head, claims, signature = authority.token(NOW_S).split(".")
    changed = base64.urlsafe_b64encode(base64.urlsafe_b64decode(claims + "==").replace(b"ann", b"eve")).decode()
    for token in (f"{head}.{changed.rstrip('=')}.{signature}", f"{head}.{claims}.", f"{head}.{claims}", "", "a.b.c"):
        with pytest.raises(TokenRefused):
            check(authority, token)


def test_algorithms_cannot_be_confused(authority: Authority) -> None:
    public = base64.urlsafe_b64encode(b"whatever is public").decode()
    shared_secret = jwt.encode({"sub": "ann"}, public * 4, algorithm="HS256", headers={"kid": "r"})
    with pytest.raises(TokenRefused, match="not allowed"):
        check(authority, shared_secret)
    unsigned = jwt.encode({"sub": "ann"}, None, algorithm="none", headers={"kid": "r"})
    with pytest.raises(TokenRefused, match="not allowed"):
        check(authority, unsigned)
    with pytest.raises(TokenRefused, match="is one for RS256"):
        check(authority, authority.token(NOW_S, algorithm="PS256"))
    with pytest.raises(TokenRefused, match="signature is wrong"):
        check(authority, authority.token(NOW_S, key_id="e"))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [1, {"kty": "x"}]}']
)
def test_a_set_without_keys_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"key|JSON|Expecting"):
        parse_key_set(content)


def test_shared_secrets_in_a_set_are_left_out(authority: Authority) -> None:
    keys = json.loads(authority.key_set())["keys"]
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    assert parse_key_set(json.dumps({"keys": [secret, *keys]}).encode()).keys() == {"r", "e"}


@pytest.mark.parametrize(
    "bad",
    [
        {"kty": "RSA"},
        {"kty": "RSA", "n": 5, "e": "AQAB"},
        {"kty": ["RSA"]},
        {"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"},
        {"kty": "EC", "crv": "brainpoolP256r1", "x": "AQ", "y": "AQ"},
        {"kty": "OKP", "crv": "X25519", "x": "!"},
        {"kty": "new"},
        {"alg": ["RS256"]},
    ],
)
def test_an_entry_that_is_no_key_does_not_spoil_the_set(authority: Authority, bad: dict[str, Any]) -> None:
    keys = json.loads(authority.key_set())["keys"]
    content = json.dumps({"keys": [{"kid": "bad", **bad}, *keys]}).encode()
    assert parse_key_set(content).keys() == {"r", "e"}


def test_a_private_key_is_no_key_of_a_set(authority: Authority) -> None:
    keys = json.loads(authority.key_set())["keys"]
    private = {**json.loads(RSAAlgorithm.to_jwk(authority.rsa)), "kid": "p"}
    assert parse_key_set(json.dumps({"keys": [private, *keys]}).encode()).keys() == {"r", "e"}


def test_a_set_that_is_nested_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="too deeply"):
        parse_key_set(b"[" * 200_000)


@pytest.mark.parametrize("algorithm", [["RS256"], {}, 7, None])
def test_an_algorithm_that_is_no_text_is_a_refusal(authority: Authority, algorithm: object) -> None:
    with pytest.raises(TokenRefused, match="not allowed"):
        check(authority, of_parts(json.dumps({"alg": algorithm, "kid": "r"}).encode(), b"{}") + "AAAA")


def of_parts(*parts: bytes) -> str:
    """Of header and claims, without a signature."""
    return "".join(base64.urlsafe_b64encode(part).decode().rstrip("=") + "." for part in parts)


def test_parts_that_are_nested_deeply_are_a_refusal(authority: Authority) -> None:
    deep = b"[" * 20_000
    with pytest.raises(TokenRefused):
        check(authority, of_parts(deep, b"{}") + "AAAA")
    for token in (of_parts(deep, b"{}"), of_parts(b'{"alg": "none"}', deep), of_parts(b"[]", b"{}")):
        with pytest.raises(TokenRefused):
            check_unsecured_token(token, TokenRules(), NOW_S)


def test_tokens_without_a_signature_where_they_are_asked_for(authority: Authority) -> None:
    claims = {"sub": "ann", "iat": NOW_S, "exp": NOW_S + 10}
    unsigned = jwt.encode(claims, None, algorithm="none")
    assert check_unsecured_token(unsigned, TokenRules(), NOW_S).user == "ann"
    for token in (authority.token(NOW_S), authority.token(NOW_S).rpartition(".")[0] + ".", "x", "a.b."):
        with pytest.raises(TokenRefused):
            check_unsecured_token(token, TokenRules(), NOW_S)


# The exchange


def server(refusal: str | None = None) -> OAuthBearerServer:
    def check(token: str) -> Bearer:
        if refusal is not None:
            raise TokenRefused(refusal)
        assert token == "the.good-one_."
        return Bearer("ann", 5.0)

    return OAuthBearerServer(check)


def test_a_good_token_is_all_that_is_needed() -> None:
    client = OAuthBearerClient("the.good-one_.")
    step = server().step(client.first())
    assert step == Step(b"", "ann", 5.0)
    assert client.step(step.token) is None


def test_a_refusal_is_told_and_answered_before_the_end() -> None:
    client, refusing = OAuthBearerClient("x"), server("it has expired")
    step = refusing.step(client.first())
    assert (json.loads(step.token), step.user) == ({"status": "invalid_token"}, None)
    answer = client.step(step.token)
    assert answer == b"\x01"
    with pytest.raises(AuthenticationFailed, match="has expired"):
        refusing.step(answer)
    with pytest.raises(AuthenticationFailed):
        refusing.step(client.first())


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer x y\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01host=h\x01\x01",
        b"n,,\x01auth=Bearer x\x01\x01extra",
        b"n,a=\xff,\x01auth=Bearer x\x01\x01",
    ],
)
def test_first_tokens_that_are_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server().step(first)


def test_nobody_acts_as_somebody_else_and_extensions_are_allowed() -> None:
    assert server().step(b"n,a=ann,\x01auth=Bearer the.good-one_.\x01traceId=7\x01\x01").user == "ann"
    with pytest.raises(AuthenticationFailed):
        server().step(b"n,a=eve,\x01auth=Bearer the.good-one_.\x01\x01")
