r"""Java's properties files, as `java.util.Properties` reads them.

A key ends at the first `=`, `:` or white space that has no backslash before it. Lines that end with an odd number of
backslashes go on in the next one. `\t`, `\n`, `\r`, `\f` and `\uXXXX` are characters, and any other character after
a backslash is itself. White space at the end of a value is cut off, as Kafka does with its settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from oncelog.core.config import ConfigError

_BLANKS: Final = " \t\f"
# Not compiled here: most brokers start without a file.
_LINE_END: Final = r"\r\n|\n|\r"
_KEY: Final = r"(?s)((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*"
_ESCAPE: Final = r"(?s)\\(?:u([0-9a-fA-F]{4})|(.)|$)"
_CHARACTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SURROGATES: Final = "[\ud800-\udfff]"


class Properties(dict[str, str]):
    """Values by key. `lines` has the number of the line where each key stands in `source`, a file's name."""

    def __init__(self, source: str = "") -> None:
        super().__init__()
        self.source = source
        self.lines: dict[str, int] = {}

    def place(self, number: int) -> str:
        """A text to put before a message about a line."""
        return f"line {number}: " if not self.source else f"{self.source}: line {number}: "

    def place_of(self, key: str | None) -> str:
        """The same for a key; empty for one that is not here."""
        return self.place(self.lines[key]) if key in self.lines else ""


def decode_properties(data: bytes) -> str:
    """The text of a properties file: UTF-8, else Latin-1, in which Java reads them."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str, source: str = "") -> Properties:
    """Raises ConfigError, which names the line. Of a key that is given twice, the last value counts."""
    found = Properties(source)
    for number, line in _logical_lines(text):
        match = next(re.finditer(_KEY, line))  # at the start of the line: the pattern matches an empty key too
        try:
            name, value = _unescaped(match[1]), _unescaped(line[match.end() :])
        except ValueError as error:
            raise ConfigError(f"{found.place(number)}{error}") from None
        found[name] = value.rstrip(_BLANKS)
        found.lines[name] = number
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with what is continued joined, without comments and blank lines, each with the number of its first one."""
    first, pending = 0, ""
    for number, raw in enumerate(re.split(_LINE_END, text), 1):
        line = raw.lstrip(_BLANKS)
        if not pending:
            first = number
            if not line or line[0] in "#!":
                continue
        line = pending + line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        pending = ""
        yield first, line
    if pending:
        yield first, pending


def _unescaped(text: str) -> str:
    """Raises ValueError for what is no character."""

    def character(match: re.Match[str]) -> str:
        code, other = match.groups()
        if code is not None:
            return chr(int(code, 16))
        if other == "u":
            raise ValueError(f"{text[match.start() : match.start() + 6]} is not \\u and four hex digits")
        return _CHARACTERS.get(other or "", other or "")

    plain = re.sub(_ESCAPE, character, text) if "\\" in text else text
    if not re.search(_SURROGATES, plain):
        return plain
    try:
        return plain.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError(f"{text} has half of a surrogate pair") from None
