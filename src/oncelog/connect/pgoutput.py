"""The messages of PostgreSQL's logical replication, protocol version 1 of the plug-in pgoutput: bytes in, objects out.

All numbers are big-endian, all texts end with NUL. A transaction comes when it is committed, whole, in the order of
commits:

    B  final_lsn:u64 time:i64 xid:u32                         its commit record begins at final_lsn
    R  oid:u32 schema name identity:char n:i16                a table, before its first change on a connection, and
       n * (flags:u8 name type:u32 modifier:i32)              after the table was changed; flag 1: of its identity
    I  oid:u32 'N' tuple
    U  oid:u32 ['K' tuple | 'O' tuple] 'N' tuple              old: the identity if it changed (K), or the whole row (O)
    D  oid:u32 'K' tuple | 'O' tuple
    T  n:u32 options:u8 n * oid:u32
    M  flags:u8 lsn:u64 prefix n:u32 bytes                    of pg_logical_emit_message; flag 1: transactional
    C  flags:u8 commit_lsn:u64 end_lsn:u64 time:i64
    Y, O                                                      types and origins: not needed

A tuple is n:i16 and n columns: 'n' null, 'u' a large value that was not changed and is not in the log, 't' n:i32 text.
Times are microseconds since 2000-01-01.

The stream around them: `w` start:u64 end:u64 time:i64 message, and `k` end:u64 time:i64 reply_wanted:u8. The answer is
`r` written:u64 flushed:u64 applied:u64 time:i64 reply_wanted:u8.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple

EPOCH_MS: Final = 946_684_800_000
"""2000-01-01 in milliseconds of Unix."""
_BEGIN: Final = struct.Struct(">QqI")
_COMMIT: Final = struct.Struct(">BQQq")
_COLUMN: Final = struct.Struct(">Ii")
_MESSAGE: Final = struct.Struct(">BQ")
_DATA: Final = struct.Struct(">QQq")
_KEEPALIVE: Final = struct.Struct(">QqB")
_STATUS: Final = struct.Struct(">QQQqB")
_u32: Final = struct.Struct(">I")
_i16: Final = struct.Struct(">h")
_KIND_AND_SIZE: Final = struct.Struct(">BI")


class Unchanged(Enum):
    """A value that is not in the log because it was not changed."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
Value = str | None | Unchanged
Values = list[Value]


class MalformedStream(Exception):
    """The bytes are not a message of pgoutput."""


class Begin(NamedTuple):
    final_lsn: int
    time_ms: int
    xid: int


class Commit(NamedTuple):
    lsn: int
    end_lsn: int
    time_ms: int


class Column(NamedTuple):
    name: str
    type_oid: int
    is_identity: bool


class Relation(NamedTuple):
    oid: int
    schema: str
    name: str
    identity: str
    """d: primary key, i: an index, f: the whole row, n: nothing."""
    columns: tuple[Column, ...]

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


class Insert(NamedTuple):
    oid: int
    new: Values


class Update(NamedTuple):
    oid: int
    old: Values | None
    new: Values


class Delete(NamedTuple):
    oid: int
    old: Values


class Truncate(NamedTuple):
    oids: tuple[int, ...]


class Message(NamedTuple):
    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


Decoded = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Message


class Data(NamedTuple):
    """A message, and how far the server's log is."""

    end_lsn: int
    message: Decoded | None


class Keepalive(NamedTuple):
    end_lsn: int
    """The server has sent all that is committed up to here."""
    reply_wanted: bool


def decode_stream(data: bytes) -> Data | Keepalive:
    """One chunk of the copy stream. Raises MalformedStream."""
    kind = data[:1]
    if kind == b"w" and len(data) > _DATA.size + 1:
        return Data(_DATA.unpack_from(data, 1)[1], decode(data, _DATA.size + 1))
    if kind == b"k" and len(data) > _KEEPALIVE.size:
        end_lsn, _, reply_wanted = _KEEPALIVE.unpack_from(data, 1)
        return Keepalive(end_lsn, bool(reply_wanted))
    raise MalformedStream(f"a chunk of the replication stream of {len(data)} bytes begins with {kind!r}")


def encode_status(confirmed_lsn: int, time_ms: int, *, reply_wanted: bool = False) -> bytes:
    """Everything up to this position is safe with us. The reply is a Keepalive."""
    positions = (confirmed_lsn, confirmed_lsn, confirmed_lsn)
    return b"r" + _STATUS.pack(*positions, (time_ms - EPOCH_MS) * 1000, reply_wanted)


def decode(data: bytes, at: int = 0) -> Decoded | None:
    """The message that begins at an index; None for those that are not needed."""
    try:
        return _decode(data, at)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedStream(f"a message of pgoutput of {len(data) - at} bytes cannot be read: {error}") from error


def _decode(data: bytes, at: int) -> Decoded | None:
    kind = data[at]
    at += 1
    if kind == 0x49:  # I
        return Insert(_u32.unpack_from(data, at)[0], _tuple(data, at + 5)[0])
    if kind == 0x55:  # U
        return _update(data, at)
    if kind == 0x44:  # D
        return Delete(_u32.unpack_from(data, at)[0], _tuple(data, at + 5)[0])
    if kind == 0x42:  # B
        final_lsn, time, xid = _BEGIN.unpack_from(data, at)
        return Begin(final_lsn, EPOCH_MS + time // 1000, xid)
    if kind == 0x43:  # C
        _, lsn, end_lsn, time = _COMMIT.unpack_from(data, at)
        return Commit(lsn, end_lsn, EPOCH_MS + time // 1000)
    if kind == 0x52:  # R
        return _relation(data, at)
    if kind == 0x54:  # T
        (count,) = _u32.unpack_from(data, at)
        return Truncate(struct.unpack_from(f">{count}I", data, at + 5))
    if kind == 0x4D:  # M
        return _message(data, at)
    if kind in b"YO":
        return None
    raise ValueError(f"its kind is {chr(kind)!r}")


def _update(data: bytes, at: int) -> Update:
    (oid,) = _u32.unpack_from(data, at)
    at += 4
    old = None
    if data[at] != 0x4E:  # N
        old, at = _tuple(data, at + 1)
    return Update(oid, old, _tuple(data, at + 1)[0])


def _tuple(data: bytes, at: int) -> tuple[Values, int]:
    (count,) = _i16.unpack_from(data, at)
    at += 2
    values: Values = []
    add, unpack, end = values.append, _KIND_AND_SIZE.unpack_from, len(data)
    for _ in range(count):
        kind = data[at]
        if kind == 0x74:  # t
            _, size = unpack(data, at)
            start = at + 5
            at = start + size
            if at > end:
                raise ValueError("a value is cut off")
            add(data[start:at].decode())
        elif kind == 0x6E:  # n
            values.append(None)
            at += 1
        elif kind == 0x75:  # u
            values.append(UNCHANGED)
            at += 1
        else:
            raise ValueError(f"a column is of kind {chr(kind)!r}")
    return values, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _relation(data: bytes, at: int) -> Relation:
    (oid,) = _u32.unpack_from(data, at)
    schema, at = _text(data, at + 4)
    name, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _i16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        type_oid, _ = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(column, type_oid, bool(flags & 1)))
    # An empty schema stands for pg_catalog.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _message(data: bytes, at: int) -> Message:
    flags, lsn = _MESSAGE.unpack_from(data, at)
    prefix, at = _text(data, at + _MESSAGE.size)
    (size,) = _u32.unpack_from(data, at)
    content = bytes(data[at + 4 : at + 4 + size])
    if len(content) != size:
        raise ValueError("its content is cut off")
    return Message(bool(flags & 1), lsn, prefix, content)


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it: 0/16B3748."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)
