"""Why a connector stops.

ConnectorStopped        a person must look: starting again would find the same
  Refused               what is stored does not fit what is there; going on could lose or repeat something
  Fenced                a newer instance of this connector has taken over; its work is the valid one
  BadRecord             a record that the target cannot take

Any other error of a database or of a broker is temporary: the connector starts again from what is committed.
"""

from __future__ import annotations


class ConnectorStopped(Exception):
    """The text says what happened and what to do; `fix` is the statement that mends it, where there is one."""

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(f"{problem}: {fix}" if fix else problem)
        self.problem, self.fix = problem, fix


class Refused(ConnectorStopped):
    """What is stored does not fit what is there."""


class Fenced(ConnectorStopped):
    """A newer instance has taken over."""


class BadRecord(ConnectorStopped):
    """A record that cannot be written; the text names its place."""


def in_one_line(error: Exception) -> str:
    """Drivers give several, with the addresses they have tried."""
    return " ".join(str(error).split())
