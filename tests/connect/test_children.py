"""The forked processes of these tests: what the parent left behind must not end them."""

from __future__ import annotations

import gc
import threading

import confluent_kafka

from tests.connect.children import Child


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self
        self.producer = confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})


def collect_beside_new_threads() -> None:
    """New threads take the place of those which were not forked."""
    threads = [threading.Thread(target=threading.Event().wait, args=(0.05,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()


def test_a_child_does_not_free_the_parents_clients() -> None:
    gc.disable()
    try:
        for _ in range(10):
            Cycle()
        child = Child(collect_beside_new_threads)
    finally:
        gc.enable()
    assert child.wait() == 0
    gc.collect()
