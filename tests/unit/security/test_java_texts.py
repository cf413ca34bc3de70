"""Settings of Kafka's users, read as Java reads them. `tests/conformance/test_security_texts.py` asks Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.config import ConfigError
from oncelog.security.jaas import parse_jaas
from oncelog.security.java_regex import compile_java
from oncelog.security.principal_mapping import PrincipalMapping, UnmappedName

TEXTS: dict[str, list[Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "java_security_texts.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(("rules", "name", "user"), TEXTS["mapping"])
def test_rules_for_names_in_certificates(rules: str, name: str, user: str | None) -> None:
    if user is None:
        with pytest.raises((ConfigError, UnmappedName)):
            PrincipalMapping(rules).user_of(name)
    else:
        assert PrincipalMapping(rules).user_of(name) == user


@pytest.mark.parametrize(("text", "options"), TEXTS["jaas"])
def test_lines_of_jaas(text: str, options: dict[str, str] | None) -> None:
    if options is None:
        with pytest.raises(ConfigError):
            parse_jaas(text, key="sasl.jaas.config")
    else:
        assert parse_jaas(text, key="sasl.jaas.config").options == options


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "[a-z&&[^b]]",
            "[a[bc]]",
            "[]a]",
            "[^]a]",
            r"\p{L}",
            r"\p{IsAlphabetic}",
            r"[\P{Lower}]",
            r"\R",
            r"\h",
            r"\v",
        ),
        *(r"\G", r"\cA", r"\012", "a{,3}", "a{", "(?x)a", "(?u)a", "(?P<n>a)", "(?#a)", "(?<1>a)", "a)", "*", "\\"),
    ],
)
def test_an_expression_that_python_might_take_for_another_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"understood|position|count|unknown|global flags|unexpected"):
        compile_java(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        (r"[\[\]&.$^]+", "[]&.$^", True),
        ("[^.]", ".", False),
        ("[.]", "a", False),
        (r"\.", "\r", False),
        ("a(?!b).", "ac", True),
        ("(?<=)a(?<!b)", "a", True),
        (r"[\Q.-]\E]+", "]-.", True),
        (r"\Qa", "a", True),
        ("a.c", "a\x85c", False),
        ("a.c", "a\u2028c", False),
        ("a$\r?", "a\r", True),
        (r"a\Z\r?", "a\r", True),
        (r"a\z\r?", "a\r", False),
        (r"\s", "\x1f", False),
        (r"\bü", "ü", False),
    ],
)
def test_what_is_translated(pattern: str, text: str, is_match: bool) -> None:
    assert (compile_java(pattern).fullmatch(text) is not None) == is_match
