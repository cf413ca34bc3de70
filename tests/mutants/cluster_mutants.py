"""Mutants of replication: who counts as in sync, what is committed, and where logs are cut."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, suite

_CLUSTER = "oncelog.cluster."
_SERVER = "oncelog.server."
_HISTORIES = suite("tests/cluster_simulation/test_clusters.py", "-k", "promise")
_REPLICAS = suite("tests/unit/cluster/test_replicas.py")
_ISR_CHANGES = suite("tests/unit/cluster/test_isr_changes.py")
_FOLLOWER = suite("tests/unit/cluster/test_follower.py")
_SESSIONS = suite("tests/unit/server/test_replica_sessions.py")
_ROLES = suite("tests/unit/cluster/test_partition_roles.py")
_FOLLOWING = suite("tests/unit/storage/test_log_following.py")
_MEMBERS = suite("tests/unit/server/test_cluster_members.py")
_READS = suite("tests/unit/server/test_cluster_reads.py")
_THROTTLE = suite("tests/unit/server/test_replication_throttle.py")
_TRANSACTIONS = suite("tests/unit/server/test_cluster_transactions.py")
_GROUPS = suite("tests/unit/server/test_cluster_groups.py")
_RUNTIME = suite("tests/unit/server/test_coordinator_runtime.py")
_DISK = suite("tests/unit/server/test_disk_watch.py")
_PEERS = suite("tests/unit/server/test_peer_connections.py")
_ACTION = suite("tests/unit/server/test_cluster_action.py")
_DIRECTORIES = suite("tests/unit/server/test_directory_reports.py")
_METRICS = suite("tests/unit/server/test_replica_metrics.py")
_OUTCOMES = suite("tests/unit/server/test_cluster_histories.py", "-k", "outcome")
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
        "a follower refuses an answer that ends within a batch",
        _CLUSTER + "follower",
        "append_as_follower(whole or records,",
        "append_as_follower(records,",
        (_FOLLOWER,),
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
        "a partition that waits stays in the fetch session",
        _CLUSTER + "follower_session",
        "_forgotten(key for key in named if key not in wanted)",
        "[]",
        (_FOLLOWER,),
    ),
    Mutant(
        "a fetch session goes on after an answer that was lost",
        _CLUSTER + "follower",
        "            self._asked = {}\n            self._session.end()\n",
        "            self._asked = {}\n",
        (_FOLLOWER,),
    ),
    Mutant(
        "a leader takes for told what it has only read",
        "oncelog.server.replica_fetches",
        "        reads = self._read_all(is_repetition=False)\n",
        "        reads = self._read_all(is_repetition=False)\n        self._answer(reads)\n",
        (_SESSIONS,),
    ),
    Mutant(
        "a fetch does not see what it has caused to be written itself",
        "oncelog.server.replica_fetches",
        "        self._wake()\n        return self._promise\n",
        "        return self._promise\n",
        (_TRANSACTIONS,),
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
        "        if reaction in (ProposalReaction.COMMIT, ProposalReaction.REVERT):\n",
        "        if reaction is ProposalReaction.COMMIT:\n",
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
    Mutant(
        "a broker leads before it is registered",
        _SERVER + "membership",
        "        if self.loaded.done:\n"
        "            yield from self._broker.metadata_changes.apply(update.image, update.delta)\n",
        "        if not self.loaded.done:\n            self.loaded.resolve(None)\n"
        "        if True:\n            yield from self._broker.metadata_changes.apply(update.image, update.delta)\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a reader ahead of a new leader's high watermark is sent to another offset",
        _CLUSTER + "partition",
        "return self.high_watermark if is_alone else self.log.log_end_offset",
        "return self.high_watermark",
        (_MEMBERS,),
    ),
    Mutant(
        "a deletion does not wait for followers",
        _CLUSTER + "replicas",
        "follower.log_start_offset >= offset\n",
        "True\n",
        (_READS,),
    ),
    Mutant(
        "consumers are sent to followers that are not in sync",
        _CLUSTER + "replicas",
        "if replica in self.state.in_sync and follower.log_start_offset <= offset <= follower.end_offset",
        "if follower.log_start_offset <= offset",
        (_READS,),
    ),
    Mutant(
        "a follower shows what is not committed",
        _CLUSTER + "partition",
        "return self.last_stable_offset if read_committed else self.high_watermark",
        "return self.last_stable_offset if read_committed else self.last_valid_offset",
        (_READS,),
    ),
    Mutant(
        "a replica in sync is held back",
        _SERVER + "replica_fetches",
        "if self._fetcher.broker_id in partition.state.in_sync:",
        "if False:",
        (_THROTTLE,),
    ),
    Mutant(
        "a partition that moves away looks deleted to those who wait",
        _SERVER + "replication",
        "                opened.become(PartitionState.from_image(image), self._broker.steady_ms())\n",
        "                pass\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a leader writes without the word of a coordinator that it cannot reach",
        _SERVER + "remote_transactions",
        "        return dict.fromkeys(partitions, error)\n",
        "        return {}\n",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "a coordinator that has resigned sends again what is on its way",
        _SERVER + "markers",
        "for queue in [*self._queues.values(), *self._sent.values()]:",
        "for queue in self._queues.values():",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "markers for a leader that cannot be reached are forgotten",
        _SERVER + "markers",
        "code = answer.get((order.producer_id, partition), ErrorCode.NETWORK_EXCEPTION)",
        "code = answer.get((order.producer_id, partition), ErrorCode.NONE)",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "a coordinator parks what other brokers ask",
        _SERVER + "handlers.h24_add_partitions_to_txn",
        "parks = version < _BROKER_VERSION",
        "parks = True",
        (_TRANSACTIONS, _ACTION),
    ),
    Mutant(
        "a leader does not ask again for an id that is being completed",
        _SERVER + "remote_transactions",
        "        if not is_settling or",
        "        if True or",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "a coordinator that takes over acts on what is not committed",
        _SERVER + "coordinator_runtime",
        "        if partition.high_watermark >= end_offset:\n            self._on_loaded(live)\n            return\n",
        "        if True:\n            self._on_loaded(live)\n            return\n",
        (_TRANSACTIONS, _GROUPS),
    ),
    Mutant(
        "a decision of an epoch that is over is applied",
        _SERVER + "coordinator_runtime",
        "            elif self._live.get(live.index) is not live:\n",
        "            elif False:\n",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "a coordinator that is elected again goes on under its old epoch",
        _SERVER + "coordinator_runtime",
        "        self._resign(index)\n        if partition.is_leader and",
        "        if not partition.is_leader:\n            self._resign(index)\n"
        "        if index not in self._live and partition.is_leader and",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "a new leader tells clients of an end below the one that they know",
        _CLUSTER + "partition",
        "return replicas is None or self.high_watermark >= replicas.epoch_start_offset",
        "return True",
        (_HISTORIES,),
    ),
    Mutant(
        "a role that is given again in its epoch does not reach its coordinator",
        _SERVER + "metadata_changes",
        "(is_new_epoch or self._broker.has_started)",
        "is_new_epoch",
        (_RUNTIME,),
    ),
    Mutant(
        "a coordinator whose log could not be opened at the start waits for a client",
        _SERVER + "coordinator_runtime",
        "            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:\n                self._broker.later(OPEN_RETRY_MS",
        "            if False:\n                self._broker.later(OPEN_RETRY_MS",
        (_RUNTIME,),
    ),
    Mutant(
        "an answer that fails keeps a coordinator from being unloaded",
        _SERVER + "coordinator_runtime",
        "            except Exception:  # noqa: BLE001  logged\n                self._log",
        "            except OSError:\n                self._log",
        (_RUNTIME,),
    ),
    Mutant(
        "replicas of topics that are gone are set aside after new ones are made",
        _SERVER + "metadata_changes",
        "        if is_first:\n            self._set_strays_aside()\n        yield from self._follow_settings(delta)\n"
        "        self._broker.transactions.follow_features(image.features)\n"
        "        yield from replication.take_roles(image, delta)\n",
        "        yield from self._follow_settings(delta)\n"
        "        self._broker.transactions.follow_features(image.features)\n"
        "        yield from replication.take_roles(image, delta)\n"
        "        if is_first:\n            self._set_strays_aside()\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a marker is applied under an old coordinator epoch",
        "oncelog.storage.producer_state",
        "        if control.coordinator_epoch < entry.coordinator_epoch:\n            raise",
        "        if False:\n            raise",
        (_TRANSACTIONS, _OUTCOMES),
    ),
    Mutant(
        "the broker's own transaction.version counts in a cluster",
        _SERVER + "metadata_changes",
        "        self._broker.transactions.follow_features(image.features)\n",
        "",
        (_TRANSACTIONS,),
    ),
    Mutant(
        "other brokers are sent versions that they do not know",
        "oncelog.client.wire",
        "version = min(last, broker_last, cap)",
        "version = min(last, cap)",
        (_PEERS,),
    ),
    Mutant(
        "a role that could not be taken is not tried again",
        _SERVER + "replication",
        "        for key, state in list(self._failed.items()):\n            self._take_role(key, state)\n",
        "        return\n",
        (_DISK,),
    ),
    Mutant(
        "a leader whose disk has failed leads on",
        _SERVER + "disk_watch",
        "            if partition.is_broken:\n",
        "            if False:\n",
        (_DISK,),
    ),
    Mutant(
        "a disk that was full for a moment ends a broker",
        _SERVER + "disk_watch",
        "    return partition.log.has_failed or partition.disk_refusals > trouble.refusals\n",
        "    return True\n",
        (_DISK,),
    ),
    Mutant(
        "a broker on a new disk does not tell where its replicas are",
        _SERVER + "directory_reports",
        "        if not keys or self._is_sent",
        "        if True or self._is_sent",
        (_DIRECTORIES,),
    ),
    Mutant(
        "a broker that has lost the only records in sync is made electable",
        _SERVER + "directory_reports",
        "if partition.leader not in (-1, self._broker.node_id))",
        "if True)",
        (_DIRECTORIES,),
    ),
    Mutant(
        "a follower that is away joins the ISR again while nothing is committed",
        _CLUSTER + "replicas",
        "            and not follower.has_left\n",
        "",
        (_REPLICAS, _METRICS),
    ),
    Mutant(
        "a follower joins the ISR with records that nobody can compare any more",
        _CLUSTER + "replicas",
        "or follower.log_start_offset >= log_start_offset)",
        "or True)",
        (_REPLICAS,),
    ),
    Mutant(
        "a fetch that is refused acknowledges",
        _CLUSTER + "replica_fetch",
        "    if offset > log.log_end_offset:\n        raise _out_of_range(partition, offset)\n",
        "",
        (_ROLES,),
    ),
    Mutant(
        "a follower below the log start is told where it diverges",
        _CLUSTER + "replica_fetch",
        "    if offset < log.log_start_offset:\n        raise _out_of_range(partition, offset)\n",
        "",
        (_ROLES,),
    ),
    Mutant(
        "a fetch that is read again acknowledges again",
        _CLUSTER + "replica_fetch",
        "    if not is_repetition:\n",
        "    if True:\n",
        (_ROLES,),
    ),
    Mutant(
        "a leader that is elected again believes what it was told before",
        _CLUSTER + "partition",
        "        elif self.replicas is None or is_new_epoch:\n",
        "        elif self.replicas is None:\n",
        (_HISTORIES, _ROLES),
    ),
    Mutant(
        "a cut leaves the high watermark where it was",
        _CLUSTER + "partition",
        "            self.high_watermark = end_offset\n",
        "            pass\n",
        (_ROLES,),
    ),
    Mutant(
        "a follower commits what it does not have",
        _CLUSTER + "partition",
        "self.advance_high_watermark(min(high_watermark, self.log.log_end_offset))",
        "self.advance_high_watermark(high_watermark)",
        (_HISTORIES, _ROLES),
    ),
    Mutant(
        "a replica has committed less than it has deleted",
        _CLUSTER + "partition",
        "max(checkpointed, log.log_start_offset)",
        "checkpointed",
        (_ROLES,),
    ),
    Mutant(
        "metadata that is known already ends a proposal",
        _CLUSTER + "replicas",
        "        if state.partition_epoch <= self.state.partition_epoch:\n",
        "        if state.partition_epoch < self.state.partition_epoch:\n",
        (_REPLICAS,),
    ),
    Mutant(
        "an answer to an earlier proposal counts",
        _CLUSTER + "replicas",
        "        if proposal is not self.proposal:\n",
        "        if self.proposal is None:\n",
        (_REPLICAS,),
    ),
    Mutant(
        "an answer of another leader epoch is committed",
        _CLUSTER + "replicas",
        "            if leader_epoch != self.state.leader_epoch or partition_epoch < self.state.partition_epoch:\n",
        "            if partition_epoch < self.state.partition_epoch:\n",
        (_REPLICAS,),
    ),
    Mutant(
        "a change that may have been applied is taken for refused",
        _CLUSTER + "replicas",
        "    ErrorCode.NEW_LEADER_ELECTED: ProposalReaction.WAIT,\n",
        "    ErrorCode.NEW_LEADER_ELECTED: ProposalReaction.REVERT,\n",
        (_REPLICAS,),
    ),
    Mutant(
        "a broker that shuts down may join the ISR",
        _CLUSTER + "replicas",
        "registration.is_fenced or registration.in_controlled_shutdown:",
        "registration.is_fenced:",
        (_REPLICAS,),
    ),
    Mutant(
        "under load a follower counts as caught up for ever",
        _CLUSTER + "replicas",
        "            caught_up_ms = self.fetched_ms\n",
        "            caught_up_ms = now_ms\n",
        (_REPLICAS,),
    ),
    Mutant(
        "a fetch of a process that has ended acknowledges",
        _CLUSTER + "replicas",
        "        if registration is not None and UNKNOWN < fetch.broker_epoch < registration.epoch:\n",
        "        if False:\n",
        (_REPLICAS,),
    ),
    Mutant(
        "a log behind the leader's start goes on where it was",
        _CLUSTER + "follower",
        "            self.log.start_over_at(offset, now_ms)\n",
        "            pass\n",
        (_FOLLOWER,),
    ),
    Mutant(
        "a follower is proposed that has only some of what is committed",
        _SERVER + "replication",
        "            partition.high_watermark, self._membership.lifecycle.epoch, partition.log_start_offset\n",
        "            0, self._membership.lifecycle.epoch, partition.log_start_offset\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a replica that the controller refuses is proposed again at once",
        _SERVER + "replication",
        "                    if reaction is ProposalReaction.COMMIT:\n",
        "                    if True:\n",
        (_MEMBERS,),
    ),
    Mutant(
        "a replica shows transactions that are open",
        _CLUSTER + "partition",
        "        stable = max(unstable, self.log.log_start_offset)\n",
        "        stable = self.high_watermark\n",
        (_HISTORIES,),
    ),
    Mutant(
        "aborted transactions of what was cut off stay",
        "oncelog.storage.segment",
        "        self.txn_index.truncate_to(offset)\n",
        "",
        (_HISTORIES,),
    ),
    Mutant(
        "an error that nobody has foreseen holds up all that is followed",
        _CLUSTER + "follower",
        "        except Exception as error:\n",
        "        except (KafkaError, OSError) as error:\n",
        (_FOLLOWER,),
    ),
    Mutant(
        "a start without a controller makes a clean stop unclean",
        _SERVER + "broker",
        "            return self.previous_epoch\n",
        "            return clean_shutdown.NO_BROKER_EPOCH\n",
        (_MEMBERS,),
    ),
]
