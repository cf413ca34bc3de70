"""Whether each document of one JSON Schema is valid for another. No I/O.

The rules are those of Confluent's registry at its default, strict: only changes that are known to be safe are allowed.
A change that is safe in truth may be refused, where finding that out would need a solver.

A schema without `type` is taken for what its keywords speak of: `properties` for an object, `items` for an array,
`maxLength` for a string, `maximum` for a number. Property names and items that a schema does not mention are judged by
its content model: open (anything), partly open (a schema for them), closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

import re2

from oncelog.schemas.pairs import Pairs, problems_of

_COMBINATIONS: Final = ("allOf", "anyOf", "oneOf")
_KEYWORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "dependencies",
               "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    "array": ("items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "prefixItems",
              "unevaluatedItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
_OPAQUE: Final = ("if", "then", "else", "contains", "propertyNames", "$dynamicRef", "$recursiveRef")
"""Keywords that are not looked into: they may go, and may not change."""
_ASSERTIONS: Final = frozenset({"type", *_OPAQUE, *(name for names in _KEYWORDS.values() for name in names)}) - {
    "format"
}
_UPPER: Final = {
    "string": ("maxLength",),
    "number": ("maximum", "exclusiveMaximum"),
    "object": ("maxProperties",),
    "array": ("maxItems", "maxContains"),
}
_LOWER: Final = {
    "string": ("minLength",),
    "number": ("minimum", "exclusiveMinimum"),
    "object": ("minProperties",),
    "array": ("minItems", "minContains"),
}
_SILENT: Final = re2.Options()
_SILENT.log_errors = False


class Side(NamedTuple):
    """A schema and what its references are relative to."""

    schema: Any
    resolver: Any

    def of(self, schema: Any) -> Side:
        return Side(schema, self.resolver)

    def resolved(self) -> Side:
        """What a `$ref` leads to, if nothing stands beside it. Older drafts ignore what does; here it counts."""
        side, seen = self, 0
        while isinstance(side.schema, dict) and _kind(side.schema) == "$ref":
            found = side.resolver.lookup(side.schema["$ref"])
            side, seen = Side(found.contents, found.resolver), seen + 1
            if seen > 100:
                return Side(True, side.resolver)
        return side


def incompatibilities(old: Side, new: Side) -> list[str]:
    """Why not every document of the old schema is valid for the new one; empty if all are."""
    return problems_of(lambda pairs: Comparison(pairs).problems(old, new))


class Comparison:
    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs

    def problems(self, old: Side, new: Side, path: str = "#") -> list[str]:
        self._pairs.spend()
        old, new = old.resolved(), new.resolved()
        return self._pairs.problems(old.schema, new.schema, lambda: self._compare(old, new, path))

    def _compare(self, old: Side, new: Side, path: str) -> list[str]:
        if is_anything(new.schema) or is_nothing(old.schema):
            return []
        was, now = _kind(old.schema), _kind(new.schema)
        if now in _COMBINATIONS and was not in _COMBINATIONS:
            if self._fits_one(old, _parts(new, now), now != "allOf"):
                return []
        elif was in _COMBINATIONS and now not in _COMBINATIONS:
            parts = _parts(old, was)
            if (was == "allOf" or len(parts) == 1) and any(not self.problems(part, new, path) for part in parts):
                return []
        if was in _COMBINATIONS and now in _COMBINATIONS:
            return self._combinations(old, new, was, now, path)
        if was != now:
            return [f"{path}: {was} became {now}"]
        old, new = old.of(_alone(old.schema)), new.of(_alone(new.schema))
        changed = [name for name in _OPAQUE if name in new.schema and new.schema[name] != old.schema.get(name)]
        found = [f"{path}/{name}: new, or another one" for name in changed]
        return found + _COMPARISONS.get(was, _nothing)(self, old, new, path)

    def _fits_one(self, old: Side, parts: list[Side], is_sum: bool) -> bool:
        return (is_sum or len(parts) == 1) and any(not self.problems(old, part) for part in parts)

    def _combinations(self, old: Side, new: Side, was: str, now: str, path: str) -> list[str]:
        before, after = _distinct(_parts(old, was)), _distinct(_parts(new, now))
        if was != now and not (
            now == "anyOf"
            or (len(before) == 1 and len(after) == 1)
            or (len(before) == 1 and now == "oneOf")
            or (len(after) == 1 and was == "allOf")
        ):
            return [f"{path}: {was} became {now}"]
        if len(before) < len(after) and now == "allOf":
            return [f"{path}: allOf has more schemas than before"]
        if len(before) > len(after) and was != "allOf":
            return [f"{path}: {was} has fewer schemas than before"]
        edges = [[i for i, new_part in enumerate(after) if not self.problems(part, new_part)] for part in before]
        if _matching_size(edges) < min(len(before), len(after)):
            return [f"{path}/{was}: not every schema has one that replaces it"]
        return []

    def bounds(self, old: Any, new: Any, kind: str, path: str) -> list[str]:
        found = []
        for names, is_upper in ((_UPPER[kind], True), (_LOWER[kind], False)):
            for name in names:
                limit = _number(new.get(name))
                before = _number(old.get(name))
                if limit is not None and (before is None or (before > limit if is_upper else before < limit)):
                    found.append(f"{path}/{name}: {'lower' if is_upper else 'higher'} than before, or new")
                if new.get(name) is True and old.get(name) is not True:  # in draft 4 it is said of the other limit
                    found.append(f"{path}/{name}: new")
        return found


def _nothing(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    return []


def _strings(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    found = comparison.bounds(old.schema, new.schema, "string", path)
    if "pattern" in new.schema and new.schema["pattern"] != old.schema.get("pattern"):
        found.append(f"{path}/pattern: new, or another one")
    return found


def _numbers(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    found = comparison.bounds(old.schema, new.schema, "number", path)
    step, before = _number(new.schema.get("multipleOf")), _number(old.schema.get("multipleOf"))
    if step is not None and (before is None or (step != 0 and before % step != 0)):
        found.append(f"{path}/multipleOf: new, or one that does not divide the former")
    if new.schema.get("type") == "integer" and old.schema.get("type") != "integer":
        found.append(f"{path}: number became integer")
    return found


def _enums(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    left = {_text(value) for value in _values(old.schema)} - {_text(value) for value in _values(new.schema)}
    return [f"{path}/enum: {', '.join(sorted(left))} is no longer allowed"] if left else []


def _nots(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    """A new schema may forbid less than the old one, not more."""
    return comparison.problems(new.of(new.schema["not"]), old.of(old.schema["not"]), f"{path}/not")


def _objects(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    found = comparison.bounds(old.schema, new.schema, "object", path)
    before, after = old.schema.get("properties", {}), new.schema.get("properties", {})
    for name in dict.fromkeys((*before, *after)):
        place = f"{path}/properties/{name}"
        if name not in after:
            found += _removed(comparison, old.of(before[name]), new, _model(new.schema, name), place)
        elif name not in before:
            found += _added(comparison, new.of(after[name]), old, _model(old.schema, name), place)
            found += _newly_required(new.schema, after, name, place) if not is_open(old.schema) else []
        else:
            if name not in old.schema.get("required", ()):
                found += _newly_required(new.schema, after, name, place)
            found += comparison.problems(old.of(before[name]), new.of(after[name]), place)
    found += _required_elsewhere(old.schema, new.schema, path)
    found += _patterns(comparison, old, new, path)
    found += _rest(comparison, old, new, "additionalProperties", path)
    found += _rest(comparison, old, new, "unevaluatedProperties", path)
    return found + _dependencies(comparison, old, new, path)


def _newly_required(schema: Any, properties: Any, name: str, place: str) -> list[str]:
    has_default = isinstance(properties[name], dict) and "default" in properties[name]
    return [f"{place}: required, without a default"] if name in schema.get("required", ()) and not has_default else []


def _required_elsewhere(old: Any, new: Any, path: str) -> list[str]:
    """Names that are required without being described."""
    properties = new.get("properties", {})
    names = [n for n in new.get("required", ()) if n not in properties and n not in old.get("required", ())]
    return [f"{path}/required: {name} is new" for name in names]


def _removed(comparison: Comparison, old: Side, new: Side, model: Any, place: str) -> list[str]:
    """A property or item that the new schema does not describe: `model` is what it says of all others."""
    if model is True or is_nothing(old.schema):
        return []
    if isinstance(model, _Undecided):
        return [f"{place}: removed, and may fall under the pattern {model.pattern}, which cannot be compared"]
    if model is False:
        return [f"{place}: removed, and the new schema allows nothing else"]
    return comparison.problems(old, new.of(model), place)


def _added(comparison: Comparison, new: Side, old: Side, model: Any, place: str) -> list[str]:
    """Old documents may have had anything there that `model`, of the old schema, allowed."""
    if model is False or is_anything(new.schema):
        return []
    if isinstance(model, _Undecided):
        return [f"{place}: added, and may have been under the pattern {model.pattern}, which cannot be compared"]
    if model is True:
        return [f"{place}: added, where older documents may have anything"]
    return comparison.problems(old.of(model), new, place)


class _Undecided(NamedTuple):
    """Nobody can tell whether a name is one of the pattern's."""

    pattern: str


def _model(schema: Any, name: str) -> Any:
    """What an object allows under a name that it does not describe: True, False, a schema, or nobody can tell."""
    for pattern, part in schema.get("patternProperties", {}).items():
        is_match = _matches(pattern, name)
        if is_match is not False:
            return part if is_match else _Undecided(pattern)
    return _others(schema)


def _matches(pattern: str, name: str) -> bool | None:
    """None for a pattern that RE2 does not have, such as one that looks ahead."""
    try:
        return re2.search(pattern, name, _SILENT) is not None
    except re2.error:
        return None


def is_open(schema: Any) -> bool:
    return _others(schema) is True and not schema.get("patternProperties")


def _patterns(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    before, after = old.schema.get("patternProperties", {}), new.schema.get("patternProperties", {})
    found = []
    for pattern in dict.fromkeys((*before, *after)):
        place = f"{path}/patternProperties/{pattern}"
        if pattern in before and pattern in after:
            found += comparison.problems(old.of(before[pattern]), new.of(after[pattern]), place)
        elif pattern in before:
            found += _removed(comparison, old.of(before[pattern]), new, _others(new.schema), place)
        else:
            found += _added(comparison, new.of(after[pattern]), old, _others(old.schema), place)
            for name, part in old.schema.get("properties", {}).items():
                if _matches(pattern, name) is not False:
                    found += comparison.problems(old.of(part), new.of(after[pattern]), place)
    return found


def _others(schema: Any) -> Any:
    """What an object allows under names that it says nothing of."""
    rest = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
    return True if is_anything(rest) else rest


def _rest(comparison: Comparison, old: Side, new: Side, keyword: str, path: str) -> list[str]:
    before, after = old.schema.get(keyword, True), new.schema.get(keyword, True)
    if is_anything(after) or is_nothing(before):
        return []
    if is_anything(before) or is_nothing(after):
        return [f"{path}/{keyword}: allows less than before"]
    return comparison.problems(old.of(before), new.of(after), f"{path}/{keyword}")


def _dependencies(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    before, after = _all_dependencies(old.schema), _all_dependencies(new.schema)
    found = []
    for name, wanted in after.items():
        place, known = f"{path}/dependencies/{name}", before.get(name)
        if known is None or isinstance(known, list) != isinstance(wanted, list):
            found.append(f"{place}: new")
        elif isinstance(wanted, list):
            found += [f"{place}: {one} is new" for one in wanted if one not in known]
        else:
            found += comparison.problems(old.of(known), new.of(wanted), place)
    return found


def _all_dependencies(schema: Any) -> dict[str, Any]:
    names = ("dependencies", "dependentRequired", "dependentSchemas")
    return {name: value for keyword in names for name, value in schema.get(keyword, {}).items()}


def _arrays(comparison: Comparison, old: Side, new: Side, path: str) -> list[str]:
    found = comparison.bounds(old.schema, new.schema, "array", path)
    if new.schema.get("uniqueItems") and not old.schema.get("uniqueItems"):
        found.append(f"{path}/uniqueItems: new")
    before, rest_before = _items(old.schema)
    after, rest_after = _items(new.schema)
    for index in range(max(len(before), len(after))):
        place = f"{path}/items/{index}"
        if index >= len(after):
            found += _removed(comparison, old.of(before[index]), new, rest_after, place)
        elif index >= len(before):
            found += _added(comparison, new.of(after[index]), old, rest_before, place)
        else:
            found += comparison.problems(old.of(before[index]), new.of(after[index]), place)
    if not is_anything(rest_after) and not is_nothing(rest_before):
        if is_anything(rest_before) or is_nothing(rest_after):
            found.append(f"{path}/items: allow less than before")
        else:
            found += comparison.problems(old.of(rest_before), new.of(rest_after), f"{path}/items")
    return found


def _items(schema: Any) -> tuple[list[Any], Any]:
    """The schemas of the first items, and that of all others; a schema that allows everything is True."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        first, rest = schema["prefixItems"], schema.get("items", schema.get("unevaluatedItems", True))
    elif isinstance(items, list):
        first, rest = items, schema.get("additionalItems", schema.get("unevaluatedItems", True))
    else:
        first, rest = [], items
    return first, True if is_anything(rest) else rest


_COMPARISONS: Final[Mapping[str, Callable[[Comparison, Side, Side, str], list[str]]]] = {
    "string": _strings,
    "number": _numbers,
    "enum": _enums,
    "not": _nots,
    "object": _objects,
    "array": _arrays,
}


def is_anything(schema: Any) -> bool:
    """True, or a schema that only names and describes."""
    if isinstance(schema, dict):
        return _kind(schema) == "any"
    return schema is True


def is_nothing(schema: Any) -> bool:
    return schema is False


def _kind(schema: Any) -> str:
    if schema is False:
        return "nothing"
    parts = _constituents(schema)
    if len(parts) != 1:
        return "allOf" if parts else "any"
    (part,) = parts
    for name in (*_COMBINATIONS, "not", "$ref", "enum", "const"):
        if name in part:
            return "enum" if name == "const" else name
    return _type(part)


def _type(schema: dict[str, Any]) -> str:
    """The type that a schema without allOf, anyOf and oneOf is compared as."""
    kind = schema.get("type")
    if isinstance(kind, list):
        if len(kind) > 1:
            return "anyOf"
        kind = kind[0] if kind else None
    if kind is not None:
        return "number" if kind == "integer" else str(kind)
    return next((k for k, names in _KEYWORDS.items() if any(name in schema for name in names)), "opaque")


def _constituents(schema: Any) -> list[dict[str, Any]]:
    """The parts of a schema, all of which must hold: each combination, each list of values, and the rest."""
    if not isinstance(schema, dict):
        return []
    alone = [name for name in (*_COMBINATIONS, "not", "$ref", "enum", "const") if name in schema]
    rest = {name: value for name, value in schema.items() if name in _ASSERTIONS}
    return [*({name: schema[name]} for name in alone), *([rest] if rest else [])]


def _alone(schema: Any) -> dict[str, Any]:
    """The schema without keywords that only name or describe it."""
    return next(iter(_constituents(schema)), {})


def _parts(side: Side, kind: str) -> list[Side]:
    """The schemas that are combined."""
    parts = _constituents(side.schema)
    if len(parts) > 1:
        return [side.of(one) for part in parts for one in part.get("allOf", [part])]
    (part,) = parts
    if kind in part:
        return [side.of(one) for one in part[kind]]
    return [side.of(_of_type(part, one)) for one in part["type"]]


def _of_type(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """The schema for one of its types, with the keywords that concern that type."""
    own = _KEYWORDS.get("number" if kind == "integer" else kind, ())
    return {"type": kind, **{name: value for name, value in schema.items() if name in own}}


def _distinct(parts: list[Side]) -> list[Side]:
    return list({_text(part.schema): part for part in parts}.values())


def _values(schema: Any) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema["enum"])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _number(value: Any) -> Decimal | None:
    return Decimal(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _matching_size(edges: list[list[int]]) -> int:
    """How many of the left can have a partner of their own among the right (augmenting paths)."""
    partner: dict[int, int] = {}

    def place(left: int, tried: set[int]) -> bool:
        for right in edges[left]:
            if right not in tried:
                tried.add(right)
                if right not in partner or place(partner[right], tried):
                    partner[right] = left
                    return True
        return False

    return sum(place(left, set()) for left in range(len(edges)))
