"""The checkpoints of a data folder against its logs."""

from __future__ import annotations

from oncelog.core.ids import TopicPartition
from oncelog.inspection.verification.finding import Report
from oncelog.inspection.verification.folder_state import FolderState
from oncelog.storage import checkpoints


def check_checkpoints(state: FolderState, partition: TopicPartition, end: int, report: Report) -> None:
    _check_recovery_point(state, partition, end, report)
    _check_log_start(state, partition, end, report)
    _check_high_watermark(state, partition, end, report)
    dirty = state.cleaner_offsets.get(partition)
    if dirty is not None and dirty > end:
        report.warning(
            "checkpoint.cleaner",
            state.path / checkpoints.CLEANER_OFFSETS,
            f"{partition}: cleaned up to offset {dirty}, but the log ends at {end}",
            "starts cleaning from the beginning of the log",
            offset=dirty,
        )


def _check_recovery_point(state: FolderState, partition: TopicPartition, end: int, report: Report) -> None:
    path = state.path / checkpoints.RECOVERY_POINTS
    point = state.recovery_points.get(partition)
    if point is None:
        if state.is_clean:
            report.warning(
                "checkpoint.missing",
                path,
                f"{partition} is not in the file, although the last stop was clean",
                "reads the folder of the log at once to find its end",
            )
    elif point > end:
        report.error(
            "checkpoint.recovery_point",
            path,
            f"{partition} was on disk up to offset {point}, but the log ends at {end}: {point - end} offsets are gone",
            "scans the log and goes on from its end; offsets that were given out are given out again",
            offset=point,
        )
    elif state.is_clean and point != end:
        report.error(
            "checkpoint.recovery_point",
            path,
            f"{partition} was stopped cleanly at offset {point}, but ends at {end}",
            "does not believe in the clean stop and scans the log from there",
            offset=point,
        )


def _check_log_start(state: FolderState, partition: TopicPartition, end: int, report: Report) -> None:
    start = state.log_starts.get(partition)
    if start is not None and start > end:
        report.error(
            "checkpoint.log_start",
            state.path / checkpoints.LOG_START_OFFSETS,
            f"{partition} starts at offset {start}, but the log ends at {end}",
            "keeps the segments and starts with the first; records that were deleted may be back",
            offset=start,
        )


def _check_high_watermark(state: FolderState, partition: TopicPartition, end: int, report: Report) -> None:
    watermark = state.high_watermarks.get(partition)
    if watermark is not None and watermark > end:
        report.error(
            "checkpoint.high_watermark",
            state.path / checkpoints.HIGH_WATERMARKS,
            f"{partition} was committed up to offset {watermark}, but the log ends at {end}: "
            f"{watermark - end} committed offsets are gone",
            "goes on from the end of the log; readers that were further are told OFFSET_OUT_OF_RANGE",
            offset=watermark,
        )
