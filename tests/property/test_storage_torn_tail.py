"""A log that was cut or overwritten at any byte comes back as a prefix of itself, and goes on from there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.core.errors import KafkaError
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.log_config import LogConfig
from tests.unit.storage.log_harness import NOW_MS, ORDERS, append, batch, headers_in, new_log, read_all

CONFIG = LogConfig(index_interval_bytes=150)


class Folder:
    """A temporary folder and the logs that were opened in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = new_log(root, CONFIG)
        self.opened = [self.log]

    def recovered(self, content: bytes) -> Log:
        """The log with this content of its only segment, opened after a crash."""
        folder = self.root / f"copy-{len(self.opened)}"
        shutil.copytree(self.log.folder, folder)
        (folder / self.log.segments[0].log_file.path.name).write_bytes(content)
        place = LogPlace(folder, ORDERS, NOW_MS)
        self.opened.append(Log(place, CONFIG, clean=False, log_start_offset=0, recovery_point=0))
        return self.opened[-1]


@contextmanager
def temporary_folder() -> Iterator[Folder]:
    with tempfile.TemporaryDirectory(prefix="oncelog-") as root:
        folder = Folder(Path(root))
        try:
            yield folder
        finally:
            for log in folder.opened:
                log.close(clean=False)


def check_prefix(found: Log, whole: bytes, intact_bytes: int) -> None:
    """Every batch that ends within the intact bytes is there; what is there is as it was."""
    data = read_all(found)
    assert whole.startswith(data)
    expected = 0
    for header in headers_in(whole):
        if expected + header.size_bytes > intact_bytes:
            break
        expected += header.size_bytes
    assert len(data) >= expected
    end = headers_in(data)[-1].next_offset if data else 0
    assert found.log_end_offset == end
    assert append(found, epoch=1).first_offset == end
    assert found.segments[0].offset_index.check_order() is None


def test_last_batch_torn_at_every_byte() -> None:
    with temporary_folder() as folder:
        for sequence in range(6):
            append(folder.log, producer_id=1, producer_epoch=0, base_sequence=sequence)
        whole = folder.log.segments[0].log_file.path.read_bytes()
        last = len(whole) - headers_in(whole)[-1].size_bytes
        for cut in range(last, len(whole) + 1):
            found = folder.recovered(whole[:cut])
            complete = cut == len(whole)
            assert found.log_end_offset == (6 if complete else 5)
            again = append(found, producer_id=1, producer_epoch=0, base_sequence=5)
            assert again.duplicate is complete


@settings(max_examples=60)
@given(
    counts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 120)), min_size=1, max_size=12),
    damage=st.sampled_from(["cut", "zeros", "noise"]),
    data=st.data(),
)
def test_damage_from_any_byte_on_leaves_a_prefix(
    counts: list[tuple[int, int]], damage: str, data: st.DataObject
) -> None:
    with temporary_folder() as folder:
        for count, size in counts:
            append(folder.log, batch(count, value=bytes([size]) * size))
        whole = folder.log.segments[0].log_file.path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)), label="intact bytes")
        rest = len(whole) - cut
        tail = {
            "cut": lambda: b"",
            "zeros": lambda: bytes(rest),
            "noise": lambda: data.draw(st.binary(max_size=200), label="noise"),
        }[damage]()
        check_prefix(folder.recovered(whole[:cut] + tail), whole, cut)


@settings(max_examples=150)
@given(position=st.integers(0, 200), replacement=st.integers(0, 255), count=st.integers(1, 3))
def test_client_batch_with_any_byte_changed_is_refused_or_the_same(position: int, replacement: int, count: int) -> None:
    with temporary_folder() as folder:
        log = folder.log
        append(log)
        before = read_all(log)
        sent = bytearray(batch(count))
        position %= len(sent)
        original, sent[position] = sent[position], replacement
        try:
            append(log, bytes(sent))
        except KafkaError:
            assert (read_all(log), log.log_end_offset) == (before, 1)
        else:
            # The leader epoch is not covered by the CRC, and the leader writes its own.
            assert original == replacement or 12 <= position < 16
            assert read_all(log) == before + (1).to_bytes(8, "big") + bytes(sent[8:12]) + bytes(4) + bytes(sent[16:])


@settings(max_examples=100)
@given(noise=st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    with temporary_folder() as folder:
        try:
            append(folder.log, noise)
        except KafkaError as error:
            assert error.message
        else:
            raise AssertionError("noise was appended")
        assert folder.log.size_bytes == 0
