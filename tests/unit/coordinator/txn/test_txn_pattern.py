from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.coordinator.txn.pattern import CACHED_STATES_MAX, PATTERN_CHARS_MAX, LinearPattern
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
        ("(a", "( without )"),
        ("a)", ") without ("),
        ("[a", "ends too early"),
        ("a\\", "ends too early"),
        ("*a", "nothing to repeat"),
        ("a{2", "a repeat is"),
        ("a{x}", "a repeat is"),
        ("a{3,2}", "ascending"),
        ("a{1001}", "at most 1000"),
        ("[z-a]", "not a range"),
        (r"(a)\1", r"\1 is not supported"),
        (r"a\b", r"\b is not supported"),
        ("(?=a)", "look-around"),
        ("(?<!a)", "look-around"),
        ("a(?i)b", "elsewhere than at the start"),
        ("[[:alpha:]]", "[:alpha:]"),
        ("((a{100}){100}){100}", "too large"),
        ("a" * (PATTERN_CHARS_MAX + 1), "longer than 1000"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(pattern: str, why: str) -> None:
    with pytest.raises(KafkaError) as refused:
        LinearPattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert why in refused.value.message


def test_a_pattern_that_would_take_for_ever() -> None:
    assert not LinearPattern("(a+)+(a|aa)*b").matches("a" * 5_000)


def test_the_automaton_does_not_grow_without_bound() -> None:
    pattern = LinearPattern("(a|b)*a(a|b){12}")
    for number in range(2_000):
        text = f"{number * 7919 % 2**16:016b}".replace("0", "a").replace("1", "b")
        assert pattern.matches(text) is (text[-13] == "a")
    assert len(pattern._states) <= CACHED_STATES_MAX + 17


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
