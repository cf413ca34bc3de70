"""The rate that the client reaches with a broker that costs nothing."""

from __future__ import annotations

from peers.ceiling import ceiling


def test_every_transaction_of_the_mock_is_timed() -> None:
    rate, commits = ceiling(20)
    assert commits.count == 20
    assert rate > 0
    # The client sends nothing of a transaction in its first millisecond, whatever the broker.
    assert commits.at(50.0) >= 1.0
