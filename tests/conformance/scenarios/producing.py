"""Produce: transactional and idempotent batches, sequences, epochs, duplicates, and batches to be refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.conformance.scenario import NEW_PROTOCOL, Batch, Name, Ref, Scenario, Step
from tests.conformance.steps import add_partitions, describe, end, fetch, init, list_offsets, produce, producers

VERIFYING: Final = (3, 5, 7, 9, 10, 11)
"""Versions of clients that add partitions themselves; 11 is the first that knows TRANSACTION_ABORTABLE."""
ADDING: Final = (12, 13)
ALL: Final = (*VERIFYING, *ADDING)
SEQUENCE_MAX: Final = 2**31 - 1


def served(version: int) -> tuple[int, ...]:
    return NEW_PROTOCOL if version in ADDING else (0, 1, 2)


def plain(version: int) -> Scenario:
    """Neither idempotent nor transactional, with each kind of acknowledgement."""
    steps = [
        produce(None, None, version=version),
        produce(None, None, version=version, acks=1, count=3),
        produce(None, None, version=version, acks=0, count=2),
        # An unanswered request is done once an answered one on the same connection is.
        produce(None, None, version=version, partition=1),
        fetch(committed=False),
        produce(None, None, version=version, acks=2, note="acks 2"),
        produce(None, None, version=version, partition=9, note="unknown partition"),
        produce(None, None, version=version, topic="t", records=b"", note="no records"),
        list_offsets(),
    ]
    return Scenario(f"plain-v{version}", steps)


def unknown_topic(version: int) -> Scenario:
    named: dict[str, Any] = {"name": Name("missing")}
    if version >= 13:
        named = {"topic_id": "00000000-0000-4000-8000-000000000001"}
    topics = [{**named, "partition_data": [{"index": 0, "records": Batch(1)}]}]
    fields = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}
    return Scenario(f"unknown-topic-v{version}", [Step("produce", version, fields)], topics={})


def idempotent(version: int) -> Scenario:
    """Duplicates of the last five batches are answered with their offsets, anything else out of order is refused."""
    steps = [init("P", None)]
    steps += [produce("P", None, version=version, sequence=number) for number in range(7)]
    steps += [
        produce("P", None, version=version, sequence=6, note="the last one again"),
        produce("P", None, version=version, sequence=2, note="fifth from the end again"),
        produce("P", None, version=version, sequence=1, note="sixth from the end again"),
        produce("P", None, version=version, sequence=9, note="a gap"),
        produce("P", None, version=version, sequence=7, count=3),
        produce("P", None, version=version, sequence=7, count=2, note="overlapping"),
        produce("P", None, version=version, sequence=8, count=2, note="overlapping its end"),
        produce("P", None, version=version, sequence=7, count=3, note="exactly again"),
        produce("P", None, version=version, partition=1, sequence=5, note="another partition, not from zero"),
        produce("P", None, version=version, partition=1, sequence=7, note="another partition, a gap"),
        producers(),
        producers(partition=1),
        fetch(committed=False),
    ]
    return Scenario(f"idempotent-v{version}", steps)


def idempotent_epochs() -> Scenario:
    """Epochs as an idempotent producer moves them by itself after an error."""
    steps = [
        init("P", None),
        produce("P", None),
        produce("P", None, epoch=1, sequence=3, note="next epoch, not from zero"),
        produce("P", None, epoch=1, note="next epoch"),
        produce("P", None, sequence=1, note="old epoch"),
        produce("P", None, epoch=3, note="two epochs on"),
        produce("P", None, epoch=3, note="again"),
        produce("P", None, epoch=3, sequence=0, count=2, note="again, longer"),
        producers(),
    ]
    return Scenario("idempotent-epochs", steps)


def sequence_wraps() -> Scenario:
    steps = [
        init("P", None),
        produce("P", None, sequence=SEQUENCE_MAX - 1, count=1),
        produce("P", None, sequence=SEQUENCE_MAX, count=3, note="over the end"),
        produce("P", None, sequence=2, count=1),
        produce("P", None, sequence=SEQUENCE_MAX, count=3, note="over the end again"),
        produce("P", None, partition=1, sequence=SEQUENCE_MAX),
        produce("P", None, partition=1, sequence=0, note="after the end"),
        producers(),
        producers(partition=1),
    ]
    return Scenario("sequence-wraps", steps)


def malformed() -> Scenario:
    """Batches that a client library would not send."""
    cases: dict[str, Mapping[str, Any]] = {
        "control": {"control": True},
        "negative sequence": {"sequence": -1},
        "fewer records than offsets": {"last_offset_delta": 3},
        "count without records": {"records_count": 4},
        "no records": {"values": [], "records_count": 0, "last_offset_delta": 0},
        "wrong checksum": {"crc_error": True},
        "magic 1": {"magic": 1},
        "magic 3": {"magic": 3},
        "base offset not zero": {"base_offset": 17},
        "timestamp from the future": {"timestamp_ms": 4_000_000_000_000},
        "no timestamp": {"timestamp_ms": -1},
    }
    steps = [init("P", None)]
    steps += [produce("P", None, version=9, count=2, batch=options, note=case) for case, options in cases.items()]
    plain_cases = {case: options for case, options in cases.items() if "sequence" not in case}
    steps += [
        produce(None, None, count=2, batch={"values": [b"a", b"b"], **options}, note=f"{case}, plain")
        for case, options in plain_cases.items()
    ]
    steps += [
        produce(None, None, records=[Batch(1), Batch(2)], note="two batches"),
        produce(None, None, records=[Batch(1, {"values": [b"x" * 1_100_000]})], note="too large"),
        produce(None, None, records=b"\0" * 20, note="a piece of a batch"),
        producers(),
        fetch(committed=False),
    ]
    return Scenario("malformed", steps, transaction_versions=(2,))


def keys_of_compacted_topics() -> Scenario:
    compacted = {"t": (1, {"cleanup.policy": "compact"})}
    steps = [
        produce(None, None, note="with keys"),
        produce(None, None, count=2, batch={"keys": [b"k", None]}, note="one without"),
        fetch(committed=False),
    ]
    return Scenario("keys-of-compacted-topics", steps, topics=compacted, transaction_versions=(2,))


def log_append_time() -> Scenario:
    appended = {"t": (1, {"message.timestamp.type": "LogAppendTime"})}
    steps = [produce(None, None, count=2, version=version) for version in ALL]
    return Scenario("log-append-time", [*steps, fetch(committed=False)], topics=appended, transaction_versions=(2,))


def transactional(version: int) -> Scenario:
    """The partition is added first; without that, clients of the old protocol are refused."""
    steps = [
        init("P", "x"),
        produce("P", "x", version=version, note="not added"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x", version=version, partition=1, note="another one was added"),
        produce("P", "x", version=version),
        produce("P", "x", version=version, sequence=1, count=2),
        produce("P", "x", version=version, sequence=1, count=2, note="again"),
        produce("P", "x", version=version, sequence=5, note="a gap"),
        produce("P", None, version=version, sequence=3, note="not transactional"),
        produce("P", "x", version=version, sequence=3, transactional=False, note="batch not transactional"),
        produce("P", None, version=version, sequence=3, transactional=True, note="no transactional id"),
        describe("x"),
        end("P", "x"),
        produce("P", "x", version=version, sequence=3, note="after the end"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x", version=version, sequence=3, note="the next transaction"),
        producers(),
        end("P", "x", commit=False),
        producers(),
        fetch(),
        fetch(committed=False),
    ]
    return Scenario(f"transactional-v{version}", steps)


def overtaking(version: int) -> Scenario:
    """After a batch was refused because its transaction is not open, no later one may come before it."""
    steps = [
        init("P", "x"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x", version=version, count=3),
        end("P", "x"),
        produce("P", "x", version=version, sequence=4, note="not open"),
        produce("P", "x", version=version, sequence=3, note="not open, lower"),
        produce("P", "x", version=version, sequence=0, count=3, note="not open, the last one again"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x", version=version, sequence=4, note="before the lowest"),
        produce("P", "x", version=version, sequence=3, note="the next, but not the lowest refused"),
        produce("P", "x", version=version, sequence=0, count=3, note="the lowest refused, a duplicate"),
        produce("P", "x", version=version, sequence=3, note="the next"),
        producers(),
    ]
    return Scenario(f"overtaking-v{version}", steps)


def first_sequence(version: int) -> Scenario:
    """A first batch that does not start at zero, where the partition has no state of the producer."""
    steps = [
        init("P", "x"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x", version=version, sequence=4, note="not from zero"),
        produce("P", "x", version=version, sequence=0),
        producers(),
    ]
    return Scenario(f"first-sequence-v{version}", steps, transaction_versions=served(version))


def strangers(version: int) -> Scenario:
    """Producers that are fenced, from the future, or unknown to the coordinator."""
    other = Ref("P.id", 1_000_000)
    steps = [
        init("P", "x"),
        init("P", "x", note="epoch 1"),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x", version=version, epoch=-1, note="stale, nothing written yet"),
        produce("P", "x", version=version),
        produce("P", "x", version=version, epoch=-1, note="stale"),
        produce("P", "x", version=version, epoch=1, note="future"),
        produce("P", "unknown", version=version, partition=1, note="unknown id"),
        produce("P", "x", version=version, partition=1, producer_id=other, note="another producer id"),
        produce("P", "", version=version, partition=1, note="empty id"),
        describe("x"),
        producers(),
        producers(partition=1),
    ]
    return Scenario(f"strangers-v{version}", steps, transaction_versions=served(version))


def two_producers(version: int) -> Scenario:
    """One request may carry batches of one producer only."""

    def data(partition: int, producer: str) -> dict[str, Any]:
        options = {"producer_id": Ref(f"{producer}.id"), "epoch": Ref(f"{producer}.epoch"), "sequence": 0}
        return {"index": partition, "records": Batch(1, {**options, "transactional": True})}

    named: dict[str, Any] = {"topic_id": Ref("t.id")} if version >= 13 else {"name": Name("t")}
    topics = [{**named, "partition_data": [data(0, "P"), data(1, "Q")]}]
    fields = {"transactional_id": Name("x"), "acks": -1, "timeout": 10_000, "topic_data": topics}
    steps = [
        init("P", "x"),
        init("Q", "y"),
        add_partitions("P", "x", {"t": [0]}),
        add_partitions("Q", "y", {"t": [1]}),
        Step("produce", version, fields),
        list_offsets(),
        list_offsets(partition=1),
    ]
    return Scenario(f"two-producers-v{version}", steps, transaction_versions=served(version))


def several_partitions(version: int) -> Scenario:
    """One transactional request to three partitions, one of which is not in the transaction and one not there."""

    def data(partition: int) -> dict[str, Any]:
        options = {"producer_id": Ref("P.id"), "epoch": Ref("P.epoch"), "sequence": 0, "transactional": True}
        return {"index": partition, "records": Batch(1, options)}

    named: dict[str, Any] = {"topic_id": Ref("t.id")} if version >= 13 else {"name": Name("t")}
    topics = [{**named, "partition_data": [data(0), data(1), data(7)]}]
    fields = {"transactional_id": Name("x"), "acks": -1, "timeout": 10_000, "topic_data": topics}
    steps = [init("P", "x"), add_partitions("P", "x", {"t": [0]}), Step("produce", version, fields), describe("x")]
    return Scenario(f"several-partitions-v{version}", steps, transaction_versions=served(version))


def after_topic_deletion() -> Scenario:
    """A topic deleted in the middle of a transaction does not keep it from ending."""
    deleted = Step("delete_topics", 5, {"topic_names": [Name("u")], "timeout": 10_000}, note="one of two topics")
    steps = [
        init("P", "x"),
        add_partitions("P", "x", {"t": [0], "u": [0]}),
        produce("P", "x"),
        produce("P", "x", topic="u"),
        deleted,
        end("P", "x"),
        describe("x"),
        fetch(),
    ]
    return Scenario("after-topic-deletion", steps, topics={"t": 1, "u": 1})


def implicit_strangers(version: int) -> Scenario:
    """TV2: the partition is added by Produce, and the coordinator's refusals reach the client through it."""
    steps = [
        init("P", "x", 5),
        produce("P", "x", version=version),
        end("P", "x", 5, keep=True),
        produce("P", "x", version=version, epoch=-1, note="the epoch of the ended transaction"),
        produce("P", "x", version=version, epoch=-1, partition=1, note="the same, on a partition that never saw it"),
        produce("P", "x", version=version, epoch=1, note="future epoch"),
        produce("P", "x", version=version, sequence=1, note="not from zero after the bump"),
        produce("P", "x", version=version),
        producers(),
        end("P", "x", 5, commit=False, keep=True),
        produce("P", None, version=version, note="not transactional"),
        producers(),
        fetch(committed=False),
    ]
    return Scenario(f"implicit-strangers-v{version}", steps, transaction_versions=NEW_PROTOCOL)


SCENARIOS: Final = (
    *(plain(version) for version in ALL),
    *(unknown_topic(version) for version in ALL),
    *(idempotent(version) for version in (3, 9, 12, 13)),
    idempotent_epochs(),
    sequence_wraps(),
    malformed(),
    keys_of_compacted_topics(),
    log_append_time(),
    *(transactional(version) for version in VERIFYING),
    *(overtaking(version) for version in (9, 11)),
    *(first_sequence(version) for version in (9, 11, 12)),
    *(strangers(version) for version in (3, 9, 11, 12, 13)),
    *(two_producers(version) for version in (9, 11, 12)),
    *(several_partitions(version) for version in (9, 11, 12, 13)),
    after_topic_deletion(),
    *(implicit_strangers(version) for version in ADDING),
)
