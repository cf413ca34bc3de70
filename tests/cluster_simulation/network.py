"""Messages between nodes: late, in another order, or never."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.virtual_clock import VirtualScheduler

CONTROLLER = 0
CLIENTS = -1

Reply = Callable[[Any], None]


class Node(Protocol):
    def receive(self, act: Callable[[], None]) -> None:
        """Do it now, or when the node is not paused any more, or never if it has ended."""


class Network:
    def __init__(self, clock: VirtualScheduler, random: Random) -> None:
        self._clock = clock
        self._random = random
        self.nodes: dict[int, Node] = {}
        """Who answers under a number now. A crashed broker is not there."""
        self.cuts: set[frozenset[int]] = set()
        self.loss = 0.01
        self.delay_max_ms = 20

    def call(
        self, source: Node, addresses: tuple[int, int], handle: Callable[[Node, Reply], None], done: Reply,
        failed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`handle` runs at the target, and then `done` at the source, or `failed`, which may take long."""
        target = addresses[1]

        def arrive() -> None:
            node = self.nodes.get(target)
            if node is None:
                self._later(addresses, lambda: source.receive(failed), failed=lambda: source.receive(failed))
            else:
                node.receive(lambda: handle(node, answer))

        def answer(value: Any) -> None:
            self._later(addresses, lambda: source.receive(lambda: done(value)), failed=lambda: source.receive(failed))

        self._later(addresses, arrive, failed=lambda: source.receive(failed))

    def _later(self, addresses: tuple[int, int], act: Callable[[], None], failed: Callable[[], None]) -> None:
        random = self._random
        if frozenset(addresses) in self.cuts or random.random() < self.loss:
            self._clock.call_later_ms(random.choice([10, 100, 1000, 6000]), failed)
            return
        slow = random.random() < 0.02
        delay_ms = random.randrange(1, 2000 if slow else self.delay_max_ms)
        self._clock.call_later_ms(delay_ms, act)
