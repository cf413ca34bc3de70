"""Small files that say whose folder it is and how it was left: partition.metadata, meta.properties, the stop marker."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from oncelog.core.ids import uuid_from_text
from oncelog.storage.clean_shutdown import take_clean_stop, write_clean_stop
from oncelog.storage.meta_properties import MetaPropertiesError, ensure_meta_properties, read_meta_properties
from oncelog.storage.partition_metadata import CorruptPartitionMetadataError, read_topic_id, write_topic_id

CLUSTER = "4L6g3nShT-eMCtK--X86sw"
TOPIC_ID = uuid_from_text("fK9aF3nzQ0ybpZ2Wq0m3eA")


def test_partition_metadata_is_kafkas_text(tmp_path: Path) -> None:
    write_topic_id(tmp_path, TOPIC_ID)
    assert (tmp_path / "partition.metadata").read_bytes() == b"version: 0\ntopic_id: fK9aF3nzQ0ybpZ2Wq0m3eA"
    assert read_topic_id(tmp_path) == TOPIC_ID


def test_folder_without_partition_metadata_has_no_topic_id(tmp_path: Path) -> None:
    assert read_topic_id(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"version: 0", b"version: 1\ntopic_id: fK9aF3nzQ0ybpZ2Wq0m3eA", b"version: 0\ntopic_id: x", b"version: \xff"],
)
def test_damaged_partition_metadata_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "partition.metadata").write_bytes(content)
    with pytest.raises(CorruptPartitionMetadataError, match=r"partition\.metadata"):
        read_topic_id(tmp_path)


def test_meta_properties_are_written_at_the_first_start_and_kept(tmp_path: Path) -> None:
    first = ensure_meta_properties(tmp_path, cluster_id=CLUSTER, node_id=1)
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert lines[:3] == ["version=1", f"cluster.id={CLUSTER}", "node.id=1"]
    assert ensure_meta_properties(tmp_path, cluster_id=CLUSTER, node_id=1) == first
    assert ensure_meta_properties(tmp_path, cluster_id=None, node_id=1) == first


def test_cluster_id_is_made_up_when_none_is_given(tmp_path: Path) -> None:
    made = ensure_meta_properties(tmp_path, cluster_id=None, node_id=1)
    assert uuid_from_text(made.cluster_id) != uuid.UUID(int=0)


def test_folder_of_another_cluster_or_node_is_refused(tmp_path: Path) -> None:
    ensure_meta_properties(tmp_path, cluster_id=CLUSTER, node_id=1)
    with pytest.raises(MetaPropertiesError, match=r"cluster 4L6g3nShT.*log\.dirs"):
        ensure_meta_properties(tmp_path, cluster_id="AAAAAAAAAAAAAAAAAAAAAA", node_id=1)
    with pytest.raises(MetaPropertiesError, match=r"node 1.*node\.id is 2"):
        ensure_meta_properties(tmp_path, cluster_id=CLUSTER, node_id=2)


def test_kafkas_file_with_comments_and_the_old_broker_id(tmp_path: Path) -> None:
    text = f"#\n#Sat Nov 15 10:00:00 UTC 2025\nbroker.id=7\nversion=0\ncluster.id={CLUSTER}\n"
    (tmp_path / "meta.properties").write_text(text)
    found = read_meta_properties(tmp_path)
    assert found is not None
    assert (found.cluster_id, found.node_id, found.directory_id) == (CLUSTER, 7, None)
    assert ensure_meta_properties(tmp_path, cluster_id=CLUSTER, node_id=7).directory_id is not None


@pytest.mark.parametrize(
    "text", ["", "version=2\n", "version=1\nnode.id=1\n", f"version=1\ncluster.id={CLUSTER}\n", "x\n"]
)
def test_meta_properties_without_sense_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(MetaPropertiesError, match=r"meta\.properties is damaged: .* Restore it from a copy, or write"):
        read_meta_properties(tmp_path)


def test_marker_of_a_clean_stop_is_taken_once(tmp_path: Path) -> None:
    assert take_clean_stop(tmp_path) is False
    write_clean_stop(tmp_path, 42)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":42}'
    assert take_clean_stop(tmp_path) is True
    assert take_clean_stop(tmp_path) is False


@pytest.mark.parametrize(("content", "clean"), [(b"", True), (b'{"version":0}', True), (b'{"version":1}', False)])
def test_markers_of_other_versions(tmp_path: Path, content: bytes, clean: bool) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    assert take_clean_stop(tmp_path) is clean
