"""Values of JSON as Avro needs them, and back.

Bytes and fixed are text of one character per byte, as in Avro's JSON encoding. Times and dates are ISO 8601, decimals
text or numbers. A branch of a union is found by the value itself; if no branch takes it, it is refused.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import fastavro

_TIMES: Final[Mapping[str, Callable[[str], Any]]] = {
    "timestamp-millis": dt.datetime.fromisoformat,
    "timestamp-micros": dt.datetime.fromisoformat,
    "local-timestamp-millis": dt.datetime.fromisoformat,
    "local-timestamp-micros": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time-millis": dt.time.fromisoformat,
    "time-micros": dt.time.fromisoformat,
}


def enclosed(schema: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """A parsed schema as the only field of a record, whose encoding is that of the field alone.

    fastavro takes the names that a schema may use with a record, not with a union or an array.
    """
    fields = [{"name": "value", "type": schema}]
    parsed = {"__fastavro_parsed": True, "__named_schemas": names}
    return {"type": "record", "name": "oncelog_enclosed", "fields": fields, **parsed}


def to_avro(schema: Any, value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return _branch(schema, value, names)
    if isinstance(schema, str):
        if schema in names:
            return to_avro(names[schema], value, names)
        return value.encode("latin-1") if schema == "bytes" and isinstance(value, str) else value
    return _of_type(schema, value, names)


def _of_type(schema: dict[str, Any], value: Any, names: Mapping[str, Any]) -> Any:
    kind, logical = schema["type"], str(schema.get("logicalType"))
    if not isinstance(kind, str):
        return to_avro(kind, value, names)
    if kind in ("record", "error") and isinstance(value, dict):
        return _record(schema, value, names)
    if kind == "array" and isinstance(value, list):
        return [to_avro(schema["items"], item, names) for item in value]
    if kind == "map" and isinstance(value, dict):
        return {key: to_avro(schema["values"], item, names) for key, item in value.items()}
    if logical == "decimal" and not isinstance(value, bool) and isinstance(value, str | int | float):
        return decimal.Decimal(str(value))
    if logical in _TIMES and isinstance(value, str):
        return _TIMES[logical](value)
    if kind in ("bytes", "fixed") and isinstance(value, str):
        return value.encode("latin-1")
    return to_avro(kind, value, names) if kind in names else value


def _record(schema: dict[str, Any], value: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field["name"]: field for field in schema["fields"]}
    unknown = sorted(value.keys() - fields.keys())
    if unknown:
        raise ValueError(f"{schema['name']} has no field {unknown[0]!r}")
    missing = sorted(name for name, field in fields.items() if name not in value and "default" not in field)
    if missing:
        raise ValueError(f"the field {missing[0]!r} of {schema['name']} is missing, and has no default")
    return {name: to_avro(fields[name]["type"], item, names) for name, item in value.items()}


def _branch(union: list[Any], value: Any, names: Mapping[str, Any]) -> Any:
    for branch in union:
        try:
            converted = to_avro(branch, value, names)
            if fastavro.validate({"value": converted}, enclosed(branch, names), raise_errors=False):
                return converted
        except (ValueError, TypeError, decimal.InvalidOperation, KeyError):
            continue
    raise ValueError(f"{value!r} is of no branch of the union")


def from_avro(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: from_avro(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_avro(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    return value
