"""JSON Schema: checked and applied by jsonschema, which loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from oncelog.schemas.json_compatibility import Side, incompatibilities
from oncelog.schemas.schema import InvalidSchema, Schema, load_json


class JsonSchema:
    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        self.root = _load(schema.text)
        kind = validator_for(self.root, default=jsonschema.Draft7Validator)
        try:
            kind.check_schema(self.root)
        except jsonschema.SchemaError as error:
            raise InvalidSchema(f"it is no JSON Schema: {error.message}") from error
        resources = [(name, _resource(_load(reference.text))) for name, reference in references.items()]
        # A registry that is given explicitly finds only what is in it.
        registry: Registry[Any] = Registry().with_resources([*resources, ("", _resource(self.root))])
        self._validator = kind(self.root, registry=registry)
        identity = self.root.get("$id", "") if isinstance(self.root, dict) else ""
        self._side = Side(self.root, registry.with_resource(identity, _resource(self.root)).resolver(identity))
        self._require_references()

    def _require_references(self) -> None:
        for target in _targets(self.root):
            try:
                self._side.resolver.lookup(target)
            except Unresolvable:
                raise InvalidSchema(f"$ref {target} leads nowhere: name it in the references of the schema") from None

    @property
    def canonical(self) -> str:
        return json.dumps(self.root, separators=(",", ":"), ensure_ascii=False)

    def unreadable(self, writer: JsonSchema) -> list[str]:
        """Raises InvalidSchema for keywords of another draft too, whose values nobody has checked."""
        try:
            return incompatibilities(writer._side, self._side)
        except InvalidSchema:
            raise
        except (Unresolvable, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InvalidSchema(f"it cannot be compared: a keyword has a value of another kind ({error!r})") from error

    def encode(self, value: Any) -> bytes:
        try:
            problem = next(iter(self._validator.iter_errors(value)), None)
        except Unresolvable as error:
            raise ValueError(f"cannot be checked by its JSON Schema: {error}") from error
        if problem is not None:
            raise ValueError(f"does not fit its JSON Schema: {problem.message} at {problem.json_path}")
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, payload: bytes) -> Any:
        try:
            return json.loads(payload)
        except ValueError as error:
            raise ValueError(f"it is not JSON: {error}") from error


def _load(text: str) -> Any:
    try:
        found = load_json(text)
    except ValueError as error:
        raise InvalidSchema(f"it is not JSON: {error}") from None
    if isinstance(found, dict) and not isinstance(found.get("$schema", ""), str):
        raise InvalidSchema("$schema is not the address of a draft")
    if not isinstance(found, dict | bool):
        raise InvalidSchema("a JSON Schema is an object, true or false")
    return found


def _resource(contents: Any) -> Resource[Any]:
    return Resource.from_contents(contents, default_specification=DRAFT7)


def _targets(schema: Any) -> list[str]:
    """The targets of all `$ref`s, except in subschemas with an `$id` of their own, to which they are relative there."""
    found: list[str] = []
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if isinstance(one.get("$ref"), str):
                found.append(one["$ref"])
            waiting += [
                value
                for name, value in one.items()
                if name not in ("enum", "const", "default", "examples")
                and not (isinstance(value, dict) and isinstance(value.get("$id"), str))
            ]
        elif isinstance(one, list):
            waiting += one
    return found
