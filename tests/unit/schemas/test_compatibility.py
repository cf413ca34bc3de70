"""Compatibility levels: who must read what, and how many versions count."""

from __future__ import annotations

import pytest

from oncelog.schemas.compatibility import LEVELS, incompatibilities
from oncelog.schemas.kinds import parse
from oncelog.schemas.schema import Schema

# Version 1 is an int, version 2 a long; a long reads an int, and not the other way.
VERSIONS = {1: '"int"', 2: '"long"'}
ALLOWED = {
    # level: new schemas that may follow
    "NONE": {'"int"', '"long"', '"float"', '"string"'},
    "BACKWARD": {'"long"', '"float"'},
    "BACKWARD_TRANSITIVE": {'"long"', '"float"'},
    "FORWARD": {'"int"', '"long"'},
    "FORWARD_TRANSITIVE": {'"int"'},
    "FULL": {'"long"'},
    "FULL_TRANSITIVE": set(),
}


@pytest.mark.parametrize("level", LEVELS)
def test_what_may_follow_at_each_level(level: str) -> None:
    def load(version: int):  # type: ignore[no-untyped-def]
        return "AVRO", parse(Schema(VERSIONS[version]))

    allowed = {
        text
        for text in ('"int"', '"long"', '"float"', '"string"')
        if not incompatibilities(level, ("AVRO", parse(Schema(text))), [1, 2], load)
    }
    assert allowed == ALLOWED[level]


def test_only_transitive_levels_look_at_versions_before_the_last() -> None:
    texts = {1: '"string"', 2: '"int"'}

    def load(version: int):  # type: ignore[no-untyped-def]
        return "AVRO", parse(Schema(texts[version]))

    new = ("AVRO", parse(Schema('"long"')))
    assert incompatibilities("BACKWARD", new, [1, 2], load) == []
    assert "version 1" in incompatibilities("BACKWARD_TRANSITIVE", new, [1, 2], load)[0]


def test_another_kind_may_follow_without_rules_only() -> None:
    def load(version: int):  # type: ignore[no-untyped-def]
        return "JSON", parse(Schema("{}", "JSON"))

    new = ("AVRO", parse(Schema('"int"')))
    assert incompatibilities("NONE", new, [1], load) == []
    assert "kind" in incompatibilities("FORWARD", new, [1], load)[0]


def test_the_first_version_may_be_anything() -> None:
    assert incompatibilities("FULL_TRANSITIVE", ("AVRO", parse(Schema('"int"'))), [], lambda version: None) == []  # type: ignore[arg-type, return-value]
