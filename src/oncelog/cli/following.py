"""Reading without an end: waiting for brokers that restart, and explaining why a reader gets nothing."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any, Final, Protocol

import click

from oncelog.cli.cluster_access import ClusterAccess
from oncelog.cli.hints import held_back_hint
from oncelog.client.consumer import Consumer
from oncelog.client.errors import CommitFailed, KafkaError
from oncelog.client.visibility import IsolationLevel
from oncelog.core.errors import RETRIABLE
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import partition_offsets

POLL_MS: Final = 200
IDLE_S: Final = 5.0
"""How long a reader may receive nothing before the reason is looked for."""


class Outage:
    """A period in which brokers do not answer. It is reported once."""

    def __init__(self) -> None:
        self._is_reported = False

    def failed(self, error: KafkaError) -> None:
        """Raises the error again if waiting does not help."""
        if error.code not in RETRIABLE:
            raise error
        self.began(error.message)

    def began(self, reason: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            click.echo(f"waiting: {reason}", err=True)

    def ended(self) -> None:
        self._is_reported = False


class Pollable(Protocol):
    def poll(self, timeout_ms: int, /) -> list[Any]: ...


def poll_for_ever(consumer: Pollable, outage: Outage, poll_ms: int = POLL_MS) -> Generator[list[Any], None, None]:
    """Yields records, or an empty list, for ever. Waits for brokers that cannot be reached."""
    while True:
        records = []
        try:
            records = consumer.poll(poll_ms)
        except KafkaError as error:
            outage.failed(error)
        if records:
            outage.ended()
        yield records


class Committer:
    """Commits the offsets of printed records for a group, and tries again after a failure."""

    def __init__(self, consumer: Consumer, outage: Outage) -> None:
        self._consumer = consumer
        self._outage = outage
        self._pending: dict[TopicPartition, int] = {}
        self._tried: dict[TopicPartition, int] = {}

    def commit_positions(self) -> None:
        """When all records are printed: what lies behind them, markers and aborted records, is read as well."""
        positions = self._consumer.core.positions_to_commit()
        self.commit({each: found.offset for each, found in positions.items() if found.offset != self._tried.get(each)})

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self._pending |= offsets
        if not self._pending:
            return
        try:
            self._consumer.commit(self._pending)
        except CommitFailed as error:
            click.echo(error.message, err=True)
        except KafkaError as error:
            self._outage.failed(error)
            return
        self._tried |= self._pending
        self._pending = {}


class IdleWatcher:
    """Reports why a reader has received nothing for a while."""

    def __init__(self, access: ClusterAccess, consumer: Consumer, outage: Outage) -> None:
        self._access = access
        self._consumer = consumer
        self._outage = outage
        self._since_s = time.monotonic()
        self._reported: set[str] = set()

    def progressed(self) -> None:
        self._since_s = time.monotonic()

    def idle(self) -> None:
        if time.monotonic() - self._since_s < IDLE_S:
            return
        self._since_s = time.monotonic()
        try:
            for text in self._reasons():
                self._report(text)
            self._outage.ended()
        except click.ClickException as error:
            self._outage.began(error.message)

    def _report(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            click.echo(text, err=True)

    def _reasons(self) -> Iterator[str]:
        partitions = self._consumer.assignment()
        settings = self._consumer.settings
        with self._access.admin() as admin:
            offsets = partition_offsets(admin, partitions)
        if not partitions and settings.group_id is not None:
            described = self._access.command("group", "describe", settings.group_id)
            yield f"no partition is assigned to this member of {settings.group_id}: '{described}' shows who has them"
        if settings.isolation is IsolationLevel.READ_COMMITTED:
            for partition, found in offsets.items():
                if found.held_back:
                    yield held_back_hint(self._access, partition, found)
