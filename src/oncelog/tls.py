"""TLS contexts from Kafka's `ssl.` settings, for both ends.

Keys and certificates are PEM, in a file or in the setting itself, or in a store of Java's older format (JKS), or in a
PKCS12 store, which takes the extra `security`. A store is recognised by its bytes, whatever its name. One in another
format of Java's is refused with the command that converts it.
"""

from __future__ import annotations

import os
import re
import shlex
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from oncelog.core.config import ConfigError, setting
from oncelog.core.dataclass import dataclass
from oncelog.core.tls_config import TLS_KEYS
from oncelog.security import jks

_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SUITES: Final = {
    f"TLS_{exchange}_WITH_{java}": f"{exchange.replace('_', '-')}-{openssl}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for java, openssl in (
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
_TLS_1_3_SUITES: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_PEM: Final = re.compile(r"-----BEGIN ([A-Z ]+)-----(.*?)-----END \1-----", re.DOTALL)
_OWN_FILES: Final = Path("/proc/self/fd")
HANDSHAKE_S_MAX: Final = 10.0
SHUTDOWN_S_MAX: Final = 5.0
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    keystore_location: str | None = setting(TLS_KEYS["ssl.keystore.location"])
    keystore_type: str | None = setting(TLS_KEYS["ssl.keystore.type"])
    keystore_key: str | None = setting(TLS_KEYS["ssl.keystore.key"])
    keystore_chain: str | None = setting(TLS_KEYS["ssl.keystore.certificate.chain"])
    key_password: str | None = setting(TLS_KEYS["ssl.key.password"])
    keystore_password: str | None = setting(TLS_KEYS["ssl.keystore.password"])
    truststore_location: str | None = setting(TLS_KEYS["ssl.truststore.location"])
    truststore_type: str | None = setting(TLS_KEYS["ssl.truststore.type"])
    truststore_certificates: str | None = setting(TLS_KEYS["ssl.truststore.certificates"])
    truststore_password: str | None = setting(TLS_KEYS["ssl.truststore.password"])
    enabled_protocols: tuple[str, ...] = setting(TLS_KEYS["ssl.enabled.protocols"])
    cipher_suites: tuple[str, ...] = setting(TLS_KEYS["ssl.cipher.suites"])
    """By their names in Java; none stands for what OpenSSL takes for safe."""
    check_hostname: bool = True
    """For clients."""
    client_auth: str = "none"
    """For brokers: none, requested or required."""


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Raises ConfigError if a certificate is missing, or cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit_versions(context, settings)
    if not _load_keys(context, settings):
        raise ConfigError("ssl.keystore.location: a listener with TLS needs a key and a certificate")
    has_trust = _load_trust(context, settings)
    if settings.client_auth != "none" and not has_trust:
        raise ConfigError(
            f"ssl.truststore.location: ssl.client.auth={settings.client_auth} needs certificates to trust"
        )
    context.verify_mode = CLIENT_AUTH[settings.client_auth]
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Trusts what the system trusts, unless told otherwise. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit_versions(context, settings)
    _load_keys(context, settings)
    if not _load_trust(context, settings):
        context.load_default_certs()
    context.check_hostname = settings.check_hostname
    return context


def _limit_suites(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Kafka names suites as Java does. Those of TLS 1.3 are named as OpenSSL names them, which always offers all."""
    unknown = [name for name in settings.cipher_suites if name not in _SUITES and name not in _TLS_1_3_SUITES]
    if unknown:
        known = ", ".join([*_SUITES, *_TLS_1_3_SUITES])
        raise ConfigError(f"ssl.cipher.suites: {unknown[0]} is not supported; there is {known}")
    older = [_SUITES[name] for name in settings.cipher_suites if name in _SUITES]
    newer = [name for name in settings.cipher_suites if name in _TLS_1_3_SUITES]
    if newer and len(newer) < len(_TLS_1_3_SUITES) and context.maximum_version == ssl.TLSVersion.TLSv1_3:
        left_out = next(name for name in _TLS_1_3_SUITES if name not in newer)
        raise ConfigError(
            f"ssl.cipher.suites: {left_out} cannot be left out, because OpenSSL offers all suites of TLS 1.3; name all "
            "of them, or set ssl.enabled.protocols=TLSv1.2"
        )
    if older:
        context.set_ciphers(":".join(older))
    if settings.cipher_suites and not newer:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if settings.cipher_suites and not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _limit_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [name for name in settings.enabled_protocols if name not in _VERSIONS]
    if unknown or not settings.enabled_protocols:
        raise ConfigError(
            f"ssl.enabled.protocols: there is {' and '.join(_VERSIONS)}, not {', '.join(unknown) or 'none'}"
        )
    versions = sorted(_VERSIONS[name] for name in settings.enabled_protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    _limit_suites(context, settings)
    if context.minimum_version > context.maximum_version:
        raise ConfigError("ssl.cipher.suites: none of them is one of ssl.enabled.protocols")


def _load_keys(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    if settings.keystore_key or settings.keystore_chain:
        if settings.keystore_location:
            raise ConfigError("ssl.keystore.location and ssl.keystore.key are both given: there can be one")
        if not settings.keystore_key or not settings.keystore_chain:
            raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain belong together: one is missing")
        with _as_file(_normal_pem(settings.keystore_key) + _normal_pem(settings.keystore_chain)) as path:
            _load_chain(context, path, "ssl.keystore.key", settings.key_password)
        return True
    if not settings.keystore_location:
        return False
    store = _Store("ssl.keystore", Path(settings.keystore_location), settings.keystore_type, settings.keystore_password)
    pem = _pem_of(store, is_key=True, key_password=settings.key_password)
    if pem is not None:
        with _as_file(pem) as path:
            _load_chain(context, path, "ssl.keystore.location", None)
    else:
        _load_chain(context, store.path, "ssl.keystore.location", settings.key_password)
    return True


def _load_chain(context: ssl.SSLContext, path: Path, key: str, password: str | None) -> None:
    try:
        # Without a password OpenSSL would ask at the terminal.
        context.load_cert_chain(path, password=password or "")
    except (ssl.SSLError, OSError) as error:
        hint = "" if password else "; a key with a password needs ssl.key.password"
        raise ConfigError(f"{key}: no key with its certificate can be read there: {_reason(error)}{hint}") from None


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    try:
        if settings.truststore_certificates:
            if settings.truststore_location:
                raise ConfigError("ssl.truststore.location and ssl.truststore.certificates are both given")
            certificates = _normal_pem(settings.truststore_certificates)
            if not certificates:
                raise ConfigError("ssl.truststore.certificates: no certificates can be read there: it is not PEM")
            context.load_verify_locations(cadata=certificates)
            return True
        if settings.truststore_location:
            path, password = Path(settings.truststore_location), settings.truststore_password
            store = _Store("ssl.truststore", path, settings.truststore_type, password)
            pem = _pem_of(store, is_key=False)
            if pem is not None:
                context.load_verify_locations(cadata=pem)
            else:
                context.load_verify_locations(cafile=path)
            return True
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"ssl.truststore: no certificates can be read there: {_reason(error)}") from None
    return False


def _normal_pem(text: str) -> str:
    """In settings PEM is often one line, with spaces where lines ended."""
    return "".join(
        f"-----BEGIN {label}-----\n" + "\n".join(content.split()) + f"\n-----END {label}-----\n"
        for label, content in _PEM.findall(text)
    )


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


class _Store(NamedTuple):
    key: str
    """How the names of its settings begin."""
    path: Path
    type: str | None
    password: str | None

    def kind(self, *, is_key: bool) -> str:
        """JKS, PKCS12 or PEM. Raises ConfigError for one that is none of them."""
        try:
            with self.path.open("rb") as file:
                start = file.read(4)
        except OSError as error:
            raise ConfigError(f"{self.key}.location: {self.path} cannot be read: {error.strerror}") from None
        if start == _JCEKS_MAGIC:
            raise ConfigError(
                f"{self.key}.location: {self.path} is JCEKS. PEM, PKCS12 and JKS are read here. Convert it: "
                f"{_conversion(self.path, is_key=is_key)}"
            )
        kind = "JKS" if start == jks.MAGIC else "PKCS12" if start[:1] == b"\x30" else "PEM"
        if kind == "PEM" and self.type not in (None, "", "PEM"):
            raise ConfigError(f"{self.key}.location: {self.path} is no {self.type}. PEM, PKCS12 and JKS are read here.")
        if kind == "PEM" and self.password:
            raise ConfigError(f"{self.key}.password: {self.path} is PEM, which has none; a key's is ssl.key.password")
        return kind


def _conversion(path: Path, *, is_key: bool) -> str:
    store, converted = shlex.quote(str(path)), shlex.quote(str(path.with_suffix(".p12")))
    pem = shlex.quote(str(path.with_suffix(".pem")))
    return (
        f"keytool -importkeystore -srckeystore {store} -destkeystore {converted} -deststoretype PKCS12 && "
        f"openssl pkcs12 -in {converted} {'-nodes' if is_key else '-nokeys'} -out {pem}"
    )


def _pem_of(store: _Store, *, is_key: bool, key_password: str | None = None) -> str | None:
    """The key, if there is one, and all certificates of a store; None if it is PEM already."""
    kind = store.kind(is_key=is_key)
    if kind == "JKS":
        return _pem_of_jks(store, is_key=is_key, key_password=key_password)
    return _pem_of_pkcs12(store) if kind == "PKCS12" else None


def _pem_of_jks(store: _Store, *, is_key: bool, key_password: str | None) -> str:
    if is_key and not store.password:
        raise ConfigError(f"{store.key}.password: {store.path} is JKS and needs one")
    try:
        found = jks.read_jks(store.path.read_bytes(), store.password or None)
        if not is_key:
            if not found.trusted:
                raise jks.JksError("there is no certificate to trust in it")
            return "".join(jks.pem("CERTIFICATE", each) for each in found.trusted)
        if len(found.keys) != 1:
            raise jks.JksError(f"there are {len(found.keys)} keys where there can be one")
        key = jks.unlock(found.keys[0], key_password or store.password or "")
        return jks.pem("PRIVATE KEY", key) + "".join(jks.pem("CERTIFICATE", each) for each in found.chains[0])
    except (jks.JksError, OSError) as error:
        raise ConfigError(f"{store.key}.location: {store.path} cannot be read as JKS: {error}") from None


def _pem_of_pkcs12(store: _Store) -> str:
    if not store.password:
        raise ConfigError(f"{store.key}.password: {store.path} is PKCS12 and needs one")
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{store.key}.location: {store.path} is PKCS12, which takes: pip install 'oncelog[security]'"
        ) from None
    try:
        found = pkcs12.load_pkcs12(store.path.read_bytes(), store.password.encode())
    except (ValueError, OSError) as error:
        raise ConfigError(f"{store.key}.location: {store.path} cannot be read with its password: {error}") from None
    pem = serialization.Encoding.PEM
    named = [found.cert] if found.cert is not None else []
    parts = [entry.certificate.public_bytes(pem) for entry in [*named, *found.additional_certs]]
    if found.key is not None:
        plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        parts.insert(0, found.key.private_bytes(pem, *plain))
    return b"".join(parts).decode()


@contextmanager
def _as_file(text: str) -> Iterator[Path]:
    """OpenSSL reads keys from files only. This one is in memory where there are such files, so that no disk has it."""
    if hasattr(os, "memfd_create") and _OWN_FILES.is_dir():
        with os.fdopen(os.memfd_create("oncelog-key"), "w") as file:
            file.write(text)
            file.flush()
            yield _OWN_FILES / str(file.fileno())
        return
    fd, name = tempfile.mkstemp(prefix="oncelog-", suffix=".pem")
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        yield Path(name)
    finally:
        Path(name).unlink()
