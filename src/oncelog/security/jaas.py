"""JAAS lines as they stand in Kafka's configuration files.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p" user_bob="pw";

They are read as Java's StreamTokenizer does it for Kafka: values are words or quoted by either quote, with the escapes
`\\n`, `\\t` and such and octal ones (`\\101`), while any other sign after a backslash is itself; `//`, `/* */` and even
a single slash begin a comment; a number is no value, unless it is quoted. The class is never loaded. Its name only
tells which mechanism the line is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from oncelog.core.config import ConfigError

_TOKEN: Final = re.compile(
    r"""(?P<nothing>[\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]*)
      | (?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]*))
      | (?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]*)
      | (?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?P=quote)?
      | (?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:(?P<octal>[0-3][0-7]{0,2}|[4-7][0-7]?)|(?P<sign>.))", re.DOTALL)
_ESCAPED: Final = {"a": "\x07", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\x0b"}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_USER: Final = "user_"
_MODULES: Final = {
    "PlainLoginModule": "PLAIN",
    "ScramLoginModule": "SCRAM",
    "OAuthBearerLoginModule": "OAUTHBEARER",
}


class JaasLine(NamedTuple):
    family: str
    """PLAIN, SCRAM or OAUTHBEARER."""
    options: dict[str, str]

    @property
    def users(self) -> dict[str, str]:
        """The users in the line of a broker: passwords by user."""
        return {name.removeprefix(_USER): value for name, value in self.options.items() if name.startswith(_USER)}

    def __repr__(self) -> str:
        return f"JaasLine({self.family})"


class _Token(NamedTuple):
    text: str | None
    """Of a word, or between quotes."""
    sign: str = ""


_END: Final = _Token(None)


def parse_jaas(text: str, *, key: str) -> JaasLine:
    """Raises ConfigError, without the text: it has passwords in it."""
    tokens = _tokens(text)
    module, flag = next(tokens, _END).text, next(tokens, _END).text
    if module is None or flag is None or flag.lower() not in _FLAGS:
        raise ConfigError(f'{key}: expected `LOGIN-MODULE required name="value" ...;`')
    module = module.rpartition(".")[2]
    if module not in _MODULES:
        raise ConfigError(f"{key}: login module {module} is not known, only {' and '.join(_MODULES)} are")
    options: dict[str, str] = {}
    while (name := next(tokens, _END)).sign != ";":
        if name is _END:
            raise ConfigError(f"{key}: there is no semicolon at the end")
        equals, value = next(tokens, _END), next(tokens, _END)
        if name.text is None or equals.sign != "=" or value.text is None:
            problem = f'expected name="value" after option {len(options)}, and a semicolon at the end'
            raise ConfigError(f"{key}: {problem}; what is no plain word needs quotes")
        options[name.text] = value.text
    if next(tokens, None) is not None:
        raise ConfigError(f"{key}: there is more than one login module; a value with a semicolon needs quotes")
    return JaasLine(_MODULES[module], options)


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        if found["word"] is not None:
            yield _Token(found["word"])
        elif found["quote"] is not None:
            yield _Token(_ESCAPE.sub(_unescaped, found["text"]))
        elif found["number"] is not None:
            yield _Token(None, "number")
        elif found["sign"] is not None:
            yield _Token(None, found["sign"])


def _unescaped(escape: re.Match[str]) -> str:
    if escape["octal"] is not None:
        return chr(int(escape["octal"], 8))
    return _ESCAPED.get(escape["sign"], escape["sign"])
