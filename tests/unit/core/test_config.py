from __future__ import annotations

import pytest

from oncelog.core.broker_config import BROKER_CONFIG, explanation_of, warnings_of
from oncelog.core.config import ConfigError, ConfigKey, ConfigType, format_value
from oncelog.core.topic_config import TOPIC_CONFIG


def test_a_misspelt_key_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"transaction\.timeout\.ms.*did you mean transaction\.max\.timeout\.ms\?"):
        BROKER_CONFIG.parse({"transaction.timeout.ms": "1000"})
    with pytest.raises(ConfigError, match=r"retentionms.*did you mean retention\.ms\?"):
        TOPIC_CONFIG.key("retentionms")
    with pytest.raises(ConfigError, match=r"name: controler\.$"):
        BROKER_CONFIG.key("controler.")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("num.partitions", "0", "must be at least 1"),
        ("num.partitions", "many", "must be a whole number"),
        ("num.partitions", "3000000000", "must be between -2147483648 and 2147483647"),
        ("auto.create.topics.enable", "yes", "must be true or false"),
        ("compression.type", "brotli", "must be one of uncompressed, zstd"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "must be between 0 and 1"),
        ("log.retention.hours", "long", "must be a whole number"),
        ("log.cleaner.min.cleanable.ratio", "nan", "must be between 0 and 1"),
        ("transaction.version", "3", "must be between 0 and 2"),
    ],
)
def test_a_bad_value_names_the_key_and_what_it_takes(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        BROKER_CONFIG.parse({name: text})
    assert name in str(caught.value)


def test_every_default_passes_its_own_validation_and_survives_text() -> None:
    for table in (BROKER_CONFIG, TOPIC_CONFIG):
        for key in table:
            text = format_value(key.default)
            if text is not None:
                assert key.parse(text) == key.default, key.name


def test_every_topic_key_names_an_existing_broker_key() -> None:
    for key in TOPIC_CONFIG:
        assert key.synonym is None or key.synonym in BROKER_CONFIG, key.name


def test_coarser_spellings_count_unless_the_fine_one_is_there() -> None:
    settings = BROKER_CONFIG.parse({"log.retention.hours": "2", "broker.id": "7"})
    assert settings.integer("log.retention.ms") == 7_200_000
    assert settings.integer("node.id") == 7
    settings = BROKER_CONFIG.parse({"log.retention.hours": "2", "log.retention.ms": "5"})
    assert settings.integer("log.retention.ms") == 5
    for both in (
        {"log.retention.minutes": "3", "log.retention.hours": "2"},
        {"log.retention.hours": "2", "log.retention.minutes": "3"},
    ):
        assert BROKER_CONFIG.parse(both).integer("log.retention.ms") == 180_000
    settings = BROKER_CONFIG.parse({"log.retention.hours": "-1"})
    assert settings.integer("log.retention.ms") == -1


def test_keys_of_kafka_without_effect_are_accepted_with_a_warning() -> None:
    settings = BROKER_CONFIG.parse({"num.network.threads": "8", "num.partitions": "3"})
    assert settings.integer("num.partitions") == 3
    assert settings.warnings == [
        "num.network.threads has no effect in Oncelog: one thread serves all clients, and a few others the disk"
    ]


@pytest.mark.parametrize("key", [TOPIC_CONFIG["min.insync.replicas"], BROKER_CONFIG["replica.lag.time.max.ms"]])
def test_settings_of_replicas_are_without_effect_on_one_node_and_not_in_a_cluster(key: ConfigKey) -> None:
    alone, in_cluster = (BROKER_CONFIG.parse({"process.roles": roles}) for roles in ("broker,controller", "broker"))
    assert "no effect" in explanation_of(key, alone)
    assert explanation_of(key, in_cluster) == key.doc


def test_a_setting_that_has_no_effect_anywhere_is_told_so_in_a_cluster_too() -> None:
    given = {"process.roles": "broker", "num.replica.fetchers": "4", "min.insync.replicas": "2"}
    assert [text.split()[0] for text in warnings_of(BROKER_CONFIG.parse(given))] == ["num.replica.fetchers"]


def test_the_file_that_apache_kafka_comes_with_is_taken() -> None:
    """What config/server.properties of Kafka 4.3 sets, for one node."""
    set_there = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "inter.broker.listener.name": "PLAINTEXT",
        "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        "num.network.threads": "3",
        "num.io.threads": "8",
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "102400",
        "socket.request.max.bytes": "104857600",
        "log.dirs": "/tmp/kraft-combined-logs",
        "num.partitions": "1",
        "num.recovery.threads.per.data.dir": "1",
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.retention.hours": "168",
        "log.segment.bytes": "1073741824",
        "log.retention.check.interval.ms": "300000",
    }
    settings = BROKER_CONFIG.parse(set_there)
    assert settings.integer("node.id") == 1
    assert any(text.startswith("share.coordinator.state.topic.min.isr has no") for text in settings.warnings)


@pytest.mark.parametrize("name", ["ssl.engine.factory.class", "sasl.login.class", "authorizer.class.name"])
def test_a_key_that_asks_for_security_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        BROKER_CONFIG.parse({name: "x"})


def test_a_topic_key_in_a_broker_file_is_answered_with_the_broker_key() -> None:
    with pytest.raises(ConfigError, match=r"for all topics set log\.retention\.ms"):
        BROKER_CONFIG.parse({"retention.ms": "1"})


def test_lists_are_checked_word_by_word() -> None:
    key = ConfigKey("policy", ConfigType.LIST, (), "", allowed=("delete", "compact"))
    assert key.parse(" delete , compact ") == ("delete", "compact")
    with pytest.raises(ConfigError, match="shred"):
        key.parse("delete,shred")
