"""What is kept of an answer while its client takes it."""

from __future__ import annotations

import random
import weakref

import pytest

from oncelog.server.outgoing import PIECE_BYTES, TLS_BYTES_MAX, WHOLE_BYTES_MAX, Outgoing


class Tracked(bytearray):
    """One that tells when it is freed: plain ones cannot be referred to weakly."""


@pytest.mark.parametrize("whole_bytes_max", [WHOLE_BYTES_MAX, TLS_BYTES_MAX])
def test_pieces_are_the_answer(whole_bytes_max: int) -> None:
    rng = random.Random(5)
    sizes = (0, 1, 100, PIECE_BYTES - 1, PIECE_BYTES, WHOLE_BYTES_MAX, WHOLE_BYTES_MAX + 1, 9 * PIECE_BYTES + 7)
    for _ in range(50):
        buffers = [rng.randbytes(rng.choice(sizes)) for _ in range(5)]
        outgoing = Outgoing(whole_bytes_max)
        outgoing.add(buffers)
        pieces = []
        while outgoing:
            pieces.append(b"".join(outgoing.take_piece()))
            if rng.random() < 0.5:
                outgoing.shrink()
        assert b"".join(pieces) == b"".join(buffers)
        assert all(0 < len(piece) <= whole_bytes_max for piece in pieces)
        assert outgoing.held_bytes == 0


def test_a_large_buffer_is_freed_when_most_of_it_is_taken() -> None:
    data = Tracked(10 * PIECE_BYTES)
    freed = weakref.ref(data)
    outgoing = Outgoing()
    outgoing.add([data])
    del data
    pieces = [outgoing.take_piece() for _ in range(4)]
    outgoing.shrink()
    assert freed() is not None
    assert outgoing.held_bytes == 10 * PIECE_BYTES, "all of it, while more than half is to be sent"
    pieces.append(outgoing.take_piece())
    outgoing.shrink()
    assert freed() is None, "the pieces do not keep it"
    assert outgoing.held_bytes == 5 * PIECE_BYTES


def test_the_end_of_a_large_buffer_does_not_keep_the_rest() -> None:
    data = Tracked(WHOLE_BYTES_MAX + 10)
    freed = weakref.ref(data)
    outgoing = Outgoing()
    outgoing.add([b"head", data, b"tail"])
    del data
    pieces = []
    while outgoing:
        pieces += outgoing.take_piece()
    assert freed() is None
    assert sum(map(len, pieces)) == WHOLE_BYTES_MAX + 18


def test_buffers_of_usual_size_are_not_copied() -> None:
    buffers = [bytes(WHOLE_BYTES_MAX), b"between", bytes(WHOLE_BYTES_MAX - 7)]
    outgoing = Outgoing()
    outgoing.add(buffers)
    parts = [*outgoing.take_piece(), *outgoing.take_piece()]
    assert all(part.obj is buffer for part, buffer in zip(parts, buffers, strict=True))
    assert not outgoing
