"""Offset checkpoints: Kafka's text format, refused when half of it is missing, replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.ids import TopicPartition
from oncelog.storage.atomic_file import TEMPORARY_SUFFIX, replace_file
from oncelog.storage.checkpoint_lines import CorruptCheckpointError
from oncelog.storage.checkpoints import (
    HIGH_WATERMARKS,
    RECOVERY_POINTS,
    CheckpointFiles,
    decode_offsets,
    encode_offsets,
    read_offsets,
)

OFFSETS = {TopicPartition("orders", 1): 1342, TopicPartition("orders", 0): 1500}


def test_text_is_kafkas() -> None:
    assert encode_offsets(OFFSETS) == b"0\n2\norders 1 1342\norders 0 1500\n"
    assert decode_offsets(encode_offsets(OFFSETS)) == OFFSETS
    assert encode_offsets({}) == b"0\n0\n"


def test_empty_file_is_an_empty_map(tmp_path: Path) -> None:
    assert decode_offsets(b"") == {}
    assert read_offsets(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    "content",
    [
        b"1\n0\n",
        b"0\n",
        b"0\n2\norders 0 1500\n",
        b"0\n1\norders 0 1500\norders 1 1342\n",
        b"0\n1\norders 0\n",
        b"0\n1\norders 0 x\n",
        b"0\n1\norders 0 1 2\n",
        b"0\nmany\n",
        b"\xff\xfe",
    ],
)
def test_malformed_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="recovery-point"):
        read_offsets(path)


@pytest.mark.parametrize("point", ["checkpoint.before_fsync", "checkpoint.before_rename"])
def test_crash_while_writing_leaves_the_old_content(tmp_path: Path, point: str) -> None:
    path = tmp_path / "checkpoint"
    replace_file(path, encode_offsets(OFFSETS))

    def crash() -> None:
        raise RuntimeError("killed")

    failpoints.arm(point, crash)
    try:
        with pytest.raises(RuntimeError):
            replace_file(path, encode_offsets({}))
    finally:
        failpoints.disarm_all()
    assert read_offsets(path) == OFFSETS
    replace_file(path, encode_offsets({}))
    assert read_offsets(path) == {}
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix != TEMPORARY_SUFFIX] == ["checkpoint"]


def test_offsets_that_were_collected_earlier_do_not_replace_newer_ones(tmp_path: Path) -> None:
    orders = TopicPartition("orders", 0)
    files = CheckpointFiles(tmp_path)
    number = files.take_number()
    files.write({RECOVERY_POINTS: {orders: 2}})
    files.write({RECOVERY_POINTS: {orders: 1}, HIGH_WATERMARKS: {orders: 1}}, number)
    assert files.read(RECOVERY_POINTS) == {orders: 2}
    assert files.read(HIGH_WATERMARKS) == {orders: 1}
    assert not files.has_newest(number, [RECOVERY_POINTS, HIGH_WATERMARKS])
    assert files.has_newest(number, [HIGH_WATERMARKS])
    files.write({RECOVERY_POINTS: {orders: 3}})
    assert CheckpointFiles(tmp_path).read(RECOVERY_POINTS) == {orders: 3}
