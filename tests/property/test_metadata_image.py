"""Images of metadata: the same by records or by snapshot; a delta leads from one to the next; epochs never go back."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog.controller.checkpoint import Checkpoint, Quorum, decode_checkpoint, encode_checkpoint
from oncelog.controller.delta import Change, Delta
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE, Image, TopicImage
from oncelog.controller.image_records import image_records
from oncelog.controller.replay import Replay
from oncelog.controller.topic_rules import is_like_others, metric_name
from oncelog.core.steps import at_once
from oncelog.protocol.messages.cluster_metadata import (
    RECORD_TYPES,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from oncelog.protocol.schema import Message
from tests.unit.controller.metadata import LEVEL_30, broker, partition
from tests.unit.protocol import strategies

FEW_UUIDS = st.sampled_from([uuid.UUID(int=number) for number in range(1, 5)])
FEW_IDS = st.integers(1, 3)
NODES = st.lists(FEW_IDS, min_size=1, max_size=3, unique=True)
FEW_NAMES = st.sampled_from(["a", "b", "c.d", "c_d"])
SMALL = {
    "broker_id": FEW_IDS,
    "broker_epoch": st.integers(10, 11),
    "controller_id": FEW_IDS,
    "epoch": st.integers(10, 11),
    "id": FEW_IDS,
    "topic_id": FEW_UUIDS,
    "partition_id": st.integers(0, 2),
    "name": FEW_NAMES,
    "topic_name": st.sampled_from(["", "a", "b", "c.d"]),
    "resource_name": FEW_NAMES,
    "token_id": FEW_NAMES,
    "mechanism": st.integers(1, 2),
    "feature_level": st.integers(0, 3),
    "fenced": st.integers(-1, 1),
    "in_controlled_shutdown": st.integers(0, 1),
    "leader": st.integers(-2, 3),
    "leader_recovery_state": st.integers(0, 1),
    "leader_epoch": st.integers(0, 5),
    "partition_epoch": st.integers(0, 5),
    "next_producer_id": st.integers(0, 10_000),
    "directories": st.just([]),
}
"""By the name of a field: few enough values that records meet each other's topics, brokers and names."""
OFTEN: list[type[Message]] = [
    *(PartitionChangeRecord, PartitionRecord, RemoveTopicRecord, TopicRecord),
    *(BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord),
]
ENDINGS = (EndTransactionRecord, AbortTransactionRecord)
START: list[Message] = [
    LEVEL_30,
    broker(1, 10),
    broker(2, 11),
    *(TopicRecord(name=name, topic_id=uuid.UUID(int=number)) for number, name in [(1, "a"), (2, "b")]),
    *(
        partition(index, uuid.UUID(int=number), leader_epoch=3, partition_epoch=3)
        for number in (1, 2)
        for index in (0, 1)
    ),
    *(AccessControlEntryRecord(id=uuid.UUID(int=number)) for number in (1, 2)),
]


@st.composite
def records(draw: st.DrawFn) -> Message:
    cls = draw(st.sampled_from([*RECORD_TYPES.values(), *OFTEN, *OFTEN]))
    version = cls.VERSIONS[1]
    fields = {}
    for name, field in cls.FIELDS.items():
        strategy = strategies.value(field, version)
        if field.kind == "uuid":
            strategy = FEW_UUIDS
        elif field.kind not in ("boolean", "array"):
            strategy = SMALL.get(name, FEW_NAMES if field.kind == "string" else strategy)
        elif name in ("directories", "replicas") and cls is PartitionRecord:
            strategy = SMALL.get(name, NODES)
        fields[name] = draw(strategy)
    if cls is PartitionChangeRecord:
        fields |= draw(moves())
    return cls(**fields)


@st.composite
def moves(draw: st.DrawFn) -> dict[str, Any]:
    """Replicas change with their directories, or not at all."""
    replicas = draw(st.none() | NODES)
    if replicas is None:
        return {"replicas": None, "directories": None}
    return {"replicas": replicas, "directories": [uuid.UUID(int=100 + node) for node in replicas]}


def possible(drawn: list[Message]) -> list[Message]:
    """Without what could not stand in a log, and with an end to the last transaction.

    The id of a topic is random, and so is never used again.
    """
    kept, is_open = list(START), False
    used = {record.topic_id for record in START if isinstance(record, TopicRecord)}
    for record in drawn:
        if isinstance(record, TopicRecord):
            if record.topic_id in used:
                continue
            used.add(record.topic_id)
        opens, closes = isinstance(record, BeginTransactionRecord), isinstance(record, ENDINGS)
        opened = not closes and (is_open or opens)
        try:
            replayed([*kept, record, *([EndTransactionRecord()] if opened else [])])
        except InvalidMetadata:
            continue
        kept.append(record)
        is_open = opened
    return [*kept, EndTransactionRecord()] if is_open else kept


def replayed(log: list[Message], before: Image = EMPTY_IMAGE) -> Image:
    replay = Replay(before)
    for record in log:
        replay.apply(record)
    return replay.image()


def steps(log: list[Message]) -> list[Image]:
    """The image after every record that is not inside a transaction."""
    replay = Replay()
    images = [replay.image()]
    for record in log:
        replay.apply(record)
        images.append(replay.image())
    return images


def restored(image: Image) -> Image:
    """From a snapshot."""
    data = encode_checkpoint(Checkpoint(image, Quorum(), 0), epoch=1, timestamp_ms=0)
    return decode_checkpoint(data).image


def applied(image: Image, delta: Delta) -> Image:
    """What somebody holds who knew an image and acts on a delta."""

    def changed(held: Mapping[Any, Any], changes: Mapping[Any, Change[Any]]) -> dict[Any, Any]:
        left = {key: value for key, value in held.items() if key not in changes or changes[key].after is not None}
        return left | {key: change.after for key, change in changes.items() if change.after is not None}

    partitions = {(key.topic_id, key.partition): change for key, change in delta.partitions.items()}
    topics = {}
    for topic_id, topic in changed(image.topics, delta.topics).items():
        changes = {index: change for (changed_id, index), change in partitions.items() if changed_id == topic_id}
        known = image.topics[topic_id].partitions if topic_id in image.topics else {}
        topics[topic_id] = TopicImage(topic.name, topic_id, changed(known, changes))
    names = [
        field.name
        for field in dataclasses.fields(Image)
        if field.compare and field.name not in ("topics", "topic_ids", "similar_names", "next_producer_id")
    ]
    return Image(
        topics=topics,
        topic_ids={topic.name: topic_id for topic_id, topic in topics.items()},
        similar_names=similar(topic.name for topic in topics.values()),
        next_producer_id=image.next_producer_id if delta.next_producer_id is None else delta.next_producer_id,
        **{name: changed(getattr(image, name), getattr(delta, name)) for name in names},
    )


def similar(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        if is_like_others(name):
            found[metric_name(name)] = (*found.get(metric_name(name), ()), name)
    return found


NOTHING = Delta.between(EMPTY_IMAGE, EMPTY_IMAGE)
LOGS = st.lists(records(), min_size=5, max_size=20).map(possible)
SLOW = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@SLOW
@given(LOGS, st.data())
def test_an_image_is_the_same_by_records_or_by_snapshot(log: list[Message], data: st.DataObject) -> None:
    image = replayed(log)
    assert restored(image) == image
    assert list(image_records(restored(image))) == list(image_records(image))
    cut = data.draw(st.integers(0, len(log)))
    opened = sum(isinstance(record, BeginTransactionRecord) for record in log[:cut])
    closed = sum(isinstance(record, ENDINGS) for record in log[:cut])
    if opened == closed:
        assert replayed(log[cut:], restored(replayed(log[:cut]))) == image


@SLOW
@given(LOGS)
def test_a_delta_leads_to_the_newer_image_and_changes_nothing_when_applied_again(log: list[Message]) -> None:
    images = steps(log)
    for before, after in [*itertools.pairwise(images), (images[0], images[-1])]:
        delta = Delta.between(before, after)
        assert applied(before, delta) == after
        assert applied(after, delta) == after
        assert Delta.between(after, restored(after)) == NOTHING
        assert Delta.between(before, restored(after)) == delta
        assert all(change.before != change.after for change in delta.partitions.values())


@SLOW
@given(LOGS, st.lists(st.booleans(), min_size=60, max_size=60))
def test_what_a_replay_tells_of_its_changes_is_all_that_differs(log: list[Message], looks: list[bool]) -> None:
    replay = Replay()
    image = EMPTY_IMAGE
    for record, looks_now in zip(log, itertools.cycle(looks)):
        replay.apply(record)
        if looks_now:
            before, (image, delta) = image, at_once(replay.image_after(image))
            assert delta == Delta.between(before, image)
            for part in dataclasses.fields(delta):
                changes = getattr(delta, part.name)
                if isinstance(changes, dict):
                    are_left = [change.after is not None for change in changes.values()]
                    assert are_left == sorted(are_left), "what is gone comes first"
    replay.image()
    last, delta = at_once(replay.image_after(image))
    assert (last, delta) == (replayed(log), Delta.between(image, last)), "also from an image that is not the last"


@SLOW
@given(LOGS)
def test_epochs_and_producer_ids_never_go_back(log: list[Message]) -> None:
    images = steps(log)
    for before, after in itertools.pairwise(images):
        assert before.next_producer_id <= after.next_producer_id
        for old, new in Delta.between(before, after).partitions.values():
            if old is not None and new is not None:
                assert old.leader_epoch <= new.leader_epoch
                assert old.partition_epoch <= new.partition_epoch


@SLOW
@given(LOGS)
def test_an_older_image_is_not_changed_by_what_follows(log: list[Message]) -> None:
    replay = Replay()
    for record in log:
        image = replay.image()
        shown = repr(image)
        replay.apply(record)
        assert repr(image) == shown


def test_what_is_drawn_is_mostly_possible() -> None:
    """Records that follow nothing are left out of the logs above, but some of every kind must be left in."""
    seen: set[type[Message]] = set()

    @settings(max_examples=600, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(LOGS)
    def draw(log: list[Message]) -> None:
        seen.update(map(type, log[len(START) :]))

    draw()
    assert seen == set(RECORD_TYPES.values())
