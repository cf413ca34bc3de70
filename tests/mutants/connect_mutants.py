"""Mutants of connectors: what is committed together, what is confirmed when, and who may write."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, suite

_CONNECT = "oncelog.connect."
_TASK = suite("tests/unit/connect/test_source_task.py")
_ROWS = suite("tests/unit/connect/test_row_changes.py")
_SOURCE_KILLS = suite("tests/connect/test_postgres_source.py", "-k", "kill or random")
_SOURCE_PAUSES = suite("tests/connect/test_time.py", "-k", "stands_still")
_SOURCE_OWNERS = suite("tests/connect/test_postgres_source.py", "-k", "older_instance or fenced_is_told")
_SOURCE_IDLES = suite("tests/connect/test_postgres_source.py", "-k", "never_asks")
_SNAPSHOT_TABLES = suite("tests/connect/test_postgres_source.py", "-k", "made_anew")
_KEYS = suite("tests/unit/connect/test_change_format.py")
_STATES = suite("tests/unit/connect/test_sqlstates.py")
_CHECKS = suite("tests/connect/test_checks.py", "-k", "may_not_read or (unique_index and sqlite)")
_SINK_KILLS = suite("tests/connect/test_sinks.py", "-k", "kill and sqlite")
_SINK_OWNERS = suite("tests/connect/test_sinks.py", "-k", "(owner or instance) and sqlite")
_SINK_ROWS = suite("tests/connect/test_sinks.py", "-k", "appended and sqlite")
_SINK_RUNS = suite("tests/connect/test_accidents.py", "-k", "SerializationFailure")
_LAKES = suite("tests/spark/test_lake_tables.py", "-k", "slept or meanwhile or seems or failed or once")
_TOPICS = suite("tests/connect/test_sinks.py", "-k", "made_again and sqlite")

CONNECT_MUTANTS = [
    Mutant(
        "a source confirms before it has committed",
        _CONNECT + "source_task",
        "        self._commit(self._stored._replace(position=position))\n",
        "        self._source.confirm(position)\n        self._commit(self._stored._replace(position=position))\n",
        (_TASK,),
    ),
    Mutant(
        "a source transaction may be split",
        _CONNECT + "source_task",
        "        if self._is_inside or not self._log.records:\n",
        "        if not self._log.records:\n",
        (_TASK,),
    ),
    Mutant(
        "an idle position is taken although something is open",
        _CONNECT + "source_task",
        "        if self._is_inside or self._log.records or event.position < self._position:\n",
        "        if event.position < self._position:\n",
        (_TASK,),
    ),
    Mutant(
        "the position of a source is not part of its transaction",
        _CONNECT + "source_log",
        "            self._writer.send_offsets_to_transaction(self.offsets(stored), self.group)\n",
        "            self._admin.alter_group_offsets(self.group, self.offsets(stored))\n",
        (_SOURCE_KILLS,),
    ),
    Mutant(
        "a snapshot is begun without a note of it",
        _CONNECT + "source_task",
        '        self._log.commit(begun)\n        hit("source.snapshot.noted")\n',
        '        hit("source.snapshot.noted")\n',
        (_SOURCE_KILLS,),
    ),
    Mutant(
        "a source whose transaction was open for too long takes that for a newer instance",
        _CONNECT + "source_log",
        "            if not self._is_ours():\n",
        "            if True:\n",
        (_SOURCE_PAUSES,),
    ),
    Mutant(
        "a source that was replaced goes on",
        _CONNECT + "source_log",
        "            if not self._is_ours():\n",
        "            if False:\n",
        (_SOURCE_OWNERS,),
    ),
    Mutant(
        "a slot that somebody has moved is used",
        _CONNECT + "source_resume",
        "    if slot.confirmed_lsn > stored.position:\n",
        "    if False:\n",
        (_TASK,),
    ),
    Mutant(
        "a row is keyed by its primary key although a delete does not have it",
        _CONNECT + "change_format",
        "    if primary and set(primary) <= (set(identity) or published):\n",
        "    if primary:\n",
        (_KEYS,),
    ),
    Mutant(
        "an idle source does not ask its server for a sign",
        _CONNECT + "postgres_source",
        "            self._report(reply_wanted=True)\n",
        "            self._report()\n",
        (_SOURCE_IDLES,),
    ),
    Mutant(
        "tables may be made anew while their snapshot is read",
        _CONNECT + "postgres_source",
        "            self.tables.hold(snapshot)\n",
        "            snapshot.enter(self._sql)\n",
        (_SNAPSHOT_TABLES,),
    ),
    Mutant(
        "a row is made without the values that its record does not know",
        _CONNECT + "row_changes",
        "    return TablePlan(empties, list(deleted), _by_columns(rows.values()), needed)\n",
        "    return TablePlan(empties, list(deleted), _by_columns(rows.values()))\n",
        (_ROWS,),
    ),
    Mutant(
        "a snapshot leaves out what a policy hides",
        _CONNECT + "published_tables",
        " -c row_security=off",
        "",
        (_CHECKS,),
    ),
    Mutant(
        "a row that is too large is taken for a fault of the moment",
        _CONNECT + "sqlstates",
        '    "54": Fault.RECORD,',
        '    "54": Fault.MOMENT,',
        (_STATES,),
    ),
    Mutant(
        "a sink upserts by columns that have no unique index",
        _CONNECT + "database_sink",
        "        if facts.unique is not None and frozenset(facts.key) not in facts.unique:\n",
        "        if False:\n",
        (_CHECKS,),
    ),
    Mutant(
        "the offsets of a sink are not part of its transaction",
        _CONNECT + "database_sink",
        '                self._write_rows(batch.records, batch.prepared)\n                hit("sink.after_rows")\n'
        "                self._move_all(batch.moves)\n",
        "                self._move_all(batch.moves)\n            with self._transaction():\n"
        '                self._write_rows(batch.records, batch.prepared)\n                hit("sink.after_rows")\n',
        (_SINK_KILLS,),
    ),
    Mutant(
        "the offsets of a batch are behind what has been read and waits",
        _CONNECT + "sink_task",
        "unread.get(place, self._consumer.position(place))",
        "self._consumer.position(place)",
        (_SINK_ROWS,),
    ),
    Mutant(
        "a sink is at the end while a batch waits",
        _CONNECT + "sink_task",
        "        is_idle = self._writing is None and not self._unread\n",
        "        is_idle = True\n",
        (_SINK_RUNS,),
    ),
    Mutant(
        "a former owner may write",
        _CONNECT + "database_sink",
        "        if not moved:\n            raise self._fenced(partition)\n",
        "",
        (_SINK_OWNERS,),
    ),
    Mutant(
        "an old instance claims again after a new one",
        _CONNECT + "database_sink",
        "        if partition in self._instance.claimed and instance != self._instance.id:\n",
        "        if False:\n",
        (_SINK_OWNERS,),
    ),
    Mutant(
        "commits of Delta do not name the owner",
        "oncelog.spark.delta_table",
        "        self._commit(version, self._identifiers(query, owner, batch), files, note)\n",
        "        self._commit(version, {self._app(query): batch.number}, files, note)\n",
        (_LAKES,),
    ),
    Mutant(
        "pyiceberg repeats a commit that was refused",
        "oncelog.spark.iceberg_table",
        'RETRIES_PROPERTY: "0"}',
        'RETRIES_PROPERTY: "4"}',
        (_LAKES,),
    ),
    Mutant(
        "a commit to Iceberg is repeated without a look at the state",
        "oncelog.spark.iceberg_table",
        "                if newer.state != version.state or _shape",
        "                if _shape",
        (_LAKES,),
    ),
    Mutant(
        "a driver goes on although another one has claimed the sink",
        "oncelog.spark.lake_sink",
        "            if self._owner is not None and (state is None or state.owner != self._owner):\n",
        "            if False:\n",
        (_LAKES,),
    ),
    Mutant(
        "a topic that was made again is read on",
        _CONNECT + "sink_resume",
        "    if stored_id and now_id and stored_id != now_id:\n",
        "    if False:\n",
        (_TOPICS,),
    ),
    Mutant(
        "a batch that is planned at once forgets a delete",
        _CONNECT + "row_changes",
        "            deleted[name] = None\n            rows.pop(name, None)\n",
        "            rows.pop(name, None)\n",
        (_ROWS,),
    ),
    Mutant(
        "an upsert forgets a delete before it",
        _CONNECT + "row_changes",
        "            deleted[key] = None\n            rows.pop(key, None)\n",
        "            rows.pop(key, None)\n",
        (_ROWS,),
    ),
]
