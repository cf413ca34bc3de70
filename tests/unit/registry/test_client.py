"""Our client of registries: with our producers and consumers, and against confluent-kafka's serializers."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from oncelog.cli.main import cli
from oncelog.client import Consumer, ConsumerRecord, Producer, TopicPartition
from oncelog.connect.schema_records import SchemaRecords
from oncelog.schemas.registry_client import RegistryClient, RegistryError, RegistryUnavailable
from oncelog.schemas.schema import JSON, PROTOBUF, Schema
from oncelog.schemas.serialization import Deserializer, Serializer
from oncelog.testing.broker import BrokerProcess

ORDER = Schema(json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}))
DOCUMENT = Schema(json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}), JSON)
MESSAGE = Schema('syntax = "proto3"; message Order { int32 id = 1; }', PROTOBUF)


@pytest.mark.parametrize("schema", [ORDER, DOCUMENT, MESSAGE])
def test_records_of_all_kinds_go_through_a_topic(
    registry: str, fresh_oncelog_broker: BrokerProcess, schema: Schema
) -> None:
    client = RegistryClient(registry)
    place = TopicPartition(fresh_oncelog_broker.create_topic(), 0)
    settings = {"bootstrap.servers": fresh_oncelog_broker.bootstrap_servers}
    with Producer(settings, value_serializer=Serializer(client, schema)) as producer:
        for number in (1, 2):
            producer.send(place.topic, {"id": number})
        producer.send(place.topic, None)
    with Consumer(settings, value_deserializer=Deserializer(RegistryClient(registry))) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        values: list[object] = []
        deadline_s = time.monotonic() + 60
        while len(values) < 3 and time.monotonic() < deadline_s:
            values += [record.value for record in consumer.poll(timeout_ms=1_000)]
    assert values == [{"id": 1}, {"id": 2}, None]
    assert client.subjects() == [f"{place.topic}-value"]


def test_what_confluents_serializers_write_is_read_and_the_other_way(registry: str) -> None:
    foreign, ours = SchemaRegistryClient({"url": registry}), RegistryClient(registry)
    context = SerializationContext("orders", MessageField.VALUE)
    data = AvroSerializer(foreign, ORDER.text)({"id": 7}, context)
    assert Deserializer(ours)("orders", data) == {"id": 7}
    assert Serializer(ours, ORDER)("orders", {"id": 7}) == data
    assert Serializer(ours)("orders", {"id": 7}) == data, "the newest version"
    assert AvroDeserializer(foreign)(Serializer(ours, ORDER)("orders", {"id": 8}), context) == {"id": 8}
    document = JSONSerializer(DOCUMENT.text, foreign)({"id": 7}, SerializationContext("documents", MessageField.VALUE))
    assert Deserializer(ours)("documents", document) == {"id": 7}


def test_a_schema_that_is_named_in_a_header_is_found(registry: str, fresh_oncelog_broker: BrokerProcess) -> None:
    """As confluent-kafka's serializers do it if they are told to."""
    foreign, ours = SchemaRegistryClient({"url": registry}), RegistryClient(registry)
    place = TopicPartition(fresh_oncelog_broker.create_topic(), 0)
    settings = {"bootstrap.servers": fresh_oncelog_broker.bootstrap_servers}
    headers: list[tuple[str, bytes]] = []
    in_header = {"schema.id.serializer": header_schema_id_serializer}
    data = {}
    for field in (MessageField.KEY, MessageField.VALUE):
        context = SerializationContext(place.topic, field, headers)
        data[field] = AvroSerializer(foreign, ORDER.text, conf=in_header)({"id": 7}, context)
        assert data[field] == b"\x0e"
    with Producer(settings) as producer:
        producer.send(place.topic, data[MessageField.VALUE], data[MessageField.KEY], headers=headers)
    deserializers = {"key_deserializer": Deserializer(ours, is_key=True), "value_deserializer": Deserializer(ours)}
    with Consumer(settings, **deserializers) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found: list[ConsumerRecord] = []
        while not found:
            found = consumer.poll(timeout_ms=1_000)
    assert (found[0].key, found[0].value) == ({"id": 7}, {"id": 7})
    with pytest.raises(RegistryError, match="40403"):
        ours.parsed(uuid.uuid4())
    arguments = ["consume", place.topic, "-b", settings["bootstrap.servers"], "--schema-registry", registry]
    done = CliRunner().invoke(
        cli, [*arguments, "--key-type", "schema", "--value-type", "schema", "--format", "key-value", "-n", "1"]
    )
    assert done.output == '{"id": 7}\t{"id": 7}\n', done.output
    plain = SchemaRecords(registry).plain(
        ConsumerRecord("t", 0, 0, 0, 0, data[MessageField.KEY], data[MessageField.VALUE], tuple(headers), -1)
    )
    assert json.loads(plain.key or b"") == json.loads(plain.value or b"") == {"id": 7}


def test_keys_have_a_subject_of_their_own(registry: str) -> None:
    client = RegistryClient(registry)
    Serializer(client, Schema('"string"'), is_key=True)("orders", "k")
    assert client.subjects() == ["orders-key"]


def test_refusals_have_their_codes(registry: str) -> None:
    client = RegistryClient(registry)
    with pytest.raises(RegistryError, match="40401"):
        client.latest("none")
    with pytest.raises(RegistryError, match="40403"):
        client.schema(5)
    client.register("s", ORDER)
    assert client.is_compatible("s", Schema('"string"')) is False
    with pytest.raises(RegistryError, match="409"):
        client.register("s", Schema('"string"'))
    assert client.look_up("s", ORDER).version == 1
    assert client.versions("s") == [1]


@contextmanager
def answering(status: int, headers: dict[str, str], body: bytes = b"") -> Iterator[tuple[str, list[str]]]:
    """A server that is no registry, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join(120)


def test_a_password_does_not_follow_to_another_host() -> None:
    with (
        answering(200, {}, b"[]") as (other, asked),
        answering(302, {"Location": f"http://{other}/subjects"}) as (host, _),
    ):
        with pytest.raises(RegistryUnavailable):
            RegistryClient(f"http://user:secret@{host}").subjects()
        assert asked == []


@pytest.mark.parametrize("body", [b"<html>", b""])
def test_what_is_no_registry_is_called_so(body: bytes) -> None:
    with answering(200, {}, body) as (host, _), pytest.raises(RegistryUnavailable) as caught:
        RegistryClient(f"http://user:secret@{host}").subjects()
    assert "secret" not in str(caught.value)
    with answering(500, {}, body) as (host, _), pytest.raises(RegistryUnavailable):
        RegistryClient(f"http://{host}").subjects()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8081", "file:///etc/passwd", "ftp://127.0.0.1"])
def test_addresses_that_are_none_of_a_registry(url: str) -> None:
    with pytest.raises(ValueError, match="no address of a registry"):
        RegistryClient(url)
