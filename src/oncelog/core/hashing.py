"""The two hashes that decide where something lives: Java's string hash (coordinators) and murmur2 (record keys)."""

from __future__ import annotations

import functools
import sys
from operator import mul
from typing import Final

CACHED_CHARS_MAX: Final = 256
"""Longer ids are hashed each time: they would fill memory, and nobody gives such ids to many requests."""
_MASK = 0xFFFFFFFF
_NATIVE_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_BLOCK: Final = 256
_POWERS: Final = [31**exponent & _MASK for exponent in range(_BLOCK - 1, -1, -1)]
_MURMUR_M = 0x5BD1E995
_MURMUR_SEED = 0x9747B28C


def java_string_hash(text: str) -> int:
    """`String.hashCode()`: over UTF-16 code units, wrapping to a signed 32-bit integer."""
    units = memoryview(text.encode(_NATIVE_UTF_16, "surrogatepass")).cast("H")
    value = 0
    # In blocks, by sums of products: an id of 32 KB would take a loop over its characters 10 ms.
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK]
        powers = _POWERS[-len(block) :]
        value = (value * powers[0] * 31 + sum(map(mul, block, powers))) & _MASK
    return value - (1 << 32) if value & 0x80000000 else value


def coordinator_partition(key: str, partition_count: int) -> int:
    """Partition of `__transaction_state` or `__consumer_offsets` that owns a transactional id or a group id."""
    find = _cached_partition if len(key) <= CACHED_CHARS_MAX else _coordinator_partition
    return find(key, partition_count)


def _coordinator_partition(key: str, partition_count: int) -> int:
    value = java_string_hash(key)
    # abs(MIN_INT) overflows in Java; Kafka defines it as 0.
    return 0 if value == -(1 << 31) else abs(value) % partition_count


_cached_partition = functools.lru_cache(maxsize=10_000)(_coordinator_partition)


def murmur2(data: bytes) -> int:
    """Kafka's murmur2, unsigned. The default partitioner takes `(murmur2(key) & 0x7fffffff) % partitions`."""
    length = len(data)
    value = (_MURMUR_SEED ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _MURMUR_M & _MASK
        k = (k ^ (k >> 24)) * _MURMUR_M & _MASK
        value = (value * _MURMUR_M & _MASK) ^ k
    if length & 3:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MURMUR_M & _MASK
    value = (value ^ (value >> 13)) * _MURMUR_M & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
