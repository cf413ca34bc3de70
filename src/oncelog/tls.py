"""TLS contexts from Kafka's `ssl.` settings, for both ends.

Keys and certificates are PEM: in a file, or in the setting itself. A store of Java's (JKS, PKCS12) is recognised by its
bytes, whatever its name, and refused with the command that converts it.
"""

from __future__ import annotations

import os
import re
import shlex
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from oncelog.core.config import ConfigError

_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PEM: Final = re.compile(r"-----BEGIN ([A-Z ]+)-----(.*?)-----END \1-----", re.DOTALL)
HANDSHAKE_S_MAX: Final = 10.0
SHUTDOWN_S_MAX: Final = 5.0
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    keystore_location: str | None = None
    keystore_type: str | None = None
    keystore_key: str | None = field(default=None, repr=False)
    keystore_chain: str | None = None
    key_password: str | None = field(default=None, repr=False)
    truststore_location: str | None = None
    truststore_type: str | None = None
    truststore_certificates: str | None = None
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
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


def _limit_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [name for name in settings.enabled_protocols if name not in _VERSIONS]
    if unknown or not settings.enabled_protocols:
        raise ConfigError(
            f"ssl.enabled.protocols: there is {' and '.join(_VERSIONS)}, not {', '.join(unknown) or 'none'}"
        )
    versions = sorted(_VERSIONS[name] for name in settings.enabled_protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


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
    path = Path(settings.keystore_location)
    _check_pem(path, settings.keystore_type, "ssl.keystore", is_key=True)
    _load_chain(context, path, "ssl.keystore.location", settings.key_password)
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
            _check_pem(Path(settings.truststore_location), settings.truststore_type, "ssl.truststore", is_key=False)
            context.load_verify_locations(cafile=settings.truststore_location)
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


def _check_pem(path: Path, store_type: str | None, key: str, *, is_key: bool) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise ConfigError(f"{key}.location: {path} cannot be read: {error.strerror}") from None
    kind = "JKS" if start == _JKS_MAGIC else "PKCS12" if start[:1] == b"\x30" else None
    if kind is None and store_type not in (None, "", "PEM"):
        kind = store_type
    if kind is None:
        return
    store, pem = shlex.quote(str(path)), shlex.quote(str(path.with_suffix(".pem")))
    what = "-nodes" if is_key else "-nokeys"
    command = f"openssl pkcs12 -in {store} {what} -out {pem}"
    if kind == "JKS":
        converted = shlex.quote(str(path.with_suffix(".p12")))
        command = (
            f"keytool -importkeystore -srckeystore {store} -destkeystore {converted} -deststoretype PKCS12 && "
            f"openssl pkcs12 -in {converted} {what} -out {pem}"
        )
    raise ConfigError(f"{key}.location: {path} is {kind}, and PEM is read here. Convert it: {command}")


@contextmanager
def _as_file(text: str) -> Iterator[Path]:
    """OpenSSL reads keys from files only. This one is for its owner alone, and gone at once."""
    fd, name = tempfile.mkstemp(prefix="oncelog-", suffix=".pem")
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        yield Path(name)
    finally:
        Path(name).unlink()
