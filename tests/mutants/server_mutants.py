"""Mutants of partitions and of what answers requests."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, histories, suite

_PARTITION = "oncelog.cluster.partition"
_POWER_CUT = suite("tests/crash/test_power_cut.py")

SERVER_MUTANTS = [
    Mutant(
        "a topic's id of which a bit has changed is that of another topic",
        "oncelog.cluster.adoption",
        "(found.int ^ topic_id.int).bit_count() > DAMAGED_BITS_MAX",
        "found != topic_id",
        (suite("tests/unit/server/test_damaged_folder.py", "-k", "changed_byte_in_the_id and killed"),),
    ),
    Mutant(
        "a refusal tells what became of an attempt whose answer was lost",
        "oncelog.client.attempts",
        "if attempts is not None and attempts.in_doubt and not",
        "if False and not",
        (suite("tests/unit/client/test_lost_answers.py", "-k", "newer_producer or before_a_rebalance"),),
    ),
    Mutant(
        "a coordinator that moved has not carried anything out",
        "oncelog.client.cluster",
        "                        attempts.doubt()\n",
        "                        pass\n",
        (suite("tests/unit/client/test_lost_answers.py", "-k", "told_of_an_error and group"),),
    ),
    Mutant(
        "the last stable offset is one too high",
        _PARTITION,
        "        return stable\n",
        "        return min(stable + 1, self.high_watermark)\n",
        (histories(20, "committed-only", "lso-moves-on"),),
        is_quick=True,
    ),
    Mutant(
        "the last stable offset is not clamped to the log start",
        _PARTITION,
        "stable = max(unstable, self.log.log_start_offset)",
        "stable = unstable",
        (histories(40, "start-moves-on", theme="removal"),),
    ),
    Mutant(
        "read_committed sees everything",
        _PARTITION,
        "return self.last_stable_offset if read_committed else self.high_watermark",
        "return self.high_watermark",
        (histories(20, "committed-only", "reader-consistent"),),
        is_quick=True,
    ),
    Mutant(
        "a repeated batch is acknowledged without waiting for the disk",
        "oncelog.server.handlers.h00_produce",
        "        if info.last_offset >= partition.high_watermark:\n",
        "        if info.last_offset >= partition.high_watermark and not info.duplicate:\n",
        (histories(100, "exactly-once", "all-or-nothing", "no-duplicates", theme="repetitions"), _POWER_CUT),
    ),
    Mutant(
        "batches are acknowledged before they are on disk",
        "oncelog.server.handlers.h00_produce",
        "        if info.last_offset >= partition.high_watermark:\n",
        "        if False:\n",
        (histories(60, "exactly-once", "all-or-nothing", "no-duplicates", theme="repetitions"), _POWER_CUT),
    ),
    Mutant(
        "time-outs follow a clock that is set",
        "oncelog.server.broker",
        "return self._steady_clock.now_ms()",
        "return self.now_ms()",
        (
            suite("tests/simulation/test_regressions.py", "-k", "clock_is_set_back"),
            histories(40, "nobody-waits", "lso-moves-on", theme="clock"),
        ),
    ),
    Mutant(
        "DeleteRecords is answered before its log start is on disk",
        "oncelog.server.handlers.h21_delete_records",
        "    return saved.chain(lambda result: followed.map(lambda _: _answer(response, result)))\n",
        "    return response\n",
        (suite("tests/unit/server/test_topics_and_configs.py", "-k", "frees_a_full_disk or not_back_after_a_kill"),),
    ),
    Mutant(
        "DeleteRecords deletes one too many",
        "oncelog.server.handlers.h21_delete_records",
        "partition.delete_records(offset)",
        "partition.delete_records(min(offset + 1, partition.high_watermark))",
        (histories(40, "exactly-once", "all-or-nothing", "offsets-atomic", "reader-consistent", theme="removal"),),
    ),
    Mutant(
        "a search for fewer aborted transactions misses segments that have gone",
        "oncelog.server.aborted_transactions",
        "                continue  # at once: it notices only what goes after it has begun\n",
        "                is_over = False\n",
        (suite("tests/unit/server/test_aborted_transactions.py"),),
    ),
    Mutant(
        "a metadata log is shortened while a change is applied",
        "oncelog.server.controller_node",
        "            self._when_idle.append(self.store_snapshot)\n            return\n",
        "            pass\n",
        (suite("tests/unit/server/test_own_controller.py", "-k", "shortened_while"),),
    ),
    Mutant(
        "a fetch sends what it read of a log that has changed",
        "oncelog.server.handlers.h01_fetch",
        "aborted, total_bytes + number * _READ_BYTES)):",
        "aborted, total_bytes + number * _READ_BYTES)) or True:",
        (suite("tests/unit/server/test_aborted_transactions.py", "-k", "reads_a_log_again"),),
    ),
    Mutant(
        "work that ends and begins other work asks for two turns",
        "oncelog.server.turns",
        "if not self._is_asked:",
        "if True:",
        (suite("tests/unit/server/test_turns.py", "-k", "other_work_ends"),),
    ),
    Mutant(
        "all who ask in one turn of the loop have their first slice in it",
        "oncelog.server.turns",
        "            is_fresh = self.is_crowded\n",
        "            is_fresh = False\n",
        (suite("tests/unit/server/test_turns.py", "-k", "many_who_ask"),),
    ),
    Mutant(
        "a fetch waits on when its client has gone",
        "oncelog.server.handlers.h01_fetch",
        "        peer.on_gone = self._end\n",
        "",
        (suite("tests/unit/server/test_connection.py", "-k", "no_longer_than_its_client"),),
    ),
    Mutant(
        "what a fetch waits for counts nowhere",
        "oncelog.server.handlers.h01_fetch",
        "            peer.add_work_bytes(len(self._wanted) * _WAITING_BYTES)\n",
        "            pass\n",
        (suite("tests/unit/server/test_connection.py", "-k", "partitions_that_it_waits_for"),),
    ),
    Mutant(
        "a frame has memory set aside where there is none",
        "oncelog.server.connection",
        "            lambda: not budget.is_exceeded,\n",
        "            lambda: True,\n",
        (suite("tests/unit/server/test_connection.py", "-k", "only_begun"),),
    ),
    Mutant(
        "a node in its first life does not notice that its metadata is lost",
        "oncelog.server.own_controller",
        "elif not self.log.committed.end_offset and self._broker.log_dir.logs:",
        "elif False:",
        (suite("tests/unit/server/test_cut_metadata.py", "-k", "first_life"),),
    ),
    Mutant(
        "a coordinator begins below the epochs of its markers",
        "oncelog.cluster.adoption",
        "max(epochs.get(TRANSACTION_STATE_TOPIC, -1), survey.coordinator_epoch)",
        "epochs.get(TRANSACTION_STATE_TOPIC, -1)",
        (suite("tests/unit/server/test_cut_metadata.py", "-k", "above_the_epochs"),),
    ),
    Mutant(
        "trouble with one partition keeps markers from the others",
        "oncelog.server.markers",
        "        except Exception:  # noqa: BLE001  whatever it is concerns this partition only",
        "        except ZeroDivisionError:  #",
        (suite("tests/unit/server/test_markers.py"),),
    ),
    Mutant(
        "producer ids that logs have seen are given out again",
        "oncelog.cluster.log_survey",
        "return max(self.producer_epochs, default=-1)",
        "return -1",
        (suite("tests/unit/server/test_cut_metadata.py", "-k", "only_a_record_has"),),
    ),
    Mutant(
        "a group reads all partitions where some are named",
        "oncelog.cli.consume",
        "        if by_hand:\n            consumer.assign(reading.starts)\n",
        "        if False:\n            consumer.assign(reading.starts)\n",
        (suite("tests/unit/cli/test_consume_options.py", "-k", "that_are_named"),),
    ),
]
