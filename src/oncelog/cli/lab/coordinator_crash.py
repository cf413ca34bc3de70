"""The coordinator dies at three moments. It is killed with -9 each time; failpoints choose the moment."""

from __future__ import annotations

from oncelog.cli.lab.stage import WAIT_S, Stage


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
    producer = stage.producer("ongoing")
    producer.init_transactions()
    producer.begin_transaction()
    stage.send(producer, "orders", "ongoing 1")
    stage.kill()
    stage.show_states("ongoing")
    stage.say("   It comes back, and loads its log: the transaction is Ongoing still, it is not aborted.")
    stage.restart()
    stage.send(producer, "orders", "ongoing 2")
    producer.commit_transaction()
    stage.show_states("ongoing")
    states = [state for state, _, _ in stage.states("ongoing")]
    stage.check("an Ongoing transaction survives, and its producer commits it",
                "PrepareAbort" not in states and states[-1] == "CompleteCommit", states)  # fmt: skip


def _after_the_decision(stage: Stage) -> None:
    stage.step("It dies when PrepareCommit is logged, before any marker is written.")
    producer = stage.producer("decided")
    producer.init_transactions()
    producer.begin_transaction()
    stage.send(producer, "orders", "decided")
    stage.kill()
    stage.restart("txn.marker.before_write")
    commit = stage.background(producer.commit_transaction)
    stage.await_death()
    stage.show_states("decided")
    before = [state for state, _, _ in stage.states("decided")]
    stage.say("   The decision is in the log, so it is carried out: the markers are sent again.")
    stage.restart()
    commit.result(WAIT_S)
    stage.wait_until("the markers", lambda: stage.states("decided")[-1][0] == "CompleteCommit")
    stage.show_states("decided")
    stage.show_log("orders")
    stage.check("PrepareCommit was the last thing logged before the crash", before[-1] == "PrepareCommit", before)
    stage.check("a logged decision is carried out after the restart", "decided" in stage.values("orders"))


def _before_the_decision(stage: Stage) -> None:
    stage.step("It dies before PrepareCommit is logged.")
    producer = stage.producer("undecided")
    producer.init_transactions()
    producer.begin_transaction()
    stage.send(producer, "orders", "undecided")
    stage.kill()
    stage.restart("txn.record.before_append")
    states = [state for state, _, _ in stage.states("undecided")]
    # The producer waits for an answer and asks again, so the broker must come back meanwhile.
    commit = stage.background(producer.commit_transaction)
    stage.await_death()
    between = [state for state, _, _ in stage.states("undecided")]
    stage.say(f"   The log ends with {between[-1]}: nothing was decided. The producer asks again, and that decides.")
    stage.restart()
    commit.result(WAIT_S)
    stage.show_states("undecided")
    stage.check(
        "without a logged decision nothing had happened", between == states and between[-1] == "Ongoing", between
    )
    stage.check("the repeated commit decides", "undecided" in stage.values("orders"))
