"""The data: the same on every side, different from record to record, compressible as text is.

A value begins with a letter that says whether it may be read (`c`) or belongs to a transaction that is aborted (`a`).
"""

from __future__ import annotations

import random
from typing import Final

COMMITTED: Final = b"c"
ABORTED: Final = b"a"
POOL_BYTES: Final = 1_048_576
POOL_MAX: Final = 4096
_WORDS: Final = ("order", "customer", "amount", "paid", "shipped", "returned", "Lisbon", "Oslo", "Nairobi", "Quito",
                 "2026", "express", "standard", "gift", "note", "euro", "krona", "shilling")  # fmt: skip


def pool(size_bytes: int, kind: bytes = COMMITTED) -> list[bytes]:
    """Values in the order in which they are sent: record number n is `pool[n % len(pool)]`."""
    count = max(16, min(POOL_MAX, POOL_BYTES // max(1, size_bytes)))
    chance = random.Random(size_bytes)
    return [_value(chance, size_bytes, kind + b"%04x " % number) for number in range(count)]


def _value(chance: random.Random, size_bytes: int, head: bytes) -> bytes:
    words = [f"{chance.randrange(16**8):08x}" if chance.random() < 0.4 else chance.choice(_WORDS)
             for _ in range(size_bytes // 6 + 2)]  # fmt: skip
    return (head + " ".join(words).encode())[:size_bytes].ljust(size_bytes, b".")
