"""The pipeline speaks only the Kafka protocol: some tests run on Apache Kafka too, over old and new transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest


class BrokerChoice(NamedTuple):
    """What the fixture `kafka` gives. Apache Kafka is skipped where it cannot be started, except in CI."""

    is_apache: bool = False
    transaction_version: int | None = None
    """None for the broker that all tests share."""

    def __str__(self) -> str:
        version = "" if self.transaction_version is None else f"-tv{self.transaction_version}"
        return ("apache" if self.is_apache else "oncelog") + version


SHARED = BrokerChoice()
OLDER = tuple(BrokerChoice(transaction_version=version) for version in (0, 1, 2))
APACHE = tuple(BrokerChoice(is_apache=True, transaction_version=version) for version in (0, 2))


def on_brokers(*choices: BrokerChoice) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kafka", [_param(choice) for choice in choices], indirect=True)


def with_values(argument: str, values: Sequence[Any], *, on_apache: Sequence[Any]) -> pytest.MarkDecorator:
    """The values of an argument, and those of them that are worth their time on Apache Kafka too."""
    cases = [_param(SHARED, value) for value in values]
    cases += [_param(choice, value) for choice in APACHE for value in on_apache]
    return pytest.mark.parametrize(("kafka", argument), cases, indirect=["kafka"])


def _param(choice: BrokerChoice, *values: Any) -> Any:
    marks = [pytest.mark.conformance] if choice.is_apache else []
    return pytest.param(choice, *values, marks=marks, id="-".join(map(str, (choice, *values))))


on_every_broker = on_brokers(SHARED, *APACHE)
