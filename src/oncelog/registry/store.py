"""The registry's topic: one partition, compacted, written in transactions by one registry at a time.

Whoever wants to write takes over: a producer with the transactional id of the topic fences the one before it, and
everything that was committed until then is read before anything is decided. As long as the producer is not fenced,
nobody else has written since. So two registries on one topic never decide from the same state, and an id is given once.
A registry that was fenced takes over again when it has something to write; several may serve reads all the time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

from oncelog.client import (
    Admin,
    BufferExhausted,
    ConnectionLost,
    Consumer,
    ConsumerRecord,
    IllegalState,
    KafkaError,
    NewTopic,
    Producer,
    TimedOut,
    TopicPartition,
)
from oncelog.client.admin_configs import ConfigResource
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.registry.decisions import Decision
from oncelog.registry.errors import Refusal
from oncelog.registry.records import TOPIC, Record
from oncelog.registry.state import State

ID_PREFIX: Final = "oncelog-registry-"
TAKE_OVERS_MAX: Final = 20
"""For one change, if others want to write at the same time."""
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 1.0
"""Pauses grow up to that: two registries whose commits take longer than their pauses overtake each other for ever."""
TIMEOUT_MS: Final = 10_000
POLL_MS: Final = 50
_OVERTAKEN: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
"""Partitions and coordinators have many words for it: a commit in the moment after somebody else has aborted the
transaction, and before they have their own epoch, gets INVALID_TXN_STATE. The last one is for an id that was not used
for long. The commit itself may be done all the same, if its first answer was lost: what is read then tells."""
logger = logging.getLogger("oncelog.registry")


class WrongTopic(Exception):
    """The topic cannot be used, and says why. `fix` are the words of a command that mends it."""

    def __init__(self, problem: str, *, fix: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.fix = fix


class Store:
    def __init__(self, client: Mapping[str, Any], topic: str = TOPIC) -> None:
        self._client = {"default.api.timeout.ms": TIMEOUT_MS, **client}
        self._topic = topic
        self._place = TopicPartition(topic, 0)
        self._lock = threading.RLock()
        """Of the consumer and the producer. Only who has it changes the state."""
        self._state_lock = threading.Lock()
        """Held while the state is changed, or asked by somebody without the other lock: never while waiting."""
        self._state = State()
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._doubtful: int | None = None
        """The last offset of a commit whose outcome is not known yet; None again when it was read, so it was done."""

    def open(self) -> None:
        """Creates the topic if it is not there, and reads it. Raises WrongTopic or KafkaError."""
        with Admin(self._client) as admin:
            self._require_usable(admin)
        settings = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**self._client, **settings})
        self._consumer.assign([self._place])
        self._consumer.seek_to_beginning(self._place)
        self._catch_up()

    def _require_usable(self, admin: Admin) -> None:
        found = admin.ensure_topic(NewTopic(self._topic, 1, configs={"cleanup.policy": "compact"}))
        if len(found.partitions) != 1:
            raise WrongTopic(
                f"topic {self._topic} has {len(found.partitions)} partitions, and a registry needs the order of one"
            )
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        policy = admin.describe_configs(resource, ["cleanup.policy"])["cleanup.policy"].value
        if policy != "compact":
            raise WrongTopic(
                f"topic {self._topic} has cleanup.policy={policy}, which deletes schemas by age",
                fix=("config", "set", "topic", self._topic, "cleanup.policy=compact"),
            )

    def read(self, question: Callable[[State], Any]) -> Any:
        """Answer from what was read last, also while the cluster does not answer."""
        with self._state_lock:
            return question(self._state)

    def refresh(self) -> None:
        """Read what was committed until now. Raises Refusal if the cluster does not answer."""
        try:
            self._catch_up()
        except KafkaError as error:
            raise _unavailable(error) from error

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for this request's turn: changes are made one after the other. Raises TimedOut if that takes too
        long."""
        if not self._lock.acquire(timeout=TIMEOUT_MS / 1000):
            raise TimedOut(f"other requests have waited for topic {self._topic} for {TIMEOUT_MS} ms")
        try:
            yield
        finally:
            self._lock.release()

    def _catch_up(self) -> None:
        with self._turn():
            self._read_to(self._reader.end_offsets([self._place])[self._place])

    @property
    def _reader(self) -> Consumer:
        if self._consumer is None:
            raise IllegalState("the store is not open")
        return self._consumer

    def _read_to(self, end: int) -> None:
        consumer, place = self._reader, self._place
        if consumer.position(place) > end:
            logger.warning("topic %s ends before what was read of it: it is read anew", self._topic)
            with self._state_lock:
                self._state = State()
            consumer.seek_to_beginning(place)
        deadline_s = time.monotonic() + TIMEOUT_MS / 1000
        while consumer.position(place) < end:
            if time.monotonic() > deadline_s:
                raise TimedOut(f"topic {self._topic} could not be read up to {end} in {TIMEOUT_MS} ms")
            records = self._poll(deadline_s)
            with self._state_lock:
                for record in records:
                    self._state.apply(record.key, record.value)
                    if record.offset == self._doubtful:
                        self._doubtful = None

    def _poll(self, deadline_s: float) -> list[ConsumerRecord]:
        """A poll also tells of a fetch that failed before it, perhaps while the broker was away: that is no answer."""
        try:
            return self._reader.poll(timeout_ms=POLL_MS)
        except (TimedOut, ConnectionLost):
            if time.monotonic() > deadline_s:
                raise
            return []

    def change(self, decide: Callable[[State], Decision]) -> Any:
        """Decide from the newest state and commit; the answer when others can read it. Raises Refusal."""
        try:
            with self._turn():
                self._catch_up()
                # What is there already needs no writer.
                decision = decide(self._state)
                return self._write(decide) if decision.records else decision.answer
        except (KafkaError, BufferExhausted) as error:
            raise _unavailable(error) from error

    def _write(self, decide: Callable[[State], Decision]) -> Any:
        decision = None
        for attempt in range(TAKE_OVERS_MAX):
            try:
                producer = self._producer or self._take_over()
                was_tried = self._doubtful is not None
                self._catch_up()
                if decision is not None and was_tried and self._doubtful is None:
                    return decision.answer
                decision = decide(self._state)
                if decision.records:
                    self._commit(producer, decision.records)
                return decision.answer
            except KafkaError as error:
                if error.code not in _OVERTAKEN:
                    raise
                # Somebody else writes: let them finish. What was decided here is decided again from what they wrote.
                time.sleep(random.uniform(0.01, min(PAUSE_S * 2**attempt, PAUSE_S_MAX)))
        raise TimedOut(f"other registries on {self._topic} took over {TAKE_OVERS_MAX} times meanwhile")

    def _take_over(self) -> Producer:
        settings = {"transactional.id": ID_PREFIX + self._topic, "transaction.timeout.ms": 3 * TIMEOUT_MS}
        producer = Producer({**self._client, **settings, "max.block.ms": TIMEOUT_MS})
        try:
            producer.init_transactions()
        except BaseException:
            producer.close(timeout_ms=0)
            raise
        self._producer = producer
        return producer

    def _commit(self, producer: Producer, records: list[Record]) -> None:
        """Commit the records. After a failure a new producer is made: taking over its id ends what this one has left
        open."""
        self._doubtful = None
        try:
            producer.begin_transaction()
            sent = [producer.send(self._topic, value, key, partition=0) for key, value in records]
            producer.flush()
            last = max(future.result().offset for future in sent)
            self._doubtful = last
            producer.commit_transaction()
        except BaseException:
            self._give_up()
            raise
        self._read_to(last + 1)

    def _give_up(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout_ms=0)
            self._producer = None

    def close(self) -> None:
        with self._lock:
            self._give_up()
            if self._consumer is not None:
                self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unavailable(error: BaseException) -> Refusal:
    if isinstance(error, TimedOut):
        return Refusal(50002, f"the cluster did not answer in time, and the outcome is not known: {error}")
    return Refusal(50001, f"the topic of the registry cannot be used: {error}")
