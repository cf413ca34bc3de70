"""Masking rules: parts of records that no page, search, export or JSON of a console shows. They are data, in a file:

    [
      {"topics": "orders", "fields": ["customer.email", "lines.*.card"]},
      {"topics": "payments-*", "key": true, "value": true, "headers": ["authorization"]}
    ]

`topics` is a name or a pattern with `*`. A field is a path of names through JSON objects; `*` stands for any name, and
for any place in a list. A value that is not JSON is masked as a whole if it has fields to mask: what cannot be
looked into may have them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from oncelog.client.consumer_records import ConsumerRecord

MASKED: Final = "***"
MASKED_BYTES: Final = MASKED.encode()
ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Mask:
    """What is masked in the topics of one rule."""

    topics: str
    fields: tuple[tuple[str, ...], ...] = ()
    headers: frozenset[str] = frozenset()
    key: bool = False
    value: bool = False

    def apply(self, record: ConsumerRecord) -> ConsumerRecord:
        return record._replace(
            key=MASKED_BYTES if self.key and record.key is not None else record.key,
            value=self._value(record.value),
            headers=tuple(
                (name, MASKED_BYTES if name in self.headers and content is not None else content)
                for name, content in record.headers
            ),
        )

    def _value(self, value: bytes | None) -> bytes | None:
        if value is None or not (self.value or self.fields):
            return value
        if self.value:
            return MASKED_BYTES
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return MASKED_BYTES
        if not isinstance(found, dict | list):
            return MASKED_BYTES
        for path in self.fields:
            mask_field(found, path)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def mask_field(found: Any, path: Sequence[str]) -> None:
    """Replaces what a path leads to, in place. What is not there is left alone."""
    name, rest = path[0], path[1:]
    if isinstance(found, dict):
        places: list[Any] = list(found) if name == ANY else [name] if name in found else []
    elif isinstance(found, list):
        places = list(range(len(found))) if name == ANY else []
    else:
        return
    for place in places:
        if rest:
            mask_field(found[place], rest)
        else:
            found[place] = MASKED


def read_masks(path: Path) -> tuple[Mask, ...]:
    """Raises ValueError for what is not a list of rules: a rule that is not understood must not be left out."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, list):
        raise ValueError(f"{path} has no list of rules, such as {EXAMPLE}")
    return tuple(_mask(rule, f"rule {number} of {path}") for number, rule in enumerate(found, 1))


EXAMPLE: Final = '[{"topics": "orders", "fields": ["customer.email"]}]'
_KINDS: Final = {"topics": str, "fields": list, "headers": list, "key": bool, "value": bool}


def _mask(rule: Any, where: str) -> Mask:
    if not isinstance(rule, dict) or not isinstance(rule.get("topics"), str):
        raise ValueError(f'{where} has no "topics": write {EXAMPLE}')
    for name, given in rule.items():
        if name not in _KINDS:
            raise ValueError(f"{where} has an unknown part {name!r}; known are {', '.join(_KINDS)}")
        texts = given if isinstance(given, list) else []
        if not isinstance(given, _KINDS[name]) or not all(isinstance(one, str) and one for one in texts):
            raise ValueError(f"{where}: {name!r} is {_name_of(_KINDS[name])}, not {given!r}")
    if len(rule) == 1:
        raise ValueError(f"{where} masks nothing: give it fields, headers, key or value")
    fields = tuple(tuple(field.split(".")) for field in rule.get("fields", ()))
    if any("" in field for field in fields):
        raise ValueError(f"{where}: a field is names with dots between them, such as customer.email")
    headers = frozenset(rule.get("headers", ()))
    return Mask(rule["topics"], fields, headers, rule.get("key", False), rule.get("value", False))


def _name_of(kind: type) -> str:
    return {str: "a text", list: "a list of texts", bool: "true or false"}[kind]


def masks_of(masks: Sequence[Mask], topic: str) -> list[Mask]:
    return [one for one in masks if fnmatchcase(topic, one.topics)]
