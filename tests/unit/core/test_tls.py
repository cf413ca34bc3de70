"""TLS settings that are incomplete, unreadable, or of a kind that is not read here."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.config import ConfigError
from oncelog.tls import TlsSettings, client_context, server_context

FOLDER = Path(__file__).parents[2] / "data" / "tls"
BROKER, ALICE, LOCKED, CA = (str(FOLDER / name) for name in ("broker.pem", "alice.pem", "locked.pem", "ca.pem"))


def test_what_is_asked_of_clients() -> None:
    for client_auth, mode in [
        ("none", ssl.CERT_NONE),
        ("requested", ssl.CERT_OPTIONAL),
        ("required", ssl.CERT_REQUIRED),
    ]:
        context = server_context(TlsSettings(keystore_location=BROKER, truststore_location=CA, client_auth=client_auth))
        assert context.verify_mode == mode
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_client_checks_names_unless_told_otherwise() -> None:
    assert client_context(TlsSettings(truststore_location=CA)).check_hostname
    assert not client_context(TlsSettings(truststore_location=CA, check_hostname=False)).check_hostname
    only_new = client_context(TlsSettings(truststore_location=CA, enabled_protocols=("TLSv1.3",)))
    assert only_new.minimum_version == ssl.TLSVersion.TLSv1_3


def test_pem_in_settings_may_be_one_line() -> None:
    text = (FOLDER / "broker.pem").read_text()
    cut = text.index("-----BEGIN CERTIFICATE")
    key, chain = (part.replace("\n", " ") for part in (text[:cut], text[cut:]))
    server_context(TlsSettings(keystore_key=key, keystore_chain=chain))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "needs a key and a certificate"),
        ({"keystore_location": BROKER, "client_auth": "required"}, "ssl.truststore.location: ssl.client.auth=required"),
        ({"keystore_location": "/does/not/exist"}, "cannot be read"),
        ({"keystore_location": CA}, "no key with its certificate"),
        ({"keystore_location": LOCKED}, "needs ssl.key.password"),
        ({"keystore_location": LOCKED, "key_password": "wrong"}, "no key with its certificate"),
        ({"keystore_location": BROKER, "keystore_key": "x", "keystore_chain": "y"}, "both given"),
        ({"keystore_key": "x"}, "one is missing"),
        ({"keystore_key": "x", "keystore_chain": "y"}, "no key with its certificate"),
        ({"keystore_location": BROKER, "truststore_certificates": "x"}, "no certificates can be read"),
        ({"keystore_location": BROKER, "enabled_protocols": ("TLSv1.1",)}, "not TLSv1.1"),
        ({"keystore_location": BROKER, "enabled_protocols": ()}, "ssl.enabled.protocols"),
        ({"keystore_location": BROKER, "keystore_type": "JKS"}, "keytool -importkeystore"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        server_context(TlsSettings(**settings))


@pytest.mark.parametrize(
    ("start", "command"),
    [(b"\xfe\xed\xfe\xed\0\0", "keytool -importkeystore -srckeystore"), (b"\x30\x82\x01", "openssl pkcs12 -in")],
)
def test_a_store_of_java_is_known_by_its_bytes_and_refused_with_the_command_that_converts_it(
    tmp_path: Path, start: bytes, command: str
) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(start)
    with pytest.raises(ConfigError, match=command):
        server_context(TlsSettings(keystore_location=str(store)))
    with pytest.raises(ConfigError, match="-nokeys"):
        client_context(TlsSettings(truststore_location=str(store)))


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(TlsSettings(keystore_key="hidden", key_password="hidden"))
