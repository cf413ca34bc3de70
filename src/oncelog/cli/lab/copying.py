"""Consume, transform, produce: two instances, one of which is killed in the middle of a transaction."""

from __future__ import annotations

from oncelog.cli.lab.stage import Stage

RECORDS = 60
OUTPUT = "output-exactly-once"


def run(stage: Stage) -> None:
    stage.create("input", OUTPUT, partitions=2)
    stage.step(f"{RECORDS} records on two partitions, to be copied by a group.")
    source = stage.producer()
    for number in range(RECORDS):
        source.send("input", f"{number}", partition=number % 2)
    source.flush()

    stage.step("An instance copies: output and offsets are one transaction. In its second one it is killed with -9.")
    ended = stage.worker("exactly-once", "copier-1", die_at=2)
    stage.say(f"   it said: {', '.join(ended)}")
    stage.show_states("copier-1")
    seen = [len(stage.records(OUTPUT, number, committed=False)) for number in range(2)]
    visible = [len(stage.records(OUTPUT, number)) for number in range(2)]
    stage.say(f"   written so far {sum(seen)}, committed {sum(visible)}")

    stage.step("A second instance takes over.")
    stage.say(
        "   The partitions come to it, and with them the wait for what is pending: the offsets in the open transaction "
        "are not stable until its time-out has aborted it."
    )
    stage.say(f"   it said: {', '.join(stage.worker('exactly-once', 'copier-2'))}")
    stage.show_states("copier-1")

    stage.step("What came out?")
    values = [value for number in range(2) for value in stage.values(OUTPUT, number)]
    written = sum(len(stage.records(OUTPUT, number, committed=False)) for number in range(2))
    stage.say(f"   {written} records were written, {len(values)} of them committed")
    expected = sorted(f"copy of {number}" for number in range(RECORDS))
    stage.check("the first instance died with records written and not committed", sum(seen) > sum(visible), seen)
    stage.check("its transaction was aborted", stage.states("copier-1")[-1][0] == "CompleteAbort")
    stage.check("every input led to exactly one output", sorted(values) == expected, len(values))
