"""Names in certificates as Java writes them, and the rules that make users of them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.core.config import ConfigError
from oncelog.security.distinguished_name import MalformedCertificate, subject_name
from oncelog.security.principal_mapping import PrincipalMapping, UnmappedName

FOLDER = Path(__file__).parents[2] / "data" / "tls"
NAME = "CN=alice,OU=Ops,O=Acme\\, Inc.,L=Berlin,ST=Berlin,C=DE"


def certificate(name: str) -> bytes:
    text = (FOLDER / name).read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("ca.pem", "CN=Oncelog test CA"),
        ("alice.pem", NAME),
        (
            "odd.pem",
            'O=Ünï\\;\\<\\>\\"y,1.2.840.113549.1.9.1=#160f626f62406578616d706c652e636f6d,CN=\\ \\#a\\=b\\+c',
        ),
    ],
)
def test_the_name_is_written_as_java_does(file: str, name: str) -> None:
    assert subject_name(certificate(file)) == name


@given(st.binary(max_size=60))
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedCertificate):
        subject_name(b"\x30" + data)


@pytest.mark.parametrize("cut", [10, 50, 100, 150])
def test_a_certificate_that_is_cut_is_refused(cut: int) -> None:
    with pytest.raises(MalformedCertificate):
        subject_name(certificate("alice.pem")[:cut])


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", NAME, NAME),
        ("RULE:^CN=(.*?),OU=Ops.*$/$1/", NAME, "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L", "CN=Ann,OU=Ops,O=X", "ann@ops"),
        ("RULE:^CN=(.*?),.*$/$1/U", NAME, "ALICE"),
        ("RULE:^CN=bob$/bob/, RULE:^CN=(\\w+),.*$/$1/,DEFAULT", NAME, "alice"),
        ("RULE:^CN=bob$/bob/,DEFAULT", NAME, NAME),
        ("RULE:^CN=(.*?),.*$/$1$7/", NAME, "alice$7"),
        ("RULE:^CN=a\\/b$/x\\/y/", "CN=a/b", "x/y"),
        ("RULE:^CN=(.*?), ?O=(.*)$/$1, of $2/", "CN=a,O=b", "a, of b"),
        ("RULE:.*/same/", NAME, "samesame"),
    ],
)
def test_rules(rules: str, name: str, user: str) -> None:
    assert PrincipalMapping(rules).user_of(name) == user


@pytest.mark.parametrize("rules", ["RULE:^CN=bob$/bob/", "RULE:CN=alice/x/"])
def test_a_name_that_no_rule_matches_as_a_whole_is_nobody(rules: str) -> None:
    with pytest.raises(UnmappedName):
        PrincipalMapping(rules).user_of(NAME)


def test_a_name_that_is_too_long_is_nobody() -> None:
    with pytest.raises(UnmappedName):
        PrincipalMapping("DEFAULT").user_of("C" * 2049)


@pytest.mark.parametrize(
    "rules", ["RULE:^a$/b", "default", "RULE:(/x/", "RULE:a/b/X", "DEFAULT DEFAULT", "RULE:a/b/L,x", "", " , "]
)
def test_rules_that_are_not_understood_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)
