"""A whole data folder: every partition, and what holds between partitions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from oncelog.cluster.kraft_metadata import load_image
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts
from oncelog.coordinator.txn.state import NAME_OF, TxnState
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, TopicPartition
from oncelog.inspection import entries
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.layout import PartitionFolder, folders_of, is_data_folder
from oncelog.inspection.transactional_ids import TransactionalIds, read_transactional_ids
from oncelog.inspection.verification.finding import Report, Severity
from oncelog.inspection.verification.folder_state import FolderState, read_folder_state
from oncelog.inspection.verification.partition import UnfinishedTransaction, verify_partition
from oncelog.storage import checkpoints, meta_properties, partition_metadata
from oncelog.storage.folder_lock import LOCK_FILE
from oncelog.storage.meta_properties import MetaPropertiesError, read_meta_properties

ATTEMPTS_MAX: Final = 5
SETTLE_S: Final = 0.1
"""Longer than a broker takes for a change of several files: a roll, a deletion, a swap of the cleaner."""
_IN_PROGRESS = frozenset({TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})


def verify_path(path: Path, report: Report | None = None, *, deep: bool = True) -> Report:
    """A data folder, the folder of a partition, or any file in it. `deep` decodes the records too.

    A report that is given is filled while the files are read, and returned.
    """
    report = Report() if report is None else report
    folders = folders_of(path)
    whole = path.is_dir() and is_data_folder(path)
    data_folder = path if whole else folders[0].parent
    state = read_folder_state(data_folder, report)
    in_use = _check_in_use(data_folder, report)
    open_transactions = [found for folder in folders for found in _verify(folder, state, report, deep, in_use)]
    if whole:
        _check_identity(data_folder, report)
        _check_journal(data_folder, report)
        _check_metadata_log(data_folder, report)
        _check_topic_ids(folders, report)
        _check_entries_without_folder(state, {folder.partition for folder in folders}, report)
    _check_hanging(data_folder, open_transactions, report)
    return report


def _verify(
    folder: PartitionFolder, state: FolderState, report: Report, deep: bool, in_use: bool
) -> list[UnfinishedTransaction]:
    """A running broker may remove or replace a file while others are being read: then everything is read again.

    Damage is reported only for files that have not changed meanwhile.
    """
    opened: list[UnfinishedTransaction] = []
    believed = Report()
    for _ in range(ATTEMPTS_MAX):
        attempt = Report(whole=report)
        try:
            before = _inodes(folder.path)
            opened = verify_partition(PartitionFolder(folder.path), state, attempt, deep=deep)
            changed = _changed_since(before, folder.path, attempt) if in_use else set()
        except FileNotFoundError:
            if not folder.path.exists():
                return []
            continue
        if not changed:
            report.merge(attempt)
            return opened
        attempt.leave_out(changed)
        believed = attempt
    report.merge(believed)
    report.note("folder.changing", folder.path, "files come and go while they are being read", "is at work here")
    return opened


def _changed_since(before: dict[Path, int], folder: Path, attempt: Report) -> set[Path]:
    """Files that seem to be damaged and have changed since."""
    damaged = {finding.path for finding in attempt.findings if finding.severity is not Severity.NOTE}
    if not damaged:
        return set()
    time.sleep(SETTLE_S)
    after = _inodes(folder)
    return {path for path in damaged if before.get(path) != after.get(path)}


def _inodes(folder: Path) -> dict[Path, int]:
    with os.scandir(folder) as found:
        return {folder / entry.name: entry.inode() for entry in found}


def _check_in_use(data_folder: Path, report: Report) -> bool:
    """What is being written may look damaged. The lock itself is left alone."""
    lock = data_folder / LOCK_FILE
    try:
        holder = int(lock.read_text())
        os.kill(holder, 0)
    except (OSError, ValueError):
        return False
    report.note(
        "folder.in_use",
        lock,
        f"process {holder} seems to use the folder: what it is writing may look torn",
        "refuses to start while the other one runs",
    )
    return True


def _check_identity(data_folder: Path, report: Report) -> None:
    path = data_folder / meta_properties.FILE_NAME
    if not path.exists():
        report.warning("meta.missing", path, "the file is missing", "takes the folder for a new one of its own cluster")
        return
    report.files += 1
    try:
        read_meta_properties(data_folder)
    except (MetaPropertiesError, UnicodeDecodeError) as error:
        report.error("meta.corrupt", path, str(error), "refuses to start")


def _check_journal(data_folder: Path, report: Report) -> None:
    path = data_folder / JOURNAL_FILE
    if not path.exists():
        return
    report.files += 1
    try:
        for _ in entries.read_journal(path):
            pass
    except entries.Unreadable as error:
        report.error(
            "journal.damaged",
            path,
            str(error),
            "takes what is missing from the logs if it is the last line; refuses to start if whole lines follow it",
        )


def _check_metadata_log(data_folder: Path, report: Report) -> None:
    """A node that is alone notes how long its metadata log was. Damage in that log is found as in any other."""
    facts = NodeFacts.read(data_folder / JOURNAL_FILE)
    if facts is None:
        return
    loaded = load_image(data_folder)
    if loaded.end_offset < facts.end_offset:
        report.error(
            "metadata.cut",
            data_folder / f"{CLUSTER_METADATA_TOPIC}-0",
            f"the metadata log ends at offset {loaded.end_offset} and was at {facts.end_offset}: it has lost its end",
            "takes topics that are missing from the logs, without their settings; users, ACLs and other settings are "
            "as before the changes that are lost",
        )


def _check_topic_ids(folders: Iterable[PartitionFolder], report: Report) -> None:
    known: dict[str, tuple[PartitionFolder, object]] = {}
    for folder in folders:
        try:
            topic_id = partition_metadata.read_topic_id(folder.path)
        except partition_metadata.CorruptPartitionMetadataError:
            continue
        if topic_id is None:
            continue
        first, first_id = known.setdefault(folder.partition.topic, (folder, topic_id))
        if first_id != topic_id:
            report.error(
                "metadata.differs",
                folder.path / partition_metadata.FILE_NAME,
                f"{folder.partition} belongs to another topic id than {first.partition}",
                "leaves the folder of the id that it does not know alone",
            )


def _check_entries_without_folder(state: FolderState, there: set[TopicPartition], report: Report) -> None:
    for partition in sorted(state.recovery_points.keys() - there):
        report.note(
            "checkpoint.stranger",
            state.path / checkpoints.RECOVERY_POINTS,
            f"{partition} is in the file, but has no folder",
            "forgets the entry",
        )


def _check_hanging(data_folder: Path, open_transactions: list[UnfinishedTransaction], report: Report) -> None:
    """An open transaction that its coordinator does not know to be open holds read_committed readers back for ever."""
    if not open_transactions:
        return
    ids = read_transactional_ids(data_folder)
    if not ids.is_complete:
        return
    for found in open_transactions:
        what = _why_hanging(found, ids)
        folder = data_folder / str(found.partition)
        if what and not _has_ended(found, folder):
            report.warning(
                "transaction.hanging",
                folder,
                f"the transaction of producer {found.producer_id} from offset {found.first_offset} has no marker, and "
                f"{what}",
                f"keeps it open: read_committed readers stop at offset {found.first_offset}. To end it: oncelog txn "
                f"abort --topic {found.partition.topic} --partition {found.partition.partition} --start-offset "
                f"{found.first_offset}",
                offset=found.first_offset,
            )


def _has_ended(found: UnfinishedTransaction, folder: Path) -> bool:
    """Whether the transaction has ended since the log was read."""
    later = walk(PartitionFolder(folder), start_offset=found.first_offset)
    return any(batch.header.is_control and batch.header.producer_id == found.producer_id for _, batch in later)


def _why_hanging(found: UnfinishedTransaction, ids: TransactionalIds) -> str:
    name = ids.names.get(found.producer_id)
    if name is None or name not in ids.states:
        return "no transactional id has that producer id"
    state = ids.states[name]
    if TxnState(state.transaction_status) not in _IN_PROGRESS:
        return f"{name} is in state {NAME_OF[TxnState(state.transaction_status)]}"
    partitions = {(t.topic, number) for t in state.transaction_partitions or [] for number in t.partition_ids}
    if tuple(found.partition) not in partitions:
        return f"the transaction of {name} does not include {found.partition}"
    return ""
