"""What the parts of the admin client share: whom to ask, and how to turn answers into results or errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from oncelog.client.arguments import to_partition
from oncelog.client.attempts import Attempts, doubted
from oncelog.client.cluster import Cluster
from oncelog.client.connection import Connection
from oncelog.client.deadline import Deadline
from oncelog.client.errors import KafkaError, TimedOut, error_of, is_retriable
from oncelog.core.display import are
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.schema import Message

R = TypeVar("R", bound=Message)


class PartitionResult(Protocol):
    """What an answer says about one partition."""

    partition_index: int
    error_code: int


K = TypeVar("K", bound=PartitionResult)


class TopicResults(Protocol[K]):
    name: str
    partitions: list[K]


class AdminBase:
    """One attempt of an operation may meet a moved leader or controller; all are repeated until the API timeout."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def _deadline(self) -> Deadline:
        return self.cluster.deadline()

    async def _ask(
        self, connection: Connection, request: Message, response_type: type[R], attempts: Attempts | None = None
    ) -> R:
        with (attempts or Attempts()).one():
            return await connection.call(request, response_type)

    async def _ask_any(self, request: Message, response_type: type[R], attempts: Attempts | None = None) -> R:
        async def attempt() -> R:
            return await self._ask(await self.cluster.any_broker(), request, response_type, attempts)

        return await self.cluster.retrying(type(request).__name__, attempt, self._deadline(), attempts)

    async def _ask_controller(
        self, request: Message, response_type: type[R], codes: Callable[[R], Iterable[int]], attempts: Attempts
    ) -> R:
        """Ask whoever metadata calls the controller, and find the new one when it moved."""
        deadline = self._deadline()

        async def attempt() -> R:
            if self.cluster.routes.controller_id < 0:
                await self.cluster.refresh([], deadline)
            node_id = self.cluster.routes.controller_id
            connection = await (self.cluster.broker(node_id) if node_id >= 0 else self.cluster.any_broker())
            response = await self._ask(connection, request, response_type, attempts)
            if ErrorCode.NOT_CONTROLLER in codes(response):
                self.cluster.routes.controller_id = -1
                raise KafkaError(ErrorCode.NOT_CONTROLLER, str(connection))
            return response

        return await self.cluster.retrying(type(request).__name__, attempt, deadline, attempts)

    async def _ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        make_request: Callable[[list[TopicPartition]], Message],
        response_type: type[R],
        topics_of: Callable[[R], Iterable[TopicResults[K]]],
        what: str,
        attempts: Attempts | None = None,
        left_out: Collection[ErrorCode] = (),
    ) -> dict[TopicPartition, K]:
        """Ask the leader of every partition, those of one leader together. Raises for the first lasting error.

        Partitions that are answered with a code of `left_out` are not in the result.
        """
        found: dict[TopicPartition, K] = {}
        wanted = list(dict.fromkeys(to_partition(partition) for partition in partitions))
        deadline = self._deadline()

        async def attempt() -> None:
            rest = [partition for partition in wanted if partition not in found]
            await self._ask_leaders_once(
                rest, make_request, response_type, topics_of, what, found, deadline, attempts, left_out
            )

        await self.cluster.retrying(what, attempt, deadline, attempts)
        return {partition: answer for partition, answer in found.items() if not answer.error_code}

    async def _ask_leaders_once(
        self,
        partitions: Iterable[TopicPartition],
        make_request: Callable[[list[TopicPartition]], Message],
        response_type: type[R],
        topics_of: Callable[[R], Iterable[TopicResults[K]]],
        what: str,
        found: dict[TopicPartition, K],
        deadline: Deadline,
        attempts: Attempts | None = None,
        left_out: Collection[ErrorCode] = (),
    ) -> None:
        """Adds the answers to `found`. Raises for the first partition without one that counts."""
        groups: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            node_id = await self.cluster.leader_id(partition, deadline)
            groups.setdefault(node_id, []).append(partition)
        for node_id, members in groups.items():
            try:
                connection = await self.cluster.broker(node_id)
                response = await self._ask(connection, make_request(members), response_type, attempts)
            except KafkaError:
                self.cluster.routes.forget_leader(*members)
                raise
            answers = {TopicPartition(t.name, p.partition_index): p for t in topics_of(response) for p in t.partitions}
            for partition in members:
                try:
                    self._take(partition, answers, found, what, left_out)
                except KafkaError as error:
                    if attempts is not None and is_retriable(error):
                        # A leader that waits for its followers has done its own part.
                        attempts.doubt()
                    raise

    def _take(
        self,
        partition: TopicPartition,
        answers: Mapping[TopicPartition, K],
        found: dict[TopicPartition, K],
        what: str,
        left_out: Collection[ErrorCode],
    ) -> None:
        answer = answers.get(partition)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
        if code and code not in left_out:
            self.cluster.routes.forget_leader(partition)
            raise error_of(code, f"{what} of {partition}")
        if answer is not None:
            found[partition] = answer

    async def _ask_everyone(self, request: Message, response_type: type[R]) -> Sequence[tuple[int, R]]:
        """Ask every broker; the answers with the ids of who gave them."""
        deadline = self._deadline()

        async def attempt() -> Sequence[tuple[int, R]]:
            await self.cluster.refresh([], deadline)
            node_ids = sorted(self.cluster.routes.brokers)
            connections = [await self.cluster.broker(node_id) for node_id in node_ids]
            answers = await asyncio.gather(*(self._ask(c, request, response_type) for c in connections))
            return list(zip(node_ids, answers, strict=True))

        return await self.cluster.retrying(type(request).__name__, attempt, deadline)


def raise_first(failures: Iterable[tuple[int, str, str | None]], attempts: Attempts | None = None) -> None:
    """Raise for the first failure of (code, what, message); the text names how many more there are.

    `attempts` are given for changes: the text then tells how many of them were made all the same.
    """
    results = list(failures)
    failed = [(code, what, message) for code, what, message in results if code]
    if failed:
        code, what, message = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        text = f"{what}: {message or 'refused'}{more}"
        if attempts is None:
            raise error_of(code, text)
        if made := len(results) - len(failed):
            text = f"{text.rstrip('.')}; the other {made} {are(made)} done"
        # A broker that waits for others answers in time, also if they carry the request out later.
        if code == ErrorCode.REQUEST_TIMED_OUT:
            raise doubted(TimedOut(text))
        raise doubted(error_of(code, text)) if attempts.in_doubt else error_of(code, text)
