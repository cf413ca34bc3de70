"""Options of the source and the sink: wrong ones are named, with what is valid."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.client.fetcher import RANGE_FETCH_BYTES
from oncelog.core.ids import TopicPartition
from oncelog.spark.offsets import EARLIEST, LATEST
from oncelog.spark.sink_options import SinkOptions, sink_options
from oncelog.spark.source_options import OptionError, SourceOptions, parse_source_options

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def parse(streaming: bool = True, **more: str) -> SourceOptions:
    return parse_source_options({**BASE, **{k.replace("__", "."): v for k, v in more.items()}}, streaming=streaming)


def test_defaults_are_those_of_sparks_source_except_for_the_isolation_level() -> None:
    stream, batch = parse(), parse(streaming=False)
    assert stream.starting.everywhere == LATEST
    assert batch.starting.everywhere == EARLIEST
    assert batch.ending.everywhere == LATEST
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert stream.read_committed
    assert not parse(kafka__isolation__level="read_uncommitted").read_committed


def test_the_earlier_name_of_a_client_setting_is_still_known() -> None:
    assert parse(kafka__transaction__version__max="1").client.transaction_version_max == 1
    both = {"kafka__transaction__version__max": "1", "kafka__oncelog__transaction__version__max": "0"}
    assert parse(**both).client.transaction_version_max == 0


def test_names_are_case_insensitive_as_spark_hands_them_over() -> None:
    assert parse(MAXOFFSETSPERTRIGGER="7").max_offsets_per_trigger == 7


def test_client_settings_reach_the_client() -> None:
    options = parse(kafka__request__timeout__ms="1234", kafka__client__id="me")
    assert (options.client.request_timeout_ms, options.client.client_id) == (1234, "me")
    assert not options.client.allow_auto_create_topics


def test_settings_of_kafkas_consumer_that_the_client_has_reach_it() -> None:
    options = parse(
        kafka__fetch__max__bytes="70000",
        kafka__max__partition__fetch__bytes="50000",
        kafka__security__protocol="plaintext",
        kafka__oncelog__transaction__version__max="1",
    )
    assert (options.fetch_bytes_max, options.partition_fetch_bytes_max) == (70_000, 50_000)
    assert options.client.transaction_version_max == 1
    assert parse().fetch_bytes_max == RANGE_FETCH_BYTES


def test_what_kafka_gives_no_meaning_on_a_plain_connection_has_none_here() -> None:
    assert parse(kafka__security__protocol="PLAINTEXT", kafka__sasl__mechanism="PLAIN").client == parse().client


def test_settings_that_only_tune_kafkas_client_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    parse(kafka__client__rack="eu-1", kafka__max__poll__records="500", groupIdPrefix="mine")
    assert "groupIdPrefix has no effect in Oncelog" in caplog.text
    parse(kafka__partition__assignment__strategy="org.apache.kafka.clients.consumer.RangeAssignor")
    assert "kafka.client.rack has no effect in Oncelog: records are read from the leader" in caplog.text
    assert "kafka.max.poll.records has no effect in Oncelog: it tunes Kafka's Java client" in caplog.text
    make_sink(kafka={"linger.ms": "5", "acks": "all"})
    assert "linger.ms has no effect in Oncelog: the sink makes its own batches" in caplog.text


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({"kafka.security.protocol": "SASL_SSL"}, True, "sasl.mechanism: SASL_SSL needs one of PLAIN"),
        (
            {"kafka.sasl.mechanism": "PLAIN"},
            True,
            "kafka.sasl.mechanism: has no effect without kafka.security.protocol",
        ),
        ({"kafka.ssl.truststore.location": "x"}, False, "ssl.truststore.location: has no effect without"),
        ({"kafka.auto.offset.reset": "earliest"}, True, "kafka.auto.offset.reset: startingOffsets says"),
        ({"kafka.enable.auto.commit": "true"}, True, "kept in the checkpoint"),
        (
            {"kafka.fetch.max.bytes": "much"},
            True,
            "Invalid value much for configuration kafka.fetch.max.bytes: must be a whole",
        ),
        ({"kafka.request.timeout.ms": "0"}, True, "kafka.request.timeout.ms: must be at least 1"),
        ({"kafka.retry.backoff.ms": "-1"}, True, "kafka.retry.backoff.ms: must be at least 0"),
        (
            {"kafka.request.timeout.ms": "soon"},
            True,
            "Invalid value soon for configuration kafka.request.timeout.ms: must be a whole",
        ),
        ({"kafka.fetch.max.byte": "1"}, True, r"did you mean kafka\.fetch\.max\.bytes\?"),
        ({"startingOffset": "earliest"}, True, r"Unknown format.*name: startingOffset; did you mean startingOffsets\?"),
        (
            {"assign": "{}"},
            True,
            "exactly one of the options subscribe, subscribePattern and assign.*subscribe and assign",
        ),
        ({"endingOffsets": "latest"}, True, "endingOffsets makes no sense in a streaming read"),
        ({"maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger makes no sense in a batch read"),
        (
            {"maxOffsetsPerTrigger": "many"},
            True,
            "Invalid value many for configuration maxOffsetsPerTrigger: must be a whole",
        ),
        ({"maxOffsetsPerTrigger": "0"}, True, "maxOffsetsPerTrigger: must be at least 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, True, "minOffsetsPerTrigger .9. is above"),
        ({"failOnDataLoss": "yes"}, True, "Invalid value yes for configuration failOnDataLoss: must be true or false"),
        ({"kafka.isolation.level": "serializable"}, True, "must be one of read_uncommitted, read_committed"),
        ({"startingOffsets": "begin"}, True, "'begin' is not valid here; use earliest, latest, committed or JSON"),
        ({"startingOffsets": "latest"}, False, "use earliest, committed or JSON"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, True, r"has offset -3; negative numbers allowed: -1 \(latest\)"),
        ({"startingOffsets": '{"orders": {"²": 5}}'}, True, "expected offsets per topic and partition"),
        ({"startingOffsets": '{"orders": 5}'}, True, "expected offsets per topic and partition"),
        ({"startingOffsets": "committed"}, True, "needs kafka.group.id"),
        ({"maxTriggerDelay": "soon"}, True, "must be a duration like 30s"),
        ({"maxTriggerDelay": "900000"}, True, "must be a duration like 30s"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_valid(given: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_source_options({**BASE, **given}, streaming=streaming)


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("250ms", 250), ("15m", 900_000), (" 2 MIN ", 120_000), ("1d", 86_400_000)]
)
def test_a_delay_is_written_as_for_sparks_own_source(text: str, expected_ms: int) -> None:
    assert parse_source_options({**BASE, "maxTriggerDelay": text}, streaming=True).max_trigger_delay_ms == expected_ms


def test_a_missing_broker_address_is_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_source_options({"subscribe": "orders"}, streaming=True)


def test_a_bad_pattern_is_named() -> None:
    options = {"kafka.bootstrap.servers": "localhost:9092", "subscribePattern": "orders-["}
    with pytest.raises(OptionError, match=r"subscribePattern: must be a regular expression"):
        parse_source_options(options, streaming=True)


def test_assigned_partitions_are_read_from_json() -> None:
    options = {"kafka.bootstrap.servers": "localhost:9092", "assign": '{"a": [0, 2], "b": [1]}'}
    parsed = parse_source_options(options, streaming=True).subscription.partitions
    assert parsed == (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))


@pytest.mark.parametrize("given", ['{"a": ["0"]}', '{"a": [0.5]}', '{"a": [-1]}', '{"a": [true]}', '{"a": "01"}', "[]"])
def test_partitions_are_assigned_by_whole_numbers(given: str) -> None:
    options = {"kafka.bootstrap.servers": "localhost:9092", "assign": given}
    with pytest.raises(OptionError, match="option assign: expected partitions per topic like"):
        parse_source_options(options, streaming=True)


def test_timestamps_win_over_offsets() -> None:
    assert parse(startingTimestamp="99", startingOffsets="earliest").starting.timestamp_ms == 99


def make_sink(**more: Any) -> SinkOptions:
    settings: dict[str, Any] = {
        "bootstrap_servers": "localhost:9092",
        "transactional_id": "pipeline",
        "group_id": None,
        "on_new_checkpoint": "refuse",
        "kafka": None,
    }
    return sink_options(**{**settings, **more})


def test_the_group_is_the_transactional_id_unless_given() -> None:
    assert make_sink().group_id == "pipeline"
    assert make_sink(group_id="lag-tools").group_id == "lag-tools"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transactional_id": ""}, "transactional_id: give each pipeline its own"),
        ({"transactional_id": None}, "transactional_id: give each pipeline its own"),
        ({"topic": ""}, "Invalid value '' for configuration topic: names of topics have"),
        (
            {"transaction_timeout_ms": 10},
            "Invalid value 10 for configuration transaction_timeout_ms: must be at least 1000",
        ),
        ({"batch_attempts": 0}, "batch_attempts: must be at least 1"),
        ({"compression_type": "rar"}, "must be one of none, gzip, snappy, lz4, zstd"),
        ({"on_new_checkpoint": "pray"}, "must be one of refuse, reprocess"),
        ({"topic": "a", "dead_letter_topic": "a"}, "dead_letter_topic must be a topic of its own"),
        ({"kafka": {"linger": "5"}}, r"config name: linger; did you mean"),
        ({"kafka": {"request.timeout.ms": "0"}}, "request.timeout.ms: must be at least 1"),
        ({"kafka": {"transaction.timeout.ms": "5"}}, "give the sink transaction_timeout_ms="),
        ({"kafka": {"security.protocol": "SASL_SSL"}}, "sasl.mechanism: SASL_SSL needs one of PLAIN"),
        ({"kafka": {"sasl.jaas.config": "x"}}, "sasl.jaas.config: has no effect without security.protocol"),
        ({"kafka": {"acks": "1"}}, "Invalid value 1 for configuration acks: a transaction needs all"),
        ({"kafka": {"partitioner.class": "x"}}, "partitioner.class: rows choose"),
        (
            {"transaction_timeout_ms": "soon"},
            "Invalid value soon for configuration transaction_timeout_ms: must be a whole number",
        ),
        ({"transaction_timeout_ms": True}, "transaction_timeout_ms: must be a whole number"),
        ({"batch_attempts": 1.5}, "batch_attempts: must be a whole number"),
        ({"max_request_size": "1"}, "max_request_size: must be at least 1024"),
        ({"bootstrap_servers": [1]}, r"bootstrap_servers is \[1\]: name at least one broker"),
        ({"bootstrap_servers": ""}, "bootstrap_servers is ''"),
        ({"bootstrap_servers": None}, "bootstrap_servers is None"),
        ({"bootstrap_servers": "nohost"}, "'nohost' is not of the form HOST:PORT"),
        ({"topic": object()}, "topic: neither text nor a number"),
        ({"group_id": ""}, "group_id: name the group"),
        ({"topic": "bad topic!"}, "Invalid value bad topic! for configuration topic: names of topics have"),
        ({"dead_letter_topic": "x" * 250}, "dead_letter_topic: names of topics have"),
    ],
)
def test_a_wrong_setting_of_the_sink_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_sink(**given)


def test_settings_given_as_text_are_understood() -> None:
    made = make_sink(
        bootstrap_servers=["a:1", "b:2"], transaction_timeout_ms="600000", batch_attempts=" 2 ", max_request_size="2000"
    )
    assert made.client.bootstrap_servers == "a:1,b:2"
    assert (made.transaction_timeout_ms, made.batch_attempts, made.max_request_size) == (600_000, 2, 2000)
