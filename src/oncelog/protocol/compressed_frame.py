"""What compressed data say of themselves, read without unpacking them: are they a frame at all, and how much is in it?

zstd and lz4 frames are chains of blocks, each with its size in front, and xerial's snappy is one of blocks that begin
with their unpacked size; to follow a chain takes one step per block, at least some of 64 KiB. gzip says nothing of use
before it is unpacked, but at most what 1032 times its bytes can hold. Apache Kafka answers data that it cannot unpack
with UNKNOWN_SERVER_ERROR, and nothing in the place of zstd with INVALID_RECORD.
"""

from __future__ import annotations

import struct
from typing import Final

import cramjam

from oncelog.core.codec import Codec
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.compression import XERIAL_HEADER_BYTES, XERIAL_MAGIC

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_RATIO_MAX: Final = 1032
_GZIP_BYTES_MIN: Final = 18
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_BYTES: Final = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_RAW_BIT: Final = 1 << 31
_SNAPPY_TRIED_BYTES: Final = 4 * 1024
"""Raw snappy has no magic number: a small first block is unpacked to see that it is one."""
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
_ZSTD_SIZE_BYTES: Final = (0, 2, 4, 8)
_ZSTD_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_REPEATED, _PACKED = 1, 2
_BE32: Final = struct.Struct(">i")
_LE32: Final = struct.Struct("<I")


class NotCompressed(KafkaError):
    """The bytes are not what the codec of their batch makes."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(code, message)


def unpacked_bytes_max(codec: int, data: bytes) -> int:
    """The most that can be in `data`. Raises NotCompressed if they cannot be of this codec."""
    try:
        match codec:
            case Codec.GZIP:
                return _gzip(data)
            case Codec.SNAPPY:
                return _snappy(data)
            case Codec.LZ4:
                return _lz4(data)
            case Codec.ZSTD:
                return _zstd(data)
        return len(data)
    except (IndexError, struct.error, cramjam.DecompressionError):
        raise NotCompressed(f"{len(data)} bytes of {Codec(codec).name.lower()} end in the middle") from None


def _gzip(data: bytes) -> int:
    if not data.startswith(_GZIP_MAGIC) or len(data) < _GZIP_BYTES_MIN:
        raise NotCompressed("the data do not begin like gzip")
    return len(data) * _GZIP_RATIO_MAX


def _snappy(data: bytes) -> int:
    if not data:
        raise NotCompressed("there are no data")
    if not data.startswith(XERIAL_MAGIC):
        return _snappy_block(data, is_first=True)
    position, total = XERIAL_HEADER_BYTES, 0
    while position < len(data):
        (size,) = _BE32.unpack_from(data, position)
        position += 4
        if not 0 < size <= len(data) - position:
            raise NotCompressed(f"a snappy block claims {size} bytes, {len(data) - position} are left")
        total += _snappy_block(data[position : position + size], is_first=total == 0)
        position += size
    return total


def _snappy_block(block: bytes, is_first: bool) -> int:
    size = int(cramjam.snappy.decompress_raw_len(block))
    if is_first and size <= _SNAPPY_TRIED_BYTES:
        cramjam.snappy.decompress_raw(block)
    return size


def _lz4(data: bytes) -> int:
    total = position = 0
    while position == 0 or data.startswith(_LZ4_MAGIC, position):
        unpacked, position = _lz4_frame(data, position)
        total += unpacked
    return total


def _lz4_frame(data: bytes, start: int) -> tuple[int, int]:
    """The most that is in the frame, and where it ends."""
    flags, block_bytes = data[start + 4], _LZ4_BLOCK_BYTES.get(data[start + 5] >> 4 & 7)
    if not data.startswith(_LZ4_MAGIC, start) or flags >> 6 != 1 or block_bytes is None:
        raise NotCompressed("the data do not begin like an lz4 frame")
    has_size, has_checksum, has_block_checksums = flags >> 3 & 1, flags >> 2 & 1, flags >> 4 & 1
    has_dictionary = flags & 1
    position = start + 7 + 8 * has_size + 4 * has_dictionary
    total = 0
    while (size := _LE32.unpack_from(data, position)[0]) != 0:
        stored = size & ~_LZ4_RAW_BIT
        total += stored if size & _LZ4_RAW_BIT else block_bytes
        position += 4 + stored + 4 * has_block_checksums
    return total, position + 4 + 4 * has_checksum


def _zstd(data: bytes) -> int:
    if not data:
        raise NotCompressed("there are no data", ErrorCode.INVALID_RECORD)
    total = position = 0
    while position == 0 or data.startswith(_ZSTD_MAGIC, position):
        unpacked, position = _zstd_frame(data, position)
        total += unpacked
    if position > len(data):
        raise NotCompressed(f"{len(data)} bytes of zstd end in the middle")
    return total


def _zstd_frame(data: bytes, start: int) -> tuple[int, int]:
    """The most that is in the frame, and where it ends."""
    if not data.startswith(_ZSTD_MAGIC, start):
        raise NotCompressed("the data do not begin like a zstd frame")
    descriptor = data[start + 4]
    is_single, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    size_bytes = _ZSTD_SIZE_BYTES[descriptor >> 6] or is_single
    position = start + 5 + (not is_single) + _ZSTD_DICTIONARY_BYTES[descriptor & 3]
    stated = int.from_bytes(data[position : position + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    position += size_bytes
    total, is_last = 0, False
    while not is_last:
        head = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        is_last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        if size > _ZSTD_BLOCK_BYTES_MAX or kind > _PACKED:
            raise NotCompressed(f"there is no zstd block at byte {position}")
        total += _ZSTD_BLOCK_BYTES_MAX if kind == _PACKED else size
        position += 3 + (1 if kind == _REPEATED else size)
    return (min(total, stated) if size_bytes else total), position + 4 * has_checksum
