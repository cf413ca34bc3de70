"""Hypothesis strategies for any message class in any version, from its own table."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from hypothesis import strategies as st

import oncelog.protocol.messages as messages_package
from oncelog.protocol.schema import Field, Message

INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
}
SHORT_TEXT = st.text(max_size=5)
# Beyond 127 bytes a compact length takes a second byte, beyond 16383 a third.
TEXT = SHORT_TEXT | st.sampled_from(["é" * 63, "x" * 127, "ü" * 200, "x" * 17_000])
BYTES = st.binary(max_size=6) | st.sampled_from([b"x" * 126, b"y" * 200])


def all_messages() -> list[type[Message]]:
    """Every class that is a message by itself rather than a struct in one."""
    found: dict[str, type[Message]] = {}
    for info in pkgutil.iter_modules(messages_package.__path__):
        module = importlib.import_module(f"{messages_package.__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message) and value.VERSIONS != Message.VERSIONS:
                found[value.__name__] = value
    return sorted(found.values(), key=lambda cls: cls.__name__)


def versions_of(cls: type[Message]) -> range:
    return range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)


def message(cls: type[Message], version: int) -> st.SearchStrategy[Message]:
    fields = {name: value(field, version) for name, field in cls.FIELDS.items() if field.is_in(version)}
    return st.builds(cls, **fields)


def value(field: Field, version: int) -> st.SearchStrategy[Any]:
    strategy = _present(field, version)
    if field.is_nullable_in(version):
        strategy = st.none() | strategy
    return strategy


def _present(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.kind in INTEGERS:
        return st.integers(*INTEGERS[field.kind])
    if field.kind == "struct":
        assert field.struct is not None
        return message(field.struct, version)
    if field.kind == "array":
        assert field.element is not None
        largest = 20 if field.element.kind in INTEGERS else 2
        return st.lists(value(field.element, version), max_size=largest)
    return {
        "boolean": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.uuids(),
        "string": TEXT,
        "bytes": BYTES,
        "records": BYTES,
    }[field.kind]
