"""The settings of a producer: Kafka's names and defaults, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oncelog.client.batch_sequence import IN_FLIGHT_MAX
from oncelog.client.config import CLIENT_TABLE, TUNES_JAVA, ClientConfig, parse_settings
from oncelog.client.errors import ConfigurationError
from oncelog.core.codec import PRODUCER_CODECS
from oncelog.core.config import INT_MAX, ConfigKey, ConfigType, Settings, refused, setting, without_effect
from oncelog.core.dataclass import dataclass

_INT, _LONG = ConfigType.INT, ConfigType.LONG
_BOOLEAN, _STRING = ConfigType.BOOLEAN, ConfigType.STRING
ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}
IN_FLIGHT: Final = "max.in.flight.requests.per.connection"

PRODUCER_TABLE: Final = CLIENT_TABLE.extended(
    "producer",
    [
        ConfigKey("acks", _STRING, "all", "Replicas that must have a record: all, 1 or 0.", allowed=tuple(ACKS)),
        ConfigKey("retries", _INT, INT_MAX, "How often a batch is sent again, within delivery.timeout.ms.", low=0),
        ConfigKey(IN_FLIGHT, _INT, IN_FLIGHT_MAX, "Batches of a partition in flight at a time.", low=1),
        ConfigKey("linger.ms", _LONG, 5, "How long a batch waits for more records.", low=0),
        ConfigKey("batch.size", _INT, 16_384, "Bytes at which a batch is full.", low=0),
        ConfigKey("buffer.memory", _LONG, 33_554_432, "Bytes of records that may wait for acknowledgement.", low=1),
        ConfigKey("max.block.ms", _LONG, 60_000, "How long send() may wait for room or metadata.", low=0),
        ConfigKey("max.request.size", _INT, 1_048_576, "Bytes of the largest record.", low=1),
        ConfigKey("compression.type", _STRING, "none", "How batches are compressed.", allowed=tuple(PRODUCER_CODECS)),
        ConfigKey("delivery.timeout.ms", _INT, 120_000, "How long a record may take, retries included.", low=1),
        ConfigKey("enable.idempotence", _BOOLEAN, True, "Whether brokers recognise batches that are sent again."),
        ConfigKey("transactional.id", _STRING, None, "Makes the producer transactional, as the only one with this id."),
        ConfigKey("transaction.timeout.ms", _INT, 60_000, "When the coordinator aborts an unfinished transaction.",
                  low=1),
        ConfigKey("transaction.two.phase.commit.enable", _BOOLEAN, False,
                  "Whether transactions stay open until an outer coordinator decides (KIP-939)."),
        ConfigKey("partitioner.ignore.keys", _BOOLEAN, False, "Whether partitions are chosen without regard to keys."),
    ],
    others=[
        *without_effect(TUNES_JAVA, "metadata.max.idle.ms"),
        *refused("give the producer a function as its argument", "key.serializer", "value.serializer"),
        *refused("choose the partition when you send", "partitioner.class"),
    ],
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    client: ClientConfig
    acks: int = setting(PRODUCER_TABLE["acks"], ACKS.__getitem__)
    retries: int = setting(PRODUCER_TABLE["retries"])
    in_flight_max: int = setting(PRODUCER_TABLE[IN_FLIGHT])
    linger_ms: int = setting(PRODUCER_TABLE["linger.ms"])
    batch_bytes: int = setting(PRODUCER_TABLE["batch.size"])
    buffer_bytes: int = setting(PRODUCER_TABLE["buffer.memory"])
    max_block_ms: int = setting(PRODUCER_TABLE["max.block.ms"])
    record_bytes_max: int = setting(PRODUCER_TABLE["max.request.size"])
    codec: int = setting(PRODUCER_TABLE["compression.type"], PRODUCER_CODECS.__getitem__)
    delivery_timeout_ms: int = setting(PRODUCER_TABLE["delivery.timeout.ms"])
    idempotent: bool = setting(PRODUCER_TABLE["enable.idempotence"])
    transactional_id: str | None = setting(PRODUCER_TABLE["transactional.id"])
    transaction_timeout_ms: int = setting(PRODUCER_TABLE["transaction.timeout.ms"])
    two_phase_commit: bool = setting(PRODUCER_TABLE["transaction.two.phase.commit.enable"])
    ignore_keys: bool = setting(PRODUCER_TABLE["partitioner.ignore.keys"])

    @classmethod
    def parse(cls, properties: Mapping[str, Any] | ProducerConfig) -> ProducerConfig:
        """Raises ConfigurationError that names the settings at fault. What is parsed already is left as it is."""
        if isinstance(properties, ProducerConfig):
            return properties
        settings = parse_settings(PRODUCER_TABLE, properties)
        _check_transactions(settings)
        idempotent = _idempotence(settings)
        _check_times(settings)
        if settings.integer("batch.size") > settings.integer("buffer.memory"):
            raise ConfigurationError("batch.size is larger than buffer.memory: no batch could ever be filled")
        return settings.bind(cls, client=ClientConfig.from_settings(settings), idempotent=idempotent)


def _check_transactions(settings: Settings) -> None:
    transactional_id = settings.optional_text("transactional.id")
    if transactional_id == "":
        raise ConfigurationError("transactional.id is empty: leave it out, or give the producer a name")
    if transactional_id is not None and not settings.boolean("enable.idempotence"):
        raise ConfigurationError("transactional.id needs enable.idempotence: do not set enable.idempotence=false")
    if settings.boolean("transaction.two.phase.commit.enable"):
        if transactional_id is None:
            raise ConfigurationError("transaction.two.phase.commit.enable needs a transactional.id")
        if "transaction.timeout.ms" in settings.values:
            raise ConfigurationError(
                "transaction.timeout.ms has no meaning with transaction.two.phase.commit.enable: prepared transactions "
                "do not time out; set only one of the two"
            )


def _idempotence(settings: Settings) -> bool:
    """Whether the producer is idempotent. Like in Kafka a default gives way to contradictions, a demand does not."""
    problems = []
    if ACKS[settings.text("acks")] != -1:
        problems.append(f"acks={settings.text('acks')} (must be all)")
    if settings.integer("retries") == 0:
        problems.append("retries=0 (must be more)")
    if settings.integer(IN_FLIGHT) > IN_FLIGHT_MAX:
        problems.append(f"{IN_FLIGHT}={settings.integer(IN_FLIGHT)} (must be at most {IN_FLIGHT_MAX})")
    demanded_by = None
    if settings.optional_text("transactional.id") is not None:
        demanded_by = "transactional.id"
    elif settings.values.get("enable.idempotence") is True:
        demanded_by = "enable.idempotence=true"
    if problems and demanded_by is not None:
        raise ConfigurationError(f"{demanded_by} contradicts {' and '.join(problems)}")
    return settings.boolean("enable.idempotence") and not problems


def _check_times(settings: Settings) -> None:
    needed = settings.integer("linger.ms") + settings.integer("request.timeout.ms")
    if settings.integer("delivery.timeout.ms") < needed:
        raise ConfigurationError(
            f"delivery.timeout.ms={settings.integer('delivery.timeout.ms')} is less than linger.ms + request.timeout.ms"
            f" = {needed}: no batch would get even one full attempt"
        )
