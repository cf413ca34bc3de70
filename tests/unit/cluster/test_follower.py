"""The fetch loop of one leader: what is asked for, and what every answer does to the logs."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import pytest

from oncelog.cluster.cluster_config import FetchLimits
from oncelog.cluster.follower import FLUSH_WAIT_MS, LeaderFetcher, SendToLeader
from oncelog.cluster.follower_session import FollowedPartition, FollowerSession
from oncelog.core.config import INT_MAX
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from oncelog.storage.leader_epochs import EpochEnd

A = FollowedPartition("a", uuid.UUID(int=1), 0)
B = FollowedPartition("b", uuid.UUID(int=2), 3)
IN_A, IN_B = (A.topic_id, A.partition), (B.topic_id, B.partition)
LIMITS = FetchLimits()
BACKOFF_MS = LIMITS.backoff_ms


class FakeLog:
    """A log of one epoch per record; it notes what is done to it. A fetched "batch" is the epochs of its records."""

    def __init__(self, epochs: list[int], start: int = 0) -> None:
        self.log_start_offset = start
        self.epochs = epochs
        self.is_flushed = True
        self.is_broken = False
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.epochs)

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else -1

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        if not self.epochs or epoch > self.last_epoch:
            return EpochEnd(-1, -1)
        kept = [own for own in self.epochs if own <= epoch]
        return EpochEnd(kept[-1] if kept else epoch, self.log_start_offset + len(kept))

    def append_as_follower(self, data: bytes | memoryview, leader_epoch: int, now_ms: int) -> None:
        self.note("append", bytes(data), leader_epoch, now_ms)
        self.epochs = self.epochs + list(bytes(data))

    def truncate_to(self, offset: int, now_ms: int) -> None:
        self.note("cut", offset)
        self.epochs = self.epochs[: offset - self.log_start_offset]

    def start_over_at(self, offset: int, now_ms: int) -> None:
        self.note("start over", offset)
        self.log_start_offset, self.epochs = offset, []

    def follow_leader(self, high_watermark: int, log_start_offset: int) -> None:
        self.note("follow", high_watermark, log_start_offset)

    def note(self, *call: Any) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error


class SessionRequest(NamedTuple):
    number: int
    session: tuple[int, int]
    named: list[tuple[uuid.UUID, int]]
    forgotten: list[tuple[uuid.UUID, int]]


class Played:
    def __init__(self, *epochs: int, start: int = 0, epoch: int = 5) -> None:
        self.now_ms = 1000
        self.log = FakeLog(list(epochs), start)
        self.fetcher = LeaderFetcher(NodeId(2), LIMITS)
        self.fetcher.follow(A, self.log, epoch)

    def poll(self) -> SendToLeader | None:
        return self.fetcher.poll(self.now_ms, broker_epoch=77)

    def send(self) -> tuple[int, Any]:
        sent = self.poll()
        assert sent is not None
        return sent

    def fetched(self, key: FollowedPartition = A, number: int | None = None, session: int = 0, **fields: Any) -> None:
        if number is None:
            number, request = self.send()
            assert isinstance(request, FetchRequest)
        fields = {"high_watermark": 2, "log_start_offset": 0, "records": b"", **fields}
        data = PartitionData(partition_index=key.partition, **fields)
        topic = FetchableTopicResponse(topic_id=key.topic_id, partitions=[data])
        self.answered(number, FetchResponse(session_id=session, responses=[topic]))

    def answered(self, number: int, response: FetchResponse) -> None:
        self.fetcher.on_fetch(number, response, self.now_ms, 99)

    def begin_session(self, session: int = 55) -> None:
        """With all partitions that are followed, and nothing to tell of any."""
        number, request = self.send()
        assert request.session_epoch == 0
        topics = [
            FetchableTopicResponse(
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=each.partition, high_watermark=0, log_start_offset=0, records=b"")
                ],
            )
            for topic in request.topics
            for each in topic.partitions
        ]
        self.answered(number, FetchResponse(session_id=session, responses=topics))

    def session_request(self) -> SessionRequest:
        number, request = self.send()
        return SessionRequest(
            number,
            (request.session_id, request.session_epoch),
            [(topic.topic_id, each.partition) for topic in request.topics for each in topic.partitions],
            [(topic.topic_id, each) for topic in request.forgotten_topics_data for each in topic.partitions],
        )

    def offset_is(self, offset: int, *, error: int = 0) -> int:
        """Returns which one was asked for."""
        number, request = self.send()
        assert isinstance(request, ListOffsetsRequest)
        assert request.replica_id == 2
        answer = ListOffsetsPartitionResponse(partition_index=A.partition, offset=offset, error_code=error)
        response = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="a", partitions=[answer])])
        self.fetcher.on_offsets(number, response, self.now_ms, 99)
        asked = request.topics[0].partitions[0]
        assert asked.current_leader_epoch == 5
        return asked.timestamp

    def goes_on_at_once(self) -> bool:
        return self.poll() is not None

    def goes_on_after_ms(self) -> int | None:
        wake_ms = self.fetcher.wake_ms(self.now_ms)
        return None if wake_ms is None else wake_ms - self.now_ms


def test_what_is_fetched() -> None:
    played = Played(3, 3, 4, start=10)
    played.fetcher.follow(B, FakeLog([]), 8)
    _, request = played.send()
    assert [(topic.topic_id, topic.partitions) for topic in request.topics] == [
        (
            A.topic_id,
            [FetchPartition(partition=0, current_leader_epoch=5, fetch_offset=13, last_fetched_epoch=4,
                            log_start_offset=10, partition_max_bytes=1 << 20)],
        ),
        (
            B.topic_id,
            [FetchPartition(partition=3, current_leader_epoch=8, fetch_offset=0, last_fetched_epoch=-1,
                            log_start_offset=0, partition_max_bytes=1 << 20)],
        ),
    ]  # fmt: skip
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 77)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 10 * 1024 * 1024)
    assert (request.session_id, request.session_epoch, request.isolation_level) == (0, 0, 0)
    assert played.poll() is None, "one request at a time"


def test_records_come_first_then_the_high_watermark_and_the_log_start() -> None:
    played = Played(4)
    played.fetched(records=b"\4\5", high_watermark=2, log_start_offset=1)
    assert played.log.calls == [("append", b"\4\5", 5, 99), ("follow", 2, 1)]
    _, request = played.send()
    assert (request.topics[0].partitions[0].fetch_offset, request.topics[0].partitions[0].last_fetched_epoch) == (3, 5)


def test_an_answer_that_ends_within_a_batch_is_taken_up_to_that_batch() -> None:
    """As Java's do when there is more than the limit."""
    batches = [build_batch([Record(0, 0, None, b"value")], timestamp_ms=0, base_offset=offset) for offset in (1, 2, 3)]
    last = batches[2]
    for rest in (b"", last[:5], last[:20], last[:-1]):
        played = Played(4)
        played.fetched(records=batches[0] + batches[1] + rest)
        assert played.log.calls[0] == ("append", batches[0] + batches[1], 5, 99)


def test_an_answer_without_a_whole_batch_is_for_the_log_to_refuse() -> None:
    played, rest = Played(4), build_batch([Record(0, 0, None, b"value")], timestamp_ms=0, base_offset=1)[:-1]
    played.log.error = KafkaError(ErrorCode.CORRUPT_MESSAGE, "torn")
    played.fetched(records=rest)
    assert played.log.calls == [("append", rest, 5, 99)]
    assert played.goes_on_after_ms() == BACKOFF_MS


def test_an_empty_answer_moves_the_high_watermark_and_leaves_the_last_epoch() -> None:
    """KAFKA-15510."""
    played = Played(4)
    played.fetched()
    assert played.log.calls == [("follow", 2, 0)]
    assert played.send()[1].topics[0].partitions[0].last_fetched_epoch == 4


@pytest.mark.parametrize(
    ("own", "diverging", "cut_to"),
    [
        ([0, 0, 0, 0, 0, 0, 0], (0, 4), 4),
        ([0, 0, 2, 2], (0, 4), 2),
        ([0, 0, 2, 2], (1, 4), 2),
        ([0, 0, 2, 2], (2, 3), 3),
        ([0, 0, 2, 2], (2, 9), 4),
        ([3, 3], (1, 7), 0),
        ([], (1, 7), 0),
    ],
    ids=[
        "the leader's epoch ended earlier",
        "the own epoch ended earlier",
        "an epoch that the own log never saw: one step, and the leader is asked again",
        "in the middle of the epoch",
        "never beyond the own end",
        "nothing in common",
        "an empty log",
    ],
)
def test_a_log_that_diverges_is_cut_to_where_both_agree(
    own: list[int], diverging: tuple[int, int], cut_to: int
) -> None:
    """By epochs and not to the high watermark (KAFKA-1211), in several steps if need be (KAFKA-6361).

    And takes neither the high watermark nor the log start of such an answer (KAFKA-14704).
    """
    played = Played(*own)
    epoch, end_offset = diverging
    played.fetched(diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset), high_watermark=7)
    assert played.log.calls == [("cut", cut_to)]
    assert played.goes_on_at_once()


@pytest.mark.parametrize(
    ("code", "after_ms"),
    [
        (ErrorCode.UNKNOWN_LEADER_EPOCH, BACKOFF_MS),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, BACKOFF_MS),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, BACKOFF_MS),
        (ErrorCode.UNKNOWN_TOPIC_ID, BACKOFF_MS),
        (ErrorCode.INCONSISTENT_TOPIC_ID, BACKOFF_MS),
        (ErrorCode.CORRUPT_MESSAGE, BACKOFF_MS),
        (ErrorCode.KAFKA_STORAGE_ERROR, BACKOFF_MS),
        (ErrorCode.UNKNOWN_SERVER_ERROR, BACKOFF_MS),
        (ErrorCode.FENCED_LEADER_EPOCH, None),
        (ErrorCode.OFFSET_OUT_OF_RANGE, 0),
    ],
)
def test_errors_of_a_partition(code: ErrorCode, after_ms: int | None) -> None:
    played = Played(4)
    played.fetched(error_code=code)
    assert played.log.calls == []
    assert played.goes_on_after_ms() == after_ms
    assert bool(played.fetcher.halted()) == (after_ms is None)
    if after_ms is not None:
        played.now_ms += after_ms
        assert played.goes_on_at_once()


def test_a_partition_that_waits_does_not_hold_up_others() -> None:
    played = Played(4)
    other = FakeLog([])
    played.fetcher.follow(B, other, 8)
    number, _ = played.send()
    played.fetched(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, number=number)
    _, request = played.send()
    assert [topic.topic_id for topic in request.topics] == [B.topic_id]


def test_a_fenced_partition_goes_on_in_a_new_epoch() -> None:
    played = Played(4)
    played.fetched(error_code=ErrorCode.FENCED_LEADER_EPOCH)
    assert played.fetcher.halted() == {A: "leader epoch 5 is over"}
    played.fetcher.follow(A, played.log, 5)
    assert not played.goes_on_at_once()
    played.fetcher.follow(A, played.log, 6)
    assert played.send()[1].topics[0].partitions[0].current_leader_epoch == 6


@pytest.mark.parametrize(
    ("end", "start", "calls", "waits"),
    [
        (1, None, [("cut", 1)], False),
        (9, 7, [("start over", 7)], False),
        (9, 1, [], True),
        (3, 3, [], True),
    ],
    ids=["the leader's log ends before", "it starts behind", "it covers the own end", "it begins where we end"],
)
def test_an_offset_that_is_out_of_range(end: int, start: int | None, calls: list[tuple[Any, ...]], waits: bool) -> None:
    played = Played(4, 4, 4)
    played.fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert played.offset_is(end) == -1
    if start is not None:
        assert played.offset_is(start) == -2
    assert played.log.calls == calls
    assert played.goes_on_after_ms() == (BACKOFF_MS if waits else 0)
    played.now_ms += BACKOFF_MS
    assert isinstance(played.send()[1], FetchRequest)


def test_offsets_that_cannot_be_told_yet_are_asked_for_again() -> None:
    played = Played(4, 4, 4)
    played.fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    played.offset_is(-1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert played.goes_on_after_ms() == BACKOFF_MS
    played.now_ms += BACKOFF_MS
    played.offset_is(-1, error=ErrorCode.FENCED_LEADER_EPOCH)
    assert played.goes_on_after_ms() is None


@pytest.mark.parametrize("change", ["epoch", "offset", "forgotten", "given up"])
def test_an_answer_to_what_was_asked_before_a_change_is_ignored(change: str) -> None:
    """A diverging answer of an older epoch would cut off what is committed (KAFKA-18991)."""
    played = Played(4, 4, 4)
    number, _ = played.send()
    if change == "epoch":
        played.fetcher.follow(A, played.log, 6)
    elif change == "offset":
        played.log.epochs = [4, 4]
    elif change == "forgotten":
        played.fetcher.forget(A)
    else:
        played.now_ms += LIMITS.socket_timeout_ms
        assert played.goes_on_at_once()
    played.fetched(number=number, diverging_epoch=EpochEndOffset(epoch=1, end_offset=0))
    played.fetched(number=number, records=b"\4")
    assert played.log.calls == []


@pytest.mark.parametrize(
    ("error", "is_broken", "after_ms"),
    [
        (KafkaError(ErrorCode.CORRUPT_MESSAGE, "torn"), False, BACKOFF_MS),
        (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full"), False, BACKOFF_MS),
        (OSError("no room for a snapshot before segments are deleted"), False, BACKOFF_MS),
        (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "fsync failed"), True, None),
        (ValueError("a file beside the log is damaged, and nobody had thought of that"), False, None),
    ],
    ids=str,
)
def test_a_log_that_does_not_take_what_was_fetched(error: Exception, is_broken: bool, after_ms: int | None) -> None:
    played = Played(4)
    played.log.error, played.log.is_broken = error, is_broken
    played.fetched(records=b"\4")
    assert played.goes_on_after_ms() == after_ms
    assert bool(played.fetcher.halted()) == (after_ms is None)


@pytest.mark.parametrize("error", [OSError("no space left on device"), ValueError("unforeseen")], ids=str)
def test_what_goes_wrong_with_one_log_does_not_keep_others_from_their_records(error: Exception) -> None:
    played, other = Played(4), FakeLog([])
    played.fetcher.follow(B, other, 8)
    played.log.error = error
    number, _ = played.send()
    topics = [
        FetchableTopicResponse(
            topic_id=key.topic_id,
            partitions=[PartitionData(partition_index=key.partition, high_watermark=0, records=b"\4")],
        )
        for key in (A, B)
    ]
    played.answered(number, FetchResponse(responses=topics))
    assert other.epochs == [4]


def test_what_is_not_on_disk_is_not_acknowledged() -> None:
    played = Played(4)
    played.log.is_flushed = False
    assert (played.poll(), played.fetcher.wake_ms(played.now_ms)) == (None, None)
    played.log.is_flushed = True
    assert played.goes_on_at_once()


def test_a_partition_that_waits_for_the_disk_does_not_wait_for_news_of_others_as_well() -> None:
    """It is acknowledged with the next fetch, which cannot be sent while another one waits at the leader."""
    played = Played(4)
    played.fetcher.follow(B, FakeLog([]), 8)
    played.log.is_flushed = False
    number, request = played.send()
    assert [topic.topic_id for topic in request.topics] == [B.topic_id]
    assert request.max_wait_ms == FLUSH_WAIT_MS
    played.fetched(B, number=number)
    played.log.is_broken = True
    assert played.send()[1].max_wait_ms == LIMITS.wait_max_ms, "what has failed is not waited for"


def test_a_lost_connection_and_an_error_of_the_whole_answer_are_waited_out() -> None:
    played = Played(4)
    number, _ = played.send()
    played.fetcher.on_failure(number, played.now_ms)
    assert played.goes_on_after_ms() == BACKOFF_MS
    assert not played.goes_on_at_once()
    played.now_ms += BACKOFF_MS
    number, _ = played.send()
    response = FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    played.fetcher.on_fetch(number, response, played.now_ms, 99)
    assert played.goes_on_after_ms() == BACKOFF_MS


def test_a_request_without_an_answer_is_given_up() -> None:
    played = Played(4)
    played.send()
    assert played.goes_on_after_ms() == LIMITS.socket_timeout_ms
    played.now_ms += LIMITS.socket_timeout_ms
    assert played.goes_on_after_ms() == 0
    assert played.goes_on_at_once()


def test_a_partition_with_much_data_does_not_starve_the_others() -> None:
    played = Played(4)
    played.fetcher.follow(B, FakeLog([]), 8)
    number, _ = played.send()
    played.fetched(records=b"\4", number=number)
    assert [topic.topic_id for topic in played.send()[1].topics] == [B.topic_id, A.topic_id]


def test_nothing_is_sent_without_partitions() -> None:
    played = Played(4)
    played.fetcher.forget(A)
    assert (A in played.fetcher, len(played.fetcher)) == (False, 0)
    assert (played.poll(), played.goes_on_after_ms()) == (None, None)


# Fetch sessions


def test_a_session_names_only_what_changed() -> None:
    played = Played(4)
    played.fetcher.follow(B, FakeLog([]), 8)
    played.begin_session()
    number, session, named, forgotten = played.session_request()
    assert (session, named, forgotten) == ((55, 1), [], [])
    played.fetched(number=number, session=55, records=b"\4")
    number, session, named, forgotten = played.session_request()
    assert (session, named, forgotten) == ((55, 2), [IN_A], [])
    played.answered(number, FetchResponse(session_id=55))
    assert played.session_request().session == (55, 3)


def test_what_is_left_out_of_an_answer_is_as_it_was() -> None:
    played = Played(4)
    played.begin_session()
    played.log.calls.clear()
    played.answered(played.session_request().number, FetchResponse(session_id=55))
    assert played.log.calls == []
    assert played.goes_on_after_ms() == 0


def test_partitions_come_and_go_in_a_session() -> None:
    played = Played(4)
    played.begin_session()
    played.fetcher.follow(B, FakeLog([]), 8)
    number, session, named, forgotten = played.session_request()
    assert (session, named, forgotten) == ((55, 1), [IN_B], [])
    played.answered(number, FetchResponse(session_id=55))
    played.fetcher.forget(A)
    number, session, named, forgotten = played.session_request()
    assert (session, named, forgotten) == ((55, 2), [], [IN_A])
    played.answered(number, FetchResponse(session_id=55))
    played.fetcher.follow(A, played.log, 5)
    assert played.session_request()[1:] == ((55, 3), [IN_A], [])


@pytest.mark.parametrize("reason", ["error", "not on disk"])
def test_a_partition_that_waits_leaves_the_session_and_comes_back(reason: str) -> None:
    """What is not on disk is not acknowledged by a fetch that does not name it, either."""
    played = Played(4)
    played.fetcher.follow(B, FakeLog([]), 8)
    played.begin_session()
    number = played.session_request().number
    if reason == "error":
        played.fetched(number=number, session=55, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    else:
        played.fetched(number=number, session=55, records=b"\4")
        played.log.is_flushed = False
    number, session, named, forgotten = played.session_request()
    assert (session, named, forgotten) == ((55, 2), [], [IN_A])
    played.answered(number, FetchResponse(session_id=55))
    played.log.is_flushed = True
    played.now_ms += BACKOFF_MS
    assert played.session_request()[1:] == ((55, 3), [IN_A], [])


@pytest.mark.parametrize(
    ("code", "session"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, (0, 0)),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, (55, 0)),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, (55, 0)),
    ],
)
def test_errors_of_a_session_lead_to_a_full_fetch_at_once(code: ErrorCode, session: tuple[int, int]) -> None:
    played = Played(4)
    played.begin_session()
    played.answered(played.session_request().number, FetchResponse(error_code=code))
    number, asked, named, _ = played.session_request()
    assert (asked, named) == (session, [IN_A])
    played.answered(number, FetchResponse(error_code=code))
    assert played.goes_on_after_ms() == BACKOFF_MS, "a full fetch has no session that could be to blame"


def test_a_leader_without_sessions_is_sent_full_fetches() -> None:
    played = Played(4)
    for _ in range(3):
        number, session, named, _ = played.session_request()
        assert (session, named) == ((0, 0), [IN_A])
        played.fetched(number=number)


def test_a_leader_that_ends_a_session_is_sent_a_full_fetch() -> None:
    played = Played(4)
    played.begin_session()
    played.answered(played.session_request().number, FetchResponse(session_id=0))
    assert played.session_request()[1:] == ((0, 0), [IN_A], [])


def test_a_full_fetch_follows_whatever_was_not_heard_or_not_taken() -> None:
    """The leader would not tell it again, and a high watermark would be late until the next record."""
    played = Played(4, 4, 4)
    other = FakeLog([])
    played.fetcher.follow(B, other, 8)

    def begin() -> int:
        played.now_ms += BACKOFF_MS
        played.begin_session()
        return played.session_request().number

    def is_full() -> bool:
        played.now_ms += BACKOFF_MS
        number, session, named, forgotten = played.session_request()
        played.fetcher.on_failure(number, played.now_ms)
        return session == (55, 0) and named == [IN_A, IN_B] and not forgotten

    played.fetcher.on_failure(begin(), played.now_ms)
    assert is_full(), "the answer was lost"
    begin()
    played.now_ms += LIMITS.socket_timeout_ms
    assert is_full(), "there was no answer"
    played.fetched(number=begin(), session=55, diverging_epoch=EpochEndOffset(epoch=4, end_offset=2))
    assert is_full(), "the logs diverge"
    number = begin()
    played.log.epochs = [4]
    played.fetched(number=number, session=55)
    assert is_full(), "the log has changed meanwhile"
    number = begin()
    played.log.error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
    played.fetched(number=number, session=55)
    played.log.error = None
    assert is_full(), "the log did not take it"


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_full_fetch_follows_a_new_leader_epoch(is_under_way: bool) -> None:
    """In the new epoch nothing is known yet of how far behind the replica is."""
    played = Played(4)
    if is_under_way:
        number, _ = played.send()
        played.fetcher.follow(A, played.log, 6)
        played.fetched(number=number, session=55)
    else:
        played.begin_session()
        played.fetcher.follow(A, played.log, 6)
    assert played.session_request()[1:] == ((55, 0), [IN_A], [])


def test_the_epoch_of_a_session_starts_again_after_the_largest_number() -> None:
    session = FollowerSession()
    session.on_answer(7)
    session._epoch = INT_MAX
    session.on_answer(7)
    request = FetchRequest()
    session.name(request, {}, 1)
    assert (request.session_id, request.session_epoch) == (7, 1)
