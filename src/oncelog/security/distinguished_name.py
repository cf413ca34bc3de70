"""The subject of a certificate as Java writes it, which is what ACLs compare: RFC 2253, the last part first.

Java escapes `# = , + < > ; " \\` wherever they are, and spaces at both ends. An attribute that is not one of the nine
with a short name is written as its number and the value's encoding in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_CONTEXT_0: Final = 0xA0
_SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_CHARACTER_SETS: Final = {
    0x0C: "utf-8",
    0x13: "latin-1",
    0x14: "latin-1",
    0x16: "latin-1",
    0x1B: "latin-1",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
"""Of the kinds of strings, by their tag."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class MalformedCertificate(ValueError):
    """The bytes do not follow the encoding of certificates."""


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoding: bytes


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate in DER. Raises MalformedCertificate."""
    try:
        fields = _children(_children(_children(certificate)[0].content)[0].content)
        # version (optional), serial number, signature, issuer, validity, subject
        subject = fields[5 if fields[0].tag == _CONTEXT_0 else 4]
        parts = [_relative_name(part) for part in _children(subject.content)]
        return ",".join(reversed(parts))
    except (IndexError, TypeError, UnicodeDecodeError) as error:
        raise MalformedCertificate(str(error)) from error


def _relative_name(element: _Element) -> str:
    return "+".join(_attribute(*_children(pair.content)) for pair in _children(element.content))


def _attribute(kind: _Element, value: _Element) -> str:
    number = _object_id(kind.content)
    name, character_set = _SHORT_NAMES.get(number), _CHARACTER_SETS.get(value.tag)
    if name is None or character_set is None:
        return f"{number}=#{value.encoding.hex()}"
    return f"{name}={_escaped(value.content.decode(character_set))}"


def _escaped(text: str) -> str:
    middle = text.strip(" ")
    start = len(text) - len(text.lstrip(" ")) if middle else len(text)
    written = "".join("\\00" if c == "\0" else f"\\{c}" if c in _ESCAPED else c for c in middle)
    return "\\ " * start + written + "\\ " * (len(text) - start - len(middle))


def _object_id(content: bytes) -> str:
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _children(data: bytes) -> list[_Element]:
    return list(_elements(data))


def _elements(data: bytes) -> Iterator[_Element]:
    position = 0
    while position < len(data):
        length, start = data[position + 1], position + 2
        if length & 0x80:
            count = length & 0x7F
            length, start = int.from_bytes(data[start : start + count], "big"), start + count
        end = start + length
        if end > len(data):
            raise MalformedCertificate("an element is longer than what it is in")
        yield _Element(data[position], data[start:end], data[position:end])
        position = end
