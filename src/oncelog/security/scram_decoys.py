"""Credentials for users of SCRAM that do not exist, so that nobody learns which ones do.

A server has to name salt and iterations before it has seen a proof. What it makes up for an unknown name is always the
same, and looks like what stored users of the mechanism have: each form of theirs (length of the salt, iterations) as
often as among them. Kafka's tools make salts that are text, the digits of a random number of 130 bits in base 36; so
are those made up in their place.

What is made up depends on a secret. One node keeps random bytes. Nodes of a cluster must not differ, and share nothing
that is secret but the keys of the users: a few of those, `shared_secret`, so that it takes as many users together to
know it, and most changes of users leave it as it is.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from oncelog.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramCredential, ScramMechanism

SHARED_KEYS: Final = 16
_JAVA_BITS: Final = 130
_JAVA_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_JAVA_SALT: Final = re.compile(rb"[1-9a-z][0-9a-z]{23,24}|1[0-9a-z]{25}")


class _Form(NamedTuple):
    iterations: int
    salt_bytes: int
    """0: as Java makes them."""

    @classmethod
    def of(cls, credential: ScramCredential) -> _Form:
        is_java = _JAVA_SALT.fullmatch(credential.salt) is not None
        return cls(credential.iterations, 0 if is_java else len(credential.salt))


class Decoys:
    def __init__(self, secret: bytes, stored: Iterable[tuple[ScramMechanism, ScramCredential]]) -> None:
        self._secret = secret
        self._forms: dict[ScramMechanism, list[_Form]] = {mechanism: [] for mechanism in ScramMechanism}
        for mechanism, credential in stored:
            self._forms[mechanism].append(_Form.of(credential))
        for forms in self._forms.values():
            forms.sort()

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Nobody has its password."""
        name = f"{mechanism.sasl_name} {user}".encode()
        form = self._form(mechanism, name)
        salt = self._java_salt(name) if form.salt_bytes == 0 else self._bytes(b"salt", name, form.salt_bytes)
        size = mechanism.digest_bytes
        return ScramCredential(salt, self._bytes(b"stored", name, size), self._bytes(b"server", name, size), form[0])

    def _form(self, mechanism: ScramMechanism, name: bytes) -> _Form:
        forms = self._forms[mechanism] or [_Form(ITERATIONS_MIN, SALT_BYTES)]
        # A place between first and last, and no remainder: most names keep their form when there is one user more.
        place = int.from_bytes(self._bytes(b"form", name, 8), "big")
        return forms[place * len(forms) >> 64]

    def _java_salt(self, name: bytes) -> bytes:
        number = int.from_bytes(self._bytes(b"salt", name, 32), "big") >> (256 - _JAVA_BITS)
        digits = bytearray()
        while number:
            number, digit = divmod(number, len(_JAVA_DIGITS))
            digits.append(_JAVA_DIGITS[digit])
        return bytes(reversed(digits))

    def _bytes(self, purpose: bytes, name: bytes, count: int) -> bytes:
        key = hmac.digest(self._secret, purpose + b" " + name, "sha256")
        return hashlib.shake_256(key).digest(count)


def shared_secret(credentials: Iterable[ScramCredential]) -> bytes | None:
    """The same on all nodes that know the same users. None without users: then all names are alike anyway."""
    chosen = heapq.nsmallest(
        SHARED_KEYS, (hashlib.sha256(b"decoys " + credential.server_key).digest() for credential in credentials)
    )
    return hashlib.sha256(b"".join(chosen)).digest() if chosen else None
