"""The codecs of record batches, by their numbers in batch attributes, and their names in settings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


PRODUCER_CODECS: Final[Mapping[str, Codec]] = {codec.name.lower(): codec for codec in Codec}
"""As producers name them."""
TOPIC_CODECS: Final[Mapping[str, Codec | None]] = {
    "uncompressed": Codec.NONE,
    **{codec.name.lower(): codec for codec in reversed(Codec) if codec},
    "producer": None,
}
"""As topics name them, in Kafka's order; None leaves batches as they were sent."""
