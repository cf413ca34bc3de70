"""The prefix that names a schema, byte by byte."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.schemas.wire_format import encode_indexes, frame, split_indexes, unframe, with_header


def test_the_prefix_is_a_zero_and_the_id() -> None:
    assert frame(258, b"\x0e") == b"\x00\x00\x00\x01\x02\x0e"
    assert unframe(b"\x00\x00\x00\x01\x02\x0e") == (258, b"\x0e")


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00\x01", b'{"a": 1}', b"\x01\x00\x00\x00\x01x"])
def test_bytes_without_a_prefix_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unframe(data)


@pytest.mark.parametrize(
    ("indexes", "data"),
    [((0,), b"\x00"), ((1,), b"\x02\x02"), ((0, 0), b"\x04\x00\x00"), ((2, 100), b"\x04\x04\xc8\x01")],
)
def test_message_indexes_are_zigzag_varints_and_the_first_message_one_byte(
    indexes: tuple[int, ...], data: bytes
) -> None:
    assert encode_indexes(indexes) == data
    assert split_indexes(data + b"rest") == (indexes, b"rest")


def test_the_long_form_of_the_first_message_is_read_too() -> None:
    assert split_indexes(b"\x02\x00rest") == ((0,), b"rest")


@pytest.mark.parametrize(
    "data", [b"", b"\x04\x00", b"\x01", b"\x80\x80\x80\x80\x80\x01", b"\xfe\xff\xff\x0f", b"\x02\x01"]
)
def test_damaged_message_indexes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        split_indexes(data)


@given(st.integers(0, 2**31 - 1), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), st.binary(max_size=20))
def test_what_is_framed_comes_back(schema_id: int, indexes: list[int], payload: bytes) -> None:
    framed = unframe(frame(schema_id, encode_indexes(tuple(indexes)) + payload))
    assert framed.schema == schema_id
    assert split_indexes(framed.payload) == (tuple(indexes), payload)


@given(st.binary(max_size=30))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    try:
        split_indexes(unframe(data).payload)
    except ValueError:
        return


def test_a_header_has_a_guid() -> None:
    guid = uuid.uuid4()
    headers = [("other", b"x"), ("__key_schema_id", None), ("__value_schema_id", b"\x01" + guid.bytes)]
    assert unframe(with_header(headers, "value", b"payload")) == (guid, b"payload")
    assert with_header(headers, "key", b"payload") == b"payload"
    with pytest.raises(ValueError):
        unframe(b"\x01" + guid.bytes[:15])
