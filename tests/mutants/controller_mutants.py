"""Mutants of the image of a cluster's metadata, and of what a broker does under controllers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, suite

_CONTROLLER = "oncelog.controller."
_IMAGE_PROPERTY = suite("tests/property/test_metadata_image.py")
_REPLAY = suite("tests/unit/controller/test_replay.py")
_QUORUM_LOG = suite("tests/unit/cluster/test_quorum_log.py")
_LIFECYCLE = suite("tests/unit/cluster/test_lifecycle.py")

CONTROLLER_MUTANTS = [
    Mutant(
        "naming the same leader again does not raise its epoch",
        _CONTROLLER + "partition_image",
        "has_leader = change.leader != _NO_LEADER_CHANGE",
        "has_leader = change.leader not in (_NO_LEADER_CHANGE, self.leader)",
        (_REPLAY,),
    ),
    Mutant(
        "a partition may go back to an older epoch",
        _CONTROLLER + "replay",
        "new.leader_epoch < old.leader_epoch or new.partition_epoch < old.partition_epoch",
        "False",
        (_REPLAY, _IMAGE_PROPERTY),
    ),
    Mutant(
        "records of a metadata transaction are applied before it ends",
        _CONTROLLER + "replay",
        "            self._transaction.append(record)",
        "            _REPLAY[type(record)](self, record)",
        (_REPLAY,),
    ),
    Mutant(
        "an image changes with the partitions of its successor",
        _CONTROLLER + "replay",
        "        self._own_partitions.clear()\n",
        "",
        (_REPLAY, _IMAGE_PROPERTY),
    ),
    Mutant(
        "a snapshot forgets which replicas are being added",
        _CONTROLLER + "partition_image",
        "            adding_replicas=list(self.adding_replicas),\n",
        "",
        (_IMAGE_PROPERTY,),
    ),
    Mutant(
        "a delta leaves out what is gone",
        _CONTROLLER + "delta",
        "for key, old in before.items() if key not in after}",
        "for key, old in before.items() if key is None}",
        (_IMAGE_PROPERTY,),
    ),
    Mutant(
        "a snapshot without its footer is taken for a whole one",
        _CONTROLLER + "checkpoint",
        "if not isinstance(controls[-1], SnapshotFooterRecord):",
        "if False:",
        (suite("tests/unit/controller/test_checkpoint.py"),),
    ),
    Mutant(
        "metadata is applied before it is committed",
        "oncelog.cluster.quorum_log",
        "self._held[0].header.next_offset <= self._high_watermark",
        "True",
        (_QUORUM_LOG,),
    ),
    Mutant(
        "the high watermark is taken from an answer that asks for truncation",
        "oncelog.cluster.quorum_log",
        "partition.diverging_epoch.end_offset)\n            return None",
        "partition.diverging_epoch.end_offset)",
        (_QUORUM_LOG,),
    ),
    Mutant(
        "the epoch of the quorum goes back",
        "oncelog.cluster.quorum_log",
        "if epoch < self._epoch or (",
        "if (",
        (_QUORUM_LOG,),
        is_quick=True,
    ),
    Mutant(
        "a broker asks to be unfenced before its logs are recovered",
        "oncelog.cluster.lifecycle",
        "want_fence=self.state in (State.CATCHING_UP, State.RECOVERING)",
        "want_fence=self.state is State.CATCHING_UP",
        (_LIFECYCLE,),
    ),
]
