"""How a reader leaves out aborted batches, shown on six batches of two producers."""

from __future__ import annotations

from oncelog.cli.lab.stage import Stage


def run(stage: Stage) -> None:
    stage.create("orders")
    stage.step("A and B write one batch each, in two transactions.")
    a, b = stage.producer("A"), stage.producer("B")
    for producer in (a, b):
        producer.init_transactions()
        producer.begin_transaction()
    stage.send(a, "orders", "A, to be aborted")
    stage.send(b, "orders", "B, to be aborted")
    stage.show_log("orders")

    stage.step("A aborts, and writes a batch in a new transaction; then B does the same.")
    a.abort_transaction()
    a.begin_transaction()
    stage.send(a, "orders", "A, to be committed")
    b.abort_transaction()
    b.begin_transaction()
    stage.send(b, "orders", "B, to be committed")
    stage.show_log("orders")
    index = stage.show_aborted("orders")
    stage.say("   The index has aborted transactions only, written with their markers and never changed.")

    stage.step("Both commit.")
    a.commit_transaction()
    b.commit_transaction()
    stage.show_log("orders")
    stage.say(
        "   A read_committed reader is sent everything up to the last stable offset, and the list of aborted "
        "transactions. From a batch that reaches the first offset of an entry on it skips that producer, until its "
        "abort marker comes by."
    )
    stage.show_readers("orders")
    id_a, id_b = (stage.states(name)[-1][1] for name in ("A", "B"))
    offsets = [record.offset for record in stage.records("orders")]
    values = stage.values("orders")
    stage.check("the index says: A from 0, aborted at 2; B from 1, aborted at 4",
                index == [(id_a, 0, 2), (id_b, 1, 4)], index)  # fmt: skip
    stage.check("a read_committed reader gets exactly offsets 3 and 5", offsets == [3, 5], offsets)
    stage.check("which are the committed ones", values == ["A, to be committed", "B, to be committed"], values)
    stage.check("a read_uncommitted reader gets all four", len(stage.values("orders", committed=False)) == 4)
