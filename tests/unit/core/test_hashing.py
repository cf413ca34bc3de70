from __future__ import annotations

import pytest

from oncelog.core import hashing
from oncelog.core.hashing import coordinator_partition, java_string_hash, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("text", "expected", "partition"),
    [
        ("tx-1", 3572520, 20),
        ("my-transactional-id", -959806496, 46),
        ("g1", 3242, 42),
        ("first-transactional", 1476685612, 12),
        ("test-transactional-matt", -1260157965, 15),
        ("", 0, 0),
    ],
)
def test_java_string_hash_and_coordinator_partition(text: str, expected: int, partition: int) -> None:
    assert java_string_hash(text) == expected
    assert coordinator_partition(text, 50) == partition


def test_characters_outside_the_basic_plane_count_as_two_units() -> None:
    high, low = 0xD83D, 0xDE00
    assert java_string_hash("\U0001f600") == 31 * high + low


def test_the_hash_that_has_no_absolute_value_goes_to_partition_zero() -> None:
    # "polygenelubricants" is the well-known string whose Java hash is the smallest integer.
    assert java_string_hash("polygenelubricants") == -(2**31)
    assert coordinator_partition("polygenelubricants", 50) == 0


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_the_values_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert partition_for_key(key, 7) == (expected & 0x7FFFFFFF) % 7


def test_long_ids_do_not_stay_in_memory() -> None:
    before = hashing._cached_partition.cache_info().currsize
    assert coordinator_partition("x" * (hashing.CACHED_CHARS_MAX + 1), 50) == coordinator_partition("x" * 257, 50)
    assert hashing._cached_partition.cache_info().currsize == before


@pytest.mark.parametrize("length", [0, 1, 2, 255, 256, 257, 511, 512, 513, 1_000])
def test_ids_of_any_length_are_hashed_character_by_character(length: int) -> None:
    text = "".join(chr(0x20 + 7919 * i % 0xFFFF) for i in range(length))
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    assert java_string_hash(text) & 0xFFFFFFFF == value
