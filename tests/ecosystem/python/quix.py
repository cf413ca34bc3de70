"""A pipeline of Quix Streams with exactly-once processing and a state, whose changelog is in the broker."""

from __future__ import annotations

import sys

from quixstreams import Application, State

servers, source, target, group, count, folder = sys.argv[1:]
application = Application(
    broker_address=servers,
    consumer_group=group,
    processing_guarantee="exactly-once",
    auto_offset_reset="earliest",
    commit_every=7,
    producer_extra_config={"transactional.id": group},
    state_dir=folder,
    loglevel="WARNING",
)
input_topic = application.topic(source, value_deserializer="str")
output_topic = application.topic(target, value_serializer="str")


def counted(value: str, state: State) -> str:
    state.set("count", state.get("count", 0) + 1)
    return value.upper()


application.dataframe(input_topic).apply(counted, stateful=True).to_topic(output_topic)
application.run(count=int(count))
sys.stdout.write("done\n")
