"""Two producers, one transactional id."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.cli.lab.stage import Stage
from oncelog.client.errors import KafkaError, ProducerFenced
from oncelog.core.hashing import coordinator_partition, java_string_hash
from oncelog.core.ids import TRANSACTION_STATE_TOPIC

ID = "first-transactional"


def run(stage: Stage) -> None:
    stage.create("orders")
    stage.step(f"A producer takes the id {ID} and commits a transaction.")
    first = stage.producer(ID)
    first.init_transactions()
    with first.transaction():
        stage.send(first, "orders", "order 1", "order 2")
    owner = coordinator_partition(ID, 50)
    stage.say(
        f"   Java's hash of the id is {java_string_hash(ID)}: its state is in partition {owner} of the 50 of "
        f"{TRANSACTION_STATE_TOPIC}, and the leader of that partition is its coordinator."
    )
    stage.show_states(ID)

    stage.step("It begins another one, writes to it, and is slow.")
    first.begin_transaction()
    stage.send(first, "orders", "order 3 of the slow one")
    before = stage.states(ID)[-1]
    stage.show_log("orders")

    stage.step("A second producer comes up with the same id: a restart, or a mistake.")
    second = stage.producer(ID)
    second.init_transactions()
    after = stage.states(ID)[-1]
    stage.say("   The coordinator aborts what is open, one epoch up, and gives the newcomer the next epoch.")
    stage.show_states(ID)
    stage.show_log("orders")

    stage.step("The first one wants to go on.")
    refused = _failure(lambda: stage.send(first, "orders", "order 4 of the slow one"))
    stage.say(f"   Its write is refused: {refused}")
    failure = _failure(first.abort_transaction)
    stage.say(f"   It tries to abort, and learns why: {failure}")

    stage.step("The second one works.")
    with second.transaction():
        stage.send(second, "orders", "order 3")
    stage.show_readers("orders")
    values = stage.values("orders")
    folders = [path.name for path in stage.broker.data_dir.glob(f"{TRANSACTION_STATE_TOPIC}-*")]
    stage.check(f"the state of {ID} is in partition 12 of 50", f"{TRANSACTION_STATE_TOPIC}-12" in folders, folders)
    stage.check("what it writes after that is refused", refused is not None)
    stage.check("the producer id is the same, the epoch two higher", after[1:] == (before[1], before[2] + 2), after)
    stage.check("the first producer is fenced", isinstance(failure, ProducerFenced), failure)
    stage.check("nothing of its open transaction is visible", values == ["order 1", "order 2", "order 3"], values)


def _failure(call: Callable[[], object]) -> KafkaError | None:
    try:
        call()
    except KafkaError as error:
        return error
    return None
