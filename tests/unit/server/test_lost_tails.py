"""A power cut takes the end of one log and not of another: what a decision was about stays one thing for readers.

Every pair of ends is tried: the log of the transaction coordinator, cut behind each of its batches, and the topic's.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.ids import TRANSACTION_STATE_TOPIC
from oncelog.protocol.batch import iter_headers
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.unit.server.harness import BrokerInProcess
from tests.unit.storage.cleaner_harness import read_committed

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
}
TOPIC = "orders"
ID = "payer"
TIMEOUT_MS = 60_000
FIRST_SEGMENT = "00000000000000000000.log"


class Client:
    """A transactional producer of the older protocol or of TV2. It lives on when the broker does not."""

    def __init__(self, node: BrokerInProcess, *, tv2: bool, topic: str = TOPIC) -> None:
        self.node = node
        self.topic = topic
        self.tv2 = tv2
        self.pid, self.epoch, self.sequence = -1, -1, 0

    def init(self, timeout_ms: int = TIMEOUT_MS) -> int:
        request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=timeout_ms)
        return self._take(self._send(request, 4))

    def produce(self, value: bytes) -> Any:
        if not self.tv2:
            code = self._add_partition()
            if code:
                return None
        answer = self.node.produce(
            self.topic,
            [value],
            version=12 if self.tv2 else 9,
            transactional_id=ID,
            transactional=True,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )
        self.sequence += not answer.error_code
        return None if answer.error_code else answer

    def _add_partition(self) -> int:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.pid,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=[0])],
        )
        answer = self._send(request, 3)
        code: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code

    def end(self, commit: bool) -> int:
        request = EndTxnRequest(transactional_id=ID, producer_id=self.pid, producer_epoch=self.epoch, committed=commit)
        return self._take(self._send(request, 5 if self.tv2 else 3))

    def commit_without_markers(self) -> int:
        """They are written in the next turn of the loop, which does not come."""
        request = EndTxnRequest(transactional_id=ID, producer_id=self.pid, producer_epoch=self.epoch, committed=True)
        code: int = self.node.send(request, 5 if self.tv2 else 3).value.error_code
        return code

    def _send(self, request: Any, version: int) -> Any:
        answer = self.node.send(request, version)
        for _ in range(3):
            self.node.clock.advance_ms(0)
        return answer.value

    def _take(self, answer: Any) -> int:
        code: int = answer.error_code
        if not code and getattr(answer, "producer_id", -1) >= 0:
            if (self.pid, self.epoch) != (answer.producer_id, answer.producer_epoch):
                self.sequence = 0
            self.pid, self.epoch = answer.producer_id, answer.producer_epoch
        return code


class Past:
    """Commits, aborts and what is still open when the power goes."""

    def __init__(self, folder: Path, *, tv2: bool) -> None:
        self.folder = folder
        self.tv2 = tv2
        self.node = BrokerInProcess(folder, SETTINGS)
        self.node.create(TOPIC)
        self.committed: list[bytes] = []
        self.client = self.new_client()
        self.run(b"a", True)
        self.run(b"b", False)
        self.client = self.new_client()
        self.run(b"c", True)
        self.run(b"e", False)
        assert self.client.produce(b"open")
        self.ends = {name: self.ends_of(name) for name in (TOPIC, TRANSACTION_STATE_TOPIC)}
        self.identity = self.client.pid, self.client.epoch, self.client.sequence
        self.node.broker.stop(clean=False)

    def new_client(self) -> Client:
        client = Client(self.node, tv2=self.tv2)
        assert client.init() == 0
        return client

    def run(self, value: bytes, commit: bool) -> None:
        assert self.client.produce(value)
        assert self.client.end(commit) == 0
        self.committed += [value] * commit

    def ends_of(self, topic: str) -> list[int]:
        """Where each batch of a log ends, the first of them as well as nothing at all."""
        data = (self.folder / f"{topic}-0" / FIRST_SEGMENT).read_bytes()
        return [0, *(position + header.size_bytes for position, header in iter_headers(data))]

    def after_cut(self, target: Path, ends: dict[str, int], boot_id: str = "after the cut") -> BrokerInProcess:
        """A broker on what is left: no checkpoint is younger than the start, and nothing else was written down."""
        shutil.copytree(self.folder, target)
        for topic, end in ends.items():
            folder = target / f"{topic}-0"
            with (folder / FIRST_SEGMENT).open("r+b") as file:
                file.truncate(end)
        return BrokerInProcess(target, SETTINGS, boot_id=boot_id)


@pytest.fixture(scope="module", params=[False, True], ids=["tv0", "tv2"])
def past(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Past:
    return Past(tmp_path_factory.mktemp("past") / "data", tv2=request.param)


def cuts(past: Past) -> Iterator[dict[str, int]]:
    for topic_end, coordinator_end in product(past.ends[TOPIC], past.ends[TRANSACTION_STATE_TOPIC]):
        yield {TOPIC: topic_end, TRANSACTION_STATE_TOPIC: coordinator_end}


def shown(node: BrokerInProcess) -> list[bytes]:
    return [value or b"" for _, value in read_committed(node.broker.partitions.get(TOPIC, 0).log).values()]


def is_stuck(node: BrokerInProcess) -> bool:
    partition = node.broker.partitions.get(TOPIC, 0)
    return partition.last_stable_offset < partition.high_watermark


def test_the_next_instance_is_not_mistaken_for_an_earlier_one(past: Past, tmp_path: Path) -> None:
    for number, cut in enumerate(cuts(past)):
        node = past.after_cut(tmp_path / str(number), cut)
        end = node.broker.partitions.get(TOPIC, 0).log.log_end_offset
        before = shown(node)
        client = Client(node, tv2=past.tv2)
        assert client.init() == 0, cut
        assert client.pid != past.identity[0], "somebody may be alive with an identity that the log has lost"
        answer = client.produce(b"new")
        assert answer is not None, cut
        assert answer.base_offset >= end, f"taken for a duplicate: {cut}"
        assert client.end(commit=True) == 0, cut
        assert shown(node) == [*before, b"new"], cut
        assert set(before) <= set(past.committed), cut
        assert not is_stuck(node), cut
        node.broker.stop(clean=False)
        shutil.rmtree(node.folder)


def test_a_producer_that_lives_on_does_not_bring_back_what_was_aborted(past: Past, tmp_path: Path) -> None:
    for number, cut in enumerate(cuts(past)):
        node = past.after_cut(tmp_path / str(number), cut)
        client = Client(node, tv2=past.tv2)
        client.pid, client.epoch, client.sequence = past.identity
        client.end(commit=False)
        accepted = client.produce(b"more")
        committed = accepted is not None and client.end(commit=True) == 0
        node.clock.advance_ms(2 * TIMEOUT_MS)
        assert set(shown(node)) <= {*past.committed, *([b"more"] if committed else [])}, cut
        assert (b"more" in shown(node)) is committed, cut
        assert not is_stuck(node), cut
        node.broker.stop(clean=False)
        shutil.rmtree(node.folder)


def test_a_commit_of_a_producer_that_lives_on_is_whole_or_refused(past: Past, tmp_path: Path) -> None:
    """It does not know that the power was cut, and ends what it has begun."""
    for number, cut in enumerate(cuts(past)):
        node = past.after_cut(tmp_path / str(number), cut)
        is_there = cut[TOPIC] == past.ends[TOPIC][-1]
        client = Client(node, tv2=past.tv2)
        client.pid, client.epoch, client.sequence = past.identity
        committed = client.end(commit=True) == 0
        node.clock.advance_ms(2 * TIMEOUT_MS)
        assert set(shown(node)) <= {*past.committed, *([b"open"] if committed else [])}, cut
        if is_there and cut[TRANSACTION_STATE_TOPIC] < past.ends[TRANSACTION_STATE_TOPIC][-1]:
            assert not committed, cut
        assert not is_stuck(node), cut
        node.broker.stop(clean=False)
        shutil.rmtree(node.folder)


def test_after_a_kill_a_producer_that_lives_on_commits_what_it_has_begun(past: Past, tmp_path: Path) -> None:
    whole = {topic: ends[-1] for topic, ends in past.ends.items()}
    node = past.after_cut(tmp_path / "whole", whole, past.node.boot_id or "")
    assert shown(node) == past.committed
    client = Client(node, tv2=past.tv2)
    client.pid, client.epoch, client.sequence = past.identity
    assert client.end(commit=True) == 0
    assert shown(node) == [*past.committed, b"open"]
    node.broker.stop(clean=False)


@pytest.mark.parametrize("tv2", [False, True], ids=["tv0", "tv2"])
@pytest.mark.parametrize("wrong_by_ms", [0, 3_600_000, -3_600_000])
def test_after_a_kill_a_commit_is_whole_whatever_the_clock_was_set_to(
    tmp_path: Path, tv2: bool, wrong_by_ms: int
) -> None:
    """The marker of the transaction before it has the time of the wall clock, or the same one as the commit."""
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create(TOPIC)
    client = Client(node, tv2=tv2)
    assert client.init() == 0
    node.clock.wrong_by_ms = wrong_by_ms
    assert client.produce(b"a")
    assert client.end(commit=True) == 0
    assert client.produce(b"b")
    assert client.commit_without_markers() == 0
    node.broker.stop(clean=False)
    node.broker = node._new()
    assert shown(node) == [b"a", b"b"]
    assert not is_stuck(node)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_marker_that_was_cut_is_written_again_when_the_decision_is_known(tmp_path: Path, lost: int) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create(TOPIC)
    client = Client(node, tv2=True)
    client.init()
    client.produce(b"a")
    client.end(commit=True)
    path = node.folder / f"{TOPIC}-0" / FIRST_SEGMENT
    ends = [position for position, _ in iter_headers(path.read_bytes())]
    node.broker.stop(clean=False)
    with path.open("r+b") as file:
        file.truncate(ends[-lost])
    node.broker = node._new()
    assert shown(node) == ([b"a"] if lost == 1 else [])
    assert not is_stuck(node)
    assert client.produce(b"b") is not None
    assert client.end(commit=True) == 0
    node.broker.stop(clean=False)


def test_after_a_kill_a_producer_keeps_its_id(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    client = Client(node, tv2=True)
    client.init()
    before = client.pid, client.epoch
    node.restart(clean=False)
    client.init()
    assert (client.pid, client.epoch) == (before[0], before[1] + 1)
    node.broker.stop(clean=False)
