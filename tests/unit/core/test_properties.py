"""Properties files as Java reads them."""

from __future__ import annotations

import pytest

from oncelog.core.config import ConfigError
from oncelog.core.properties import decode_properties, parse_properties


def test_comments_continuations_and_separators() -> None:
    text = (
        "# a comment \\\n! another\n  num.partitions = 4\nlisteners:PLAINTEXT://127.0.0.1:9092\n"
        "log.cleanup.policy=compact,\\\n   delete\n\nlog.dirs /data\rbroker.id\t=\t3\r\nempty\n"
    )
    assert parse_properties(text) == {
        "num.partitions": "4",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "log.cleanup.policy": "compact,delete",
        "log.dirs": "/data",
        "broker.id": "3",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (r"a\=b=c", "a=b", "c"),
        (r"a\ b c", "a b", "c"),
        (r"a\:b : c:d", "a:b", "c:d"),
        (r"a=\u00e9\t\n\r\f\\\q", "a", "é\t\n\r\f\\q"),
        (r"a=\ud83d\ude00", "a", "\U0001f600"),
        ("a=b  \t", "a", "b"),
        ("a==b", "a", "=b"),
        ("a= =b", "a", "=b"),
        ("a=b\\\\\nc=d", "a", "b\\"),
        ("a=b\\\n# c", "a", "b# c"),
        ("a=b\\", "a", "b"),
        (r"sasl.jaas.config=x required password\=\"y\";", "sasl.jaas.config", 'x required password="y";'),
        ("=b", "", "b"),
    ],
)
def test_escapes_and_separators_as_in_java(line: str, key: str, value: str) -> None:
    assert parse_properties(line)[key] == value


def test_the_line_of_a_key_is_known_and_the_last_value_counts() -> None:
    found = parse_properties("a=1\n# b\nb=\\\n2\na=3\n")
    assert found == {"a": "3", "b": "2"}
    assert found.lines == {"a": 5, "b": 3}
    assert found.place_of("b") == "line 3: "
    assert found.place_of("c") == ""


@pytest.mark.parametrize("line", [r"a=\u12", r"a=\uzzzz", r"\u=b", r"a=\ud83d"])
def test_what_is_no_character_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2: "):
        parse_properties(f"\n{line}\n")


def test_text_is_utf_8_or_else_latin_1() -> None:
    assert decode_properties("a=é".encode()) == decode_properties("a=é".encode("latin-1")) == "a=é"
    assert decode_properties("a=b".encode("utf-8-sig")) == "a=b"
