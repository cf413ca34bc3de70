"""What a killed broker left on disk, seen by readers that share no code with its storage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from oncelog.testing import BrokerProcess
from peers.kafka.dump import check_data_dir
from peers.kafka.jars import kafka_available
from tests.simulation.log_audit import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, audit


def stop_and_check_files(broker: BrokerProcess, *, compacted_topics: Sequence[str] = ()) -> None:
    """Every batch whole, every decision with its markers; and Apache Kafka's DumpLogSegments has no complaint."""
    broker.stop()
    if not compacted_topics:
        found = audit(broker.data_dir)
        assert set(found.last_states.values()) <= {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}
    reason = kafka_available()
    if reason is None:
        assert check_data_dir(broker.data_dir, compacted_topics=list(compacted_topics)) == []
    elif os.environ.get("CI") == "true":
        pytest.fail(reason)


def last_state(data_dir: Path, transactional_id: str) -> int:
    """What `__transaction_state` says, read while nobody runs: a torn last batch is not there."""
    return audit(data_dir, unfinished=True).last_states[transactional_id]
