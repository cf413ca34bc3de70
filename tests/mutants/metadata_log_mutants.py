"""Mutants of the controllers' log: who may write, what counts as written, what is read, what is deleted."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, suite

_ZOOKEEPER_LOG = "oncelog.cluster.zookeeper_log"
_SNAPSHOTS = "oncelog.cluster.zookeeper_snapshots"
_FILE_LOG = "oncelog.cluster.file_metadata_log"
_HISTORIES = suite("tests/metadata_log_simulation/test_histories.py", "-x")
_TRAPS = suite("tests/unit/cluster/test_zookeeper_log.py")
_CLIENT = "oncelog.server.zookeeper_client"
_ONE_SERVER = "tests/zookeeper/test_one_server.py"
_THREADS = suite("tests/zookeeper/test_threads.py")
_FILES = suite("tests/unit/cluster/test_file_metadata_log.py", "-k", "not tools")

METADATA_LOG_MUTANTS = [
    Mutant(
        "an append does not check the epoch",
        _ZOOKEEPER_LOG,
        "        operations: list[Operation] = [Check(EPOCH, self._epoch_version)]\n        if self._next",
        "        operations: list[Operation] = []\n        if self._next",
        (suite("tests/unit/cluster/test_zookeeper_log.py", "-k", "stale_epoch"), _HISTORIES),
        is_quick=True,
    ),
    Mutant(
        "an append does not check its predecessor",
        _ZOOKEEPER_LOG,
        "        if self._next_number > 0:\n            operations.append",
        "        if False:\n            operations.append",
        (_TRAPS,),
    ),
    Mutant(
        "an office is won without raising the epoch",
        _ZOOKEEPER_LOG,
        "            SetData(EPOCH, str(leader.epoch).encode(), node.version),\n",
        "",
        (_HISTORIES, _TRAPS),
    ),
    Mutant(
        "a lost connection does not end the office",
        _ZOOKEEPER_LOG,
        "        self._stop_following()\n        self._leave(reason)\n",
        "        self._stop_following()\n",
        (_TRAPS,),
    ),
    Mutant(
        "a retrial is due although there is another connection",
        _ZOOKEEPER_LOG,
        "            self._retrial.cancel()\n",
        "",
        (_TRAPS,),
    ),
    Mutant(
        "an append without an answer counts as written",
        _ZOOKEEPER_LOG,
        '        self._appends.fail_sent("its append was not written")\n',
        "        while self._appends.sent_count:\n            self._appends.pop_written().confirm()\n",
        (_HISTORIES, _TRAPS),
    ),
    Mutant(
        "an append without an answer counts as failed and is not looked for",
        _ZOOKEEPER_LOG,
        "        if self._appends.sent_count:\n            self._silence =",
        '        self._appends.fail_sent("unknown")\n        if self._appends.sent_count:\n            self._silence =',
        (_TRAPS,),
    ),
    Mutant(
        "an append without an answer is looked for on a server that may be behind",
        _ZOOKEEPER_LOG,
        "        await self._sync()\n        await self._load_if_behind()\n",
        "        await self._load_if_behind()\n",
        (_HISTORIES,),
    ),
    Mutant(
        "a node of ones own session is left where it is",
        _ZOOKEEPER_LOG,
        "        if node is not None and node.owner == self._zookeeper.session_id:\n            # Of",
        "        if False and node is not None:\n            # Of",
        (_HISTORIES, _TRAPS),
    ),
    Mutant(
        "the node of the last process is taken for ones own office",
        _ZOOKEEPER_LOG,
        "None if leader is None or leader.node_id == self.node_id else leader)",
        "leader)\n        self._is_in_office = leader is not None and leader.node_id == self.node_id",
        (_HISTORIES, _TRAPS),
    ),
    Mutant(
        "an append that broke off is not ended by the next controller",
        "oncelog.cluster.committed_log",
        "return [*batches, writer.records([_ABORT])] if self.is_in_transaction else batches",
        "return batches",
        (_HISTORIES,),
    ),
    Mutant(
        "a reader that is behind waits for nodes that are deleted",
        _ZOOKEEPER_LOG,
        "        if not pointer.is_set or (known is not None and pointer.name <= known.name):\n",
        "        if True:\n",
        (_HISTORIES, _TRAPS),
    ),
    Mutant(
        "a reader waits for a node that was deleted before it looked",
        _ZOOKEEPER_LOG,
        "(log_path(self._next_number)) and not await self._load_if_behind():\n",
        "(log_path(self._next_number)):\n",
        (_TRAPS,),
    ),
    Mutant(
        "the whole log is deleted behind a snapshot",
        _SNAPSHOTS,
        "        end = min(pointer.log, self._next_number() - 1)\n",
        "        end = pointer.log\n",
        (_HISTORIES, _TRAPS),
    ),
    Mutant(
        "parts that nobody needs are left",
        _SNAPSHOTS,
        "            await self._delete(there)\n",
        "",
        (_HISTORIES, _TRAPS),
    ),
    Mutant(
        "metadata is committed before it is on disk",
        _FILE_LOG,
        "        self._waiting.append(append)\n        self._flush()\n",
        "        self._waiting.append(append)\n        self._flush()\n        self._commit_up_to(append.end_offset)\n",
        (_FILES,),
        is_quick=True,
    ),
    Mutant(
        "an epoch is not noted before it is used",
        _FILE_LOG,
        "            write_quorum_state(self._folder, self.node_id, epoch, folder_follows=True)\n",
        "            pass\n",
        (_FILES,),
    ),
    Mutant(
        "what a thread of kazoo tells is done on that thread",
        _CLIENT,
        "            self._hand_over(run)\n",
        "            run()\n",
        (_THREADS,),
    ),
    Mutant(
        "a connection to ZooKeeper calls back after its end",
        _CLIENT,
        "            if not self._is_closed:\n                function()\n",
        "            function()\n",
        (_THREADS,),
    ),
    Mutant(
        "a lost connection is told when the session is over",
        _CLIENT,
        "            self._session.on_disconnected(",
        '            state == "LOST" and self._session.on_disconnected(',
        (_THREADS,),
    ),
    Mutant(
        "a multi of ZooKeeper that was refused counts as done",
        _CLIENT,
        "transaction.commit_async(), refusal)",
        "transaction.commit_async(), lambda _: None)",
        (suite(_ONE_SERVER, "-k", "as_the_fake_does"),),
    ),
    Mutant(
        "the first error of a multi is taken for its cause",
        _CLIENT,
        "if not isinstance(each, followers)), errors[0])",
        "), errors[0])",
        (suite("tests/unit/server/test_zookeeper_config.py"),),
    ),
    Mutant(
        "an answer of ZooKeeper that was lost is taken for a missing node",
        _CLIENT,
        "        return Lost(problem)\n",
        "        return None\n",
        (suite("tests/zookeeper/test_bad_connections.py", "-k", "lost_answer_is_told"),),
    ),
    Mutant(
        "a controller goes on behind a log that is an older copy",
        _ZOOKEEPER_LOG,
        "        problem = await self._lost() or await self._gap()\n",
        "        problem = None\n",
        (suite("tests/unit/cluster/test_zookeeper_log.py", "-k", "was_restored or deleted_and_say"),),
    ),
    Mutant(
        "a controller reads on behind what was written anew after an older copy",
        _ZOOKEEPER_LOG,
        "await self._lost() if self._next_number == first else None\n",
        "None\n",
        (suite("tests/unit/cluster/test_zookeeper_log.py", "-k", "gone_on_with_from"),),
    ),
    Mutant(
        "a controller writes into a gap of the log",
        _ZOOKEEPER_LOG,
        "await self._lost() or await self._gap()\n",
        "await self._lost()\n",
        (suite("tests/unit/cluster/test_zookeeper_log.py", "-k", "gap"),),
    ),
    Mutant(
        "a controller takes an epoch that the log has had",
        _ZOOKEEPER_LOG,
        "if int(node.data) < least else None",
        "if False else None",
        (suite("tests/unit/cluster/test_zookeeper_log.py", "-k", "made_anew"),),
    ),
    Mutant(
        "a controller goes on behind what somebody else has written",
        _ZOOKEEPER_LOG,
        "return None if last == batch_in(node.data) else",
        "return None if node.data else",
        (suite("tests/unit/cluster/test_zookeeper_log.py", "-k", "was_restored"),),
    ),
    Mutant(
        "a controller behind a snapshot goes on with an older copy",
        _ZOOKEEPER_LOG,
        "if last is None and known is not None and pointer.name < known.name:",
        "if False:",
        (suite("tests/unit/cluster/test_zookeeper_log.py", "-k", "have_all_in_a_snapshot"),),
    ),
    Mutant(
        "a snapshot of another history shortens the log",
        _ZOOKEEPER_LOG,
        "        if problem is not None:\n            raise _LostLog(problem)\n        self.committed.shorten",
        "        self.committed.shorten",
        (suite("tests/unit/cluster/test_zookeeper_log.py", "-k", "of_another_history"),),
    ),
    Mutant(
        "each look at a node in ZooKeeper has a watcher of its own",
        _CLIENT,
        "watch=_Watcher(self, on_event))",
        "watch=lambda _: self._call(on_event))",
        (suite(_ONE_SERVER, "-k", "watched_once"),),
    ),
    Mutant(
        "a connection that is lost while the chroot is made is a refusal",
        _CLIENT,
        "        elif not isinstance(error, of_connection):\n",
        "        elif self._client.connected:\n",
        (suite("tests/zookeeper/test_bad_connections.py", "-k", "is_no_refusal"),),
    ),
    Mutant(
        "the chroot is no part of paths",
        _CLIENT,
        "        return self._config.chroot + path\n",
        "        return path\n",
        (suite("tests/zookeeper/test_bad_connections.py", "-k", "names"),),
    ),
    Mutant(
        "levels above the chroot belong to one cluster",
        _CLIENT,
        "        acl = OPEN_ACL_UNSAFE if len(levels) > 1 else None\n",
        "        acl = None\n",
        (suite(_ONE_SERVER, "-k", "levels_above"),),
    ),
    Mutant(
        "nodes in ZooKeeper are open to everybody",
        _CLIENT,
        "        default_acl=CREATOR_ALL_ACL if config.set_acl else None,\n",
        "        default_acl=None,\n",
        (suite(_ONE_SERVER, "-k", "closed_to_others"),),
    ),
    Mutant(
        "a controller that ZooKeeper does not let in waits for ever",
        _CLIENT,
        '        if self._session is not None:\n            self._session.on_refused(f"ZooKeeper {problem}")\n',
        "        pass\n",
        (suite(_ONE_SERVER, "-k", "node_of_others"),),
    ),
    Mutant(
        "the session time is the one that was asked for",
        _CLIENT,
        "                self.value_ms = int(str(record.args[2]))\n",
        "                pass\n",
        (suite(_ONE_SERVER, "-k", "session_time"),),
    ),
]
