"""Mutants of connectors: what is committed together, what is confirmed when, and who may write."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, suite

_CONNECT = "oncelog.connect."
_TASK = suite("tests/unit/connect/test_source_task.py")
_ROWS = suite("tests/unit/connect/test_row_changes.py")
_SOURCE_KILLS = suite("tests/connect/test_postgres_source.py", "-k", "kill or random")
_SINK_KILLS = suite("tests/connect/test_sinks.py", "-k", "kill and sqlite")
_SINK_OWNERS = suite("tests/connect/test_sinks.py", "-k", "(owner or instance) and sqlite")
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
        "            self._writer.send_offsets_to_transaction({_PLACE: offset}, self._group)\n",
        "            self._admin.alter_group_offsets(self._group, {_PLACE: offset})\n",
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
        "a slot that somebody has moved is used",
        _CONNECT + "source_resume",
        "    if slot.confirmed_lsn > stored.position:\n",
        "    if False:\n",
        (_TASK,),
    ),
    Mutant(
        "the offsets of a sink are not part of its transaction",
        _CONNECT + "database_sink",
        '                self._write_rows(batch.records)\n                hit("sink.after_rows")\n'
        "                self._move_all(batch.moves)\n",
        "                self._move_all(batch.moves)\n            with self._transaction():\n"
        '                self._write_rows(batch.records)\n                hit("sink.after_rows")\n',
        (_SINK_KILLS,),
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
        "a topic that was made again is read on",
        _CONNECT + "sink_resume",
        "    if stored_id and now_id and stored_id != now_id:\n",
        "    if False:\n",
        (_TOPICS,),
    ),
    Mutant(
        "an upsert forgets a delete before it",
        _CONNECT + "row_changes",
        "            deleted[key] = None\n            rows.pop(key, None)\n",
        "            rows.pop(key, None)\n",
        (_ROWS,),
    ),
]
