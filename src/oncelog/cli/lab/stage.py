"""The environment of a lab: a broker of its own, producers and readers, and views of the log."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from oncelog.cli import progress
from oncelog.cli.interruption import await_readable
from oncelog.cli.output import show_time, wrapped
from oncelog.client.admin import Admin, NewTopic, OffsetSpec
from oncelog.client.config import ClientConfig
from oncelog.client.consumer_records import ConsumerRecord, iter_records
from oncelog.client.fetcher import RangeReader
from oncelog.client.producer import Producer
from oncelog.client.visibility import IsolationLevel
from oncelog.coordinator.txn.state import NAME_OF, TxnState
from oncelog.core.ids import TopicPartition
from oncelog.inspection import entries
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.layout import Kind, PartitionFolder
from oncelog.inspection.transactional_ids import read_transactional_ids, state_changes
from oncelog.testing.broker import BrokerProcess, temporary_folder

SETTINGS: Final[dict[str, object]] = {
    # Shorter than the defaults, so that labs do not wait.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
}
WAIT_S: Final = 30.0
_READ_TIMEOUT_MS: Final = 10_000


class Stage:
    """Made by `Stage.open`. `checks` are what a lab claims; one that does not hold fails it."""

    def __init__(self, broker: BrokerProcess, resources: ExitStack, *, quiet: bool, pause: bool) -> None:
        self.broker = broker
        self._resources = resources
        self._quiet = quiet
        self._pause = pause
        self._threads = resources.enter_context(ThreadPoolExecutor(max_workers=1))
        self.steps: list[str] = []
        self.checks: list[dict[str, Any]] = []

    @classmethod
    @contextmanager
    def open(cls, keep: Path | None, *, quiet: bool, pause: bool) -> Iterator[Stage]:
        with ExitStack() as resources:
            folder = keep or resources.enter_context(temporary_folder("oncelog-lab-"))
            broker = BrokerProcess(folder / "data", SETTINGS, log_level="warning")
            resources.callback(broker.stop)
            resources.enter_context(progress.doing("waiting for the broker of the lab"))
            try:
                broker.start()
            except RuntimeError as error:
                raise click.ClickException(str(error)) from error
            yield cls(broker, resources, quiet=quiet, pause=pause)

    # Output

    def say(self, text: str, **style: Any) -> None:
        """A line, or on a narrow terminal several, which go on further to the right."""
        if not self._quiet:
            indent = len(text) - len(text.lstrip())
            progress.echo(click.style("\n".join(wrapped(text, indent + 2)), **style))

    def step(self, text: str) -> None:
        if self._pause and self.steps and not self._quiet:
            with progress.hidden():
                _await_enter()
        self.steps.append(text)
        self.say("")
        self.say(f"{len(self.steps)}. {text}", bold=True)

    def check(self, claim: str, holds: bool, found: object = None) -> None:
        """A claim of the lab; `found` is shown when it does not hold."""
        self.checks.append({"claim": claim, "holds": holds, **({} if holds else {"found": repr(found)})})

    def conclude(self) -> None:
        self.say("")
        self.say("Checks", bold=True)
        for check in self.checks:
            color, found = ("green", "") if check["holds"] else ("red", f": {check['found']}")
            mark = "holds" if check["holds"] else "FAILS"
            self.say(f"  {mark}  {check['claim']}{found}", fg=color)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check["holds"] for check in self.checks)

    # Actions

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    def create(self, *topics: str, partitions: int = 1) -> None:
        with self.admin() as admin:
            admin.create_topics([NewTopic(topic, partitions) for topic in topics])

    def admin(self) -> Admin:
        return Admin(ClientConfig(bootstrap_servers=self.servers))

    def producer(self, transactional_id: str | None = None, **settings: Any) -> Producer:
        """Not initialised yet. It is closed with the lab, without waiting for what cannot be delivered."""
        properties = {name.replace("_", "."): value for name, value in settings.items()}
        producer = Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 0, "transactional.id": transactional_id, **properties}
        )
        self._resources.callback(producer.close, 500)
        return producer

    def send(self, producer: Producer, topic: str, *values: str, partition: int = 0) -> list[int]:
        """Each value as a batch of its own, acknowledged before the next. Returns the offsets."""
        return [producer.send(topic, value, partition=partition).result(WAIT_S).offset for value in values]

    def worker(self, level: str, name: str, *, die_at: int | None = None) -> list[str]:
        """Run a copying process (see `worker`) until it ends or kills itself. Returns its output."""
        command = [sys.executable, "-m", "oncelog.cli.lab.worker", self.servers, level, name]
        done = subprocess.run(
            command + ([] if die_at is None else [str(die_at)]),
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
            check=False,
        )
        expected = 0 if die_at is None else -signal.SIGKILL
        if done.returncode != expected:
            raise click.ClickException(f"the worker ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout.splitlines()

    def background(self, call: Callable[[], None]) -> Future[None]:
        """Start a call that waits for a broker which is about to be gone for a while."""
        return self._threads.submit(call)

    def await_death(self) -> None:
        self.broker.wait_for_exit(WAIT_S)

    def kill(self) -> None:
        self.broker.kill()

    def restart(self, *failpoints: str) -> None:
        """Start again on the same folder and port, to die at the failpoints."""
        self.broker.start(extra_arguments=[f"--failpoint={name}" for name in failpoints])

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise click.ClickException(f"waited {WAIT_S:.0f} s for {what}")
            time.sleep(0.05)

    # Reads

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The last stable offset and the high watermark."""
        place = TopicPartition(topic, partition)
        with self.admin() as admin:
            latest = {place: OffsetSpec.LATEST}
            stable = admin.list_offsets(latest, isolation=IsolationLevel.READ_COMMITTED)[place].offset
            return stable, admin.list_offsets(latest)[place].offset

    def records(self, topic: str, partition: int = 0, *, committed: bool = True) -> list[ConsumerRecord]:
        """What a reader gets now, up to the last stable offset or the high watermark."""
        stable, end = self.offsets(topic, partition)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        config = ClientConfig(bootstrap_servers=self.servers)
        with RangeReader(config, isolation=level, idle_timeout_ms=_READ_TIMEOUT_MS) as reader:
            chunks = reader.read(topic, partition, 0, stable if committed else end)
            return [record for chunk in chunks for record in iter_records(chunk)]

    def values(self, topic: str, partition: int = 0, *, committed: bool = True) -> list[str]:
        return [(record.value or b"").decode() for record in self.records(topic, partition, committed=committed)]

    # Views of the log

    def _catch_up(self) -> None:
        """Wait for the markers of the last commit, which is answered before they are written."""
        if self.broker.running:
            with self.admin() as admin:
                admin.describe_cluster()

    def folder(self, topic: str, partition: int = 0) -> PartitionFolder:
        return PartitionFolder(self.broker.data_dir / f"{topic}-{partition}")

    def show_log(self, topic: str, partition: int = 0) -> None:
        """Batch by batch, and the offsets that readers go by."""
        self._catch_up()
        names = read_transactional_ids(self.broker.data_dir).names
        self.say(f"   {topic}-{partition} in the log:")
        for _, batch in walk(self.folder(topic, partition)):
            header = batch.header
            marker = batch.marker()
            offsets = f"{header.base_offset}"
            if header.last_offset > header.base_offset:
                offsets += f"-{header.last_offset}"
            who = ""
            if header.producer_id >= 0:
                who = f"producer {header.producer_id} epoch {header.producer_epoch}"
                who += f" ({names[header.producer_id]})" if header.producer_id in names else ""
            if marker is not None:
                what = "COMMIT marker" if marker.is_commit else "ABORT marker"
            else:
                values = [(record.value or b"").decode(errors="replace") for record in batch.records()]
                what = ", ".join(values) if len(values) <= 4 else f"{values[0]} ... {values[-1]}"
            self.say(f"     {offsets:>7}  {what:<24} {who}".rstrip())
        stable, end = self.offsets(topic, partition)
        self.say(f"     last stable offset {stable}, high watermark {end}")

    def show_aborted(self, topic: str, partition: int = 0) -> list[tuple[int, int, int]]:
        """The transaction index: producer id, first offset, marker offset."""
        self._catch_up()
        found = [
            (aborted.producer_id, aborted.first_offset, aborted.last_offset)
            for file in self.folder(topic, partition).of_kind(Kind.TXN_INDEX)
            for _, aborted in entries.read_txn_index(file.path)[0]
        ]
        self.say(f"   transaction index of {topic}-{partition}:" + ("" if found else " empty"))
        for producer_id, first, last in found:
            self.say(f"     producer {producer_id} from offset {first}, aborted at {last}")
        return found

    def states(self, transactional_id: str) -> list[tuple[str, int, int]]:
        """All changes of an id in `__transaction_state`: state, producer id, epoch."""
        self._catch_up()
        return [
            (NAME_OF[TxnState(c.value.transaction_status)], c.value.producer_id, c.value.producer_epoch)
            for c in state_changes(self.broker.data_dir)
            if c.transactional_id == transactional_id and c.value is not None
        ]

    def show_states(self, transactional_id: str) -> None:
        self._catch_up()
        self.say(f"   {transactional_id} in __transaction_state:")
        for change in state_changes(self.broker.data_dir):
            if change.transactional_id == transactional_id and change.value is not None:
                value = change.value
                state = NAME_OF[TxnState(value.transaction_status)]
                self.say(
                    f"     {show_time(change.timestamp)}  {state:<14} producer {value.producer_id} epoch "
                    f"{value.producer_epoch}"
                )

    def show_readers(self, topic: str, partition: int = 0) -> None:
        self.say(f"   read_committed   gets: {_shown(self.values(topic, partition))}")
        self.say(f"   read_uncommitted gets: {_shown(self.values(topic, partition, committed=False))}")


def _await_enter() -> None:
    """Unlike click's pause, this ends at Ctrl-C. Without a terminal it does not wait."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        click.echo("-- Enter for the next step --", nl=False)
        await_readable(sys.stdin.fileno())
        sys.stdin.readline()


def _shown(values: Sequence[str]) -> str:
    if not values:
        return "nothing"
    return ", ".join(values) if len(values) <= 8 else f"{values[0]} ... {values[-1]} ({len(values)} records)"
