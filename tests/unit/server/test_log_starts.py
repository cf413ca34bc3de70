"""Log starts on their way to disk: one checkpoint at a time, shared by all who wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.server.log_starts import LogStarts, Saved
from oncelog.storage.log import Log
from oncelog.storage.log_dir import CheckpointResult

A, B, C = (cast(Log, name) for name in "abc")
DONE = CheckpointResult({}, None)


class Checkpoints:
    def __init__(self) -> None:
        self.begun: list[list[Log]] = []
        self.running: list[Promise[Saved]] = []

    def __call__(self, logs: Iterable[Log]) -> Promise[Saved]:
        self.begun.append(list(logs))
        self.running.append(Promise())
        return self.running[-1]


def test_who_comes_while_one_is_written_shares_the_next() -> None:
    checkpoints = Checkpoints()
    starts = LogStarts(checkpoints)
    promises = [starts.save([A]), starts.save([B, A]), starts.save([C, B])]
    assert checkpoints.begun == [[A]]
    checkpoints.running[0].resolve(DONE)
    assert [promise.done for promise in promises] == [True, False, False]
    assert checkpoints.begun == [[A], [B, A, C]]
    checkpoints.running[1].resolve(DONE)
    assert [promise.done for promise in promises] == [True, True, True]
    assert starts.save([A]).done is False


def test_one_that_cannot_begin_keeps_no_other_waiting() -> None:
    error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "injected")
    answers: list[Any] = [error, Promise.resolved(DONE)]

    def checkpoint(_: Iterable[Log]) -> Promise[Saved]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast(Promise[Saved], answer)

    starts = LogStarts(checkpoint)
    assert starts.save([A]).value is error
    assert starts.save([A]).value is DONE
