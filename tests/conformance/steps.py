"""Steps that wire scenarios are made of: one function per request, with the fields that scenarios vary as arguments.

A producer is named by a letter: `init("P", "x")` saves its id and epoch as "P.id" and "P.epoch", and later steps use
them, moved by `epoch=-1` and the like where a scenario wants a stale or a future producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.conformance.scenario import Batch, Name, Ref, Step

NONE: Final = -1
MINUTE_MS: Final = 60_000


def init(
    producer: str,
    transactional_id: Any,
    version: int = 4,
    *,
    timeout_ms: int = MINUTE_MS,
    expected: tuple[Any, Any] | None = None,
    keep: bool = True,
    note: str = "",
) -> Step:
    """InitProducerId; `expected` is the pair of id and epoch that KIP-360 clients send."""
    fields: dict[str, Any] = {"transactional_id": _name(transactional_id), "transaction_timeout": timeout_ms}
    if version >= 3:
        fields["producer_id"], fields["producer_epoch"] = expected or (NONE, NONE)
    saved = {f"{producer}.id": "producer_id", f"{producer}.epoch": "producer_epoch"} if keep else {}
    return Step("init_producer_id", version, fields, save=saved, note=note)


def same(producer: str, epoch: int = 0) -> tuple[Ref, Ref]:
    """The id of a producer and its epoch, moved."""
    return Ref(f"{producer}.id"), Ref(f"{producer}.epoch", epoch)


def add_partitions(
    producer: str,
    transactional_id: Any,
    partitions: Mapping[str, Sequence[int]],
    version: int = 3,
    *,
    epoch: int = 0,
    producer_id: Any = None,
    note: str = "",
) -> Step:
    """AddPartitionsToTxn of clients, v0-3."""
    topics = [{"name": Name(topic), "partitions": list(indexes)} for topic, indexes in partitions.items()]
    fields = _transaction(producer, transactional_id, epoch, producer_id, suffix="v3_and_below_")
    return Step("add_partitions_to_txn", version, {**fields, "v3_and_below_topics": topics}, note=note)


def add_partitions_batched(
    producer: str,
    transactional_id: Any,
    partitions: Mapping[str, Sequence[int]],
    version: int = 5,
    *,
    verify_only: bool,
    epoch: int = 0,
    producer_id: Any = None,
    note: str = "",
) -> Step:
    """AddPartitionsToTxn between brokers, v4-5."""
    topics = [{"name": Name(topic), "partitions": list(indexes)} for topic, indexes in partitions.items()]
    fields = _transaction(producer, transactional_id, epoch, producer_id)
    transaction = {**fields, "verify_only": verify_only, "topics": topics}
    return Step("add_partitions_to_txn", version, {"transactions": [transaction]}, note=note)


def add_offsets(
    producer: str,
    transactional_id: Any,
    group: Any,
    version: int = 3,
    *,
    epoch: int = 0,
    producer_id: Any = None,
    note: str = "",
) -> Step:
    fields = _transaction(producer, transactional_id, epoch, producer_id)
    return Step("add_offsets_to_txn", version, {**fields, "group_id": _name(group)}, note=note)


def end(
    producer: str,
    transactional_id: Any,
    version: int = 3,
    *,
    commit: bool = True,
    epoch: int = 0,
    producer_id: Any = None,
    keep: bool = False,
    settle: bool = True,
    note: str = "",
) -> Step:
    """EndTxn. With `keep` the id and epoch that v5 returns become the producer's."""
    fields = _transaction(producer, transactional_id, epoch, producer_id)
    saved = {f"{producer}.id": "producer_id", f"{producer}.epoch": "producer_epoch"} if keep else {}
    return Step(
        "end_txn",
        version,
        {**fields, "committed": commit},
        save=saved,
        settle=_name(transactional_id) if settle and transactional_id else None,
        note=note or ("commit" if commit else "abort"),
    )


def produce(
    producer: str | None,
    transactional_id: Any,
    *,
    version: int = 9,
    topic: str = "t",
    partition: int = 0,
    sequence: int = 0,
    count: int = 1,
    epoch: int = 0,
    producer_id: Any = None,
    acks: int = -1,
    batch: Mapping[str, Any] | None = None,
    transactional: bool | None = None,
    records: Any = None,
    note: str = "",
) -> Step:
    """Produce of one batch to one partition; a transactional one where a transactional id is given."""
    options: dict[str, Any] = {
        "transactional": transactional_id is not None if transactional is None else transactional
    }
    if producer is not None:
        options |= {
            "producer_id": Ref(f"{producer}.id") if producer_id is None else producer_id,
            "epoch": Ref(f"{producer}.epoch", epoch),
            "sequence": sequence,
        }
    data = Batch(count, {**options, **(batch or {})}) if records is None else records
    named: dict[str, Any] = {"topic_id": Ref(f"{topic}.id")} if version >= 13 else {"name": Name(topic)}
    topics = [{**named, "partition_data": [{"index": partition, "records": data}]}]
    fields = {"transactional_id": _name(transactional_id), "acks": acks, "timeout": 10_000, "topic_data": topics}
    return Step("produce", version, fields, answered=acks != 0, note=note)


def commit_offsets(
    producer: str,
    transactional_id: Any,
    group: Any,
    offset: int,
    version: int = 3,
    *,
    topic: str = "t",
    partition: int = 0,
    epoch: int = 0,
    producer_id: Any = None,
    generation: Any = None,
    member: Any = "",
    instance: str | None = None,
    metadata: str | None = "",
    note: str = "",
) -> Step:
    """TxnOffsetCommit; generation and member from v3 on."""
    fields = _transaction(producer, transactional_id, epoch, producer_id)
    fields["group_id"] = _name(group)
    if version >= 3:
        fields |= {"generation_id": NONE if generation is None else generation, "member_id": member}
        fields["group_instance_id"] = instance
    entry: dict[str, Any] = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
    fields["topics"] = [{"name": Name(topic), "partitions": [entry]}]
    return Step("txn_offset_commit", version, fields, note=note)


def fetch_offsets(group: Any, version: int = 7, *, stable: bool = False, topic: str = "t", note: str = "") -> Step:
    """OffsetFetch of partitions 0 and 1 of one topic."""
    named: dict[str, Any] = {"topic_id": Ref(f"{topic}.id")} if version >= 10 else {"name": Name(topic)}
    topics = [{**named, "partition_indexes": [0, 1]}]
    fields: dict[str, Any] = {"group_id": _name(group), "topics": topics}
    if version >= 8:
        fields = {"groups": [fields]}
    if version >= 7:
        fields["require_stable"] = stable
    return Step("offset_fetch", version, fields, note=note or ("stable" if stable else ""))


def describe(*transactional_ids: Any, note: str = "") -> Step:
    return Step(
        "describe_transactions", 0, {"transactional_ids": [_name(name) for name in transactional_ids]}, note=note
    )


def await_state(transactional_id: Any, state: str) -> Step:
    """Ask for the transaction until the coordinator says it is in this state."""
    wanted = {"transaction_states.0.transaction_state": state}
    fields = {"transactional_ids": [_name(transactional_id)]}
    return Step("describe_transactions", 0, fields, until=wanted, note=f"until {state}")


def producers(topic: str = "t", partition: int = 0, note: str = "") -> Step:
    """DescribeProducers of one partition."""
    topics = [{"name": Name(topic), "partition_indexes": [partition]}]
    return Step("describe_producers", 0, {"topics": topics}, note=note)


def markers(
    producer: str,
    *,
    version: int = 1,
    commit: bool = False,
    topic: Any = "t",
    partitions: Sequence[int] = (0,),
    epoch: int = 0,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
    producer_id: Any = None,
    note: str = "",
) -> Step:
    """WriteTxnMarkers of one marker, as a coordinator or an administrator sends it."""
    marker: dict[str, Any] = {
        "producer_id": Ref(f"{producer}.id") if producer_id is None else producer_id,
        "producer_epoch": Ref(f"{producer}.epoch", epoch),
        "transaction_result": commit,
        "topics": [{"name": _name(topic), "partition_indexes": list(partitions)}],
        "coordinator_epoch": coordinator_epoch,
    }
    if version >= 2:
        marker["transaction_version"] = transaction_version
    return Step("write_txn_markers", version, {"markers": [marker]}, note=note)


def list_offsets(
    timestamp: int = -1,
    *,
    committed: bool = False,
    version: int = 7,
    topic: str = "t",
    partition: int = 0,
    note: str = "",
) -> Step:
    """ListOffsets of one partition: -1 latest, -2 earliest, -3 the largest timestamp."""
    entry: dict[str, Any] = {"partition_index": partition, "timestamp": timestamp}
    if version >= 4:
        entry["current_leader_epoch"] = NONE
    fields: dict[str, Any] = {"replica_id": NONE, "topics": [{"name": Name(topic), "partitions": [entry]}]}
    if version >= 2:
        fields["isolation_level"] = 1 if committed else 0
    if version >= 10:
        fields["timeout"] = 10_000
    return Step("list_offsets", version, fields, note=note or ("committed" if committed else ""))


def fetch(
    offset: int = 0,
    *,
    committed: bool = True,
    version: int = 12,
    topic: str = "t",
    partition: int = 0,
    max_bytes: int = 1_000_000,
    leader_epoch: int = NONE,
    note: str = "",
) -> Step:
    """Fetch from one partition, not waiting for more."""
    entry: dict[str, Any] = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    if version >= 5:
        entry["log_start_offset"] = NONE
    if version >= 9:
        entry["current_leader_epoch"] = leader_epoch
    if version >= 12:
        entry["last_fetched_epoch"] = NONE
    named: dict[str, Any] = {"topic_id": Ref(f"{topic}.id")} if version >= 13 else {"topic": Name(topic)}
    fields: dict[str, Any] = {"max_wait": 0, "min_bytes": 0, "max_bytes": 10_000_000}
    fields |= {"isolation_level": 1 if committed else 0, "topics": [{**named, "partitions": [entry]}]}
    if version < 15:
        fields["replica_id"] = NONE
    if version >= 7:
        fields |= {"session_id": 0, "session_epoch": NONE, "forgotten_topics_data": []}
    return Step("fetch", version, fields, note=note or ("committed" if committed else "uncommitted"))


def _transaction(
    producer: str, transactional_id: Any, epoch: int, producer_id: Any, suffix: str = ""
) -> dict[str, Any]:
    return {
        f"{suffix}transactional_id": _name(transactional_id),
        f"{suffix}producer_id": Ref(f"{producer}.id") if producer_id is None else producer_id,
        f"{suffix}producer_epoch": Ref(f"{producer}.epoch", epoch),
    }


def _name(name: Any) -> Any:
    return Name(name) if isinstance(name, str) and name else name
