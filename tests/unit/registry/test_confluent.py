"""confluent-kafka's own client and serializers, unmodified, on our registry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from oncelog.schemas.wire_format import unframe

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
WIDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": "string", "default": ""}],
    }
)
NARROWER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "int"}, {"name": "needed", "type": "string"}],
    }
)


@pytest.fixture
def client(registry: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry, "max.retries": 0})


def refused(call: Any, *arguments: Any, **more: Any) -> int:
    with pytest.raises(SchemaRegistryError) as caught:
        call(*arguments, **more)
    return int(caught.value.error_code)


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_ids_versions_and_subjects(client: SchemaRegistryClient) -> None:
    first = client.register_schema("orders-value", Schema(ORDER, "AVRO"))
    assert client.register_schema("orders-value", Schema(ORDER, "AVRO")) == first
    assert client.register_schema("a/b c:d", Schema(ORDER, "AVRO")) == first
    second = client.register_schema("orders-value", Schema(WIDER, "AVRO"))
    assert second == first + 1
    assert client.get_subjects() == ["a/b c:d", "orders-value"]
    assert client.get_subjects(subject_prefix="ord") == ["orders-value"]
    assert client.get_versions("orders-value") == [1, 2]
    assert client.get_latest_version("orders-value").schema_id == second
    assert json.loads(client.get_version("orders-value", 1).schema.schema_str) == json.loads(ORDER)
    assert json.loads(client.get_schema(second).schema_str) == json.loads(WIDER)
    found = client.lookup_schema("orders-value", Schema(ORDER, "AVRO"))
    assert (found.schema_id, found.version) == (first, 1)
    assert {(v.subject, v.version) for v in client.get_schema_versions(first)} == {("a/b c:d", 1), ("orders-value", 1)}
    assert client.get_subjects_by_schema_id(first) == ["a/b c:d", "orders-value"]
    assert sorted(client.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]
    assert client.get_contexts() == ["."]
    guid = client.lookup_schema("orders-value", Schema(WIDER, "AVRO")).guid
    fresh = SchemaRegistryClient({"url": client._rest_client.base_urls[0]})
    assert json.loads(fresh.get_schema_by_guid(guid).schema_str) == json.loads(WIDER)


def test_what_is_not_there_has_the_codes_that_clients_know(client: SchemaRegistryClient) -> None:
    assert refused(client.get_latest_version, "none") == 40401
    assert refused(client.get_versions, "none") == 40401
    assert refused(client.get_schema, 77) == 40403
    client.register_schema("s", Schema(ORDER, "AVRO"))
    assert refused(client.get_version, "s", 9) == 40402
    assert refused(client.lookup_schema, "s", Schema(WIDER, "AVRO")) == 40403
    assert refused(client.register_schema, "s", Schema("{", "AVRO")) == 42201
    assert refused(client.register_schema, "s", Schema("{}", "STRANGE")) == 42201
    assert refused(client.set_compatibility, "s", "SOMETIMES") == 42203
    assert refused(client.get_config, "s") == 40408
    assert refused(client.get_mode, "s") == 40409


def test_compatibility_levels(client: SchemaRegistryClient) -> None:
    assert client.get_compatibility() == "BACKWARD"
    assert client.test_compatibility("s", Schema(ORDER, "AVRO")) is True, "the first version may be anything"
    assert refused(client.test_compatibility, "s", Schema(ORDER, "AVRO"), 1) == 40401
    client.register_schema("s", Schema(ORDER, "AVRO"))
    assert refused(client.test_compatibility, "s", Schema(ORDER, "AVRO"), 2) == 40402
    assert refused(client.register_schema, "s", Schema(NARROWER, "AVRO")) == 409
    assert client.test_compatibility("s", Schema(WIDER, "AVRO")) is True
    assert client.test_compatibility("s", Schema(NARROWER, "AVRO")) is False
    assert client.test_compatibility_all_versions("s", Schema(NARROWER, "AVRO")) is False
    client.set_compatibility("s", "NONE")
    assert client.get_compatibility("s") == "NONE"
    assert client.test_compatibility("s", Schema(NARROWER, "AVRO")) is True
    client.register_schema("s", Schema(NARROWER, "AVRO"))
    client.delete_config("s")
    assert refused(client.register_schema, "s", Schema('"string"', "AVRO")) == 409
    client.set_compatibility(level="NONE")
    assert client.get_compatibility() == "NONE"
    client.register_schema("s", Schema('"string"', "AVRO"))


def test_deleting_softly_and_for_good(client: SchemaRegistryClient) -> None:
    first = client.register_schema("s", Schema(ORDER, "AVRO"))
    client.register_schema("s", Schema(WIDER, "AVRO"))
    assert refused(client.delete_version, "s", 1, permanent=True) == 40407
    assert client.delete_version("s", 1) == 1
    assert refused(client.delete_version, "s", 1) == 40406
    assert client.get_versions("s") == [2]
    assert client.get_versions("s", deleted=True) == [1, 2]
    client.clear_caches()
    assert json.loads(client.get_schema(first).schema_str) == json.loads(ORDER)
    assert client.delete_version("s", 1, permanent=True) == 1
    assert refused(client.delete_subject, "s", permanent=True) == 40405
    assert client.delete_subject("s") == [2]
    assert client.get_subjects() == []
    assert client.get_subjects(deleted=True) == ["s"]
    assert client.delete_subject("s", permanent=True) == [2]
    assert client.get_subjects(deleted=True) == []
    client.clear_caches()
    assert refused(client.get_schema, first) == 40403
    assert client.register_schema("s", Schema(ORDER, "AVRO")) > first + 1, "an id must not be given twice"


def test_modes(client: SchemaRegistryClient) -> None:
    assert client.get_global_mode() == "READWRITE"
    client.update_mode("s", "READONLY")
    assert client.get_mode("s") == "READONLY"
    assert refused(client.register_schema, "s", Schema(ORDER, "AVRO")) == 42205
    client.delete_mode("s")
    client.register_schema("s", Schema(ORDER, "AVRO"))
    assert refused(client.update_global_mode, "IMPORT") == 42205
    client.update_global_mode("READONLY_OVERRIDE")
    client.update_mode("s", "READWRITE")
    assert refused(client.delete_subject, "s") == 42205
    client.update_global_mode("READWRITE")
    assert client.delete_subject("s") == [1]


def test_references_hold_what_they_need(client: SchemaRegistryClient) -> None:
    money = json.dumps({"type": "record", "name": "Money", "fields": [{"name": "amount", "type": "long"}]})
    bill = json.dumps({"type": "record", "name": "Bill", "fields": [{"name": "total", "type": "Money"}]})
    client.register_schema("money", Schema(money, "AVRO"))
    assert refused(client.register_schema, "bill", Schema(bill, "AVRO")) == 42201
    reference = SchemaReference("Money", "money", 1)
    referring = client.register_schema("bill", Schema(bill, "AVRO", [reference]))
    assert client.get_referenced_by("money", 1) == [referring]
    assert client.get_latest_version("bill").schema.references == [reference]
    assert refused(client.delete_version, "money", 1) == 42206
    client.delete_subject("bill")
    assert client.delete_version("money", 1) == 1


def test_avro_serializers(client: SchemaRegistryClient) -> None:
    serializer = AvroSerializer(client, ORDER)
    data = serializer({"id": 7}, value_of("orders"))
    assert data is not None
    assert unframe(data).payload == b"\x0e"
    reader = AvroDeserializer(client, WIDER)
    assert reader(data, value_of("orders")) == {"id": 7, "note": ""}
    assert client.get_subjects() == ["orders-value"]


def test_json_schema_serializers(client: SchemaRegistryClient) -> None:
    schema = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
    data = JSONSerializer(schema, client)({"id": 7}, value_of("orders"))
    assert json.loads(unframe(data).payload) == {"id": 7}
    assert JSONDeserializer(schema, schema_registry_client=client)(data, value_of("orders")) == {"id": 7}
    assert client.get_latest_version("orders-value").schema.schema_type == "JSON"


def messages() -> dict[str, Any]:
    """`Bill` in bill.proto, which imports money.proto."""
    pool = descriptor_pool.DescriptorPool()
    money = descriptor_pb2.FileDescriptorProto(name="money.proto", package="shop", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="amount", number=1, type=3, label=1)
    bill = descriptor_pb2.FileDescriptorProto(name="bill.proto", package="shop", syntax="proto3")
    bill.dependency.append("money.proto")
    bill.message_type.add(name="Other")
    field = bill.message_type.add(name="Bill").field
    field.add(name="total", number=1, type=11, label=1, type_name=".shop.Money")
    field.add(name="for_whom", number=2, type=9, label=1)
    for file in (money, bill):
        pool.Add(file)
    names = ("shop.Money", "shop.Bill")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


def test_protobuf_serializers(client: SchemaRegistryClient, registry: str) -> None:
    known = messages()
    bill, money = known["shop.Bill"], known["shop.Money"]
    message = bill(total=money(amount=7), for_whom="us")
    serializer = ProtobufSerializer(bill, client, {"use.deprecated.format": False})
    data = serializer(message, value_of("bills"))
    assert unframe(data).payload.startswith(b"\x02\x02"), "the second message of its file"
    fresh = SchemaRegistryClient({"url": registry})
    for settings in ({"use.deprecated.format": False}, {"use.deprecated.format": False, "use.latest.version": True}):
        found = ProtobufDeserializer(bill, settings, fresh)(data, value_of("bills"))
        assert (found.total.amount, found.for_whom) == (7, "us")
    assert client.get_subjects() == ["bills-value", "money.proto"]


def test_a_schema_of_protobuf_is_given_as_text_and_as_descriptor(client: SchemaRegistryClient, registry: str) -> None:
    text = 'syntax = "proto3"; package shop; message Money { int64 amount = 1; }'
    schema_id = client.register_schema("money", Schema(text, "PROTOBUF"))
    fresh = SchemaRegistryClient({"url": registry})
    assert fresh.get_schema(schema_id).schema_str == text
    fresh.clear_caches()
    descriptor = fresh.get_schema(schema_id, fmt="serialized").schema_str
    assert fresh.register_schema("money", Schema(descriptor, "PROTOBUF")) == schema_id
    assert refused(fresh.register_schema, "money", Schema(text.replace("int64", "string"), "PROTOBUF")) == 409
