"""The simulation can fail: with a bug put into the broker, it names the promise that the bug breaks.

Each bug is one that brokers have had. `within` is a generous bound on the histories it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.cluster.metadata import PRODUCER_ID_BLOCK, MetadataStore
from oncelog.cluster.partition import Partition
from oncelog.coordinator.group.offsets import OffsetStore
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.server.markers import MarkerSender
from oncelog.server.txn_runtime import TxnRuntime
from oncelog.storage.producer_state import ProducerStateManager
from oncelog.storage.segment import Segment
from tests.simulation.runner import play

pytestmark = pytest.mark.simulation

Patch = Callable[[pytest.MonkeyPatch], None]


def lso_is_one_too_high(patch: pytest.MonkeyPatch) -> None:
    original = Partition.last_stable_offset.fget
    assert original is not None

    def wrong(partition: Partition) -> int:
        return min(original(partition) + 1, partition.high_watermark)

    patch.setattr(Partition, "last_stable_offset", property(wrong))


def read_committed_sees_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "readable_end", lambda partition, read_committed: partition.high_watermark)


def aborted_transactions_are_not_indexed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "add_aborted", lambda segment, aborted: None)


def markers_are_not_sent_again_after_a_start(patch: pytest.MonkeyPatch) -> None:
    original = TxnShard.on_loaded

    def forgetful(shard: TxnShard, *arguments: Any) -> list[Any]:
        original(shard, *arguments)
        return []

    patch.setattr(TxnShard, "on_loaded", forgetful)


def markers_are_not_retried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MarkerSender, "_retry_later", lambda sender: None)


def decisions_are_answered_before_they_are_logged(patch: pytest.MonkeyPatch) -> None:
    original = TxnRuntime._append

    def hasty(runtime: TxnRuntime, shard: Any, outcome: Any, done: Callable[[Any], None]) -> None:
        done(outcome.response)
        original(runtime, shard, outcome, lambda _: None)

    patch.setattr(TxnRuntime, "_append", hasty)


def batches_are_taken_in_any_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStateManager, "_check_sequence", lambda *_: None)


def producer_ids_are_given_out_from_memory(patch: pytest.MonkeyPatch) -> None:
    original = MetadataStore._commit

    def lazy(store: MetadataStore, entry: dict[str, Any]) -> None:
        if entry["kind"] == "producer_ids":
            store._next_producer_id = store._next_producer_id + PRODUCER_ID_BLOCK
        else:
            original(store, entry)

    patch.setattr(MetadataStore, "_commit", lazy)


def offsets_are_published_whatever_the_marker_says(patch: pytest.MonkeyPatch) -> None:
    original = OffsetStore.complete
    patch.setattr(
        OffsetStore, "complete", lambda store, producer_id, *, commit: original(store, producer_id, commit=True)
    )


def parked_requests_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TxnRuntime, "_wake", lambda *_: None)
    patch.setattr(TxnRuntime, "_expire_parked", lambda *_: None)


def transactions_never_time_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TxnShard, "abort_timed_out", lambda shard, now_ms: [])


@pytest.mark.parametrize(
    ("bug", "promises", "within"),
    [
        (lso_is_one_too_high, {"committed-only", "lso-moves-on"}, 20),
        (read_committed_sees_everything, {"committed-only", "reader-consistent"}, 20),
        (aborted_transactions_are_not_indexed, {"committed-only", "reader-consistent"}, 40),
        (markers_are_not_sent_again_after_a_start, {"nobody-waits", "lso-moves-on"}, 60),
        (markers_are_not_retried, {"nobody-waits", "lso-moves-on"}, 60),
        (decisions_are_answered_before_they_are_logged, None, 60),
        (batches_are_taken_in_any_order, {"no-duplicates", "exactly-once", "in-order"}, 60),
        (producer_ids_are_given_out_from_memory, {"producer-ids-unique", "epochs-grow"}, 100),
        (offsets_are_published_whatever_the_marker_says, {"offsets-atomic"}, 60),
        (parked_requests_are_forgotten, {"nobody-waits"}, 60),
        (transactions_never_time_out, {"nobody-waits", "lso-moves-on"}, 150),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_bug_is_found(bug: Patch, promises: set[str] | None, within: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    for seed in range(1, within + 1):
        failure = play(seed)[1]
        if failure is not None:
            assert promises is None or failure.text.partition(":")[0] in promises, str(failure)
            return
    pytest.fail(f"{within} histories and nothing was found")
