"""Micro-batches of a sink, from the history of its transactional id and the offsets it wrote."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.client import Admin, OffsetAndMetadata, Producer, TopicPartition
from oncelog.core.sink_note import Note
from oncelog.monitoring import transaction_history as history
from oncelog.monitoring.groups import describe_group
from oncelog.monitoring.pipelines import (
    Attempt,
    Pipeline,
    attempts_of,
    join_offsets,
    pipeline_of,
    read_attempts,
    state_of,
)
from oncelog.monitoring.transaction_history import TransactionEvent
from tests.waiting import wait_until

Transactional = Callable[[str], Producer]
OUT = TopicPartition("out", 0)


def event(time_ms: int, what: str, epoch: int, *partitions: TopicPartition) -> TransactionEvent:
    return TransactionEvent(time_ms, "sink", what, producer_id=7, producer_epoch=epoch, partitions=partitions)


def test_attempts_have_outcomes_durations_and_starts_of_drivers() -> None:
    events = [
        event(0, history.COMMITTED, 0),
        event(1, history.INITIALISED, 1),
        event(10, history.BEGAN, 1, OUT),
        event(15, history.ABORTING, 2, OUT),
        event(17, history.ABORTED, 2),
        event(20, history.BEGAN, 2),
        event(21, history.GREW, 2, OUT),
        event(30, history.COMMITTING, 3, OUT),
        event(31, history.COMMITTED, 3),
        event(40, history.INITIALISED, 4),
        event(50, history.BEGAN, 4, OUT),
        event(60_050, history.TIMED_OUT, 5, OUT),
        event(60_060, history.BEGAN, 5, OUT),
    ]
    found = [(one.outcome, one.began_ms, one.ended_ms, one.producer_epoch, one.is_new_driver)
             for one in attempts_of(events)]  # fmt: skip
    assert found == [
        ("aborted", 10, 17, 1, True),
        ("committed", 20, 31, 2, False),
        ("timed out", 50, 60_050, 4, True),
        ("open", 60_060, None, 5, False),
    ]


def test_an_attempt_is_split_and_says_why_it_failed() -> None:
    offsets = TopicPartition("__consumer_offsets", 3)
    attempts = attempts_of(
        [
            event(10, history.BEGAN, 1, OUT),
            event(40, history.GREW, 1, OUT, offsets),
            event(45, history.COMMITTING, 2, OUT, offsets),
            event(47, history.COMMITTED, 2),
            event(50, history.BEGAN, 2, OUT),
            event(60, history.ABORTING, 3, OUT),
            event(61, history.ABORTED, 3),
            event(70, history.BEGAN, 3, OUT),
            event(80, history.ABORTING, 4, OUT),
            event(81, history.ABORTED, 4),
            event(82, history.INITIALISED, 5),
            event(90, history.BEGAN, 5, OUT),
        ]
    )
    rows = [one.as_row(100) for one in attempts]
    assert [rows[0][name] for name in ("lasted_ms", "write_ms", "offsets_ms", "commit_ms")] == [37, 30, 5, 2]
    assert rows[1]["write_ms"] is None, "it never came to its offsets"
    assert [one["why_failed"] for one in rows] == [None, "its driver aborted it", "a new driver took over", None]
    assert state_of(attempts, 100) == {"state": "in a batch", "for_ms": 10}
    assert state_of(attempts[:3], 100) == {"state": "fenced by another driver", "for_ms": 18}
    assert state_of(attempts[:2], 100) == {"state": "failed", "for_ms": 39}
    assert state_of(attempts[:1], 100) == {"state": "waiting", "for_ms": 53}
    assert state_of([], 100)["state"] == "unknown"


def test_an_abort_is_not_the_work_of_a_driver_that_starts_later() -> None:
    def reasons(aborted_with: int, initialised_ms: int) -> list[str]:
        events = [
            event(10, history.BEGAN, 1, OUT),
            event(20, history.ABORTING, aborted_with, OUT),
            event(21, history.ABORTED, aborted_with),
            event(initialised_ms, history.INITIALISED, aborted_with + 1),
        ]
        return [one.why_failed for one in attempts_of(events)]

    assert reasons(2, 60) == ["a new driver took over"]
    assert reasons(2, 4_021) == ["its driver aborted it"], "epochs grow with every transaction, and nobody was fenced"
    assert reasons(1, 60) == ["its driver aborted it"], "in its own epoch"


def test_a_query_that_has_input_and_begins_nothing_has_stopped() -> None:
    def events(pause_ms: int) -> list[TransactionEvent]:
        starts = (0, pause_ms, 2 * pause_ms)
        return [
            one
            for at in starts
            for one in (event(at, history.BEGAN, 1, OUT), event(at + 1, history.COMMITTING, 2, OUT))
        ]

    quick, slow = attempts_of(events(1_000)), attempts_of(events(100_000))
    assert state_of(quick, 61_000, has_input=True)["state"] == "waiting"
    assert state_of(quick, 63_000, has_input=True) == {"state": "stopped", "for_ms": 60_999}
    assert state_of(quick, 63_000)["state"] == "waiting", "there is nothing to do"
    assert state_of(slow, 900_000, has_input=True)["state"] == "waiting", "it pauses that long"
    assert state_of(slow, 1_300_000, has_input=True)["state"] == "stopped"


def test_offsets_belong_to_the_attempt_with_their_epoch() -> None:
    attempts = [Attempt(7, 1, 0, True), Attempt(7, 2, 10, False)]
    join_offsets(attempts, {(7, 2): {OUT: (40, Note("q", 12).to_text())}, (8, 1): {OUT: (1, "")}})
    assert [(one.batch_id, one.offsets) for one in attempts] == [(None, {}), (12, {OUT: 40})]


def test_a_sink_on_a_broker_is_found_with_its_batches(admin: Admin, transactional: Transactional, topic: str) -> None:
    place, group, writer = TopicPartition(topic, 0), f"sink/{topic}", f"writer-{topic}"
    producer = transactional(writer)
    for batch, is_committed in ((0, True), (1, False), (1, True)):
        producer.begin_transaction()
        producer.send(topic, b"row")
        note = Note("query", batch, writer=writer).to_text()
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(10 * (batch + 1), metadata=note)}, group)
        (producer.commit_transaction if is_committed else producer.abort_transaction)()
    wait_until(lambda: admin.group_offsets(group)[place].offset == 20)
    found = pipeline_of(describe_group(admin, group))
    assert found is not None
    assert (found.query_id, found.batch_id, found.writer) == ("query", 1, writer)
    attempts = read_attempts(admin, found)
    assert [(one.batch_id, one.outcome, one.offsets[place]) for one in attempts] == [
        (0, "committed", 10),
        (1, "aborted", 20),
        (1, "committed", 20),
    ]
    assert [one.is_new_driver for one in attempts] == [True, False, False]
    assert attempts[0].as_row(0)["output"] == [str(place)]
    assert read_attempts(admin, Pipeline(group, "query", 1, None, 0)) == []


def test_a_group_without_notes_is_no_pipeline(admin: Admin, topic: str) -> None:
    admin.alter_group_offsets(f"plain-{topic}", {TopicPartition(topic, 0): 0})
    assert pipeline_of(describe_group(admin, f"plain-{topic}")) is None
