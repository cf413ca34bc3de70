"""Regular expressions whose matching time is linear in the text, whatever the pattern.

ListTransactions carries a pattern chosen by a client, and one event loop serves everybody: Python's `re`, which can
take exponential time, must not see it. RE2 is what Kafka uses, in Java, for the same reason.
"""

from __future__ import annotations

from typing import Final

import re2

from oncelog.core.errors import ErrorCode, KafkaError

PATTERN_BYTES_MAX: Final = 1_000
COMPILED_BYTES_MAX: Final = 1 << 20


class LinearPattern:
    """Raises KafkaError INVALID_REGULAR_EXPRESSION, with what RE2 does not like about the pattern."""

    def __init__(self, pattern: str) -> None:
        if len(pattern.encode()) > PATTERN_BYTES_MAX:
            raise _refused(pattern, f"it is longer than {PATTERN_BYTES_MAX} bytes")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = COMPILED_BYTES_MAX
        try:
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0] if error.args else b""
            raise _refused(pattern, reason.decode() if isinstance(reason, bytes) else str(reason)) from None

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self._compiled.fullmatch(text) is not None


def _refused(pattern: str, why: str) -> KafkaError:
    shown = pattern[:PATTERN_BYTES_MAX]
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION, f"the transactional id pattern {shown!r} is not understood: {why}"
    )
