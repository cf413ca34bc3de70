"""TLS settings that are incomplete, unreadable, or of a kind that is not read here."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.config import ConfigError
from oncelog.security.jks import MAGIC, JksError, read_jks, unlock
from oncelog.tls import TlsSettings, client_context, server_context

FOLDER = Path(__file__).parents[2] / "data" / "tls"
OLD_SUITE = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
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


@pytest.mark.parametrize("has_files_in_memory", [True, False])
def test_pem_in_settings_may_be_one_line(
    has_files_in_memory: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not has_files_in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    text = (FOLDER / "broker.pem").read_text()
    cut = text.index("-----BEGIN CERTIFICATE")
    key, chain = (part.replace("\n", " ") for part in (text[:cut], text[cut:]))
    server_context(TlsSettings(keystore_key=key, keystore_chain=chain))
    assert list(tmp_path.iterdir()) == [], "no key is left behind"


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
        ({"keystore_location": BROKER, "keystore_type": "JKS"}, "is no JKS"),
        ({"keystore_location": BROKER, "keystore_password": "x"}, "ssl.keystore.password: .* is PEM, which has none"),
        ({"keystore_location": BROKER, "cipher_suites": ("TLS_RSA_WITH_RC4_128_SHA",)}, "RC4_128_SHA is not supported"),
        ({"keystore_location": BROKER, "cipher_suites": ("TLS_AES_128_GCM_SHA256",)}, "cannot be left out"),
        (
            {"keystore_location": BROKER, "cipher_suites": (OLD_SUITE,), "enabled_protocols": ("TLSv1.3",)},
            "none of them is one of ssl.enabled.protocols",
        ),
    ],
)
def test_what_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        server_context(TlsSettings(**settings))


KEYS_JKS, TRUST_JKS = str(FOLDER / "broker.jks"), str(FOLDER / "trust.jks")
"""Made by keytool from broker.pem, and from ca.pem and odd.pem. Passwords: `storepw`, and `keypass` of the key."""
JKS = {"keystore_location": KEYS_JKS, "keystore_type": "JKS", "keystore_password": "storepw", "key_password": "keypass"}


@pytest.mark.parametrize("password", ["storepw", None])
def test_stores_in_the_older_format_of_java_are_read(password: str | None) -> None:
    trust: dict[str, Any] = {"truststore_location": TRUST_JKS, "truststore_password": password}
    server = server_context(TlsSettings(**JKS, **trust, client_auth="requested"))
    assert handshake(server, client_context(TlsSettings(**trust))) == "TLSv1.3"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"keystore_password": None}, "broker.jks is JKS and needs one"),
        ({"keystore_password": "wrong"}, "the password is wrong, or the file is damaged"),
        ({"key_password": "wrong"}, "the password of the key is wrong"),
        ({"key_password": None}, "the password of the key is wrong"),
        ({"keystore_location": TRUST_JKS}, "there are 0 keys"),
        ({"truststore_location": KEYS_JKS}, "there is no certificate to trust"),
    ],
)
def test_what_is_refused_of_a_store_in_the_older_format(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        server_context(TlsSettings(**{**JKS, **settings}))


def test_a_store_that_is_damaged_anywhere_is_refused_and_never_half_read() -> None:
    whole = Path(KEYS_JKS).read_bytes()
    for place in range(len(whole)):
        damaged = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        for content in (damaged, whole[:place]):
            with pytest.raises(JksError):
                read_jks(content, "storepw")
        with contextlib.suppress(JksError):  # nobody can tell without the password, but it ends
            for key in read_jks(damaged, None).keys:
                unlock(key, "keypass")


@pytest.mark.skipif(shutil.which("keytool") is None, reason="there is no keytool")
def test_a_store_that_keytool_makes_now_is_read(tmp_path: Path) -> None:
    store = str(tmp_path / "new.jks")
    make = ["-genkeypair", "-alias", "b", "-keyalg", "EC", "-dname", "CN=localhost", "-storetype", "JKS"]
    subprocess.run(
        ["keytool", *make, "-keystore", store, "-storepass", "pässword", "-keypass", "pässword"],
        check=True,
        capture_output=True,
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-Dfile.encoding=UTF-8 -Dsun.jnu.encoding=UTF-8", "LC_ALL": "C.UTF-8"},
    )
    assert Path(store).read_bytes()[:4] == MAGIC
    server_context(TlsSettings(keystore_location=store, keystore_password="pässword"))


def test_a_store_in_another_format_of_java_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xce\xce\xce\xce\0\0")
    with pytest.raises(ConfigError, match="keytool -importkeystore -srckeystore"):
        server_context(TlsSettings(keystore_location=str(store)))
    with pytest.raises(ConfigError, match="-nokeys"):
        client_context(TlsSettings(truststore_location=str(store)))


def pkcs12_store(path: Path, password: str, *, has_key: bool) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509 import load_pem_x509_certificate

    text, authority = Path(BROKER).read_bytes(), load_pem_x509_certificate(Path(CA).read_bytes())
    key: Any = serialization.load_pem_private_key(text, None) if has_key else None
    own = load_pem_x509_certificate(text[text.index(b"-----BEGIN CERT") :]) if has_key else None
    encryption = serialization.BestAvailableEncryption(password.encode())
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"broker", key, own, [authority], encryption))
    return str(path)


def test_stores_in_pkcs12_are_read_whatever_their_name(tmp_path: Path) -> None:
    keys = pkcs12_store(tmp_path / "keys.jks", "one", has_key=True)
    trust = pkcs12_store(tmp_path / "trust.jks", "two", has_key=False)
    settings = TlsSettings(
        keystore_location=keys,
        keystore_type="JKS",
        keystore_password="one",
        truststore_location=trust,
        truststore_password="two",
        client_auth="required",
    )
    context = server_context(settings)
    assert [dict(part[0] for part in found["subject"]) for found in context.get_ca_certs()]
    client = client_context(TlsSettings(truststore_location=trust, truststore_password="two"))
    assert handshake(server_context(TlsSettings(keystore_location=keys, keystore_password="one")), client) == "TLSv1.3"


@pytest.mark.parametrize(("password", "why"), [(None, "is PKCS12 and needs one"), ("wrong", "with its password")])
def test_a_store_without_its_password_is_refused(tmp_path: Path, password: str | None, why: str) -> None:
    keys = pkcs12_store(tmp_path / "keys.p12", "one", has_key=True)
    with pytest.raises(ConfigError, match=why):
        server_context(TlsSettings(keystore_location=keys, keystore_password=password))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """Which version both agree on."""
    buffers = [ssl.MemoryBIO() for _ in range(2)]
    ends = [
        server.wrap_bio(buffers[0], buffers[1], server_side=True),
        client.wrap_bio(buffers[1], buffers[0], server_hostname="localhost"),
    ]
    left = ends[::-1]
    for _ in range(20):
        for end in list(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not left
    return ends[0].version()


OLD = ("TLSv1.2",)


@pytest.mark.parametrize(
    ("suites", "protocols", "version"),
    [((), ("TLSv1.2", "TLSv1.3"), "TLSv1.3"), ((OLD_SUITE,), ("TLSv1.2", "TLSv1.3"), "TLSv1.2"), ((), OLD, "TLSv1.2")],
)
def test_protocols_and_suites_are_those_of_the_settings(
    suites: tuple[str, ...], protocols: tuple[str, ...], version: str
) -> None:
    server = server_context(TlsSettings(keystore_location=BROKER, cipher_suites=suites, enabled_protocols=protocols))
    assert handshake(server, client_context(TlsSettings(truststore_location=CA))) == version
    only_new = client_context(TlsSettings(truststore_location=CA, enabled_protocols=("TLSv1.3",)))
    if version == "TLSv1.2":
        with pytest.raises(ssl.SSLError):
            handshake(server, only_new)


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(TlsSettings(keystore_key="hidden", key_password="hidden", keystore_password="hidden"))
