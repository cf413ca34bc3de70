"""A journal of earlier versions that lost its end before it is taken over: nothing that a log has seen is given out
again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.cluster.journal import JournalDamaged
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.core.ids import TRANSACTION_STATE_TOPIC
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.data import journal
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import committed
from tests.unit.storage.cleaner_harness import read_committed

GIVEN_OUT = 0
"""The producer id of the only transactional id."""
LINES = 13


def damage_last_line(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def cut_in_last_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def cut_before_line(number: int) -> Callable[[Path], None]:
    return lambda path: _write(path, path.read_bytes().splitlines(keepends=True)[:number])


def _write(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(lines))


def follow_the_error_message(path: Path) -> None:
    """Damage in the middle, and then what the refusal says."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = b"x" + lines[4][1:]
    _write(path, lines)
    with pytest.raises(JournalDamaged) as refusal:
        BrokerInProcess(path.parent, journal.SETTINGS)
    command = str(refusal.value).partition("truncate -s ")[2].partition("'")[0]
    size, named = command.split(" ")
    assert named == str(path)
    path.write_bytes(path.read_bytes()[: int(size)])


LOSSES = {
    "last line damaged": damage_last_line,
    "last line torn": cut_in_last_line,
    "as the error message says": follow_the_error_message,
}
CUTS = {f"cut before line {number}": cut_before_line(number) for number in range(LINES)}
CASES = [
    *[pytest.param(name, lose, id=f"{what}-{name}") for what, lose in LOSSES.items() for name in ("stopped", "killed")],
    # It shows by the stop that is missing. These few records of a start that was killed tell nothing.
    *[pytest.param("stopped", lose, id=what) for what, lose in CUTS.items()],
]


@pytest.mark.parametrize(("name", "lose"), CASES)
def test_nothing_that_a_log_has_seen_is_given_out_again(
    tmp_path: Path, name: str, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = journal.unpack(name, tmp_path)
    lose(folder / JOURNAL_FILE)
    is_all_lost = not (folder / JOURNAL_FILE).stat().st_size
    node = BrokerInProcess(folder, journal.SETTINGS)
    told = "the settings of topic t are not known" if is_all_lost else "the metadata has lost its end"
    assert told in caplog.text
    given = set[int]()
    for _ in range(2):
        answer = node.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        assert answer.error_code == 0
        assert answer.producer_id not in given | {GIVEN_OUT}
        given.add(answer.producer_id)
        known = node.call(InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=1000), 4)
        assert (known.error_code, known.producer_id) == (0, GIVEN_OUT)
        partition = node.broker.partitions.get("t", 1)
        assert partition.leader_epoch > 0
        assert node.broker.partitions.get(TRANSACTION_STATE_TOPIC, 1).leader_epoch > 0
        assert [value for _, value in read_committed(partition.log).values()] == [b"one"]
        assert committed(node, "readers")[1] == 1
        node.restart()
    node.stop()
