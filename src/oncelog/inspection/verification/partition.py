"""One partition: its segments are read in order once, and everything else is compared on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from oncelog.core.ids import CLUSTER_METADATA_TOPIC, TopicPartition
from oncelog.inspection.layout import Kind, PartitionFolder, StoredFile
from oncelog.inspection.verification.checkpoint_checks import check_checkpoints
from oncelog.inspection.verification.epoch_checks import EpochChecks
from oncelog.inspection.verification.finding import Report
from oncelog.inspection.verification.folder_state import FolderState
from oncelog.inspection.verification.index_checks import check_indexes
from oncelog.inspection.verification.log_checks import LogChecks
from oncelog.inspection.verification.producer_checks import ProducerChecks
from oncelog.inspection.verification.segment_facts import SegmentFacts
from oncelog.inspection.verification.start_plan import plan_start
from oncelog.storage import partition_metadata
from oncelog.storage.segment_notes import SegmentNotes

_LEFTOVERS: Final = {
    ".deleted": "removes them",
    ".cleaned": "removes them: the cleaner had not finished",
    ".swap": "puts them in the place of the segments they replace",
}


@dataclass(frozen=True, slots=True)
class UnfinishedTransaction:
    partition: TopicPartition
    producer_id: int
    first_offset: int


def verify_partition(
    folder: PartitionFolder, state: FolderState, report: Report, *, deep: bool
) -> list[UnfinishedTransaction]:
    """What is wrong goes into the report; what is open at the end is returned."""
    report.partitions += 1
    _check_leftovers(folder, report)
    _check_topic_id(folder, report)
    segments = [SegmentFacts.read(file) for file in folder.of_kind(Kind.LOG)]
    _check_orphans(folder, segments, report)
    if not segments:
        report.note("log.empty", folder.path, "there is no segment", "makes an empty one")
        return []
    is_metadata = folder.partition.topic == CLUSTER_METADATA_TOPIC
    is_compacted = state.is_compacted(folder.partition)
    base = segments[0].base_offset
    point = state.recovery_points.get(folder.partition)
    notes = SegmentNotes.load(folder.path)
    plan = plan_start(segments, notes, was_clean=state.is_clean, recovery_point=point)
    logs = LogChecks(report, plan, is_compacted, deep)
    producers = ProducerChecks(folder.partition, folder.of_kind(Kind.SNAPSHOT), base, report, is_compacted=is_compacted)
    epochs = EpochChecks(folder, report)
    for number, facts in enumerate(segments):
        report.begin_log(facts.log.path)
        later = len(segments) - number - 1
        for batch in logs.checked(facts, later):
            producers.feed(facts, batch)
            epochs.feed(facts.log.path, batch)
        check_indexes(facts, plan, report, is_last=not later, was_clean=state.is_clean)
        producers.check_txn_index(facts, plan)
    end = logs.next_offset if logs.next_offset is not None else base
    end = max(end, segments[-1].base_offset)
    producers.finish(folder.path, end, [facts.base_offset for facts in segments], was_clean=state.is_clean)
    epochs.finish(end, has_batches=any(facts.batches for facts in segments))
    if not is_metadata:
        check_checkpoints(state, folder.partition, end, report)
    return [
        UnfinishedTransaction(folder.partition, producer_id, first_offset)
        for producer_id, first_offset in producers.open_transactions.items()
    ]


def _check_leftovers(folder: PartitionFolder, report: Report) -> None:
    for suffix, count in sorted(Counter(file.second_suffix for file in folder.files if file.second_suffix).items()):
        files = "file is" if count == 1 else "files are"
        report.note("file.leftover", folder.path, f"{count} {files} marked {suffix}", _LEFTOVERS[suffix])


def _check_topic_id(folder: PartitionFolder, report: Report) -> None:
    path = folder.path / partition_metadata.FILE_NAME
    if not path.exists():
        report.warning("metadata.missing", path, "the file is missing", "takes the folder over by its name")
        return
    report.files += 1
    try:
        partition_metadata.read_topic_id(folder.path)
    except partition_metadata.CorruptPartitionMetadataError as error:
        report.error("metadata.corrupt", path, f"{error}", "refuses the partition")


def _check_orphans(folder: PartitionFolder, segments: list[SegmentFacts], report: Report) -> None:
    bases = {facts.base_offset for facts in segments}
    going = {file.base_offset for file in folder.files if file.kind is Kind.LOG and file.second_suffix == ".deleted"}
    orphans: list[StoredFile] = [
        file
        for kind in (Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.TXN_INDEX)
        for file in folder.of_kind(kind)
        if file.base_offset not in bases
    ]
    for file in orphans:
        what, offset = "there is no log of that offset", file.base_offset
        if offset in going:
            # A segment is deleted file by file, its log first: a kill has come between.
            report.note("index.orphan", file.path, f"{what} but one marked .deleted", "removes it", offset=offset)
        else:
            report.error("index.orphan", file.path, what, "removes it", offset=offset)
