"""A batch sent twice, and which settings go together."""

from __future__ import annotations

from typing import Any

from oncelog.cli.lab.stage import Stage
from oncelog.client.batch_producer import BatchProducer
from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConfigurationError, IllegalState, KafkaError
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.shared_transaction import SharedTransaction
from oncelog.core.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from oncelog.protocol.batch import Record, build_batch

COMBINATIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "idempotent"),
    ({"enable.idempotence": False}, "not idempotent"),
    ({"acks": "1"}, "not idempotent"),
    ({"transactional.id": "t"}, "idempotent"),
    ({"enable.idempotence": True, "acks": "1"}, "acks=1"),
    ({"enable.idempotence": True, "retries": 0}, "retries=0"),
    ({"enable.idempotence": True, "max.in.flight.requests.per.connection": 6}, "max.in.flight"),
    ({"transactional.id": "t", "enable.idempotence": False}, "enable.idempotence"),
    ({"transactional.id": "t", "acks": "0"}, "acks=0"),
]
"""Settings, and what comes of them: a kind of producer, or a part of the refusal."""


def run(stage: Stage) -> None:
    stage.create("with-sequence", "without-sequence")
    stage.step("A batch is sent, its answer is lost, and it is sent again. First as an idempotent producer does it.")
    producer = stage.producer()
    stage.send(producer, "with-sequence", "balance of 100")
    identity = _identity(stage)
    offsets = _send_twice(stage, "with-sequence", identity, base_sequence=1)
    stage.show_log("with-sequence")
    stage.say(f"   both were answered with offset {offsets[0]}: the broker knows producer, epoch and sequence")

    stage.step("Then without producer id and sequence.")
    plain = _send_twice(stage, "without-sequence", ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH), 0)
    stage.show_log("without-sequence")

    stage.step("A sequence that leaves a gap is refused: something before it is missing.")
    refusal = ""
    try:
        _send(stage, "with-sequence", identity, base_sequence=9)
    except KafkaError as error:
        refusal = str(error)
    stage.say(f"   {refusal}")

    stage.step("Which settings go together?")
    surprises = [found for found in map(_try, COMBINATIONS) if not found[2]]
    for settings, expected in COMBINATIONS:
        stage.say(f"   {', '.join(f'{k}={v}' for k, v in settings.items()) or 'nothing set'}")
        stage.say(f"     {_try((settings, expected))[1]}")

    stage.step("Transactional calls without a transactional id are refused.")
    complaint = ""
    try:
        producer.begin_transaction()
    except (IllegalState, KafkaError, ConfigurationError) as error:
        complaint = str(error)
    stage.say(f"   {complaint}")
    stage.check("the repeated batch was answered with its old offset", offsets[0] == offsets[1], offsets)
    stage.check("and is in the log once", stage.values("with-sequence") == ["balance of 100", "payment of 10"])
    stage.check("without a sequence it is there twice", plain[0] != plain[1], plain)
    stage.check("a gap is OUT_OF_ORDER_SEQUENCE_NUMBER", "OUT_OF_ORDER_SEQUENCE_NUMBER" in refusal, refusal)
    stage.check("settings that contradict are refused by name", not surprises, surprises)
    stage.check("a transaction needs a transactional id", "transactional.id" in complaint, complaint)


def _identity(stage: Stage) -> ProducerIdAndEpoch:
    """The producer id that the partition has seen, as a crashed producer would have used it again."""
    place = TopicPartition("with-sequence", 0)
    with stage.admin() as admin:
        (known,) = admin.describe_producers([place])[place]
    return ProducerIdAndEpoch(ProducerId(known.producer_id), ProducerEpoch(known.producer_epoch))


def _send_twice(stage: Stage, topic: str, identity: ProducerIdAndEpoch, base_sequence: int) -> list[int]:
    return [_send(stage, topic, identity, base_sequence) for _ in range(2)]


def _send(stage: Stage, topic: str, identity: ProducerIdAndEpoch, base_sequence: int) -> int:
    """A new connection each time: the client that sends it again knows nothing of the first answer."""
    batch = build_batch([Record(0, 0, None, b"payment of 10")], timestamp_ms=1_700_000_000_000)
    config = ClientConfig(bootstrap_servers=stage.servers, retry_backoff_ms=10)
    with BatchProducer(config, SharedTransaction(identity=identity), delivery_timeout_ms=2_000) as producer:
        return producer.produce(topic, 0, [batch], base_sequence).first_offset


def _try(combination: tuple[dict[str, Any], str]) -> tuple[dict[str, Any], str, bool]:
    settings, expected = combination
    try:
        config = ProducerConfig.parse({"bootstrap.servers": "127.0.0.1:9092", **settings})
    except ConfigurationError as error:
        return settings, f"refused: {error}", expected in str(error)
    found = "idempotent" if config.idempotent else "not idempotent"
    return settings, found, found == expected
