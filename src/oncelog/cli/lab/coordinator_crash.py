"""The coordinator dies at three moments. It is killed with -9 each time; failpoints choose the moment."""

from __future__ import annotations

from oncelog.cli.lab.stage import WAIT_S, Stage
from oncelog.client.producer import Producer


def run(stage: Stage) -> None:
    stage.create("orders")
    _while_ongoing(stage)
    _after_the_decision(stage)
    _before_the_decision(stage)
    values = stage.values("orders")
    expected = ["ongoing 1", "ongoing 2", "decided", "undecided"]
    stage.check("nothing is lost and nothing is there twice", values == expected, values)


def _while_ongoing(stage: Stage) -> None:
    stage.step("The coordinator dies while a transaction is Ongoing.")
    producer = _producer_with_open_transaction(stage, "ongoing", "ongoing 1")
    stage.kill()
    stage.show_states("ongoing")
    stage.say("   It comes back, and loads its log: the transaction is Ongoing still, it is not aborted.")
    stage.restart()
    stage.send(producer, "orders", "ongoing 2")
    producer.commit_transaction()
    stage.show_states("ongoing")
    states = _states(stage, "ongoing")
    stage.check("an Ongoing transaction survives, and its producer commits it",
                "PrepareAbort" not in states and states[-1] == "CompleteCommit", states)  # fmt: skip


def _after_the_decision(stage: Stage) -> None:
    stage.step("It dies when PrepareCommit is logged, before any marker is written.")
    producer = _producer_with_open_transaction(stage, "decided", "decided")
    stage.kill()
    stage.restart("txn.marker.before_write")
    commit = stage.background(producer.commit_transaction)
    stage.await_death()
    stage.show_states("decided")
    before = _states(stage, "decided")
    stage.say("   The decision is in the log, so it is carried out: the markers are sent again.")
    stage.restart()
    commit.result(WAIT_S)
    stage.wait_until("the markers", lambda: _states(stage, "decided")[-1] == "CompleteCommit")
    stage.show_states("decided")
    stage.show_log("orders")
    stage.check("PrepareCommit was the last thing logged before the crash", before[-1] == "PrepareCommit", before)
    stage.check("a logged decision is carried out after the restart", "decided" in stage.values("orders"))


def _before_the_decision(stage: Stage) -> None:
    stage.step("It dies before PrepareCommit is logged.")
    producer = _producer_with_open_transaction(stage, "undecided", "undecided")
    stage.kill()
    stage.restart("txn.record.before_append")
    states = _states(stage, "undecided")
    # The producer waits for an answer and asks again, so the broker must come back meanwhile.
    commit = stage.background(producer.commit_transaction)
    stage.await_death()
    between = _states(stage, "undecided")
    stage.say(f"   The log ends with {between[-1]}: nothing was decided. The producer asks again, and that decides.")
    stage.restart()
    commit.result(WAIT_S)
    stage.show_states("undecided")
    stage.check(
        "without a logged decision nothing had happened", between == states and between[-1] == "Ongoing", between
    )
    stage.check("the repeated commit decides", "undecided" in stage.values("orders"))


def _producer_with_open_transaction(stage: Stage, transactional_id: str, value: str) -> Producer:
    producer = stage.producer(transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    stage.send(producer, "orders", value)
    return producer


def _states(stage: Stage, transactional_id: str) -> list[str]:
    return [state for state, _, _ in stage.states(transactional_id)]
