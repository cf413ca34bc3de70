"""The checkpoints of a data folder against its logs."""

from __future__ import annotations

from typing import NamedTuple

from oncelog.core.ids import TopicPartition
from oncelog.inspection.verification.finding import Report
from oncelog.inspection.verification.folder_state import FolderState
from oncelog.storage import checkpoints


class LogEnd(NamedTuple):
    partition: TopicPartition
    end_offset: int


def check_checkpoints(state: FolderState, log: LogEnd, report: Report) -> None:
    _check_recovery_point(state, log, report)
    _check_log_start(state, log, report)
    _check_high_watermark(state, log, report)
    dirty = state.cleaner_offsets.get(log.partition)
    if dirty is not None and dirty > log.end_offset:
        report.warning(
            "checkpoint.cleaner",
            state.path / checkpoints.CLEANER_OFFSETS,
            f"{log.partition}: cleaned up to offset {dirty}, but the log ends at {log.end_offset}",
            "starts cleaning from the beginning of the log",
            offset=dirty,
        )


def _check_recovery_point(state: FolderState, log: LogEnd, report: Report) -> None:
    path = state.path / checkpoints.RECOVERY_POINTS
    point = state.recovery_points.get(log.partition)
    if point is None:
        if state.is_clean:
            report.warning(
                "checkpoint.missing",
                path,
                f"{log.partition} is not in the file, although the last stop was clean",
                "reads the folder of the log at once to find its end",
            )
    elif point > log.end_offset:
        report.error(
            "checkpoint.recovery_point",
            path,
            f"{log.partition} was on disk up to offset {point}, but the log ends at {log.end_offset}: "
            f"{point - log.end_offset} offsets are gone",
            "scans the log and goes on from its end; offsets that were given out are given out again",
            offset=point,
        )
    elif state.is_clean and point != log.end_offset:
        report.error(
            "checkpoint.recovery_point",
            path,
            f"{log.partition} was stopped cleanly at offset {point}, but ends at {log.end_offset}",
            "does not believe in the clean stop and scans the log from there",
            offset=point,
        )


def _check_log_start(state: FolderState, log: LogEnd, report: Report) -> None:
    start = state.log_starts.get(log.partition)
    if start is not None and start > log.end_offset:
        report.error(
            "checkpoint.log_start",
            state.path / checkpoints.LOG_START_OFFSETS,
            f"{log.partition} starts at offset {start}, but the log ends at {log.end_offset}",
            "keeps the segments and starts with the first; records that were deleted may be back",
            offset=start,
        )


def _check_high_watermark(state: FolderState, log: LogEnd, report: Report) -> None:
    watermark = state.high_watermarks.get(log.partition)
    if watermark is not None and watermark > log.end_offset:
        report.error(
            "checkpoint.high_watermark",
            state.path / checkpoints.HIGH_WATERMARKS,
            f"{log.partition} was committed up to offset {watermark}, but the log ends at {log.end_offset}: "
            f"{watermark - log.end_offset} committed offsets are gone",
            "goes on from the end of the log; readers that were further are told OFFSET_OUT_OF_RANGE",
            offset=watermark,
        )
