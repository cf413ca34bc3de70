"""The client of one process, driver or Python worker: its connections are kept from task to task and batch to batch."""

from __future__ import annotations

import functools
import logging
import math
import os
import time
import weakref
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from oncelog.client import loop
from oncelog.client.admin_topics import NewTopic, TopicAdmin
from oncelog.client.blocking import Blocking
from oncelog.client.cluster import Cluster
from oncelog.client.config import ClientConfig
from oncelog.client.deadline import Deadline
from oncelog.client.fetch import FetchSettings
from oncelog.client.fetcher import FetchedChunk, RangeFetcher
from oncelog.client.offsets import OffsetAndMetadata, fetch_offsets
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import NULL_UUID, TopicPartition, uuid_to_text
from oncelog.spark.planning import OffsetRange
from oncelog.spark.topic_facts import TopicFacts, TopicLookup

logger = logging.getLogger(__name__)

T = TypeVar("T")
FACTS_AGE_S = 10.0
"""How long a worker takes what it knows of a topic for granted: keys move soon after partitions are added."""
FACTS_AGE_MAX_S = 60.0
"""How long it goes on with that while it is looked up again; after so long a pause it waits for the answer."""
CLIENTS_MAX = 8
"""So many are kept although nobody uses them."""


class WorkerClient(Blocking):
    """Blocking look-ups and reads over the shared connections of this process."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config)
        self._topics = TopicAdmin(self.cluster)
        self._lookup = TopicLookup(self.cluster)
        self._facts: dict[str, tuple[TopicFacts, float]] = {}
        self._renewed: Future[dict[str, TopicFacts]] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return self._thread.submit(coroutine)

    def _deadline(self) -> Deadline:
        return Deadline(self.config.default_api_timeout_ms)

    def create_topics(self, partition_counts: Mapping[str, int], configs: Mapping[str, str] | None = None) -> None:
        """Create topics that are not there yet."""
        wanted = [NewTopic(name, count, configs=configs or {}) for name, count in partition_counts.items()]
        self._run(self._topics.create_topics(wanted, if_not_exists=True))

    def partition_count(self, topic: str) -> int:
        """Of `topic_facts`; 0 when there is no such topic."""
        facts = self.topic_facts([topic]).get(topic)
        return 0 if facts is None else facts.partitions

    def topics_now(self, topics: Collection[str]) -> dict[str, TopicFacts]:
        """What there is to know of topics, with their partitions as they are now. Others are left out."""
        return self._note(topics, self._run(self._lookup.facts(topics)))

    def topic_facts(self, topics: Collection[str]) -> dict[str, TopicFacts]:
        """The same, asked at most once in FACTS_AGE_S, and not waited for where topics are in steady use."""
        ages_s = {name: self._age_s(name) for name in topics}
        if any(age_s > FACTS_AGE_MAX_S for age_s in ages_s.values()):
            self.topics_now([name for name, age_s in ages_s.items() if age_s > FACTS_AGE_S])
        elif (old := [name for name, age_s in ages_s.items() if age_s > FACTS_AGE_S]) and not self._is_renewing():
            self._renewed = self.submit(self._lookup.facts(old))
            self._renewed.add_done_callback(functools.partial(self._take, old))
        return {name: self._facts[name][0] for name in topics if name in self._facts}

    def _age_s(self, topic: str) -> float:
        """Of what is known of it. A topic that was not there is asked for again."""
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
            known = self._run(self._topics.list_topics())
        else:
            self._run(self.cluster.refresh(topics, self._deadline()))
            known = {name: self.cluster.topics[name] for name in topics if name in self.cluster.topics}
        return {name: [TopicPartition(name, p.partition) for p in info.partitions] for name, info in known.items()}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of topics, as of the last look-up of their partitions. Brokers that give none are left out."""
        if not all(name in self.cluster.topics for name in topics):
            self.partitions_of(topics)
        known = {name: self.cluster.topics[name].topic_id for name in topics if name in self.cluster.topics}
        return {name: uuid_to_text(topic_id) for name, topic_id in known.items() if topic_id != NULL_UUID}

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        """For -1 the latest offset this isolation level sees, for -2 the earliest, else the first at or after a time
        in milliseconds; -1 where no record is that young."""
        found = self._run(self._topics.list_offsets(wanted, isolation=isolation))
        return {partition: result.offset for partition, result in found.items()}

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All committed offsets of a group, after open transactions on them have ended."""
        return self._run(fetch_offsets(self.cluster, group_id, None, self._deadline()))

    def read(self, wanted: OffsetRange, settings: FetchSettings) -> Iterator[FetchedChunk]:
        """Whole answers of the broker for a range, the next one fetched while the caller works on the last."""
        fetcher = RangeFetcher(self.cluster, wanted.partition, wanted.start, wanted.end, settings=settings)
        chunks = cast("AsyncGenerator[FetchedChunk]", fetcher.chunks())
        try:
            while (chunk := self._run(_next(chunks))) is not None:
                yield chunk
        finally:
            self._run(_close(chunks))


async def _next(chunks: AsyncGenerator[FetchedChunk]) -> FetchedChunk | None:
    return await anext(chunks, None)


async def _close(chunks: AsyncGenerator[FetchedChunk]) -> None:
    await chunks.aclose()


def worker_client(config: ClientConfig) -> WorkerClient:
    """The client of this process for these settings. Its connections are closed when nobody uses it any more: it is
    kept until CLIENTS_MAX others were used after it."""
    return _cached(config, os.getpid())


@functools.lru_cache(maxsize=CLIENTS_MAX)
def _cached(config: ClientConfig, _: int) -> WorkerClient:
    client = WorkerClient(config)
    weakref.finalize(client, _close_connections, client.cluster, os.getpid()).atexit = False
    return client


def _close_connections(cluster: Cluster, pid: int) -> None:
    """Without waiting: this runs wherever the last reference goes, be it on the loop itself."""
    if os.getpid() == pid:
        loop.background().submit(cluster.close())
