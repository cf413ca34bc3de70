"""Which transactions hold readers back, which hang, and what may be done about each."""

from __future__ import annotations

import pytest

from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.open_transactions import (
    OpenTransaction,
    hanging_transactions,
    held_back_partitions,
    open_transactions,
)
from tests.unit.monitoring.fake_admin import FakeAdmin, described, producer

PLACE = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


@pytest.fixture
def admin() -> FakeAdmin:
    """`slow` has been open on one partition since offset 4, `quick` since offset 7."""
    admin = FakeAdmin()
    admin.offsets = {PLACE: PartitionOffsets(0, 4, 10), OTHER: PartitionOffsets(0, 5, 5)}
    admin.producers = {PLACE: [producer(2, 7), producer(1, 4), producer(3, -1)]}
    admin.transactions = {"slow": described("slow", 1, PLACE), "quick": described("quick", 2, PLACE)}
    return admin


def found_by(admin: FakeAdmin) -> list[OpenTransaction]:
    return open_transactions(admin, [PLACE])  # type: ignore[arg-type]


def test_the_oldest_transaction_holds_readers_back_and_the_others_follow(admin: FakeAdmin) -> None:
    (held,) = held_back_partitions(admin, [PLACE, OTHER])  # type: ignore[arg-type]
    assert held.partition == PLACE
    assert [one.transactional_id for one in held.blocking] == ["slow"]
    assert [one.transactional_id for one in held.open_after] == ["quick"]
    assert not any(one.is_hanging for one in held.blocking + held.open_after)


def test_nobody_is_asked_about_partitions_on_which_nothing_is_open(admin: FakeAdmin) -> None:
    assert held_back_partitions(admin, [OTHER]) == []  # type: ignore[arg-type]
    assert set(admin.asked) == {"offsets"}


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "no coordinator knows producer 1"),
        ({"slow": described("slow", 1, state="CompleteCommit")}, "slow is in state CompleteCommit"),
        ({"slow": described("slow", 1, PLACE, epoch=1)}, "slow is at epoch 1 by now"),
        ({"slow": described("slow", 1, OTHER)}, "the transaction of slow does not include orders-0"),
    ],
    ids=["unknown producer", "state", "epoch", "partition"],
)
def test_a_transaction_that_no_coordinator_will_end_hangs(admin: FakeAdmin, known: dict, why: str) -> None:  # type: ignore[type-arg]
    admin.transactions = known
    one = found_by(admin)[0]
    assert (one.is_hanging, one.why_hanging) == (True, why)
    assert one.remedy == ("txn", "abort", "orders:0", "--start-offset", "4")


@pytest.mark.parametrize("question", ["transactions", "transaction"])
def test_a_transaction_that_ends_between_two_questions_does_not_seem_to_hang(admin: FakeAdmin, question: str) -> None:
    def end(what: str) -> None:
        if what == question:
            admin.producers = {PLACE: [producer(1, -1), producer(2, 7)]}
            admin.transactions["slow"] = described("slow", 1, state="CompleteCommit")

    admin.before = end
    assert [one.transactional_id for one in found_by(admin)] == ["quick"]


def test_a_transaction_that_is_replaced_by_the_next_of_its_id_does_not_seem_to_hang(admin: FakeAdmin) -> None:
    def go_on(what: str) -> None:
        if what == "transactions":
            admin.producers = {PLACE: [producer(1, 12, epoch=1)]}
            admin.transactions["slow"] = described("slow", 1, PLACE, epoch=1)

    admin.before = go_on
    assert "slow" not in [one.transactional_id for one in found_by(admin)]


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_what_its_coordinator_has_decided_is_not_to_be_ended(admin: FakeAdmin, state: str) -> None:
    admin.transactions["slow"] = described("slow", 1, PLACE, state=state)
    one = found_by(admin)[0]
    assert one.is_decided
    assert not one.is_hanging
    assert one.remedy == ()


def test_a_living_transaction_is_ended_by_fencing_its_producer(admin: FakeAdmin) -> None:
    one = found_by(admin)[0]
    assert not one.is_decided
    assert one.remedy == ("txn", "fence", "slow")


def test_hanging_is_only_believed_after_a_while(admin: FakeAdmin) -> None:
    admin.transactions = {}
    opened = found_by(admin)
    assert {one.producer.producer_id for one in opened} == {1, 2}
    assert hanging_transactions(opened, older_than_ms=900, now_ms=1_000) == [], "the producer has just written"
    assert hanging_transactions(opened, older_than_ms=900, now_ms=1_899) == []
    assert hanging_transactions(opened, older_than_ms=900, now_ms=1_900) == opened


def test_the_age_counts_from_the_begin_and_of_a_hanging_one_from_the_last_write(admin: FakeAdmin) -> None:
    assert found_by(admin)[0].age_ms(2_000) == 1_500
    admin.transactions = {}
    assert found_by(admin)[0].age_ms(2_000) == 1_000


def test_a_transaction_whose_id_acls_hide_does_not_seem_to_hang(admin: FakeAdmin) -> None:
    """Its coordinator may still commit it: an abort on one partition would tear it apart."""
    admin.hides_ids = True
    opened = found_by(admin)
    assert [(one.start_offset, one.is_hanging, one.is_hidden, one.remedy) for one in opened] == [
        (4, False, True, ()),
        (7, False, True, ()),
    ]
    assert hanging_transactions(opened, older_than_ms=0, now_ms=10_000) == []
