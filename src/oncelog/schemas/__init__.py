"""Schemas of keys and values: Avro, JSON Schema and Protobuf, in the wire format of Confluent's serializers.

    registry_client.RegistryClient   a registry over HTTP: ids, schemas, subjects
    serialization.Serializer         values of JSON to bytes with the id of a schema in front
    serialization.Deserializer       and back
    kinds.parse                      a schema as something that encodes, decodes and compares

Needs the extra `registry`.
"""
