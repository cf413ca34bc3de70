"""SCRAM on both sides: the vectors of RFC 7677 and of SHA-512, and what must be refused."""

from __future__ import annotations

import base64
from functools import partial

import pytest

from oncelog.security.sasl import AuthenticationFailed, Step
from oncelog.security.scram import (
    TOKEN_BYTES_MAX,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of_salted,
    make_credential,
)
from oncelog.security.scram_decoys import Decoys

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
PROOFS = {
    ScramMechanism.SHA_256: (
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    ScramMechanism.SHA_512: (
        "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==",
        "ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==",
    ),
}
both = pytest.mark.parametrize("mechanism", list(ScramMechanism))


def a_server(
    mechanism: ScramMechanism = ScramMechanism.SHA_256, user: str = "user", nonce: str = SERVER_NONCE
) -> ScramServer:
    users: dict[str, ScramCredential] = {user: make_credential(mechanism, "pencil", SALT, 4096)}
    decoys = Decoys(b"cluster secret", ((mechanism, credential) for credential in users.values()))
    return ScramServer(mechanism, users.get, nonce=nonce, make_up=partial(decoys.credential, mechanism))


@both
def test_the_worked_example_byte_for_byte(mechanism: ScramMechanism) -> None:
    proof, signature = PROOFS[mechanism]
    client = ScramClient(mechanism, "user", "pencil", nonce=CLIENT_NONCE)
    server = a_server(mechanism)
    assert client.first() == f"n,,n=user,r={CLIENT_NONCE}".encode()
    assert server.step(client.first()) == Step(SERVER_FIRST)
    final = client.step(SERVER_FIRST)
    assert final == f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p={proof}".encode()
    assert server.step(final) == Step(f"v={signature}".encode(), "user")
    assert client.step(f"v={signature}".encode()) is None


def test_the_keys_of_the_worked_example() -> None:
    mechanism = ScramMechanism.SHA_256
    made = make_credential(mechanism, "pencil", SALT, 4096)
    assert base64.b64encode(made.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(made.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    salted = mechanism.salted_password("pencil", SALT, 4096)
    assert credential_of_salted(mechanism, salted, SALT, 4096) == made
    assert "pencil" not in repr(made)
    assert str(made.stored_key) not in repr(made)


@both
@pytest.mark.parametrize("user", ["a,b", "a=b", "=2C", "Jürgen", "CN=x,O=y"])
def test_names_with_signs_of_their_own(mechanism: ScramMechanism, user: str) -> None:
    client = ScramClient(mechanism, user, "pencil", nonce="abc")
    server = a_server(mechanism, user)
    final = client.step(server.step(client.first()).token)
    assert final is not None
    assert server.step(final).user == user


def test_wrong_password_fails_at_the_proof() -> None:
    client, server = ScramClient(ScramMechanism.SHA_256, "user", "pen", nonce="abc"), a_server()
    final = client.step(server.step(client.first()).token)
    assert final is not None
    with pytest.raises(AuthenticationFailed) as caught:
        server.step(final)
    assert caught.value.client_text is None


def test_an_unknown_user_looks_like_a_known_one_until_the_proof() -> None:
    firsts = []
    for nonce in ("one", "two"):
        client, server = ScramClient(ScramMechanism.SHA_256, "nobody", "pencil", nonce="abc"), a_server(nonce=nonce)
        answer = server.step(client.first()).token
        firsts.append(answer.split(b",")[1:])
        final = client.step(answer)
        assert final is not None
        with pytest.raises(AuthenticationFailed, match="unknown, or the password is wrong"):
            server.step(final)
    assert firsts[0] == firsts[1], "the salt must be the same each time, as that of a real user is"
    assert len(base64.b64decode(firsts[0][0].removeprefix(b"s="))) == len(SALT)
    assert firsts[0][1] == b"i=4096"


@pytest.mark.parametrize("user", ["user", "nobody"])
def test_a_known_user_takes_the_work_of_an_unknown_one(user: str) -> None:
    mechanism, made_up = ScramMechanism.SHA_256, []
    kept = make_credential(mechanism, "pencil", SALT, 4096)

    def make_up(name: str) -> ScramCredential:
        made_up.append(name)
        return Decoys(b"cluster secret", [(mechanism, kept)]).credential(mechanism, name)

    server = ScramServer(mechanism, {"user": kept}.get, nonce=SERVER_NONCE, make_up=make_up)
    server.step(ScramClient(mechanism, user, "pencil", nonce="abc").first())
    assert made_up == [user], "else the time of the answer tells who is known"


def test_a_recorded_proof_is_of_no_use_on_another_connection() -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", nonce=CLIENT_NONCE)
    recorded = client.step(a_server().step(client.first()).token)
    assert recorded is not None
    other = a_server(nonce="another")
    other.step(client.first())
    with pytest.raises(AuthenticationFailed, match="another nonce"):
        other.step(recorded)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=must,n=user,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=user,r=abc,,",
        b"n,,n=us\0er,r=abc",
        b"n,,n=user,r=" + b"a" * TOKEN_BYTES_MAX,
    ],
)
def test_first_tokens_that_are_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        a_server().step(first)


def test_an_authorization_id_equal_to_the_user_and_extensions_are_allowed() -> None:
    server = a_server()
    assert server.step(b"n,a=user,n=user,r=abc,x=y").token.startswith(b"r=abc")


@pytest.mark.parametrize("index", range(60))
def test_a_flipped_bit_in_the_last_token_is_refused(index: int) -> None:
    client, server = ScramClient(ScramMechanism.SHA_256, "user", "pencil", nonce="abc"), a_server()
    final = client.step(server.step(client.first()).token)
    assert final is not None
    flipped = bytearray(final)
    flipped[index] ^= 1
    with pytest.raises(AuthenticationFailed):
        server.step(bytes(flipped))


def test_another_binding_than_that_of_the_first_token_is_refused() -> None:
    server = a_server()
    server.step(b"n,,n=user,r=abc")
    with pytest.raises(AuthenticationFailed, match="channel binding"):
        server.step(f"c=eSws,r=abc{SERVER_NONCE},p=AAAA".encode())


def test_a_third_token_is_refused() -> None:
    client, server = ScramClient(ScramMechanism.SHA_256, "user", "pencil", nonce="abc"), a_server()
    final = client.step(server.step(client.first()).token)
    assert final is not None
    server.step(final)
    with pytest.raises(AuthenticationFailed, match="after the last"):
        server.step(final)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"r=abc,s=AAAA,i=4096", "nonce"),
        (b"r=xyz123,s=AAAA,i=4096", "nonce"),
        (b"r=abc123,s=AAAA,i=100001", "iterations"),
        (b"r=abc123,s=AAAA,i=4095", "iterations"),
        (b"r=abc123,s=AAAA,i=999999999999", "malformed"),
        (b"r=abc123,s=AAA,i=4096", "base64"),
        (b"\xff", "malformed"),
    ],
)
def test_the_client_refuses_a_broker_that_answers_badly(answer: bytes, why: str) -> None:
    with pytest.raises(AuthenticationFailed, match=why):
        ScramClient(ScramMechanism.SHA_256, "user", "pencil", nonce="abc").step(answer)


def test_the_client_refuses_a_broker_that_does_not_know_the_password() -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", nonce="abc")
    client.step(b"r=abc123,s=AAAA,i=4096")
    with pytest.raises(AuthenticationFailed, match="does not know the password"):
        client.step(b"v=AAAA")
