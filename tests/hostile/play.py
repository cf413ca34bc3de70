"""Playing the rows of the table against a broker, and what they cost it.

`python -m tests.hostile.play` prints the figures of all rows, or of those whose API is named.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.schema import Message
from tests.hostile.amplification import OPEN, ROWS, WITH_ACLS, Row
from tests.hostile.bystander import Bystander
from tests.hostile.measured_broker import Cost, MeasuredBroker, measured_broker
from tests.hostile.wire import Client, request_of

BYSTANDER_FACTOR = 10
BYSTANDER_REST_S_MIN = 0.01
"""Two slices of the loop: less than that is not told from rest, where the wait is a fraction of a millisecond."""
BYSTANDER_P99_S_MAX = 0.25
REST_S = 0.3
BUSY_S = 0.005
"""A p99 at rest above it is that of a machine that has much else to do."""
ATTEMPTS = 3
"""The best of so many counts: a busy machine makes waits and memory look larger, never smaller."""


class Attacked(NamedTuple):
    broker: MeasuredBroker
    bystander: Bystander
    rest_p99_s: float


class Outcome(NamedTuple):
    sent_bytes: int
    cost: Cost
    stretch_s: float
    bystander_p99_s: float
    rest_p99_s: float
    """At the start or, if the bystander waited for long, right afterwards: the machine may be busy."""
    answer_bytes: int
    codes: set[int]


@contextlib.contextmanager
def beside(broker: MeasuredBroker) -> Iterator[Attacked]:
    with Bystander(broker.bootstrap_servers) as bystander:
        yield Attacked(broker, bystander, min(measured_rest_s(bystander) for _ in range(ATTEMPTS)))


def measured_rest_s(bystander: Bystander) -> float:
    bystander.p99_s()
    time.sleep(REST_S)  # the time that is measured
    return bystander.p99_s()


def codes_in(message: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(message, list):
        return {code for each in message for code in codes_in(each)}
    if not isinstance(message, Message):
        return set()
    found = {getattr(message, name) for name in message.FIELDS if name == "error_code"}
    return found.union(*(codes_in(getattr(message, name)) for name in message.FIELDS))


def play(attacked: Attacked, row: Row) -> Outcome:
    broker, bystander, _ = attacked
    requests = [request_of(row.api, row.values_of(number)) for number in range(row.count)]
    attacker = Client(broker.bootstrap_servers)
    attacker.ask(ApiVersionsRequest(), 0)
    before = broker.cost()
    broker.take_longest_stretch_s()
    bystander.p99_s()
    answers = [attacker.ask(request, row.version) for request in requests]
    p99_s = bystander.p99_s()
    rest_s = attacked.rest_p99_s if p99_s <= bystander_bound_s(attacked.rest_p99_s) else measured_rest_s(bystander)
    attacker.close()
    codes = {code for answer, _ in answers for code in codes_in(answer)}
    largest = max(size for _, size in answers)
    cost = broker.cost() - before
    return Outcome(attacker.sent_bytes, cost, broker.take_longest_stretch_s(), p99_s, rest_s, largest, codes)


def prepare(attacked: Attacked, row: Row) -> None:
    client = Client(attacked.broker.bootstrap_servers)
    for api, version, values in row.before:
        client.ask(request_of(api, values), version)
    client.close()


def make_topics(attacked: Attacked, rows: Iterable[Row]) -> None:
    """Of all rows, before one of them takes the room for partitions."""
    with contextlib.closing(Client(attacked.broker.bootstrap_servers)) as client:
        for api, version, values in (request for row in rows for request in row.before):
            if api == ApiKey.CREATE_TOPICS:
                client.ask(request_of(api, values), version)


def bystander_bound_s(rest_p99_s: float) -> float:
    if rest_p99_s > BUSY_S:
        return max(BYSTANDER_P99_S_MAX, BYSTANDER_FACTOR * rest_p99_s)
    return min(BYSTANDER_P99_S_MAX, BYSTANDER_FACTOR * max(rest_p99_s, BYSTANDER_REST_S_MIN))


def is_within(row: Row, outcome: Outcome) -> bool:
    return (
        outcome.cost.cpu_s <= row.cpu_s_max
        and outcome.cost.memory_bytes <= row.memory_bytes_max
        and outcome.cost.log_bytes <= row.log_bytes_max
        and outcome.answer_bytes <= row.answer_bytes_max
        and (outcome.stretch_s <= row.stretch_s_max or outcome.sent_bytes > row.count << 20)
        and outcome.bystander_p99_s <= bystander_bound_s(outcome.rest_p99_s)
    )


def main(names: list[str]) -> None:
    for acls, settings in ((False, OPEN), (True, WITH_ACLS)):
        with (
            tempfile.TemporaryDirectory() as folder,
            measured_broker(Path(folder), settings) as broker,
            beside(broker) as attacked,
        ):
            for row in ROWS:
                if row.acls is acls and (not names or row.api.name.lower() in names):
                    prepare(attacked, row)
                    _tell(row, play(attacked, row))


def _tell(row: Row, outcome: Outcome) -> None:
    sys.stdout.write(
        f"{'' if is_within(row, outcome) else 'BEYOND '}{row.api.name.lower()}: {row.name}: "
        f"{outcome.sent_bytes:,} B in {row.count}, CPU {outcome.cost.cpu_s:.2f} s, "
        f"stretch {outcome.stretch_s * 1000:.0f} ms, "
        f"memory {outcome.cost.memory_bytes >> 10:,} KiB, log {outcome.cost.log_bytes:,} B, answer "
        f"{outcome.answer_bytes:,} B, bystander {outcome.bystander_p99_s * 1000:.1f} ms "
        f"({outcome.rest_p99_s * 1000:.1f} at rest)\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
