"""JAAS lines as they stand in Kafka's configuration files.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p" user_bob="pw";

The class is never loaded. Its name only tells which mechanism the line is for.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from oncelog.core.config import ConfigError

_LINE: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)(?P<options>.*?);?\s*", re.DOTALL)
_OPTION: Final = re.compile(r"""\s+(?P<name>[^\s="]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s";]+))""")
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_USER: Final = "user_"
_MODULES: Final = {"PlainLoginModule": "PLAIN", "ScramLoginModule": "SCRAM"}


class JaasLine(NamedTuple):
    family: str
    """PLAIN or SCRAM."""
    options: dict[str, str]

    @property
    def users(self) -> dict[str, str]:
        """Of a broker's line: passwords by user."""
        return {name.removeprefix(_USER): value for name, value in self.options.items() if name.startswith(_USER)}

    def __repr__(self) -> str:
        return f"JaasLine({self.family})"


def parse_jaas(text: str, *, key: str) -> JaasLine:
    """Raises ConfigError, without the text: it has passwords in it."""
    line = _LINE.fullmatch(text)
    if line is None or line["flag"].lower() not in _FLAGS:
        raise ConfigError(f'{key}: expected `LOGIN-MODULE required name="value" ...;`')
    module = line["module"].rpartition(".")[2]
    if module not in _MODULES:
        raise ConfigError(f"{key}: login module {module} is not known, only {' and '.join(_MODULES)} are")
    options: dict[str, str] = {}
    position = line.start("options")
    while position < line.end("options") and text[position : line.end("options")].strip():
        option = _OPTION.match(text, position, line.end("options"))
        if option is None:
            raise ConfigError(f'{key}: expected name="value" after option {len(options)}')
        quoted = option["quoted"]
        options[option["name"]] = option["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = option.end()
    return JaasLine(_MODULES[module], options)
