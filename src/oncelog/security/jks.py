"""Key stores in Java's own format (JKS), which keytool wrote before Java 9, read into PEM.

A store is a list of private keys with their certificates and of certificates to trust, and a digest of all of it with
the password. A key is XORed with a stream of SHA-1 digests, each of the password and the digest before it. That
protects little, so that such a file needs the care of one with plain keys.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import field
from typing import Final

from oncelog.core.dataclass import dataclass

MAGIC: Final = b"\xfe\xed\xfe\xed"
_SALT: Final = b"Mighty Aphrodite"
_DIGEST_BYTES: Final = 20
_KEY, _CERTIFICATE = 1, 2
_SEQUENCE, _OCTETS = 0x30, 0x04


class JksError(Exception):
    """The text says what is wrong with a store, and never what is in it."""


@dataclass(slots=True)
class JksStore:
    keys: list[bytes] = field(default_factory=list, repr=False)
    """In PKCS#8, still locked."""
    chains: list[list[bytes]] = field(default_factory=list)
    """The certificates of each key."""
    trusted: list[bytes] = field(default_factory=list)


def read_jks(content: bytes, password: str | None) -> JksStore:
    """Without a password nothing shows whether somebody changed the file, as in Java. Raises JksError."""
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if password is not None:
        expected = hashlib.sha1(password.encode("utf-16-be") + _SALT + body).digest()
        if not hmac.compare_digest(expected, digest):
            raise JksError("the password is wrong, or the file is damaged")
    try:
        return _parse(_Reader(body))
    except (struct.error, UnicodeDecodeError):
        raise JksError("the file is damaged") from None


def _parse(reader: _Reader) -> JksStore:
    store = JksStore()
    reader.take(len(MAGIC))
    version, count = reader.number(), reader.number()
    if version not in (1, 2):
        raise JksError(f"version {version} is not known")
    for _ in range(count):
        tag = reader.number()
        reader.text()
        reader.take(8)  # when it was added
        if tag == _KEY:
            store.keys.append(reader.block())
            store.chains.append([reader.certificate(version) for _ in range(reader.number())])
        elif tag == _CERTIFICATE:
            store.trusted.append(reader.certificate(version))
        else:
            raise JksError(f"entries of kind {tag} are not known")
    return store


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def take(self, size: int) -> bytes:
        taken = self._content[self._place : self._place + size]
        if size < 0 or len(taken) < size:
            raise JksError("the file is cut off")
        self._place += size
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def text(self) -> bytes:
        return self.take(int.from_bytes(self.take(2), "big"))

    def block(self) -> bytes:
        return self.take(self.number())

    def certificate(self, version: int) -> bytes:
        if version > 1 and self.text() != b"X.509":
            raise JksError("there are certificates other than X.509")
        return self.block()


def unlock(locked: bytes, password: str) -> bytes:
    """A key of a store, in PKCS#8. Raises JksError."""
    secret = password.encode("utf-16-be")
    box = _locked_octets(locked)
    salt, hidden, digest = box[:_DIGEST_BYTES], box[_DIGEST_BYTES:-_DIGEST_BYTES], box[-_DIGEST_BYTES:]
    stream = b"".join(_stream(secret, salt, len(hidden)))[: len(hidden)]
    key = (int.from_bytes(hidden, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(hidden), "big")
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), digest):
        raise JksError("the password of the key is wrong")
    return key


def _stream(secret: bytes, digest: bytes, size: int) -> Iterator[bytes]:
    for _ in range(0, size, _DIGEST_BYTES):
        digest = hashlib.sha1(secret + digest).digest()
        yield digest


def _locked_octets(locked: bytes) -> bytes:
    """Of `SEQUENCE { algorithm SEQUENCE, OCTET STRING }`. Java has one algorithm for keys in JKS."""
    body = _der(locked, _SEQUENCE)[0]
    after_algorithm = _der(body, _SEQUENCE)[1]
    return _der(after_algorithm, _OCTETS)[0]


def _der(content: bytes, tag: int) -> tuple[bytes, bytes]:
    """An element, and what is behind it."""
    if len(content) < 2 or content[0] != tag:
        raise JksError("a key is damaged")
    size, start = content[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(content[2:start], "big")
    if start + size > len(content):
        raise JksError("a key is cut off")
    return content[start : start + size], content[start + size :]


def pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n"
