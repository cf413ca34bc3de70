"""PLAIN tokens and JAAS lines."""

from __future__ import annotations

import pytest

from oncelog.core.config import ConfigError
from oncelog.security.jaas import parse_jaas
from oncelog.security.plain import PlainClient, PlainServer
from oncelog.security.sasl import AuthenticationFailed, Step

USERS = {"bob": "secret", "jürgen": "pässword"}


@pytest.mark.parametrize(("user", "password"), USERS.items())
def test_the_right_password_lets_in(user: str, password: str) -> None:
    assert PlainServer(USERS).step(PlainClient(user, password).first()) == Step(b"", user)


@pytest.mark.parametrize(
    "token",
    [
        b"\0bob\0wrong",
        b"\0eve\0secret",
        b"\0bob\0",
        b"\0\0secret",
        b"\0eve\0",
        b"bob\0secret",
        b"\0bob\0secret\0",
        b"\0bob\0\xff",
        b"admin\0bob\0secret",
        b"",
    ],
)
def test_anything_else_does_not(token: bytes) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        PlainServer(USERS).step(token)
    assert "secret" not in str(caught.value)


def test_the_authorization_id_is_told_of_only_to_whom_knows_the_password() -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        PlainServer(USERS).step(b"admin\0bob\0wrong")
    assert caught.value.client_text is None


def test_a_line_of_a_broker() -> None:
    line = parse_jaas(
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" '
        'password="x y" \n user_bob="a\\"b;=" user_eve=pw;',
        key="k",
    )
    assert line.family == "PLAIN"
    assert line.users == {"bob": 'a"b;=', "eve": "pw"}
    assert line.options["password"] == "x y"
    assert "pw" not in repr(line)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PlainLoginModule",
        'PlainLoginModule perhaps user_bob="pw";',
        'com.sun.security.auth.module.JndiLoginModule required user_bob="pw";',
        'PlainLoginModule required user_bob="pw;',
        'PlainLoginModule required user_bob="pw" nonsense;',
    ],
)
def test_lines_that_are_refused_are_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_jaas(text, key="listener.name.x.plain.sasl.jaas.config")
    assert "pw" not in str(caught.value)
