"""Between the connectors of a soak and their servers: answers are lost when the soak asks for it.

In a process of its own: a process that forks children should have no threads.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

from oncelog.protocol.api_keys import ApiKey
from tests.connect.children import Child
from tests.connect.postgres_proxy import PostgresProxy
from tests.unit.client.chaos import Accident, Chaos, Kind

KEYS = {ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FETCH,
        ApiKey.FETCH}  # fmt: skip
CHANCE = 0.3
"""Of a request, so that it is not always the same kind that has the accident."""
KINDS = [Kind.LOSE_ANSWER, Kind.LOSE_REQUEST, Kind.HALF_ANSWER]


class Middle:
    """`lose("broker")`: one of the next requests, or its answer. `lose("database")`: the answer to the next COMMIT."""

    def __init__(self, servers: str, postgres_port: int, seed: int) -> None:
        asked, ask = os.pipe()
        answer, answered = os.pipe()
        self._ask, self._answers = os.fdopen(ask, "w", buffering=1), os.fdopen(answer)
        self._child = Child(lambda: _serve(servers, postgres_port, seed, asked, answered))
        self.servers, self.postgres_port = self._call("where")

    def _call(self, what: str) -> Any:
        self._ask.write(f"{what}\n")
        return json.loads(self._answers.readline())

    def lose(self, what: str) -> None:
        self._call(what)

    def lost(self) -> dict[str, int]:
        counts: dict[str, int] = self._call("lost")
        return counts

    def close(self) -> None:
        self._child.kill()


def _serve(servers: str, postgres_port: int, seed: int, asked: int, answered: int) -> None:
    dice = random.Random(seed)
    waiting = 0

    def accident(key: ApiKey, _: object) -> Accident | None:
        nonlocal waiting
        if not waiting or key not in KEYS or dice.random() > CHANCE:
            return None
        waiting -= 1
        return Accident(dice.choice(KINDS))

    with (
        Chaos(servers) as chaos,
        PostgresProxy(postgres_port) as proxy,
        os.fdopen(asked) as questions,
        os.fdopen(answered, "w", buffering=1) as answers,
    ):
        chaos.accident = accident
        for question in questions:
            found: Any = None
            match question.strip():
                case "where":
                    found = [chaos.bootstrap_servers, proxy.port]
                case "broker":
                    waiting += 1
                case "database":
                    proxy.lose_answer_to(b"COMMIT")
                case "lost":
                    found = {
                        "requests or answers of the broker that were lost": chaos.happened.total(),
                        "answers to COMMIT that were lost": proxy.lost,
                    }
            answers.write(json.dumps(found) + "\n")
