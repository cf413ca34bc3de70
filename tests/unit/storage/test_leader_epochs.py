"""Leader epochs: which offsets an epoch has written, and what is forgotten when the log is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core.invariant import InvariantError
from oncelog.storage.checkpoint_lines import CorruptCheckpointError
from oncelog.storage.leader_epochs import EpochStart, LeaderEpochs


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochs:
    epochs = LeaderEpochs(tmp_path / "leader-epoch-checkpoint")
    for epoch, start_offset in ((0, 0), (3, 1500), (4, 1700)):
        epochs.assign(epoch, start_offset)
    return epochs


def test_file_is_kafkas_text(epochs: LeaderEpochs) -> None:
    assert epochs.path.read_bytes() == b"0\n3\n0 0\n3 1500\n4 1700\n"
    assert LeaderEpochs.load(epochs.path).entries == epochs.entries


def test_repetition_writes_nothing(epochs: LeaderEpochs) -> None:
    epochs.is_unsynced = False
    epochs.assign(4, 1700)
    epochs.assign(4, 1800)
    assert not epochs.is_unsynced
    epochs.assign(5, 1800)
    assert epochs.is_unsynced


@pytest.mark.parametrize(
    ("epoch", "start_offset", "expected"),
    [
        (5, 1700, [(0, 0), (3, 1500), (5, 1700)]),
        (5, 1600, [(0, 0), (3, 1500), (5, 1600)]),
        (3, 1900, [(0, 0), (3, 1900)]),
        (4, 1400, [(0, 0), (4, 1400)]),
        (9, 0, [(9, 0)]),
    ],
)
def test_entries_that_contradict_a_new_one_go(
    epochs: LeaderEpochs, epoch: int, start_offset: int, expected: list[tuple[int, int]]
) -> None:
    epochs.assign(epoch, start_offset)
    assert epochs.entries == expected
    assert LeaderEpochs.load(epochs.path).entries == expected


@pytest.mark.parametrize(
    ("requested", "answer"),
    [(-1, (-1, -1)), (0, (0, 1500)), (1, (0, 1500)), (2, (0, 1500)), (3, (3, 1700)), (4, (4, 2000)), (5, (-1, -1))],
)
def test_end_of_an_epoch(epochs: LeaderEpochs, requested: int, answer: tuple[int, int]) -> None:
    assert epochs.end_offset_for_epoch(requested, 2000) == answer


def test_epoch_below_all_that_are_known_ends_where_the_first_begins(epochs: LeaderEpochs) -> None:
    epochs.truncate_from_start(1600)
    assert epochs.end_offset_for_epoch(1, 2000) == (1, 1600)
    assert LeaderEpochs(epochs.path).end_offset_for_epoch(0, 2000) == (-1, -1)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (1499, 0), (1500, 3), (1699, 3), (9999, 4), (-1, -1)])
def test_epoch_of_an_offset(epochs: LeaderEpochs, offset: int, epoch: int) -> None:
    assert epochs.epoch_for_offset(offset) == epoch


@pytest.mark.parametrize(
    ("end_offset", "kept"), [(0, 0), (1, 1), (1500, 1), (1501, 2), (1700, 2), (1701, 3), (5000, 3)]
)
def test_truncation_from_the_end(epochs: LeaderEpochs, end_offset: int, kept: int) -> None:
    before = list(epochs.entries)
    epochs.truncate_from_end(end_offset)
    assert epochs.entries == before[:kept]
    assert LeaderEpochs.load(epochs.path).entries == before[:kept]


@pytest.mark.parametrize(
    ("start_offset", "expected"),
    [
        (0, [(0, 0), (3, 1500), (4, 1700)]),
        (7, [(0, 7), (3, 1500), (4, 1700)]),
        (1500, [(3, 1500), (4, 1700)]),
        (1650, [(3, 1650), (4, 1700)]),
        (9000, [(4, 9000)]),
    ],
)
def test_truncation_from_the_start(epochs: LeaderEpochs, start_offset: int, expected: list[tuple[int, int]]) -> None:
    epochs.truncate_from_start(start_offset)
    assert epochs.entries == expected
    assert LeaderEpochs.load(epochs.path).entries == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\n0 0\n1 5\n",
        b"0\n1\nx 0\n",
        b"0\n1\n0\n",
        b"0\n2\n3 0\n3 5\n",
        b"\xff",
    ],
)
def test_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError):
        LeaderEpochs.load(path)


def test_negative_epoch_is_a_bug(epochs: LeaderEpochs) -> None:
    with pytest.raises(InvariantError):
        epochs.assign(-1, 5)
    assert epochs.earliest == EpochStart(0, 0)
