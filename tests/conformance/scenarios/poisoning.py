"""Produce: batches with a right checksum and nothing right behind it, which would stop whoever reads them.

`structure` has what Oncelog refuses by default, `records` what takes a look at every record; there the broker has
`oncelog.record.validation=records`.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any, Final

import cramjam

from tests.conformance.batches import record, varint
from tests.conformance.scenario import Scenario
from tests.conformance.steps import list_offsets, produce

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
INT_MAX: Final = 2**31 - 1
FIRST: Final = record(0, b"k0", b"a")
SECOND: Final = record(1, b"k1", b"b")
BOTH: Final = FIRST + SECOND

Case = Mapping[str, Any]


def _raw(body: bytes) -> bytes:
    """A record of these bytes."""
    return varint(len(body)) + body


def _lz4(data: bytes) -> bytes:
    encoder = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    encoder.compress(data)
    return bytes(encoder.finish())


PACKED: Final[Mapping[str, tuple[int, bytes]]] = {
    "gzip": (GZIP, gzip.compress(BOTH, mtime=0)),
    "snappy": (SNAPPY, bytes(cramjam.snappy.compress_raw(BOTH))),
    "lz4": (LZ4, _lz4(BOTH)),
    "zstd": (ZSTD, bytes(cramjam.zstd.compress(BOTH))),
}

_COUNTS: Final[Mapping[str, Case]] = {
    "count of 2^31-1": {"records_count": INT_MAX, "last_offset_delta": INT_MAX - 1},
    "one record more than there are": {"records_count": 3, "last_offset_delta": 2},
}
_LENGTHS: Final[Mapping[str, Case]] = {
    "one record fewer than there are": {"records_count": 1, "last_offset_delta": 0},
    "a length beyond the end": {"section": FIRST + varint(100) + SECOND[1:]},
    "a length of zero": {"section": FIRST + varint(0) + SECOND[1:]},
    "a negative length": {"section": FIRST + varint(-1) + SECOND[1:]},
    "a length of eleven bytes": {"section": FIRST + b"\xff" * 11 + SECOND[1:]},
    "bytes after the last record": {"section": BOTH + b"\0\0\0"},
}
_FRAMES: Final[Mapping[str, Case]] = {
    f"{name} that is not": {"attributes": codec, "section": b"this is no compressed data at all"}
    for name, (codec, _) in PACKED.items()
} | {
    f"no bytes of {name}": {"attributes": codec, "section": b""} for name, (codec, _) in PACKED.items()
} | {
    f"{name}, count of 2^31-1": {
        "attributes": codec, "section": data, "records_count": INT_MAX, "last_offset_delta": INT_MAX - 1,
    }
    for name, (codec, data) in PACKED.items()
}  # fmt: skip
_FIELDS: Final[Mapping[str, Case]] = {
    "a key longer than its record": {"section": FIRST + _raw(b"\0\0\x02" + varint(50) + b"k\x01\0")},
    "a value longer than its record": {"section": FIRST + _raw(b"\0\0\x02\x01" + varint(50) + b"v\0")},
    "a key of -2 bytes": {"section": FIRST + _raw(b"\0\0\x02\x03\x01\0")},
    "more headers than bytes": {"section": FIRST + _raw(b"\0\0\x02\x01\x01" + varint(1000))},
    "a header without a name": {"section": FIRST + _raw(b"\0\0\x02\x01\x01\x02\x01\x01")},
    "bytes after the headers": {"section": FIRST + _raw(b"\0\0\x02\x01\x01\0\0\0")},
    "offset deltas that do not grow": {"section": FIRST + record(0, b"k", b"v")},
    "offset deltas with a gap": {"section": FIRST + record(5, b"k", b"v")},
}


def _cut(name: str) -> Case:
    codec, data = PACKED[name]
    return {"attributes": codec, "section": data[: len(data) - 3]}


_PACKED_RECORDS: Final[Mapping[str, Case]] = {
    f"{name}, {what}": {"attributes": PACKED[name][0], **case}
    for name in PACKED
    for what, case in {
        "one record more than there are": {
            "section": PACKED[name][1], "records_count": 3, "last_offset_delta": 2,
        },
        "one record fewer than there are": {
            "section": PACKED[name][1], "records_count": 1, "last_offset_delta": 0,
        },
        "cut off": _cut(name),
    }.items()
} | {
    f"zstd, {what}": {**case, "attributes": ZSTD, "section": bytes(cramjam.zstd.compress(case["section"]))}
    for what, case in {**_LENGTHS, **_FIELDS}.items()
    if "section" in case
}  # fmt: skip


def _steps(cases: Mapping[str, Case]) -> list[Any]:
    return [
        *(produce(None, None, count=2, batch=options, note=case) for case, options in cases.items()),
        list_offsets(),
    ]


def structure() -> Scenario:
    return Scenario("structure", _steps({**_COUNTS, **_LENGTHS, **_FRAMES}), transaction_versions=(2,))


def records() -> Scenario:
    steps = _steps({**_COUNTS, **_LENGTHS, **_FRAMES, **_FIELDS, **_PACKED_RECORDS})
    return Scenario("records", steps, transaction_versions=(2,), profile="validating")


SCENARIOS = (structure(), records())
