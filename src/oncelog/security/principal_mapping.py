"""`ssl.principal.mapping.rules`: from the name in a client's certificate to the name of a user, as Kafka does it.

    RULE:<regular expression>/<replacement>/[LU]   the whole name must match; `$1` is its first group; L, U: the case
    DEFAULT                                        the name as it is

Rules are tried in order, and separated by commas outside their slashes; `\\/` is a slash. If none matches, the client
is not let in.

As in Kafka, a rule whose expression matches the whole name then replaces each place where it matches, also the empty
one at the end: `RULE:.*/same/` makes `samesame`, unless the expression begins with `^`. A replacement is Java's: `\\`
before a sign takes it as it is, `$12` is group 12 or group 1 and a 2, `${name}` a group with a name. `$7` is text if
there are groups, but fewer. What fails in Java for every client that a rule matches is refused at the start here.
"""

from __future__ import annotations

import re
from typing import Final

from oncelog.core.config import ConfigError
from oncelog.core.dataclass import dataclass
from oncelog.security.java_regex import compile_java

NAME_CHARS_MAX: Final = 2048
"""The name is chosen by whoever holds a certificate, and a pattern may be slow on a long one."""
_RULES: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)|)"
    r"\s*(?:,|$)"
)
_NUMBER: Final = re.compile(r"\$([0-9]+)")
_REFERENCE: Final = re.compile(
    r"\\(?P<sign>.)|\$(?P<number>[0-9]+)|\$\{(?P<name>[a-zA-Z][a-zA-Z0-9]*)\}|(?P<text>[^\\$]+)|(?P<odd>.)", re.DOTALL
)


class UnmappedName(ValueError):
    """No rule is for it."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    replacement: tuple[str | int, ...] = ()
    """Text, and numbers of groups."""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self._replace_all(self.pattern, name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped

    def _replace_all(self, pattern: re.Pattern[str], name: str) -> str:
        """Not `re.sub`: after an empty match Java goes on one character later."""
        parts, copied, position = [], 0, 0
        while position <= len(name) and (match := pattern.search(name, position)) is not None:
            parts.append(name[copied : match.start()])
            parts += [part if isinstance(part, str) else match[part] or "" for part in self.replacement]
            copied, position = match.end(), match.end() + (match.start() == match.end())
        return "".join([*parts, name[copied:]])


class PrincipalMapping:
    def __init__(self, rules: str) -> None:
        """Raises ConfigError."""
        self._rules = _parse(rules.strip())
        if not self._rules:
            raise ConfigError("ssl.principal.mapping.rules: there is none, so nobody could log in; DEFAULT is one")

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
    while position < len(text):
        match = _RULES.match(text, position)
        if match is None:
            raise ConfigError(f"ssl.principal.mapping.rules: {text[position:]!r} is neither RULE:.../.../ nor DEFAULT")
        if match["default"]:
            rules.append(_Rule(None))
        elif match["pattern"] is not None:
            rules.append(_rule(match))
        position = match.end()
    return rules


def _rule(match: re.Match[str]) -> _Rule:
    try:
        pattern = compile_java(match["pattern"])
    except ValueError as error:
        raise ConfigError(
            f"ssl.principal.mapping.rules: the expression {match['pattern']!r} is not understood: {error}"
        ) from None
    try:
        replacement = _parts(_literal_beyond(match["replacement"], pattern.groups), pattern)
    except ValueError as error:
        raise ConfigError(
            f"ssl.principal.mapping.rules: with {match['replacement']!r} for {match['pattern']!r} nobody could log in: "
            f"{error}"
        ) from None
    return _Rule(pattern, replacement, match["case"])


def _literal_beyond(replacement: str, groups: int) -> str:
    """With a backslash before the numbers of groups that are not there. Without any group they stay, and fail.

    As in Kafka, where the backslashes of one with several such numbers come too early: most of them fail.
    """
    escaped = replacement
    for found in _NUMBER.finditer(replacement) if groups else ():
        number = int(found[1])
        if found[1].startswith("0"):
            continue
        while number > groups and number >= 10:
            number //= 10
        if number > groups:
            escaped = f"{escaped[: found.start()]}\\{escaped[found.start() :]}"
    return escaped


def _parts(replacement: str, pattern: re.Pattern[str]) -> tuple[str | int, ...]:
    """Raises ValueError."""
    parts: list[str | int] = []
    for found in _REFERENCE.finditer(replacement):
        if found["odd"] is not None:
            raise ValueError(f"a {found['odd']} needs a backslash before it")
        if found["number"] is not None:
            digits = found["number"]
            number, used = int(digits[0]), 1
            while used < len(digits) and number * 10 + int(digits[used]) <= pattern.groups:
                number, used = number * 10 + int(digits[used]), used + 1
            if number > pattern.groups:
                raise ValueError(f"there is no group {number}")
            parts += [number, digits[used:]]
        elif found["name"] is not None:
            if found["name"] not in pattern.groupindex:
                raise ValueError(f"there is no group {found['name']}")
            parts.append(pattern.groupindex[found["name"]])
        else:
            parts.append(found["sign"] if found["sign"] is not None else found["text"])
    return tuple(parts)
