"""Regular expressions whose matching time is linear in the text, whatever the pattern.

ListTransactions carries a pattern chosen by a client, and one event loop serves everybody: Python's `re`, which can
take exponential time, must not see it. Kafka uses RE2/J for the same reason. This is the part of RE2's syntax that
people use on ids: literals, `.`, classes, groups, `|`, `* + ? {n,m}` (also lazy: it makes no difference to a whole
match), `^ $`, `\\d \\w \\s` and their negations, and the flags `(?i)` and `(?s)` at the start. Anything else is refused
by name. No look-around and no back-references, as in RE2.

The pattern becomes a non-deterministic automaton (Thompson), simulated as a deterministic one that is built as far as
the texts need it and thrown away when it grows too large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from oncelog.core.errors import ErrorCode, KafkaError

PATTERN_CHARS_MAX: Final = 1_000
REPEAT_MAX: Final = 1_000
PROGRAM_STEPS_MAX: Final = 10_000
CACHED_STATES_MAX: Final = 2_000

CharTest: TypeAlias = Callable[[str], bool]


class _Step:
    """One step of the automaton: a character to consume, an anchor to pass, or (with neither) a fork."""

    __slots__ = ("anchor", "following", "test")

    def __init__(self, test: CharTest | None = None, anchor: str = "") -> None:
        self.test = test
        self.anchor = anchor
        self.following: list[_Step] = []


class _Fragment:
    __slots__ = ("first", "last")

    def __init__(self, first: _Step, last: _Step) -> None:
        self.first = first
        self.last = last


_Tree: TypeAlias = Callable[[], _Fragment]
"""A piece of the pattern that can be laid out any number of times: a counted repeat needs copies."""


class _State:
    __slots__ = ("accepts", "next", "steps")

    def __init__(self, steps: frozenset[_Step], accepts: bool) -> None:
        self.steps = steps
        self.accepts = accepts
        self.next: dict[str, _State] = {}


class LinearPattern:
    """Raises KafkaError INVALID_REGULAR_EXPRESSION, saying what in the pattern is not understood."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._steps_left = PROGRAM_STEPS_MAX
        fragment = _Parser(pattern, self._new_step).parse()()
        self._end = fragment.last
        self._states: dict[frozenset[_Step], _State] = {}
        # Not among the others: before the first character, and only there, an empty text also passes `$^`.
        steps = _closure({fragment.first}, at_start=True)
        self._start = _State(steps, self._end in _closure({fragment.first}, at_start=True, at_end=True))

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        if len(self._states) > CACHED_STATES_MAX:
            self._states.clear()
            self._start.next.clear()
        state = self._start
        for char in text:
            following = state.next.get(char)
            if following is None:
                following = state.next[char] = self._after(state, char)
            state = following
        return state.accepts

    def _after(self, state: _State, char: str) -> _State:
        reached = {
            target for step in state.steps if step.test is not None and step.test(char) for target in step.following
        }
        return self._state_of(_closure(reached, at_start=False))

    def _state_of(self, steps: frozenset[_Step]) -> _State:
        state = self._states.get(steps)
        if state is None:
            accepts = self._end in _closure(set(steps), at_start=False, at_end=True)
            state = self._states[steps] = _State(steps, accepts)
        return state

    def _new_step(self, test: CharTest | None = None, anchor: str = "") -> _Step:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise _refused(self.pattern, "it is too large")
        return _Step(test, anchor)


def _closure(steps: set[_Step], *, at_start: bool, at_end: bool = False) -> frozenset[_Step]:
    """All steps that can be reached without consuming a character."""
    reached: set[_Step] = set()
    waiting = list(steps)
    while waiting:
        step = waiting.pop()
        if step in reached:
            continue
        reached.add(step)
        passes = step.test is None and (
            not step.anchor or (step.anchor == "^" and at_start) or (step.anchor == "$" and at_end)
        )
        if passes:
            waiting.extend(step.following)
    return frozenset(reached)


class _Parser:
    def __init__(self, pattern: str, new_step: Callable[..., _Step]) -> None:
        self._pattern = pattern
        self._new_step = new_step
        self._at = 0
        self._ignore_case = False
        self._dot_is_any = False

    def parse(self) -> _Tree:
        if len(self._pattern) > PATTERN_CHARS_MAX:
            raise self._refused(f"it is longer than {PATTERN_CHARS_MAX} characters")
        self._flags()
        tree = self._alternatives()
        if self._at < len(self._pattern):
            raise self._refused("there is a ) without (")
        return tree

    def _flags(self) -> None:
        for flags in ("(?i)", "(?s)", "(?is)", "(?si)"):
            if self._pattern.startswith(flags):
                self._at = len(flags)
                self._ignore_case, self._dot_is_any = "i" in flags, "s" in flags

    def _alternatives(self) -> _Tree:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else lambda: self._fork([branch() for branch in branches])

    def _sequence(self) -> _Tree:
        parts: list[_Tree] = []
        while self._at < len(self._pattern) and self._peek() not in "|)":
            parts.append(self._repeated())
        return lambda: self._chain([part() for part in parts])

    def _repeated(self) -> _Tree:
        tree = self._atom()
        while self._at < len(self._pattern) and self._peek() in "*+?{":
            low, high = self._bounds()
            self._take("?")
            tree = self._repeat(tree, low, high)
        return tree

    def _bounds(self) -> tuple[int, int | None]:
        char = self._next()
        if char != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at : end].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise self._refused("a repeat is {n}, {n,} or {n,m}")
        self._at = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise self._refused(f"a repeat must be ascending and at most {REPEAT_MAX}")
        return least, most

    def _atom(self) -> _Tree:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._consuming(self._char_class())
            case ".":
                dot_is_any = self._dot_is_any
                return self._consuming(lambda given: dot_is_any or given != "\n")
            case "^" | "$":
                return lambda: self._single(self._new_step(anchor=char))
            case "*" | "+" | "?":
                raise self._refused(f"there is nothing to repeat before {char}")
            case "\\":
                return self._escape_outside_class()
            case _:
                return self._consuming(self._literal(char))

    def _group(self) -> _Tree:
        if self._take("?"):
            if self._take("P<") or (self._peek() == "<" and self._peek(1) not in "=!" and self._take("<")):
                end = self._pattern.find(">", self._at)
                if end < 0:
                    raise self._refused("a group's name is not closed with >")
                self._at = end + 1
            elif not self._take(":"):
                raise self._refused("look-around, and flags elsewhere than at the start, are not supported")
        tree = self._alternatives()
        if not self._take(")"):
            raise self._refused("there is a ( without )")
        return tree

    def _escape_outside_class(self) -> _Tree:
        anchor = {"A": "^", "z": "$"}.get(self._peek())
        if anchor is not None:
            self._at += 1
            return lambda: self._single(self._new_step(anchor=anchor))
        return self._consuming(self._escape())

    def _escape(self) -> CharTest:
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            return self._literal(_CONTROLS[char])
        if char.isalnum():
            raise self._refused(f"\\{char} is not supported")
        return self._literal(char)

    def _char_class(self) -> CharTest:
        negated = self._take("^")
        tests: list[CharTest] = []
        while not tests or self._peek() != "]":
            tests.append(self._class_member())
        self._at += 1
        members = tuple(tests)
        return lambda given: any(test(given) for test in members) is not negated

    def _class_member(self) -> CharTest:
        char = self._next()
        if char == "[" and self._peek() == ":":
            raise self._refused("classes like [:alpha:] are not supported")
        if char == "\\":
            return self._escape()
        if self._peek() != "-" or self._peek(1) in ("]", ""):
            return self._literal(char)
        self._at += 1
        high = self._next()
        if high == "\\" or high < char:
            raise self._refused(f"{char}-{high} is not a range")
        return self._range(char, high)

    def _range(self, low: str, high: str) -> CharTest:
        if not self._ignore_case:
            return lambda given: low <= given <= high
        return lambda given: low <= given.lower() <= high or low <= given.upper() <= high

    def _literal(self, char: str) -> CharTest:
        if self._ignore_case:
            folded = char.casefold()
            return lambda given: given.casefold() == folded
        return lambda given: given == char

    def _consuming(self, test: CharTest) -> _Tree:
        return lambda: self._single(self._new_step(test))

    def _single(self, step: _Step) -> _Fragment:
        last = self._new_step()
        step.following.append(last)
        return _Fragment(step, last)

    def _chain(self, parts: list[_Fragment]) -> _Fragment:
        first = last = self._new_step()
        for part in parts:
            last.following.append(part.first)
            last = part.last
        return _Fragment(first, last)

    def _fork(self, branches: list[_Fragment]) -> _Fragment:
        first, last = self._new_step(), self._new_step()
        for branch in branches:
            first.following.append(branch.first)
            branch.last.following.append(last)
        return _Fragment(first, last)

    def _repeat(self, tree: _Tree, low: int, high: int | None) -> _Tree:
        def optional() -> _Fragment:
            fragment = tree()
            fragment.first = self._before(fragment.first)
            fragment.first.following.append(fragment.last)
            return fragment

        def any_number() -> _Fragment:
            fragment = optional()
            fragment.last.following.append(fragment.first)
            return self._chain([fragment])

        def laid_out() -> _Fragment:
            parts = [tree() for _ in range(low)]
            parts += [any_number()] if high is None else [optional() for _ in range(high - low)]
            return self._chain(parts)

        return laid_out

    def _before(self, step: _Step) -> _Step:
        fork = self._new_step()
        fork.following.append(step)
        return fork

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._pattern[at] if at < len(self._pattern) else ""

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise self._refused("it ends too early")
        self._at += 1
        return char

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _refused(self, why: str) -> KafkaError:
        return _refused(self._pattern, why)


def _refused(pattern: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"the transactional id pattern {pattern[:PATTERN_CHARS_MAX]!r} is not understood: {why}",
    )


def _is_digit(char: str) -> bool:
    return "0" <= char <= "9"


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


def _is_space(char: str) -> bool:
    return char in "\t\n\f\r "


_CLASSES: Final[dict[str, CharTest]] = {
    "d": _is_digit,
    "D": lambda char: not _is_digit(char),
    "w": _is_word,
    "W": lambda char: not _is_word(char),
    "s": _is_space,
    "S": lambda char: not _is_space(char),
}
_CONTROLS: Final[dict[str, str]] = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
