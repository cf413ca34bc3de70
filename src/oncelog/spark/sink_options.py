"""The settings of the exactly-once sink, checked by name: arguments of its own, and Kafka's in the argument `kafka`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oncelog.client import ClientConfig
from oncelog.client.settings import IN_FLIGHT, PRODUCER_TABLE, is_topic_name, parse_settings
from oncelog.core.config import ConfigKey, ConfigTable, ConfigType, refused, setting, without_effect
from oncelog.core.ids import TopicPartition
from oncelog.spark.resume import NewCheckpoint
from oncelog.spark.source_options import AS_BYTES, PREFIX, OptionError, client_config

_STRING, _INT = ConfigType.STRING, ConfigType.INT


def _topic_problem(text: str) -> str | None:
    if not is_topic_name(text):
        return "names of topics have up to 249 letters, digits, dots, underscores and hyphens"
    return None


SINK_TABLE = ConfigTable(
    "sink",
    [
        ConfigKey("transactional_id", _STRING, "", "Names the pipeline for ever; a second driver fences the first.",
                  check=lambda text: None if text else "give each pipeline its own, and keep it across restarts"),
        ConfigKey("group_id", _STRING, None, "The group the input offsets are committed for.",
                  check=lambda text: None if text else "name the group the input offsets are committed for"),
        ConfigKey("topic", _STRING, None, "Where rows without a topic go.", check=_topic_problem),
        ConfigKey("dead_letter_topic", _STRING, None, "Takes rows that no topic can take, in the same transaction.",
                  check=_topic_problem),
        ConfigKey("transaction_timeout_ms", _INT, 600_000,
                  "A batch must be written and committed within it. Brokers allow 15 minutes by default.", low=1000),
        ConfigKey("batch_attempts", _INT, 3, "How often a failing batch is run.", low=1),
        replace(PRODUCER_TABLE["compression.type"], name="compression_type"),
        replace(PRODUCER_TABLE["max.request.size"], name="max_request_size", low=1024),
        ConfigKey("on_new_checkpoint", _STRING, NewCheckpoint.REFUSE.value, "What a new checkpoint may do.",
                  allowed=tuple(choice.value for choice in NewCheckpoint)),
    ],
    error=OptionError,
)  # fmt: skip
SINK_KAFKA_TABLE = PRODUCER_TABLE.extended(
    "sink (argument kafka)",
    [],
    others=[
        *(refusal for name in ("bootstrap.servers", "group.id", "transactional.id", "transaction.timeout.ms",
                               "compression.type", "max.request.size")
          for refusal in refused(f"not for the argument kafka: give the sink {name.replace('.', '_')}=...", name)),
        *without_effect("the sink makes its own batches, and repeats them", "batch.size", "buffer.memory",
                        "delivery.timeout.ms", "linger.ms", "max.block.ms", IN_FLIGHT, "retries"),
        *refused("create topics before: their partitions decide where keys go", "allow.auto.create.topics"),
        *refused("the sink ends its transactions itself", "transaction.two.phase.commit.enable"),
        *refused("rows choose their partition with a column partition, else by key", "partitioner.class",
                 "partitioner.ignore.keys"),
        *refused(f"keys are written as bytes: {AS_BYTES}", "key.serializer"),
        *refused(f"values are written as bytes: {AS_BYTES}", "value.serializer"),
    ],
    changes={
        "acks": {"check": lambda value: None if value in ("all", "-1") else "a transaction needs all"},
        "enable.idempotence": {"check": lambda value: None if value else "a transaction needs true"},
    },
    error=OptionError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    client: ClientConfig
    transactional_id: str
    group_id: str
    topic: str | None = setting(SINK_TABLE["topic"])
    dead_letter_topic: str | None = setting(SINK_TABLE["dead_letter_topic"])
    transaction_timeout_ms: int = setting(SINK_TABLE["transaction_timeout_ms"])
    batch_attempts: int = setting(SINK_TABLE["batch_attempts"])
    compression_type: str = setting(SINK_TABLE["compression_type"])
    max_request_size: int = setting(SINK_TABLE["max_request_size"])
    on_new_checkpoint: NewCheckpoint = setting(SINK_TABLE["on_new_checkpoint"], NewCheckpoint)

    def __post_init__(self) -> None:
        if self.dead_letter_topic is not None and self.dead_letter_topic == self.topic:
            raise OptionError("dead_letter_topic must be a topic of its own, not the output topic")

    @property
    def batch_id_partition(self) -> TopicPartition | None:
        """Where the batch ids of a source without Kafka offsets are kept."""
        return None if self.topic is None else TopicPartition(self.topic, 0)


def sink_options(
    *, bootstrap_servers: str | Sequence[str], kafka: Mapping[str, str] | None = None, **arguments: Any
) -> SinkOptions:
    """From the arguments of `write_stream`; None stands for the default. `kafka` are settings under Kafka's names."""
    settings = SINK_TABLE.parse({**arguments, "transactional_id": arguments.get("transactional_id") or ""})
    transactional_id = settings.text("transactional_id")
    return settings.bind(
        SinkOptions,
        client=_client(bootstrap_servers, kafka or {}),
        transactional_id=transactional_id,
        group_id=settings.optional_text("group_id") or transactional_id,
    )


def _client(bootstrap_servers: str | Sequence[str], kafka: Mapping[str, str]) -> ClientConfig:
    servers = [bootstrap_servers] if isinstance(bootstrap_servers, str) else list(bootstrap_servers or ())
    if not any(servers) or not all(isinstance(server, str) for server in servers):
        raise OptionError(
            f"bootstrap_servers is {bootstrap_servers!r}: name at least one broker, as 'host:port' or a list of those"
        )
    given = {name.lower().removeprefix(PREFIX): value for name, value in kafka.items()}
    return client_config(parse_settings(SINK_KAFKA_TABLE, given), "", ",".join(servers))
