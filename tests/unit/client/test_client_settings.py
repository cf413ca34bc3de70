"""Settings: Kafka's names and defaults, unknown ones answered with the nearest, contradictions refused by name."""

from __future__ import annotations

import asyncio
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest

from oncelog.client.admin import Admin, AsyncAdmin
from oncelog.client.config import ClientConfig, check_security
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.errors import ConfigurationError
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.visibility import IsolationLevel

SERVERS = {"bootstrap.servers": "a:1,[::1]:2"}


def producer(**settings: Any) -> ProducerConfig:
    return ProducerConfig.parse({**SERVERS, **{name.replace("__", "."): value for name, value in settings.items()}})


def consumer(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig.parse({**SERVERS, **{name.replace("__", "."): value for name, value in settings.items()}})


def test_the_defaults_are_those_of_kafka() -> None:
    config = producer()
    assert (config.idempotent, config.acks, config.in_flight_max, config.linger_ms) == (True, -1, 5, 5)
    assert (config.batch_bytes, config.buffer_bytes, config.delivery_timeout_ms) == (16_384, 33_554_432, 120_000)
    reader = consumer(group__id="g")
    assert (reader.isolation, reader.offset_reset, reader.auto_commit) == (
        IsolationLevel.READ_UNCOMMITTED,
        "latest",
        True,
    )
    assert (reader.max_poll_records, reader.session_timeout_ms, reader.max_poll_interval_ms) == (500, 45_000, 300_000)


def test_addresses_are_parsed_and_refused_by_name() -> None:
    assert ClientConfig(bootstrap_servers="a:1, [::1]:2").addresses == [("a", 1), ("::1", 2)]
    for wrong in ("", "host", "host:port", ":9092"):
        with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
            ClientConfig(bootstrap_servers=wrong)


def test_fields_have_the_limits_of_their_settings() -> None:
    with pytest.raises(ConfigurationError, match=r"configuration request\.timeout\.ms: must be at least 1"):
        ClientConfig(bootstrap_servers="a:1", request_timeout_ms=0)


@pytest.mark.parametrize("name", ["client.id", "sasl.username", "sasl.password", "sasl.jaas.config"])
def test_what_brokers_get_as_text_is_text(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{re.escape(name)}: the text is not UTF-8"):
        ClientConfig.parse({**SERVERS, "security.protocol": "SASL_SSL", **LOGIN, name: "half a letter: \udce4"})


def test_an_admin_takes_what_a_producer_takes() -> None:
    properties = {**SERVERS, "client.id": "mine", "request.timeout.ms": 700}
    config = ClientConfig(bootstrap_servers=SERVERS["bootstrap.servers"], client_id="mine", request_timeout_ms=700)
    looks = replace(config, allow_auto_create_topics=False)
    with Admin(properties) as admin, Admin(config) as same:
        assert admin.config == looks
        assert same.config == producer(client__id="mine", request__timeout__ms=700).client

    async def connected() -> ClientConfig:
        async with AsyncAdmin.connect(properties) as asynchronous:
            return asynchronous.cluster.config

    assert asyncio.run(connected()) == looks
    with pytest.raises(ConfigurationError, match=r"did you mean bootstrap\.servers"):
        Admin({"bootstrap.server": "a:1"})


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean transactional\.id"):
        producer(transactionl__id="x")
    with pytest.raises(ConfigurationError, match=r"did you mean isolation\.level"):
        consumer(isolation__levl="read_committed")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"transactional__id": "x", "enable__idempotence": False}, ["transactional.id", "enable.idempotence"]),
        ({"transactional__id": "x", "acks": "1"}, ["transactional.id", "acks=1"]),
        ({"transactional__id": "x", "retries": 0}, ["transactional.id", "retries=0"]),
        ({"enable__idempotence": True, "acks": 0}, ["enable.idempotence=true", "acks=0"]),
        ({"enable__idempotence": True, "retries": 0}, ["enable.idempotence=true", "retries=0"]),
        (
            {"enable__idempotence": True, "max__in__flight__requests__per__connection": 6},
            ["enable.idempotence=true", "max.in.flight.requests.per.connection=6"],
        ),
        ({"transactional__id": ""}, ["transactional.id"]),
        (
            {"transaction__two__phase__commit__enable": True},
            ["transaction.two.phase.commit.enable", "transactional.id"],
        ),
        (
            {
                "transactional__id": "x",
                "transaction__two__phase__commit__enable": True,
                "transaction__timeout__ms": 1000,
            },
            ["transaction.timeout.ms", "transaction.two.phase.commit.enable"],
        ),
        ({"delivery__timeout__ms": 1000}, ["delivery.timeout.ms", "linger.ms", "request.timeout.ms"]),
        ({"batch__size": 100, "buffer__memory": 10}, ["batch.size", "buffer.memory"]),
        ({"acks": "some"}, ["acks"]),
        ({"compression__type": "brotli"}, ["compression.type"]),
        ({"linger__ms": -1}, ["linger.ms"]),
        ({"key__serializer": object()}, ["key.serializer", "as its argument"]),
        ({"partitioner__class": "x"}, ["partitioner.class", "choose the partition"]),
        ({"linger__ms": object()}, ["linger.ms", "neither text nor a number"]),
    ],
)
def test_producer_settings_that_contradict_are_refused_by_name(settings: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        producer(**settings)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    "contradiction", [{"acks": "1"}, {"retries": 0}, {"max__in__flight__requests__per__connection": 6}]
)
def test_idempotence_by_default_gives_way_to_what_contradicts_it(contradiction: dict[str, Any]) -> None:
    assert not producer(**contradiction).idempotent


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"enable__auto__commit": True}, ["enable.auto.commit", "group.id"]),
        ({"group__instance__id": "i"}, ["group.instance.id", "group.id"]),
        ({"group__id": ""}, ["group.id"]),
        ({"group__id": "g", "heartbeat__interval__ms": 45_000}, ["heartbeat.interval.ms", "session.timeout.ms"]),
        ({"partition__assignment__strategy": "fair"}, ["partition.assignment.strategy"]),
        ({"auto__offset__reset": "smallest"}, ["auto.offset.reset"]),
    ],
)
def test_consumer_settings_that_contradict_are_refused_by_name(settings: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        consumer(**settings)
    assert all(name in str(caught.value) for name in names)


def test_settings_of_kafkas_java_client_are_taken_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert consumer(send__buffer__bytes=5) == consumer()
    assert "send.buffer.bytes has no effect in Oncelog: it tunes Kafka's Java client" in caplog.text
    caplog.clear()
    assert producer(security__protocol="PLAINTEXT", ssl__truststore__location="x") == producer()
    assert "ssl.truststore.location has no effect: the connection is PLAINTEXT" in caplog.text


def test_values_may_be_text_or_plain_python() -> None:
    assert producer(linger__ms="7", enable__idempotence="true") == producer(linger__ms=7, enable__idempotence=True)
    assert consumer(partition__assignment__strategy=["sticky", "range"]).strategies == ("sticky", "range")


def test_configurations_can_be_pickled_for_other_processes() -> None:
    for config in (ClientConfig(bootstrap_servers="a:1"), producer(), consumer()):
        assert pickle.loads(pickle.dumps(config)) == config


LOGIN = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "eve", "sasl.password": "pw"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="eve" password="pw";'


def test_security_as_java_and_as_librdkafka_write_it() -> None:
    for parse in (ClientConfig.parse, ProducerConfig.parse, ConsumerConfig.parse):
        parse({**SERVERS, "security.protocol": "plaintext"})
        parse({**SERVERS, "security.protocol": "sasl_plaintext", **LOGIN})
        with pytest.raises(ConfigurationError, match=r"TLS.*security\.protocol.*SASL_SSL"):
            parse({**SERVERS, "security.protocol": "TLS"})
    secure = {**SERVERS, "security.protocol": "SASL_SSL"}
    by_name = ClientConfig.parse({**secure, **LOGIN})
    by_line = ClientConfig.parse({**secure, "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS})
    assert by_name.credentials == by_line.credentials == ("eve", "pw")
    assert by_name.tls is not None
    assert by_name.tls.check_hostname
    assert ClientConfig.parse({**SERVERS, "security.protocol": "SASL_PLAINTEXT", **LOGIN}).tls is None
    for config in (by_name, by_line):
        assert "'pw'" not in repr(config)
        assert JAAS not in repr(config)
        assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sasl.mechanism": "PLAIN"}, r"sasl\.mechanism: has no effect without security\.protocol"),
        ({"ssl.truststore.location": "/x"}, r"ssl\.truststore\.location: has no effect without security\.protocol"),
        ({"security.providers": "x"}, r"security\.providers: not supported"),
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism: SASL_SSL needs one of PLAIN"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "needs one of PLAIN"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "eve"}, r"sasl\.password"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}, "is for SCRAM"),
        ({"security.protocol": "SASL_SSL", **LOGIN, "sasl.jaas.config": JAAS}, "both given"),
        ({"security.protocol": "SASL_SSL", **LOGIN, "sasl.kerberos.service.name": "x"}, "not supported"),
        ({"security.protocol": "SSL", "ssl.truststore.crl": "x"}, "not supported"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "http"}, "must be one of"),
    ],
)
def test_security_that_is_half_said_or_unknown_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        ClientConfig.parse({**SERVERS, **given})


def test_settings_for_many_tools_must_not_ask_for_more_security_than_there_is() -> None:
    check_security({"group.id": "g", "security.protocol": "PLAINTEXT", "ssl.truststore.location": "/x"})
    check_security({"group.id": "g", "security.protocol": "SASL_SSL", **LOGIN})
    for asking in ({"security.protocol": "TLS"}, {"ssl.truststore.location": "/x"}, {"security.providers": "x"}):
        with pytest.raises(ConfigurationError):
            check_security({"group.id": "g", **asking})


def test_the_file_that_java_needs_for_tokens_is_taken_and_no_other_class() -> None:
    given = {
        **SERVERS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": "file:///run/token",
    }
    key = "sasl.login.callback.handler.class"
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    assert ProducerConfig.parse({**given, key: handler}).client.sasl_mechanism == "OAUTHBEARER"
    with pytest.raises(ConfigurationError, match=r"sasl\.login\.callback\.handler\.class: no class is loaded"):
        ProducerConfig.parse({**given, key: "evil.Handler"})
