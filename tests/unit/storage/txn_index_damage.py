"""What may become of the file of a transaction index: its content before, and after. None if it is gone."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.storage.txn_index import ENTRY_SIZE_BYTES, AbortedTxn, decode_entries

Damage = Callable[[bytes], bytes | None]


def whole(content: bytes) -> bytes:
    return content


def without_first(content: bytes) -> bytes:
    return content[ENTRY_SIZE_BYTES:]


def without_last(content: bytes) -> bytes:
    return content[:-ENTRY_SIZE_BYTES]


def torn(content: bytes) -> bytes:
    return content[:-3]


def empty(content: bytes) -> bytes:
    return b""


def begun_later(content: bytes) -> bytes:
    """The transactions begin with their markers."""
    return b"".join(
        AbortedTxn(txn.producer_id, txn.last_offset, txn.last_offset, txn.last_stable_offset).encode()
        for _, txn in decode_entries(content[: len(content) // ENTRY_SIZE_BYTES * ENTRY_SIZE_BYTES])
    )


def missing(content: bytes) -> None:
    return None


def overwritten(content: bytes) -> bytes:
    return b"\1" * len(content)
