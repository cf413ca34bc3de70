"""What is made up for users of SCRAM who do not exist must not tell them from those who do."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest

from oncelog.security.scram import ScramCredential, ScramMechanism
from oncelog.security.scram_decoys import SHARED_KEYS, Decoys, shared_secret

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
NAMES = [f"nobody{number}" for number in range(1000)]


def stored(
    *forms: tuple[int, int], mechanism: ScramMechanism = SHA_256
) -> list[tuple[ScramMechanism, ScramCredential]]:
    return [(mechanism, ScramCredential(b"\xff" * size, b"k", b"k", count)) for size, count in forms]


def forms_of(decoys: Decoys, mechanism: ScramMechanism = SHA_256) -> Counter[tuple[int, int]]:
    made_up = (decoys.credential(mechanism, name) for name in NAMES)
    return Counter((len(credential.salt), credential.iterations) for credential in made_up)


def test_each_form_of_stored_users_is_as_frequent_as_among_them() -> None:
    found = forms_of(Decoys(b"secret", stored((25, 8192), (25, 8192), (25, 8192), (64, 4096))))
    assert found.keys() == {(25, 8192), (64, 4096)}
    assert 680 < found[(25, 8192)] < 820


def test_users_of_another_mechanism_do_not_count() -> None:
    decoys = Decoys(b"secret", stored((64, 8192), mechanism=SHA_512))
    assert forms_of(decoys).keys() == {(16, 4096)}
    assert forms_of(decoys, SHA_512).keys() == {(64, 8192)}


def test_most_names_keep_what_they_have_when_there_is_a_user_more() -> None:
    forms = [(16, 4096)] * 50 + [(25, 8192)] * 50
    before, after = Decoys(b"secret", stored(*forms)), Decoys(b"secret", stored(*forms, (16, 4096)))
    moved = [name for name in NAMES if before.credential(SHA_256, name) != after.credential(SHA_256, name)]
    assert len(moved) < 30


def java_salt(random: Random) -> bytes:
    """As ScramFormatter of Kafka: `new BigInteger(130, random).toString(36)`."""
    number, text = random.getrandbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        text = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + text
    return text.encode()


def test_where_kafkas_tools_made_the_salts_those_made_up_are_such_text_too() -> None:
    random = Random(1)
    salts = [java_salt(random) for _ in range(1000)]
    users = [(SHA_256, ScramCredential(salt, b"k", b"k", 4096)) for salt in salts]
    decoys = Decoys(b"secret", users)
    made_up = [decoys.credential(SHA_256, name).salt for name in NAMES]
    assert all(re.fullmatch(rb"[1-9a-z][0-9a-z]{23,24}|1[0-9a-z]{25}", salt) for salt in made_up)
    ours, theirs = Counter(map(len, made_up)), Counter(map(len, salts))
    assert abs(ours[26] - theirs[26]) < 80
    assert len(set(made_up)) == len(NAMES)


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_keys_are_of_the_mechanism_and_nothing_is_used_twice(mechanism: ScramMechanism) -> None:
    made_up = [Decoys(secret, ()).credential(mechanism, name) for secret in (b"a", b"b") for name in NAMES[:50]]
    assert {len(credential.stored_key) for credential in made_up} == {mechanism.digest_bytes}
    values = [value for credential in made_up for value in (credential.salt, credential.stored_key)]
    assert len(set(values)) == len(values)
    assert Decoys(b"a", ()).credential(mechanism, NAMES[0]) == made_up[0]


def users(count: int) -> list[ScramCredential]:
    return [ScramCredential(b"salt", b"stored", b"server key %d" % number, 4096) for number in range(count)]


def test_the_secret_of_a_cluster_is_the_same_in_any_order_and_there_is_none_without_users() -> None:
    assert shared_secret(users(5)) == shared_secret(reversed(users(5))) is not None
    assert shared_secret(users(5)) != shared_secret(users(4))
    assert shared_secret([]) is None


def test_most_changes_of_users_leave_the_secret_of_a_cluster_as_it_is() -> None:
    every = users(500)
    changes = [shared_secret([*every[:index], *every[index + 1 :]]) != shared_secret(every) for index in range(500)]
    assert sum(changes) == SHARED_KEYS
