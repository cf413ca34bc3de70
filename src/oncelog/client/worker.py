"""The client of one process, driver or worker: its connections are kept from task to task."""

from __future__ import annotations

import functools
import logging
import math
import os
import time
import weakref
from collections.abc import Collection
from concurrent.futures import Future

from oncelog.client import loop
from oncelog.client.admin import Admin
from oncelog.client.cluster import Cluster
from oncelog.client.config import ClientConfig
from oncelog.client.topic_facts import TopicFacts, TopicLookup
from oncelog.core.ids import NULL_UUID, TopicPartition, uuid_to_text

logger = logging.getLogger(__name__)

FACTS_AGE_S = 10.0
"""How long a worker takes what it knows of a topic for granted: keys move soon after partitions are added."""
FACTS_AGE_MAX_S = 60.0
"""How long it goes on with that while it is looked up again; after so long a pause it waits for the answer."""
CLIENTS_MAX = 8
"""How many are kept although nobody uses them."""


class WorkerClient(Admin):
    """An `Admin` that remembers topics, whose connections others use: `BatchProducer`, `RangeReader` and so on.

    `worker_client` gives that of this process.
    """

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config)
        self._lookup = TopicLookup(self.cluster)
        self._facts: dict[str, tuple[TopicFacts, float]] = {}
        self._renewed: Future[dict[str, TopicFacts]] | None = None

    def topics_now(self, topics: Collection[str]) -> dict[str, TopicFacts]:
        """What there is to know of topics, with their partitions as they are now. Others are left out."""
        return self._note(topics, self._run(self._lookup.facts(topics)))

    def topic_facts(self, topics: Collection[str]) -> dict[str, TopicFacts]:
        """The same, asked at most once in ten seconds, and not waited for where topics are in steady use."""
        ages_s = {name: self._age_s(name) for name in topics}
        if any(age_s > FACTS_AGE_MAX_S for age_s in ages_s.values()):
            self.topics_now([name for name, age_s in ages_s.items() if age_s > FACTS_AGE_S])
        elif (old := [name for name, age_s in ages_s.items() if age_s > FACTS_AGE_S]) and not self._is_renewing():
            self._renewed = self._thread.submit(self._lookup.facts(old))
            self._renewed.add_done_callback(functools.partial(self._take, old))
        return {name: self._facts[name][0] for name in topics if name in self._facts}

    def _age_s(self, topic: str) -> float:
        """The age of what is known of a topic; infinite for one that was not there."""
        return time.monotonic() - self._facts[topic][1] if topic in self._facts else math.inf

    def _is_renewing(self) -> bool:
        return self._renewed is not None and not self._renewed.done()

    def _take(self, asked: Collection[str], renewed: Future[dict[str, TopicFacts]]) -> None:
        error = renewed.exception()
        if error is None:
            self._note(asked, renewed.result())
        else:
            logger.warning("topics could not be looked up again yet: %s", error)

    def _note(self, asked: Collection[str], found: dict[str, TopicFacts]) -> dict[str, TopicFacts]:
        now_s = time.monotonic()
        for name in asked:
            if name in found:
                self._facts[name] = (found[name], now_s)
            else:
                self._facts.pop(name, None)
        return found

    def partitions_of(self, topics: Collection[str] | None) -> dict[str, list[TopicPartition]]:
        """The partitions of the named topics, or of all, as they are now. Topics that do not exist are left out."""
        if topics is None:
            known = self.list_topics()
        else:
            self._run(self.cluster.refresh(topics, self.cluster.deadline()))
            known = {name: self.cluster.topics[name] for name in topics if name in self.cluster.topics}
        return {name: [TopicPartition(name, p.partition) for p in info.partitions] for name, info in known.items()}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of topics, as of the last look-up of their partitions. Brokers that give none are left out."""
        if not all(name in self.cluster.topics for name in topics):
            self.partitions_of(topics)
        known = {name: self.cluster.topics[name].topic_id for name in topics if name in self.cluster.topics}
        return {name: uuid_to_text(topic_id) for name, topic_id in known.items() if topic_id != NULL_UUID}


def worker_client(config: ClientConfig) -> WorkerClient:
    """The client of this process for these settings, with connections that stay open from task to task.

    They are closed when nobody uses it any more. Eight are kept although nobody does, those that were used last.
    """
    return _cached(config, os.getpid())


@functools.lru_cache(maxsize=CLIENTS_MAX)
def _cached(config: ClientConfig, _: int) -> WorkerClient:
    client = WorkerClient(config)
    weakref.finalize(client, _close_connections, client.cluster, os.getpid()).atexit = False
    return client


def _close_connections(cluster: Cluster, pid: int) -> None:
    """Close connections without waiting: this runs on whichever thread drops the last reference, maybe the loop's."""
    if os.getpid() == pid:
        loop.background().submit(cluster.close())
