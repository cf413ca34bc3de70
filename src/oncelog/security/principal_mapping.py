"""`ssl.principal.mapping.rules`: from the name in a client's certificate to the name of a user, as Kafka does it.

    RULE:<regular expression>/<replacement>/[LU]   the whole name must match; `$1` is its first group; L, U: the case
    DEFAULT                                        the name as it is

Rules are tried in order, and separated by commas outside their slashes; `\\/` is a slash. If none matches, the client
is not let in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from oncelog.core.config import ConfigError

NAME_CHARS_MAX: Final = 2048
"""The name is chosen by whoever holds a certificate, and a pattern may be slow on a long one."""
_RULES: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|$)"
)
_GROUP: Final = re.compile(r"\$(\d)")


class UnmappedName(ValueError):
    """No rule is for it."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        mapped = _GROUP.sub(lambda group: _group(match, group), self.replacement)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


def _group(match: re.Match[str], reference: re.Match[str]) -> str:
    """A group that cannot be is text."""
    number = int(reference[1])
    return match[number] or "" if number <= (match.re.groups or 0) else reference[0]


class PrincipalMapping:
    def __init__(self, rules: str) -> None:
        """Raises ConfigError."""
        self._rules = list(_parse(rules)) or [_Rule(None, "", "")]

    def user_of(self, name: str) -> str:
        """Raises UnmappedName."""
        if len(name) <= NAME_CHARS_MAX:
            for rule in self._rules:
                mapped = rule.apply(name)
                if mapped is not None:
                    return mapped
        raise UnmappedName(f"no rule of ssl.principal.mapping.rules is for {name[:NAME_CHARS_MAX]!r}")


def _parse(text: str) -> list[_Rule]:
    rules: list[_Rule] = []
    position = 0
    while text[position:].strip():
        match = _RULES.match(text, position)
        if match is None:
            raise ConfigError(f"ssl.principal.mapping.rules: {text[position:]!r} is neither RULE:.../.../ nor DEFAULT")
        rules.append(_rule(match))
        position = match.end()
    return rules


def _rule(match: re.Match[str]) -> _Rule:
    if match["default"]:
        return _Rule(None, "", "")
    pattern = match["pattern"].replace("\\/", "/")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"ssl.principal.mapping.rules: the expression {pattern!r} is not understood: {error}"
        ) from None
    return _Rule(compiled, match["replacement"].replace("\\/", "/"), match["case"])
