"""Mutants of the transaction and group coordinators, and of what runs them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, histories, suite

_TXN = "oncelog.coordinator.txn."
_TXN_PROPERTY = suite("tests/property/test_txn_machine.py")

COORDINATOR_MUTANTS = [
    Mutant(
        "a time-out is counted from the last change of a transaction",
        _TXN + "fencing",
        "metadata.start_ms + metadata.timeout_ms < now_ms",
        "metadata.last_update_ms + metadata.timeout_ms < now_ms",
        (histories(20, "nobody-waits", theme="dawdling"), _TXN_PROPERTY),
    ),
    Mutant(
        "transactions never time out",
        _TXN + "machine",
        "if fencing.has_timed_out(entry, now_ms)",
        "if False",
        (histories(20, "nobody-waits", "lso-moves-on", theme="dawdling"),),
    ),
    Mutant(
        "a lost marker is taken for an abort",
        _TXN + "recovery",
        "return Repair.COMMIT if state is TxnState.COMPLETE_COMMIT else Repair.ABORT",
        "return Repair.ABORT",
        (suite("tests/unit/server/test_lost_tails.py", "-k", "decision_is_known"),),
    ),
    Mutant(
        "after a power cut an id keeps its producer id",
        _TXN + "epochs",
        "    if is_doubtful:\n",
        "    if False:\n",
        (suite("tests/unit/server/test_lost_tails.py", "-k", "next_instance"),),
    ),
    Mutant(
        "a load leaves out tombstones that newer records follow",
        "oncelog.server.shard_log",
        "        if key in deleted:",
        "        if False:",
        (suite("tests/property/test_reload.py"),),
    ),
    Mutant(
        "whoever is one epoch below may repeat the end of a transaction",
        _TXN + "end_txn",
        "if presented.epoch + 1 == current.epoch and was_bumped:",
        "if presented.epoch + 1 == current.epoch:",
        (_TXN_PROPERTY,),
    ),
    Mutant(
        "an epoch above the current one is let in",
        _TXN + "decision",
        "if presented.epoch != entry.client_identity.epoch:",
        "if presented.epoch < entry.client_identity.epoch:",
        (_TXN_PROPERTY,),
    ),
    Mutant(
        "a kept prepared transaction can be added to",
        _TXN + "partitions",
        "    if entry.metadata.keeps_prepared:\n",
        "    if False:\n",
        (_TXN_PROPERTY,),
    ),
    Mutant(
        "markers are not sent again after a start",
        _TXN + "machine",
        "            for entry in self._entries.values()\n            if entry.metadata.state in PREPARED\n",
        "            for entry in self._entries.values()\n            if False\n",
        (histories(60, "nobody-waits", "lso-moves-on"), _TXN_PROPERTY),
    ),
    Mutant(
        "an acknowledgement counts for whatever the id has open",
        "oncelog.coordinator.txn.machine",
        "if entry is None or entry.markers is not sent:",
        "if entry is None or entry.markers is None:",
        (suite("tests/unit/coordinator/txn/test_txn_markers.py"),),
    ),
    Mutant(
        "a transaction is complete before all of its markers are written",
        _TXN + "markers",
        "return not entry.unacknowledged and entry.in_flight is None",
        "return entry.in_flight is None",
        (_TXN_PROPERTY,),
    ),
    Mutant(
        "an end does not bump the epoch",
        _TXN + "epochs",
        "epoch = ProducerEpoch(min(epoch + 1, EPOCH_MAX))",
        "epoch = ProducerEpoch(min(epoch, EPOCH_MAX))",
        (_TXN_PROPERTY, histories(60)),
    ),
    Mutant(
        "a new instance gets the epoch of its predecessor",
        _TXN + "epochs",
        "return ProducerIdAndEpoch(identity.producer_id, ProducerEpoch(identity.epoch + 1))",
        "return ProducerIdAndEpoch(identity.producer_id, ProducerEpoch(max(0, identity.epoch)))",
        (_TXN_PROPERTY, histories(60, "epochs-grow", "fenced-stays-fenced")),
    ),
    Mutant(
        "markers are not tried again",
        "oncelog.server.markers",
        "        if not self._retry_pending:\n",
        "        if False:\n",
        (histories(60, "nobody-waits", "lso-moves-on"),),
    ),
    Mutant(
        "the record of a completed transaction is not tried again",
        "oncelog.server.txn_runtime",
        "            if result.error is not ErrorCode.NONE and not self._broker.stopped:\n",
        "            if False:\n",
        (histories(60, "nobody-waits", theme="stragglers"),),
    ),
    Mutant(
        "decisions are answered before they are logged",
        "oncelog.server.txn_runtime",
        "        self._write(live, outcome, answer)\n        if outcome.wait_for is not None and not promise.done:\n",
        "        answer(outcome.response)\n"
        "        self._write(live, outcome, lambda _: None)\n"
        "        if outcome.wait_for is not None and not promise.done:\n",
        (histories(60),),
    ),
    Mutant(
        "parked requests are forgotten",
        "oncelog.server.txn_runtime",
        "        self._parked.setdefault(transactional_id, deque()).append(parked)\n",
        "",
        (histories(60, "nobody-waits"),),
        is_quick=True,
    ),
    Mutant(
        "records of coordinators are applied before they are committed",
        "oncelog.server.coordinator_runtime",
        "        live.partition.committed(info.last_offset).then(committed)\n",
        "        committed(None)\n",
        (suite("tests/unit/server/test_flusher.py"),),
    ),
    Mutant(
        "a shard that its log has overtaken goes on",
        "oncelog.server.coordinator_runtime",
        "        live.is_stale |= live.partition.log.has_failed\n",
        "",
        (suite("tests/unit/server/test_coordinator_runtime.py"),),
    ),
    Mutant(
        "offsets are stored without the id of their topic",
        "oncelog.coordinator.group.commits",
        "                topic_id=topic_ids.get(topic, NULL_UUID),\n",
        "",
        (suite("tests/simulation/test_regressions.py", "-k", "made_again"),),
    ),
    Mutant(
        "offsets are published whatever the marker says",
        "oncelog.coordinator.group.offsets",
        "if commit and self._is_younger(",
        "if self._is_younger(",
        (histories(60, "offsets-atomic"),),
        is_quick=True,
    ),
    Mutant(
        "producer ids are given out from memory",
        "oncelog.controller.producer_id_blocks",
        "return Decision([record], ",
        "return Decision([], ",
        (suite("tests/unit/server/test_metadata_changes.py", "-k", "producer_ids_wait"),),
    ),
    Mutant(
        "a block of producer ids that was on its way is used although it is skipped",
        "oncelog.server.producer_ids",
        "        if not isinstance(block, KafkaError) and block.start <= self._skipped_up_to:\n",
        "        if False:\n",
        (suite("tests/unit/server/test_own_controller.py", "-k", "skipped_while"),),
    ),
    Mutant(
        "logs are read after a kill by the settings of the node's file",
        "oncelog.server.broker",
        "            self.metadata.broker_configs = broker_configs(load_settings(self._data_dir))\n",
        "            pass\n",
        (suite("tests/unit/server/test_own_controller.py", "-k", "logs_are_read"),),
    ),
]
