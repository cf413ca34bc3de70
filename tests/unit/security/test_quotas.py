"""Quotas: which one counts for whom, and how long somebody above it has to wait."""

from __future__ import annotations

import pytest

from oncelog.security.quotas import (
    CLIENT_ID,
    CONNECTIONS,
    IP,
    PRODUCER_BYTES,
    USER,
    WINDOWS,
    Entity,
    QuotaTable,
    Rate,
    TokenBucket,
    entity_of,
    entity_problem,
    quota_problem,
)

ORDER: list[Entity] = [
    entity_of([(USER, "ann"), (CLIENT_ID, "app")]),
    entity_of([(USER, "ann"), (CLIENT_ID, None)]),
    entity_of([(USER, "ann")]),
    entity_of([(USER, None), (CLIENT_ID, "app")]),
    entity_of([(USER, None), (CLIENT_ID, None)]),
    entity_of([(USER, None)]),
    entity_of([(CLIENT_ID, "app")]),
    entity_of([(CLIENT_ID, None)]),
]


def test_the_first_of_kafkas_order_counts() -> None:
    for number in range(len(ORDER)):
        table = QuotaTable({entity: {PRODUCER_BYTES: 10.0 + place} for place, entity in enumerate(ORDER[number:])})
        limit = table.limit(PRODUCER_BYTES, "ann", "app")
        assert limit is not None
        assert limit.rate == 10.0, ORDER[number]


def test_those_who_are_told_apart_by_the_quota_are_measured_apart() -> None:
    for entity, shared in (
        (entity_of([(USER, None), (CLIENT_ID, None)]), ("ann", "app")),
        (entity_of([(USER, None)]), ("ann", None)),
        (entity_of([(CLIENT_ID, None)]), (None, "app")),
    ):
        limit = QuotaTable({entity: {PRODUCER_BYTES: 1.0}}).limit(PRODUCER_BYTES, "ann", "app")
        assert limit is not None
        assert limit.shared_by == shared


def test_a_quota_of_others_is_none_and_changes_are_seen() -> None:
    entries: dict[Entity, dict[str, float]] = {entity_of([(USER, "ann")]): {PRODUCER_BYTES: 5.0}}
    table = QuotaTable(entries)
    assert table.limit(PRODUCER_BYTES, "bob", "app") is None
    assert table.keys == {PRODUCER_BYTES}
    entries[entity_of([(USER, "bob")])] = {PRODUCER_BYTES: 7.0}
    table.changed()
    limit = table.limit(PRODUCER_BYTES, "bob", "app")
    assert limit is not None
    assert limit.rate == 7.0
    assert QuotaTable({((IP, None),): {CONNECTIONS: 3.0}}).limit_of_address("192.0.2.1") == 3.0


def test_a_rate_is_that_of_ten_seconds_at_least() -> None:
    rate = Rate(0)
    rate.record(1000, 0)
    assert rate.throttle_ms(100, 0) == 0, "1000 in 10 s are 100 a second"
    rate.record(500, 0)
    assert rate.throttle_ms(100, 0) == 5000, "after 15 s the 1500 were 100 a second"


def test_waiting_as_told_is_enough() -> None:
    rate = Rate(0)
    now_ms = 0
    for _ in range(1000):
        rate.record(20, now_ms)
        now_ms += rate.throttle_ms(100, now_ms) or 10
    assert 20 * 1000 / (now_ms / 1000) == pytest.approx(100, rel=0.15)


def test_what_is_old_is_forgotten() -> None:
    rate = Rate(0)
    rate.record(10_000, 0)
    assert rate.throttle_ms(1, WINDOWS * 1000) == 0
    assert not rate.is_used(WINDOWS * 1000)


def test_a_bucket_is_overdrawn_once_and_fills_again() -> None:
    bucket = TokenBucket(2.0, 0)
    bucket.take(30)
    assert bucket.is_overdrawn
    assert bucket.throttle_ms == 4000, "8 are missing, at 2 a second"
    bucket.fill(2.0, 4000)
    assert not bucket.is_overdrawn


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("planet", "mars")],
        [(USER, "")],
        [(USER, "a"), (USER, "b")],
        [(IP, "192.0.2.1"), (USER, "a")],
        [(IP, "example")],
    ],
)
def test_entities_that_cannot_have_quotas(parts: list[tuple[str, str | None]]) -> None:
    assert entity_problem(parts) is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x", 1.0),
        (CONNECTIONS, 1.0),
        (PRODUCER_BYTES, 0.0),
        (PRODUCER_BYTES, 1.5),
        (PRODUCER_BYTES, float("nan")),
        (PRODUCER_BYTES, 1e19),
    ],
)
def test_quotas_that_cannot_be(key: str, value: float) -> None:
    assert quota_problem(entity_of([(USER, "a")]), key, value) is not None
