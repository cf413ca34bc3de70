"""Whether a sink may go on where it stopped: decided from what is stored and what the topic has, without I/O."""

from __future__ import annotations

from typing import NamedTuple

from oncelog.client import TopicPartition
from oncelog.connect.errors import Refused
from oncelog.connect.sink import Claimed


class Extent(NamedTuple):
    """A partition as it is now."""

    topic_id: str
    beginning: int
    end: int


def check_claim(partition: TopicPartition, claimed: Claimed, now: Extent, table: str) -> None:
    """Raises Refused if records between the stored offset and the topic are missing, or belong to another topic."""
    check_topic(partition.topic, claimed.topic_id, now.topic_id, table)
    place = f"topic = '{partition.topic}' and part = {partition.partition}"
    if claimed.next_offset < now.beginning:
        raise Refused(
            f"{partition}: the next offset to read is {claimed.next_offset}, but the topic begins at {now.beginning}: "
            f"{now.beginning - claimed.next_offset} offsets were deleted before they were read. To go on without "
            f"them: update {table} set next_offset = {now.beginning} where {place}"
        )
    if claimed.next_offset > now.end:
        raise Refused(
            f"{partition}: the next offset to read is {claimed.next_offset}, but the topic ends at {now.end}: it has "
            f"lost records, or is another one. To read it from its beginning: update {table} set next_offset = "
            f"{now.beginning} where {place}"
        )


def check_topic(topic: str, stored_id: str, now_id: str, table: str) -> None:
    """Raises Refused if the topic was deleted and made again. Brokers that give no ids are not checked."""
    if stored_id and now_id and stored_id != now_id:
        raise Refused(
            f"topic {topic} was deleted and made again: its id was {stored_id} and is {now_id}, so stored offsets mean "
            f"nothing in it. To read it from its beginning: delete from {table} where topic = '{topic}'"
        )
