"""The state of a cluster in sentences."""

from __future__ import annotations

import pytest

from oncelog.client import TopicPartition
from oncelog.console.sentences import Progress, Urgency, appends_per_second, progress_of, sentences
from oncelog.console.watch import LagSample
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.snapshot import ClusterSnapshot, Poller
from tests.unit.monitoring.fake_admin import FakeAdmin, described, producer

PLACE = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
NOW_MS = 85_500
HANGING_AFTER_MS = 60_000


@pytest.fixture
def admin() -> FakeAdmin:
    admin = FakeAdmin()
    admin.offsets = {PLACE: PartitionOffsets(0, 5, 5), OTHER: PartitionOffsets(0, 5, 5)}
    admin.groups = {"billing": {PLACE: 5}}
    return admin


def snapshot(admin: FakeAdmin) -> ClusterSnapshot:
    return Poller(admin, now_ms=lambda: NOW_MS).poll()  # type: ignore[arg-type]


def said(admin: FakeAdmin, *earlier: LagSample) -> list[tuple[Urgency, str, str]]:
    found, _ = sentences(snapshot(admin), earlier, HANGING_AFTER_MS)
    return [(one.urgency, one.text, one.link) for one in found]


def test_a_cluster_without_trouble_has_one_good_sentence(admin: FakeAdmin) -> None:
    ((urgency, text, _),) = said(admin)
    assert urgency is Urgency.GOOD
    assert "no transaction is open" in text


def test_a_transaction_that_holds_a_group_back_is_urgent_and_named(admin: FakeAdmin) -> None:
    admin.offsets[PLACE] = PartitionOffsets(0, 3, 5)
    admin.groups = {"billing": {PLACE: 2}, "shipping": {PLACE: 3}, "other": {OTHER: 5}}
    admin.producers = {PLACE: [producer(1, 3)]}
    admin.transactions = {"slow": described("slow", 1, PLACE)}
    ((urgency, text, link),) = said(admin)
    assert urgency is Urgency.URGENT
    assert text == "slow has held orders-0 at offset 3 for 1 min 25 s; 2 groups wait: billing, shipping."
    assert link == "/topics/orders/timeline"
    del admin.groups["shipping"]
    assert said(admin)[0][1].endswith("; group billing waits.")


def test_a_transaction_that_no_coordinator_knows_hangs(admin: FakeAdmin) -> None:
    admin.offsets[PLACE] = PartitionOffsets(0, 3, 5)
    admin.producers = {PLACE: [producer(7, 3)]}
    ((urgency, text, link),) = said(admin)
    assert (urgency, link) == (Urgency.URGENT, "/hanging")
    assert "producer 7" in text
    assert "no coordinator will end it" in text


def test_a_group_that_falls_behind_is_growing_only_if_it_was_nearer_before(admin: FakeAdmin) -> None:
    admin.offsets[PLACE] = PartitionOffsets(0, 41_205, 41_205)
    assert said(admin)[0][1].startswith("Group billing is 41,200 offsets behind")
    nearer, farther = (LagSample(NOW_MS - 11_000, {"billing": lag}, 0) for lag in (100, 50_000))
    assert "and growing" in said(admin, nearer)[0][1]
    assert "growing" not in said(admin, farther)[0][1]
    assert "growing" not in said(admin, LagSample(NOW_MS - 1_000, {"billing": 100}, 0))[0][1], "too short to say"


def test_a_partition_without_leader_comes_before_a_lag(admin: FakeAdmin) -> None:
    admin.offsets[PLACE] = PartitionOffsets(0, 41_205, 41_205)
    admin.without_leader = {TopicPartition("orders", 2)}
    first, second = said(admin)
    assert first[:2] == (Urgency.URGENT, "Topic orders has no leader for partition 2.")
    assert second[0] is Urgency.WARNING


def test_the_rate_of_appends_is_over_the_last_ten_seconds() -> None:
    samples = tuple(LagSample(at, {}, end) for at, end in ((0, 0), (5_000, 900), (10_000, 1_000), (15_000, 1_500)))
    assert appends_per_second(samples) == 60
    assert appends_per_second(samples[:1]) is None


def lag_at(taken_ms: int, lag: int, committed: int) -> LagSample:
    return LagSample(taken_ms, {"billing": lag}, 0, {"billing": committed})


def test_a_group_that_reads_faster_than_others_write_catches_up() -> None:
    samples = (lag_at(0, 5_000, 0), lag_at(5_000, 1_000, 100), lag_at(15_000, 500, 1_100))
    assert progress_of("billing", samples) == Progress(100.0, 10_000)
    assert progress_of("billing", (samples[2], lag_at(16_000, 600, 1_200))) == Progress(100.0, None)
    assert progress_of("billing", samples[:1]) is None
    assert progress_of("other", samples) is None
