"""Small files are read by the rules of the broker that will open them."""

from __future__ import annotations

import struct
from pathlib import Path

from oncelog.cluster.journal import format_line, read_journal
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.inspection.entries import read_offset_index
from oncelog.inspection.topic_settings import compacted_topics
from oncelog.inspection.verification import verify_path
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.messages.cluster_metadata import ConfigRecord, encode_metadata_record
from oncelog.storage.file_cache import FileCache
from oncelog.storage.offset_index import OffsetIndex

TOPIC = 2


def test_a_last_change_without_its_newline_is_torn_as_it_is_for_a_broker(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(b"".join(format_line({"kind": "start", "incarnation": number}) for number in (1, 2)))
    assert "journal.damaged" not in {finding.check for finding in verify_path(tmp_path).findings}
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    (found,) = [finding for finding in verify_path(tmp_path).findings if finding.check == "journal.damaged"]
    assert found.what == "line 2 is torn or damaged"
    assert len(read_journal(path).entries) == 1


def test_zeros_in_the_middle_of_an_index_are_an_entry_and_at_its_end_they_are_none(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000005.index"
    for fields in [(3, 100, 0, 0, 9, 700), (3, 100, 9, 700, 0, 0), (3, 100, 9, 700)]:
        path.write_bytes(struct.pack(f">{len(fields)}i", *fields))
        found = read_offset_index(path, 5)
        index = OffsetIndex(FileCache().handle(path), 5, 1000)
        index.load()
        assert found.entries == index.entries()
        assert found.is_padded is (fields[-2:] == (0, 0))
        index.close()


def test_a_cleanup_policy_that_only_a_metadata_snapshot_still_has_is_known(tmp_path: Path) -> None:
    """Kafka's controllers delete the log below a snapshot."""
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    config = ConfigRecord(resource_type=TOPIC, resource_name="changes", name="cleanup.policy", value="compact")
    batch = build_batch([Record(0, 0, None, encode_metadata_record(config, 0))], timestamp_ms=0)
    (folder / "00000000000000000010-0000000001.checkpoint").write_bytes(batch)
    (folder / "00000000000000000010.log").write_bytes(b"")
    assert compacted_topics(tmp_path) == {"changes"}
