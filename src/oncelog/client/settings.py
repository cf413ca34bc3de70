"""The settings of producers and consumers as tables, for connectors that take them as options of their own."""

from oncelog.client.arguments import is_topic_name
from oncelog.client.config import TUNES_JAVA, parse_settings
from oncelog.client.consumer_config import CONSUMER_TABLE
from oncelog.client.fetcher import RANGE_FETCH_BYTES
from oncelog.client.producer_config import IN_FLIGHT, PRODUCER_TABLE

__all__ = [
    "CONSUMER_TABLE",
    "IN_FLIGHT",
    "PRODUCER_TABLE",
    "RANGE_FETCH_BYTES",
    "TUNES_JAVA",
    "is_topic_name",
    "parse_settings",
]
