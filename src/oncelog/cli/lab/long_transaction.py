"""One open transaction holds back everything behind it."""

from __future__ import annotations

import time

from oncelog.cli.lab.stage import Stage
from oncelog.client.producer import Producer
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.open_transactions import open_transactions


def run(stage: Stage) -> None:
    stage.create("orders")
    stage.step("A thousand plain records: offsets 0 to 999.")
    plain = stage.producer()
    _fill(plain, "plain", 1000)

    stage.step("A transaction begins at offset 1000, and stays open.")
    slow = stage.producer("long-one", transaction_timeout_ms=60_000)
    slow.init_transactions()
    slow.begin_transaction()
    stage.send(slow, "orders", "long")

    stage.step("Others write 1100 to 1200 and 1400 to 1500 meanwhile, and commit.")
    _fill(plain, "plain", 99)
    _transaction(stage, "quick-one", 100)
    _fill(plain, "plain", 199)
    _transaction(stage, "quick-two", 100)
    stable, end = stage.offsets("orders")
    stage.say(f"   last stable offset {stable}, high watermark {end}")
    stage.show_readers("orders")
    held = len(stage.records("orders"))
    everything = len(stage.records("orders", committed=False))

    stage.step("Who is it? `oncelog txn blocking orders` asks the partition and the coordinator.")
    with stage.admin() as admin:
        (culprit, *others) = open_transactions(admin, [TopicPartition("orders", 0)])
    stage.say(f"   {culprit.transactional_id}, producer {culprit.producer.producer_id} epoch "
              f"{culprit.producer.producer_epoch}, open for {culprit.age_ms(int(time.time() * 1000))} ms")  # fmt: skip
    stage.say(f"   to end it: oncelog {' '.join(culprit.remedy)} -b {stage.servers}")

    stage.step("It ends by itself: commit.")
    slow.commit_transaction()
    after, end_after = stage.offsets("orders")
    records = stage.records("orders")
    stage.say(f"   last stable offset {after}, high watermark {end_after}")
    stage.show_readers("orders")
    offsets = [record.offset for record in records]
    stage.check("the last stable offset was 1000 while it was open", stable == 1000, stable)
    stage.check("a read_committed reader got the 1000 records before it", held == 1000, held)
    stage.check("a read_uncommitted reader saw all 1499 at once", everything == 1499, everything)
    stage.check("the culprit is named", (culprit.transactional_id, others) == ("long-one", []), culprit)
    stage.check("afterwards everything is read, in offset order",
                len(records) == 1499 and offsets == sorted(offsets), len(records))  # fmt: skip


def _fill(producer: Producer, value: str, count: int) -> None:
    for _ in range(count):
        producer.send("orders", value, partition=0)
    producer.flush()


def _transaction(stage: Stage, name: str, count: int) -> None:
    producer = stage.producer(name)
    producer.init_transactions()
    with producer.transaction():
        _fill(producer, name, count)
