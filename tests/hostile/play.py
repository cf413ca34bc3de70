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
from tests.hostile.aborted_log import write_aborted_log
from tests.hostile.amplification import OPEN, ROWS, WITH_ACLS, Row
from tests.hostile.batch_rows import BATCH_ROWS
from tests.hostile.bystander import Bystander, Waits
from tests.hostile.controller_rows import CONTROLLER, CONTROLLER_ROWS
from tests.hostile.measured_broker import Cost, MeasuredBroker, measured_broker
from tests.hostile.wire import Client, frame_of, request_of

BYSTANDER_FACTOR = 10
BYSTANDER_REST_S_MIN = 0.005
"""A rest below it counts as this: ten times as much is the stretch that one request may take of the loop."""
BYSTANDER_P99_S_MAX = 0.25
BYSTANDER_CPU_S_MAX = 0.1
"""CPU time of the broker while a bystander waits, whatever else the machine does."""
IS_STRICT = "ONCELOG_HOSTILE_STRICT" in os.environ
"""Whether the time that passed counts too: on a machine that has nothing else to do."""
REST_S = 1.0
"""Two hundred waits, so that one that was long by chance is not the p99."""
ATTEMPTS = 6
"""The best of so many counts: a busy machine makes waits and memory look larger, never smaller."""


class Attacked(NamedTuple):
    broker: MeasuredBroker
    bystander: Bystander


class Bystanding(NamedTuple):
    """How long a bystander waits, by the clock."""

    rest_p99_s: float
    """Before the attack or after it, whichever was longer: the machine may have become busy."""
    p99_s: float

    def is_fair(self, row: Row) -> bool:
        bound_s = BYSTANDER_FACTOR * max(self.rest_p99_s, BYSTANDER_REST_S_MIN)
        return self.p99_s <= max(bound_s, row.stretch_s_max) and self.p99_s < BYSTANDER_P99_S_MAX


class Outcome(NamedTuple):
    sent_bytes: int
    cost: Cost
    peak_bytes: int
    """By which the process had grown at most."""
    stretch_s: float
    waits: Waits
    """Of the bystander."""
    answer_bytes: int
    codes: set[int]


@contextlib.contextmanager
def beside(broker: MeasuredBroker) -> Iterator[Attacked]:
    assert broker.pid is not None
    with Bystander(broker.bootstrap_servers, broker.pid) as bystander:
        yield Attacked(broker, bystander)


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
    broker, bystander = attacked
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
    sent_bytes = sum(attacker.sent_bytes for attacker in attackers)
    for attacker in attackers:
        attacker.close()
    codes = {code for answer, _ in answers for code in codes_in(answer)}
    largest = max(size for _, size in answers)
    cost, peak_bytes = broker.cost() - before, broker.peak_memory_bytes() - before.memory_bytes
    stretch_s = broker.take_longest_stretch_s()
    return Outcome(sent_bytes, cost, peak_bytes, stretch_s, waits, largest, codes)


def stand_by(attacked: Attacked, row: Row) -> Bystanding:
    """The row again and again for as long as the rest is measured."""
    broker, bystander = attacked
    prepare(attacked, row)
    requests = [request_of(row.api, row.values_of(number)) for number in range(row.count)]
    attackers = [Client(broker.bootstrap_servers) for _ in range(row.connections)]
    before_s = measured_rest_s(bystander)
    end_s = time.monotonic() + REST_S
    while time.monotonic() < end_s:
        _answers(attackers, requests, row)
    p99_s = bystander.waits().p99_s
    for attacker in attackers:
        attacker.close()
    return Bystanding(max(before_s, measured_rest_s(bystander)), p99_s)


def stand_by_until_fair(attacked: Attacked, row: Row) -> list[Bystanding]:
    """All attempts; the last one counts."""
    found: list[Bystanding] = []
    while len(found) < ATTEMPTS and not (found and found[-1].is_fair(row)):
        found.append(stand_by(attacked, row))
    return found


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


def is_within(row: Row, outcome: Outcome) -> bool:
    return (
        outcome.cost.cpu_s <= row.cpu_s_max
        and outcome.cost.memory_bytes <= row.memory_bytes_max
        and outcome.peak_bytes <= row.peak_bytes_max
        and outcome.cost.log_bytes <= row.log_bytes_max
        and outcome.answer_bytes <= row.answer_bytes_max
        and (outcome.stretch_s <= row.stretch_s_max or outcome.sent_bytes > row.count * row.connections << 20)
        and outcome.waits.cpu_p99_s <= max(BYSTANDER_CPU_S_MAX, row.stretch_s_max)
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
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if settings is OPEN:
                write_aborted_log(folder / "data")
            broker = stack.enter_context(measured_broker(folder, settings))
            attacked = stack.enter_context(beside(broker))
            make_topics(attacked, played)
            for row in played:
                if not names or row.api.name.lower() in names:
                    outcome = play_until_within(attacked, row)[-1]
                    bystanding = stand_by_until_fair(attacked, row)[-1]
                    is_bounded = is_within(row, outcome) and (bystanding.is_fair(row) or not IS_STRICT)
                    _tell(row, outcome, bystanding, is_bounded=is_bounded)
                    beyond += not is_bounded
    return beyond


def _tell(row: Row, outcome: Outcome, bystanding: Bystanding, *, is_bounded: bool) -> None:
    sys.stdout.write(
        f"{'' if is_bounded else 'BEYOND '}{row.api.name.lower()}: {row.name}: "
        f"{outcome.sent_bytes:,} B in {row.count}, CPU {outcome.cost.cpu_s:.2f} s, "
        f"stretch {outcome.stretch_s * 1000:.0f} ms, "
        f"memory {outcome.cost.memory_bytes >> 10:,} KiB (peak {outcome.peak_bytes >> 10:,}), "
        f"log {outcome.cost.log_bytes:,} B, answer "
        f"{outcome.answer_bytes:,} B, bystander {bystanding.p99_s * 1000:.1f} ms "
        f"({bystanding.rest_p99_s * 1000:.1f} at rest), in CPU time of the broker "
        f"{outcome.waits.cpu_p99_s * 1000:.1f} ms\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
