"""Mutants of replication: who counts as in sync, what is committed, and where logs are cut."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, suite

_CLUSTER = "oncelog.cluster."
_HISTORIES = suite("tests/cluster_simulation/test_clusters.py", "-k", "promise")
_REPLICAS = suite("tests/unit/cluster/test_replicas.py")
_ISR_CHANGES = suite("tests/unit/cluster/test_isr_changes.py")
_FOLLOWER = suite("tests/unit/cluster/test_follower.py")
_ROLES = suite("tests/unit/cluster/test_partition_roles.py")
_FOLLOWING = suite("tests/unit/storage/test_log_following.py")
_TWO_LOGS = suite("tests/property/test_replicated_logs.py")

CLUSTER_MUTANTS = [
    Mutant(
        "a fetch in an older leader epoch acknowledges",
        _CLUSTER + "replica_fetch",
        "    partition.check_leader_epoch(wanted.current_leader_epoch)\n",
        "",
        (_ROLES,),
    ),
    Mutant(
        "what followers said in an earlier epoch counts",
        _CLUSTER + "replicas",
        "        self.followers = {\n            replica:",
        "        self.followers = globals().setdefault(f'followers {id(self._rules)}', {})\n"
        "        self.followers |= {\n            replica:",
        (_HISTORIES,),
    ),
    Mutant(
        "a replica takes its whole log for committed when it starts",
        _CLUSTER + "partition",
        "known = log.log_end_offset if is_alone else max(checkpointed, log.log_start_offset)",
        "known = log.log_end_offset",
        (_HISTORIES, _ROLES),
    ),
    Mutant(
        "a follower cuts its log to its high watermark",
        _CLUSTER + "partition",
        "            self.replicas = None\n            self.give_up_waiting()\n",
        "            self.replicas = None\n            self.give_up_waiting()\n"
        "            self.log.truncate_to(self.high_watermark, now_ms=0)\n",
        (_HISTORIES,),
    ),
    Mutant(
        "a follower that diverges takes the leader's high watermark",
        _CLUSTER + "follower",
        "            self.log.truncate_to(offset, now_ms)\n            return\n",
        "            self.log.follow_leader(data.high_watermark, data.log_start_offset)\n"
        "            self.log.truncate_to(offset, now_ms)\n            return\n",
        (_FOLLOWER,),
    ),
    Mutant(
        "a follower that diverges is cut in one step by the leader's word",
        _CLUSTER + "follower",
        "    if own.epoch != leader.epoch:\n        return min(own.end_offset, log.log_end_offset)\n",
        "    if own.epoch != leader.epoch:\n        return min(leader.end_offset, log.log_end_offset)\n",
        (_FOLLOWER,),
    ),
    Mutant(
        "an answer to a fetch of an earlier epoch is taken",
        _CLUSTER + "follower",
        "return followed if followed is not None and followed.asked == asked else None",
        "return followed",
        (_HISTORIES, _FOLLOWER),
    ),
    Mutant(
        "a follower that is not caught up joins the ISR",
        _CLUSTER + "replicas",
        "follower.end_offset >= max(high_watermark, self.epoch_start_offset)",
        "follower.end_offset >= 0",
        (_HISTORIES, _REPLICAS),
    ),
    Mutant(
        "a follower below the start of the epoch joins the ISR",
        _CLUSTER + "replicas",
        "follower.end_offset >= max(high_watermark, self.epoch_start_offset)",
        "follower.end_offset >= high_watermark",
        (_REPLICAS,),
    ),
    Mutant(
        "the high watermark does not wait for a proposed member",
        _CLUSTER + "replicas",
        ".union(self.proposal.in_sync if self.proposal is not None else ())",
        "",
        (_REPLICAS,),
        is_quick=True,
    ),
    Mutant(
        "a proposed shrink is taken for granted",
        _CLUSTER + "replicas",
        "return frozenset(self.state.in_sync).union(self.proposal.in_sync if self.proposal is not None else ())",
        "return frozenset(self.proposal.in_sync if self.proposal is not None else self.state.in_sync)",
        (_HISTORIES, _REPLICAS),
    ),
    Mutant(
        "the high watermark moves below min.insync.replicas",
        _CLUSTER + "replicas",
        "        if self.is_under_min(min_insync_replicas):\n            return UNKNOWN\n",
        "",
        (_HISTORIES, _REPLICAS),
    ),
    Mutant(
        "a broker that has restarted since its fetch may join",
        _CLUSTER + "replicas",
        "return follower.end_offset != UNKNOWN and follower.broker_epoch in (UNKNOWN, registration.epoch)",
        "return follower.end_offset != UNKNOWN",
        (_REPLICAS,),
    ),
    Mutant(
        "a refused proposal stays in the maximal ISR",
        _CLUSTER + "replicas",
        "        if reaction in (Reaction.COMMIT, Reaction.REVERT):\n",
        "        if reaction is Reaction.COMMIT:\n",
        (_REPLICAS,),
    ),
    Mutant(
        "a lost AlterPartition is not sent again",
        _CLUSTER + "isr_changes",
        "        self._waiting, self._sent = {**self._sent, **self._waiting}, {}",
        "        self._sent = {}",
        (_ISR_CHANGES, _HISTORIES),
    ),
    Mutant(
        "a new leader does not note its epoch",
        _CLUSTER + "partition",
        "            self.log.begin_epoch(state.leader_epoch)\n",
        "            pass\n",
        (_ROLES,),
    ),
    Mutant(
        "who waits on a former leader goes on waiting",
        _CLUSTER + "partition",
        "            self.replicas = None\n            self.give_up_waiting()\n",
        "            self.replicas = None\n",
        (_HISTORIES, _ROLES),
    ),
    Mutant(
        "a follower acknowledges what is not on disk",
        _CLUSTER + "partition",
        "        return self._commit_policy.stored_end(self.log) >= self.log.log_end_offset",
        "        return True",
        (_HISTORIES, _ROLES),
    ),
    Mutant(
        "a leader counts what is not on its disk",
        _CLUSTER + "partition",
        "        end_offset = self._commit_policy.stored_end(log)\n",
        "        end_offset = log.log_end_offset\n",
        (_ROLES,),
    ),
    Mutant(
        "a fetch that diverges acknowledges",
        _CLUSTER + "replica_fetch",
        "    if diverging is not None:\n",
        "    if diverging is not None:\n"
        "        fetch = ReplicaFetch(min(offset, log.log_end_offset), 0, fetcher.broker_epoch)\n"
        "        partition.on_replica_fetch(fetcher.broker_id, fetch, now_ms)\n",
        (_HISTORIES, _ROLES),
    ),
    Mutant(
        "a log is not cut by epochs at all",
        _CLUSTER + "replica_fetch",
        "log.divergence(wanted.last_fetched_epoch, offset) if wanted.last_fetched_epoch >= 0 else None",
        "None",
        (_HISTORIES, _ROLES),
    ),
    Mutant(
        "an epoch without records stays when a log is cut",
        "oncelog.storage.log",
        "                files.leader_epochs.truncate_from_end(self.log_end_offset)\n",
        "                pass\n",
        (_HISTORIES, _FOLLOWING, _TWO_LOGS),
    ),
    Mutant(
        "a cut does not lower what transactions wait for",
        "oncelog.storage.log",
        "state.on_high_watermark(min(state.high_watermark, self.log_end_offset))",
        "state.on_high_watermark(state.high_watermark)",
        (_FOLLOWING,),
    ),
    Mutant(
        "batches of a later epoch are appended",
        "oncelog.storage.batch_placement",
        "        if header.leader_epoch > leader_epoch:\n            break\n",
        "",
        (_FOLLOWING,),
    ),
]
