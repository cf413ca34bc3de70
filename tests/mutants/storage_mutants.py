"""Mutants of logs, producer state, compaction and retention."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, histories, suite

_STATE = "oncelog.storage.producer_state"
_STATE_PROPERTY = suite("tests/property/test_producer_state.py")
_CLEANER_PROPERTY = suite("tests/property/test_cleaner.py")
_LOG_PROPERTY = suite("tests/property/test_storage_log.py")

STORAGE_MUTANTS = [
    Mutant(
        "producers with open transactions expire",
        _STATE,
        "return entry.txn_first_offset < 0 and now_ms",
        "return now_ms",
        (histories(30, "lso-moves-on", "nobody-waits", "no-exception", theme="forgetting"), _STATE_PROPERTY),
    ),
    Mutant(
        "producers never expire",
        _STATE,
        "return entry.txn_first_offset < 0 and now_ms - entry.last_active_ms >= idle_ms",
        "return False",
        (histories(30, "goes-in-time", theme="forgetting"), _STATE_PROPERTY),
    ),
    Mutant(
        "deleted records take their producers along",
        _STATE,
        '"""Records below are gone. Their producers stay known (KIP-360): only time makes them expire."""\n',
        "self._producers.clear()\n",
        (_LOG_PROPERTY, histories(60, theme="removal")),
    ),
    Mutant(
        "batches are taken in any order",
        _STATE,
        "        elif sequence != entry.next_sequence:\n",
        "        elif False:\n",
        (_STATE_PROPERTY, histories(60, "no-duplicates", "exactly-once", "in-order")),
    ),
    Mutant(
        "only the last batch is known again",
        "oncelog.storage.producer_entry",
        "        for batch in self.batches:\n            if batch.first_sequence",
        "        for batch in self.batches[-1:]:\n            if batch.first_sequence",
        (_STATE_PROPERTY, histories(60, "no-duplicates", "exactly-once")),
    ),
    Mutant(
        "a damaged batch is judged by what is damaged in it",
        "oncelog.storage.append_checks",
        "    if crc_of_covered(covered) != header.crc:\n",
        "    check_client_batch(header, partition)\n    if crc_of_covered(covered) != header.crc:\n",
        (suite("tests/unit/storage/test_log_append.py"),),
    ),
    Mutant(
        "an older epoch may write",
        _STATE,
        "        if entry is not None and epoch < entry.epoch:\n            raise self._fenced(header",
        "        if False:\n            raise self._fenced(header",
        (_STATE_PROPERTY,),
    ),
    Mutant(
        "a batch joins a transaction that nobody has verified",
        _STATE,
        "if self.verification_enabled and not is_open and not is_guarded:",
        "if False:",
        (_STATE_PROPERTY,),
    ),
    Mutant(
        "a late marker ends the next transaction",
        _STATE,
        "            marker_tv >= _STRICT_MARKER_TV\n",
        "            False\n",
        (_STATE_PROPERTY,),
    ),
    Mutant(
        "aborted transactions are not indexed",
        "oncelog.storage.txn_index",
        '        hit("txn_index.append.before_write")\n',
        "        return\n",
        (histories(40, "committed-only", "reader-consistent"), _LOG_PROPERTY),
        is_quick=True,
    ),
    Mutant(
        "the cleaner does not stop at the last stable offset",
        "oncelog.storage.cleaner_plan",
        "    bound = segment_number(segments, last_stable_offset)\n",
        "    bound = len(segments) - 1\n",
        (_CLEANER_PROPERTY, histories(60, theme="table")),
    ),
    Mutant(
        "snapshots keep transactions that the cleaner has removed",
        "oncelog.storage.log_files",
        "        snapshots.end_transactions(first)\n",
        "",
        (_CLEANER_PROPERTY,),
    ),
    Mutant(
        "a delete horizon lies in the past",
        "oncelog.storage.batch_filter",
        "return self.now_ms + self.delete_retention_ms",
        "return self.now_ms - self.delete_retention_ms",
        (_CLEANER_PROPERTY, histories(60, "exactly-once", "all-or-nothing", theme="table")),
    ),
    Mutant(
        "the cleaner removes the newest record of a key",
        "oncelog.storage.batch_filter",
        "offset >= newest(record.key)",
        "offset > newest(record.key)",
        (_CLEANER_PROPERTY, histories(20, theme="table")),
    ),
    Mutant(
        "the cleaner forgets the last sequence of a producer",
        "oncelog.storage.batch_filter",
        "                if last.offset == header.last_offset:\n                    return True\n",
        "                pass\n",
        (_CLEANER_PROPERTY,),
    ),
    Mutant(
        "retention deletes what is young",
        "oncelog.storage.retention",
        "largest_timestamp_ms > config.retention_ms",
        "largest_timestamp_ms > 0",
        (histories(40, "exactly-once", "all-or-nothing", "reader-consistent", "offsets-atomic", theme="removal"),),
    ),
    Mutant(
        "retention keeps what is old",
        "oncelog.storage.retention",
        "rules += [_too_large(segments, config), _too_old(segments, config, now_ms)]",
        "rules += [_too_large(segments, config)]",
        (histories(40, "goes-in-time", theme="removal"),),
    ),
    Mutant(
        "the log start moves back",
        "oncelog.storage.log",
        "        if before > self.log_start_offset:\n            self.log_start_offset = before\n",
        "        if before != self.log_start_offset:\n            self.log_start_offset = before\n",
        (histories(40, "start-moves-on", theme="removal"), _LOG_PROPERTY),
    ),
    Mutant(
        "a lost snapshot is not written again before segments go",
        "oncelog.storage.log_files",
        "        self._keep_producers(self.segments[count].base_offset)\n",
        "",
        (suite("tests/unit/storage/test_lost_snapshots.py"),),
    ),
    Mutant(
        "the first snapshot of a log is not restored",
        "oncelog.storage.recovery",
        "        self._restore_first_snapshot()\n",
        "",
        (suite("tests/unit/storage/test_lost_snapshots.py"),),
    ),
    Mutant(
        "a snapshot has the timestamps of batches",
        "oncelog.storage.producer_snapshot",
        "        entry.last_active_ms,\n",
        "        entry.last_timestamp,\n",
        (suite("tests/unit/storage/test_last_heard_of.py"), _STATE_PROPERTY),
    ),
    Mutant(
        "a batch that is read again counts by its timestamp",
        "oncelog.storage.producer_replay",
        "state.apply(header, control=control, now_ms=now_ms)",
        "state.apply(header, control=control, now_ms=-1)",
        (suite("tests/unit/storage/test_last_heard_of.py"),),
    ),
    Mutant(
        "leader epochs that do not fit the log are believed",
        "oncelog.storage.recovery",
        "        if self.epochs_are_lost or not self._are_epochs_right(end_offset):\n",
        "        if self.epochs_are_lost:\n",
        (suite("tests/unit/storage/test_log_truncation.py"),),
    ),
    Mutant(
        "a log start without a checksum is believed",
        "oncelog.storage.log_dir",
        "            if first < start:\n",
        "            if start < 0:\n",
        (suite("tests/unit/storage/test_doubtful_checkpoints.py"),),
    ),
    Mutant(
        "a repaired log has forgotten what is committed",
        "oncelog.storage.log",
        "        files.producer_state.on_high_watermark(before.producer_state.high_watermark)\n",
        "",
        (suite("tests/unit/storage/test_disk_trouble.py", "-k", "over_before"),),
    ),
    Mutant(
        "a log without descriptors waits for a restart",
        "oncelog.storage.log_health",
        "errno.ENOMEM, *OUT_OF_DESCRIPTORS)",
        "errno.ENOMEM)",
        (suite("tests/unit/storage/test_disk_trouble.py"),),
    ),
]
