"""Playing the rows of the table against a broker, and what they cost it.

`python -m tests.hostile.play` prints the figures of all rows, or of those whose API is named. It fails if one is beyond
its bounds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.schema import Message
from tests.hostile.amplification import OPEN, ROWS, WITH_ACLS, Row
from tests.hostile.batch_rows import BATCH_ROWS
from tests.hostile.bystander import Bystander, Waits
from tests.hostile.controller_rows import CONTROLLER, CONTROLLER_ROWS
from tests.hostile.measured_broker import Cost, MeasuredBroker, measured_broker
from tests.hostile.wire import Client, frame_of, request_of

BYSTANDER_FACTOR = 10
BYSTANDER_REST_S_MIN = 0.01
"""Two slices of the loop: less than that is not told from rest, where the wait is a fraction of a millisecond."""
BYSTANDER_P99_S_MAX = 0.25
BYSTANDER_CPU_S_MAX = 0.1
"""CPU time of the broker while a bystander waits: ten times the least rest, whatever else the machine does."""
IS_STRICT = "ONCELOG_HOSTILE_STRICT" in os.environ
"""Whether the time that passed counts too: on a machine that has nothing else to do."""
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
    peak_bytes: int
    """By which the process had grown at most."""
    stretch_s: float
    waits: Waits
    """Of the bystander."""
    rest_p99_s: float
    """At the start or, if the bystander waited for long, right afterwards: the machine may be busy."""
    answer_bytes: int
    codes: set[int]


@contextlib.contextmanager
def beside(broker: MeasuredBroker) -> Iterator[Attacked]:
    assert broker.pid is not None
    with Bystander(broker.bootstrap_servers, broker.pid) as bystander:
        yield Attacked(broker, bystander, min(measured_rest_s(bystander) for _ in range(ATTEMPTS)))


def measured_rest_s(bystander: Bystander) -> float:
    bystander.waits()
    time.sleep(REST_S)  # the time that is measured
    return bystander.waits().p99_s


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
    attackers = [Client(broker.bootstrap_servers) for _ in range(row.connections)]
    for attacker in attackers:
        attacker.ask(ApiVersionsRequest(), 0)
    before = broker.cost()
    broker.forget_peak_memory()
    broker.take_longest_stretch_s()
    bystander.waits()
    answers = _answers(attackers, requests, row)
    waits = bystander.waits()
    is_quiet = waits.p99_s <= bystander_bound_s(attacked.rest_p99_s)
    rest_s = attacked.rest_p99_s if is_quiet else measured_rest_s(bystander)
    sent_bytes = sum(attacker.sent_bytes for attacker in attackers)
    for attacker in attackers:
        attacker.close()
    codes = {code for answer, _ in answers for code in codes_in(answer)}
    largest = max(size for _, size in answers)
    cost, peak_bytes = broker.cost() - before, broker.peak_memory_bytes() - before.memory_bytes
    stretch_s = broker.take_longest_stretch_s()
    return Outcome(sent_bytes, cost, peak_bytes, stretch_s, waits, rest_s, largest, codes)


def _answers(attackers: list[Client], requests: list[Message], row: Row) -> list[tuple[Any, int]]:
    """And the size of each."""
    if not row.is_pipelined and len(attackers) == 1:
        return [attackers[0].ask(request, row.version) for request in requests]
    data = b"".join(frame_of(request, row.version) for request in requests)
    with ThreadPoolExecutor(max_workers=1) as sender:  # a broker that waits for its answers to be taken reads no more
        sent = sender.submit(lambda: [attacker.send(data) for attacker in attackers])
        answers = [attackers[0].answer(row.api, row.version) for _ in requests]
        answers += [(None, len(attacker.receive())) for attacker in attackers[1:] for _ in requests]
        sent.result()
    return answers


def play_until_within(attacked: Attacked, row: Row) -> list[Outcome]:
    """The outcomes of all attempts; the last one counts."""
    outcomes: list[Outcome] = []
    while len(outcomes) < ATTEMPTS and not (outcomes and is_within(row, outcomes[-1])):
        prepare(attacked, row)
        outcomes.append(play(attacked, row))
    return outcomes


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
        and outcome.peak_bytes <= row.peak_bytes_max
        and outcome.cost.log_bytes <= row.log_bytes_max
        and outcome.answer_bytes <= row.answer_bytes_max
        and (outcome.stretch_s <= row.stretch_s_max or outcome.sent_bytes > row.count * row.connections << 20)
        and outcome.waits.cpu_p99_s <= max(BYSTANDER_CPU_S_MAX, row.stretch_s_max)
        and (not IS_STRICT or outcome.waits.p99_s <= bystander_bound_s(outcome.rest_p99_s))
    )


def main(names: list[str]) -> int:
    """How many rows cost more than they may, in all attempts."""
    beyond = 0
    rows = (*ROWS, *BATCH_ROWS)
    for settings, played in (
        (OPEN, [row for row in rows if not row.acls]),
        (WITH_ACLS, [row for row in rows if row.acls]),
        (CONTROLLER, CONTROLLER_ROWS),
    ):
        with (
            tempfile.TemporaryDirectory() as folder,
            measured_broker(Path(folder), settings) as broker,
            beside(broker) as attacked,
        ):
            make_topics(attacked, played)
            for row in played:
                if not names or row.api.name.lower() in names:
                    outcome = play_until_within(attacked, row)[-1]
                    _tell(row, outcome)
                    beyond += not is_within(row, outcome)
    return beyond


def _tell(row: Row, outcome: Outcome) -> None:
    sys.stdout.write(
        f"{'' if is_within(row, outcome) else 'BEYOND '}{row.api.name.lower()}: {row.name}: "
        f"{outcome.sent_bytes:,} B in {row.count}, CPU {outcome.cost.cpu_s:.2f} s, "
        f"stretch {outcome.stretch_s * 1000:.0f} ms, "
        f"memory {outcome.cost.memory_bytes >> 10:,} KiB (peak {outcome.peak_bytes >> 10:,}), "
        f"log {outcome.cost.log_bytes:,} B, answer "
        f"{outcome.answer_bytes:,} B, bystander {outcome.waits.p99_s * 1000:.1f} ms "
        f"({outcome.rest_p99_s * 1000:.1f} at rest), in CPU time of the broker "
        f"{outcome.waits.cpu_p99_s * 1000:.1f} ms\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
