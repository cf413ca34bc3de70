from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.coordinator.txn.pattern import PATTERN_BYTES_MAX, LinearPattern
from oncelog.core.errors import ErrorCode, KafkaError

PATTERNS = [
    "tx-1",
    "tx-.*",
    "(orders|payments)-[0-9]+",
    "a?b*c+",
    "a{2}b{1,}c{0,2}",
    "(ab)*",
    "(a|b)*?c",
    "^abc$",
    "a^b",
    "(^a|b)c",
    "a$|b",
    r"\d+\.\w*",
    r"[^a-c]x",
    r"[]a]+",
    r"[a\-z]+",
    r"[a-]+",
    r"[\d.]+",
    r"\D\W\S",
    r"\Aa\z",
    "(?:a|(?P<n>b)){2}",
    "(?i)AbC[x-z]",
    "(?s)a.b",
    "a.b",
    "",
    "a||b",
    "()",
    "((a*)*)*",
    "(a|a)*b",
    "(a{0,3}){0,3}",
    "$^",
    "a*$^b*",
]
TEXTS = ["", "a", "b", "ab", "abc", "ABC", "aBCY", "tx-1", "tx-", "tx-12", "orders-7", "payments-", "aabbcc", "aab"]
TEXTS += ["1.x", "x.x", "dx", "ax", "]a]", "-", "a-z", "m", "a\nb", "a.b", "c", "bc", "ac", "aaaa", "!-!", "3.14", "aa"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_agrees_with_re(pattern: str) -> None:
    linear, reference = LinearPattern(pattern), re.compile(pattern.replace(r"\z", r"\Z"), re.ASCII)
    for text in TEXTS:
        assert linear.matches(text) is (reference.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "missing )"),
        ("a)", "unexpected )"),
        ("[a", "missing ]"),
        ("a\\", "trailing \\"),
        ("*a", "no argument for repetition operator"),
        ("a{1001}", "invalid repetition size"),
        ("[z-a]", "invalid character class range"),
        (r"(a)\1", "invalid escape sequence"),
        ("(?=a)", "invalid perl operator"),
        ("(?<!a)", "invalid perl operator"),
        ("((a{100}){100}){100}", "invalid repetition size"),
        ("((\\pL{100}){10})", "too large"),
        ("a" * (PATTERN_BYTES_MAX + 1), "longer than 1000"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(pattern: str, why: str) -> None:
    with pytest.raises(KafkaError) as refused:
        LinearPattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert why in refused.value.message


@pytest.mark.parametrize(("pattern", "text"), [(r"tx\b.*", "tx-1"), ("[[:alpha:]]+", "abc"), ("x(?i)b", "xB")])
def test_what_kafka_understands_is_understood(pattern: str, text: str) -> None:
    assert LinearPattern(pattern).matches(text)


def test_a_pattern_that_would_take_for_ever() -> None:
    assert not LinearPattern("(a+)+(a|aa)*b").matches("a" * 5_000)


atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "^", "$"])
trees = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda branches: f"({'|'.join(branches)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}"])).map(lambda t: f"(?:{t[0]}){t[1]}"),
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(trees, st.text("abc", max_size=6))
def test_random_patterns_agree_with_re(pattern: str, text: str) -> None:
    assert LinearPattern(pattern).matches(text) is (re.compile(pattern).fullmatch(text) is not None)
