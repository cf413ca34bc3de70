"""Byte-for-byte agreement with `kio`, an independent implementation generated from Kafka's own schemas."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import types
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from oncelog.core.ids import NULL_UUID
from oncelog.protocol.api import messages
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.compiler import decoder, encode_bytes
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from oncelog.protocol.schema import Field, Message
from tests.unit.protocol import strategies

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ERROR_CODES = [int(code) for code in KioErrorCode]
COMPARED = [cls for key in ApiKey for cls in messages(key)] + [ConsumerProtocolSubscription, ConsumerProtocolAssignment]


def kio_class(cls: type[Message], version: int) -> Any:
    """The class of the same name; its module is found by api key for requests and responses."""
    if cls.API_KEY is None:
        path = f"{''.join('_' + c.lower() if c.isupper() else c for c in cls.__name__).lstrip('_')}.v{version}.data"
    else:
        side = "request" if cls.__name__.endswith("Request") else "response"
        path = f"{ApiKey(cls.API_KEY).name.lower()}.v{version}.{side}"
    return getattr(importlib.import_module(f"kio.schema.{path}"), cls.__name__)


class Twin(typing.NamedTuple):
    """A field of ours with what kio calls the same field."""

    name: str
    field: Field
    kio_name: str
    kio_kind: str | None
    kio_struct: Any


def twins(cls: type[Message], version: int, kio: Any) -> list[Twin]:
    ours = [(name, field) for name, field in cls.FIELDS.items() if field.is_in(version)]
    theirs = dataclasses.fields(kio)
    hints = typing.get_type_hints(kio)
    assert [name.removesuffix("_ms") for name, _ in ours] == [f.name.removesuffix("_ms") for f in theirs]
    return [
        Twin(name, field, other.name, other.metadata.get("kafka_type"), _struct_of(hints[other.name]))
        for (name, field), other in zip(ours, theirs, strict=True)
    ]


def _struct_of(hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return hint
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) in (tuple, typing.Union):
        return next(filter(None, map(_struct_of, typing.get_args(hint))), None)
    return None


def message(cls: type[Message], version: int, kio: Any) -> st.SearchStrategy[Message]:
    """Like the general strategy, but within what kio's Python types can hold: known error codes, real dates."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for twin in twins(cls, version, kio):
        strategy = strategies.value(twin.field, version)
        if twin.kio_kind == "error_code":
            strategy = st.sampled_from(ERROR_CODES)
        elif twin.kio_kind == "datetime_i64":
            strategy = st.integers(0, 4_000_000_000_000)
        elif twin.kio_kind == "timedelta_i64":
            strategy = st.integers(-(2**40), 2**40)
        elif twin.kio_struct is not None:
            strategy = _structs(twin, version)
        fields[twin.name] = strategy
    return st.builds(cls, **fields)


def _structs(twin: Twin, version: int) -> st.SearchStrategy[Any]:
    inner = twin.field.element or twin.field
    assert inner.struct is not None
    strategy: st.SearchStrategy[Any] = message(inner.struct, version, twin.kio_struct)
    if twin.field.element is not None:
        strategy = st.lists(strategy, max_size=2)
    if twin.field.is_nullable_in(version):
        strategy = st.none() | strategy
    return strategy


def to_kio(ours: Message, version: int, kio: Any) -> Any:
    return kio(**{t.kio_name: _to_kio(getattr(ours, t.name), t, version) for t in twins(type(ours), version, kio)})


def _to_kio(value: Any, twin: Twin, version: int) -> Any:
    if value is None or value == NULL_UUID:
        return None
    if isinstance(value, list):
        return tuple(_to_kio(item, twin, version) for item in value)
    if isinstance(value, Message):
        return to_kio(value, version, twin.kio_struct)
    if twin.kio_kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=value)
    if twin.kio_kind == "datetime_i64":
        return EPOCH + datetime.timedelta(milliseconds=value)
    if twin.kio_kind == "error_code":
        return KioErrorCode(value)
    return value


@pytest.mark.parametrize("cls", COMPARED, ids=lambda cls: cls.__name__)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_same_bytes_and_same_values_as_kio(cls: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(strategies.versions_of(cls)))
    kio = kio_class(cls, version)
    ours = data.draw(message(cls, version, kio))
    theirs = to_kio(ours, version, kio)

    encoded = encode_bytes(ours, version)
    out = io.BytesIO()
    entity_writer(kio)(out, theirs)
    assert encoded == out.getvalue()

    decoded, end = decoder(cls, version)(encoded, 0)
    assert decoded == ours
    assert end == len(encoded)
    again, size = entity_reader(kio)(encoded, 0)
    assert again == theirs
    assert size == len(encoded)
