"""Mutants of the image of a cluster's metadata, and of what a broker does under controllers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, suite

_CONTROLLER = "oncelog.controller."
_IMAGE_PROPERTY = suite("tests/property/test_metadata_image.py")
_REPLAY = suite("tests/unit/controller/test_replay.py")
_QUORUM_LOG = suite("tests/unit/cluster/test_quorum_log.py")
_LIFECYCLE = suite("tests/unit/cluster/test_lifecycle.py")
_ELECTIONS = suite("tests/unit/controller/test_elections.py")
_BROKERS = suite("tests/unit/controller/test_brokers.py")
_NODE = suite("tests/unit/server/test_controller.py")
_CONTROLLERS = suite("tests/controller_simulation/test_histories.py")

CONTROLLER_MUTANTS = [
    Mutant(
        "naming the same leader again does not raise its epoch",
        _CONTROLLER + "partition_image",
        "has_leader = change.leader != NO_LEADER_CHANGE",
        "has_leader = change.leader not in (NO_LEADER_CHANGE, self.leader)",
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
        "return {**gone, **changes} if gone else changes",
        "return changes",
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
        "what is not committed stays behind a snapshot that replaces it",
        "oncelog.cluster.quorum_log",
        "        self._held.clear()\n        self._replay, self.quorum",
        "        self._replay, self.quorum",
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
    Mutant(
        "an unclean leader is elected although nobody has allowed it",
        _CONTROLLER + "partition_change",
        "        if self.election is Election.UNCLEAN:",
        "        if True:",
        (_ELECTIONS,),
    ),
    Mutant(
        "the leader epoch stays when a replica is removed",
        _CONTROLLER + "partition_change",
        "if record.leader == NO_LEADER_CHANGE and not set(old.replicas) <= set(replicas):",
        "if False:",
        (_ELECTIONS,),
    ),
    Mutant(
        "a reassignment ends before the new replicas are in sync",
        _CONTROLLER + "partition_change",
        " or not left_isr >= set(adding):",
        ":",
        (_ELECTIONS,),
    ),
    Mutant(
        "a reassignment waits for a dead replica that it does not touch",
        _CONTROLLER + "partition_change",
        "    return len(adding) >= len(removing) or left_isr >= left",
        "    return left_isr >= left",
        (_ELECTIONS,),
    ),
    Mutant(
        "a reassignment makes the replicas in sync fewer",
        _CONTROLLER + "partition_change",
        "    return len(adding) >= len(removing) or left_isr >= left",
        "    return True",
        (_ELECTIONS,),
    ),
    Mutant(
        "a fenced broker joins an ISR",
        _CONTROLLER + "in_sync_changes",
        "if broker is None or not view.is_active(member.broker_id):",
        "if broker is None:",
        (_ELECTIONS,),
    ),
    Mutant(
        "a broker that may have lost records stays an eligible leader",
        _CONTROLLER + "broker_changes",
        "places = [*_in_isr(view, broker_id), *_in_elr(view, broker_id)]",
        "places = [*_in_isr(view, broker_id)]",
        (_BROKERS, _ELECTIONS),
    ),
    Mutant(
        "the last known leader is elected while it is fenced",
        _CONTROLLER + "partition_change",
        "len(last_known) == 1 and self.is_acceptable(last_known[0])",
        "len(last_known) == 1",
        (_ELECTIONS,),
    ),
    Mutant(
        "an eligible leader stays one under another minimum",
        _CONTROLLER + "config_changes",
        "        for record in records\n        if record.name == MIN_ISR\n",
        "        for record in records\n        if False\n",
        (_ELECTIONS, _CONTROLLERS),
    ),
    Mutant(
        "the minimum of a partition is bounded by the replicas of another one",
        _CONTROLLER + "view",
        "len(place.partition.replicas))",
        "len(next(iter(place.topic.partitions.values())).replicas))",
        (_ELECTIONS,),
    ),
    Mutant(
        "eligible leaders of before ELR was off are kept",
        _CONTROLLER + "feature_changes",
        "        records.append(ClearElrRecord())\n",
        "        pass\n",
        (_ELECTIONS,),
    ),
    Mutant(
        "a process that registers again gets another epoch",
        _CONTROLLER + "registration",
        "epoch = existing.epoch if existing is not None and is_same else new_epoch",
        "epoch = new_epoch",
        (_BROKERS,),
    ),
    Mutant(
        "a broker stops before the others know who leads instead",
        _CONTROLLER + "heartbeats",
        "if leads() or any(",
        "if leads() and any(",
        (_BROKERS,),
    ),
    Mutant(
        "a broker is unfenced that has not read its registration",
        _CONTROLLER + "heartbeats",
        "may_serve=is_caught_up and not is_ending",
        "may_serve=not is_ending",
        (_BROKERS,),
    ),
    Mutant(
        "a broker that has registered again is unfenced by what it had read at first",
        _CONTROLLER + "machine",
        "self._registered_offsets[NodeId(record.broker_id)] = offset",
        "self._registered_offsets.setdefault(NodeId(record.broker_id), offset)",
        (_BROKERS,),
    ),
    Mutant(
        "a heartbeat that comes late puts a broker in service that has stopped",
        _CONTROLLER + "heartbeats",
        "may_serve=is_caught_up and not is_ending",
        "may_serve=is_caught_up",
        (_BROKERS, _CONTROLLERS),
    ),
    Mutant(
        "a process of a broker joins an ISR for what the one before has fetched",
        _CONTROLLER + "in_sync_changes",
        "    return member.broker_epoch in (-1, broker.epoch)\n",
        "    return True\n",
        (_ELECTIONS,),
    ),
    Mutant(
        "a controller answers before its decision is committed",
        "oncelog.server.controller_node",
        "            self.log.append(values).then(committed)",
        "            self.log.append(values)\n            committed(0)",
        (_NODE,),
    ),
    Mutant(
        "a controller serves those who follow another epoch",
        "oncelog.cluster.quorum_serving",
        "    if given < current:",
        "    if False:",
        (_NODE,),
    ),
    Mutant(
        "a controller answers before what it decided is committed",
        "oncelog.server.controller_node",
        "            self._is_appending = True\n            self.log.append(values)",
        "            self._is_appending = True\n            for promise, answer in answers:\n"
        "                promise.resolve(answer)\n            answers = []\n            self.log.append(values)",
        (_CONTROLLERS,),
    ),
    Mutant(
        "the next controller does not watch brokers that it has never heard",
        _CONTROLLER + "machine",
        "            self.heartbeats.begin(broker, now_ms)\n",
        "            pass\n",
        (_CONTROLLERS,),
    ),
    Mutant(
        "a controller goes on from an older state than its snapshot",
        "oncelog.server.controller_node",
        "        self.machine.load(loaded.image, snapshot.name.end_offset)\n",
        "",
        (_CONTROLLERS,),
    ),
    Mutant(
        "a fenced broker may join the ISR",
        _CONTROLLER + "in_sync_changes",
        "    if not all(_is_eligible(view, member) for member in change.new_isr_with_epochs):\n",
        "    if not change.new_isr_with_epochs:\n",
        (_CONTROLLERS,),
    ),
    Mutant(
        "who stops leads on",
        _CONTROLLER + "broker_changes",
        "    return [*begin, *without(view, broker.broker_id, _in_isr(view, broker.broker_id))]\n",
        "    return [*begin]\n",
        (_CONTROLLERS,),
    ),
    Mutant(
        "brokers that were away do not get back what nobody leads",
        _CONTROLLER + "broker_changes",
        "    return [_change(broker, fenced=UNFENCE), *_changed(view, leaderless, is_alive)]\n",
        "    return [_change(broker, fenced=UNFENCE)]\n",
        (_CONTROLLERS,),
    ),
]
