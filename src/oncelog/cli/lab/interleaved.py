"""Two transactions and a plain record, interleaved."""

from __future__ import annotations

from oncelog.cli.lab.stage import Stage


def run(stage: Stage) -> None:
    stage.create("orders")
    stage.step("T1-M1, T2-M1, T1-M2, and M1 outside of any transaction.")
    one, two, plain = stage.producer("T1"), stage.producer("T2"), stage.producer()
    for producer in (one, two):
        producer.init_transactions()
        producer.begin_transaction()
    stage.send(one, "orders", "T1-M1")
    stage.send(two, "orders", "T2-M1")
    stage.send(one, "orders", "T1-M2")
    stage.send(plain, "orders", "M1")
    stage.show_log("orders")
    stage.show_readers("orders")
    nothing = stage.values("orders")

    stage.step("T2 commits first.")
    two.commit_transaction()
    stage.show_log("orders")
    stage.show_readers("orders")
    still_nothing = stage.values("orders")
    stage.say("   T1 began earlier and is open: not even the plain record behind it may be read.")

    stage.step("T1 commits.")
    one.commit_transaction()
    stage.show_log("orders")
    stage.show_readers("orders")
    values = stage.values("orders")
    stage.say("   Readers do not collect a transaction and deliver it as a whole: they go by offsets.")
    stage.check("while T1 is open nothing at or behind its first record is read", nothing == still_nothing == [],
                (nothing, still_nothing))  # fmt: skip
    stage.check("afterwards the order is that of the offsets", values == ["T1-M1", "T2-M1", "T1-M2", "M1"], values)
