"""The fields of a JSON object with their texts, whose numbers keep all their digits: pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

_DECODER: Final = json.JSONDecoder()


def fields_of(text: str) -> Iterator[tuple[str, Any, str]]:
    """The fields of a JSON object: name, value, and the text of the value."""
    at = _behind_space(text, 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _behind_space(text, _behind_space(text, at) + 1)
        value, at = _DECODER.raw_decode(text, start)
        yield name, value, text[start:at]
        at = _behind_space(text, at)
        if text[at] == ",":
            at = _behind_space(text, at + 1)


def _behind_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
