from __future__ import annotations

import zlib

import cramjam
import pytest

from oncelog.core.codec import Codec
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol import compression
from oncelog.protocol.compression import CompressionError

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"the quick brown fox jumps over the lazy dog; " * 4000


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(3_000_000)], ids=["empty", "one", "text", "zeros"])
def test_round_trip(codec: Codec, data: bytes) -> None:
    packed = compression.compress(codec, bytearray(data))
    assert compression.decompress(codec, memoryview(packed)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_output_beyond_the_cap_is_refused(codec: Codec) -> None:
    packed = compression.compress(codec, bytes(3_000_000))
    assert len(packed) < 300_000
    assert len(compression.decompress(codec, packed, 3_000_000)) == 3_000_000
    with pytest.raises(CompressionError) as raised:
        compression.decompress(codec, packed, 2_999_999)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CODECS)
def test_cut_or_foreign_data_is_refused(codec: Codec) -> None:
    packed = compression.compress(codec, TEXT)
    for broken in (packed[:-5], packed[: len(packed) // 2], b"\xff" * 40):
        with pytest.raises(CompressionError):
            compression.decompress(codec, broken)


def test_raw_snappy_of_librdkafka_is_read() -> None:
    assert compression.decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_is_written_in_the_framing_java_reads() -> None:
    packed = compression.compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + int.from_bytes(packed[16:20], "big")])) == TEXT[:32768]


@pytest.mark.parametrize("tail", [b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\5abc"])
def test_broken_snappy_framing_is_refused(tail: bytes) -> None:
    with pytest.raises(CompressionError):
        compression.decompress(Codec.SNAPPY, compression.compress(Codec.SNAPPY, b"abc") + tail)


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    packed = compression.compress(Codec.LZ4, TEXT)
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0x20


def test_gzip_is_plain_gzip() -> None:
    assert zlib.decompress(compression.compress(Codec.GZIP, TEXT), wbits=31) == TEXT


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codec(codec: int) -> None:
    for call in (compression.compress, compression.decompress):
        with pytest.raises(KafkaError) as raised:
            call(codec, b"")
        assert raised.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
