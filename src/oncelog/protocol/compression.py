"""The codecs of record batches: one blob in, one blob out, and never more output than the caller allows.

Lz4 is the frame format. Snappy comes in two shapes: one raw block (librdkafka), or xerial's framing (Java and most
others), which is a 16-byte header followed by blocks, each an int32 length and that many bytes of raw snappy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import cramjam

from oncelog.core.codec import Codec
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.primitives import Readable

OUTPUT_BYTES_MAX: Final = 128 * 1024 * 1024
"""Default cap for one batch. Kafka's own limit is the 100 MiB of a request, before decompression."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_HEADER_BYTES: Final = len(_XERIAL_HEADER)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_FIRST_GUESS_BYTES_MIN: Final = 64 * 1024
_INT32: Final = struct.Struct(">i")


class CompressionError(KafkaError):
    """Compressed record data that cannot be read, or that would unfold into more than the cap."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class OutputTooLarge(CompressionError):
    """The data would be larger than the limit when decompressed."""


def compress(codec: int, data: Readable) -> bytes:
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            # Java's reader refuses linked blocks, which are cramjam's default.
            encoder = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
            encoder.compress(bytes(data))
            return bytes(encoder.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=3))
    raise unsupported(codec)


def decompress(codec: int, data: Readable, output_bytes_max: int = OUTPUT_BYTES_MAX) -> bytes:
    """The plain bytes. Raises KafkaError: CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return _decompress_growing("gzip", cramjam.gzip.decompress_into, data, output_bytes_max)
        case Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), output_bytes_max)
        case Codec.LZ4:
            return _decompress_growing("lz4", cramjam.lz4.decompress_into, data, output_bytes_max)
        case Codec.ZSTD:
            return _decompress_growing("zstd", cramjam.zstd.decompress_into, data, output_bytes_max)
    raise unsupported(codec)


def unsupported(codec: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no compression codec has the number {codec}")


def _decompress_growing(
    name: str, decompress_into: Callable[[Readable, bytearray], int], data: Readable, output_bytes_max: int
) -> bytes:
    """Stream formats do not say their size up front, so try ever larger buffers up to the cap.

    Only the library's refusal to write past the end of a buffer bounds what a hostile stream can allocate.
    """
    size = min(output_bytes_max, max(_FIRST_GUESS_BYTES_MIN, 8 * len(data)))
    while True:
        output = bytearray(size)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            del output  # whoever keeps the error would keep it, too
            # The wording is the library's; a different one only costs a few attempts more.
            is_too_small = "write" in str(error)
            if is_too_small and size < output_bytes_max:
                size = min(output_bytes_max, size * 8)
                continue
            if is_too_small:
                raise OutputTooLarge(
                    f"{name} data of {len(data)} bytes unfolds to more than {output_bytes_max} bytes"
                ) from error
            raise CompressionError(f"{name} data of {len(data)} bytes: {error}") from error
        return bytes(memoryview(output)[:written])


def _compress_xerial(data: Readable) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += _INT32.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: memoryview, output_bytes_max: int) -> bytes:
    if bytes(data[:8]) != XERIAL_MAGIC:
        return _decompress_snappy_block(data, output_bytes_max)
    out = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if len(data) - position < 4:
            raise CompressionError("xerial snappy data ends inside a block length")
        (size,) = _INT32.unpack_from(data, position)
        position += 4
        if not 0 <= size <= len(data) - position:
            raise CompressionError(f"a xerial snappy block claims {size} bytes, {len(data) - position} are left")
        out += _decompress_snappy_block(data[position : position + size], output_bytes_max - len(out))
        position += size
    return bytes(out)


def _decompress_snappy_block(block: memoryview, output_bytes_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > output_bytes_max:
            raise OutputTooLarge(f"a snappy block unfolds to {size} bytes, {output_bytes_max} are allowed")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"snappy block of {len(block)} bytes: {error}") from error
