"""Software that tests fetch, where a registry does not answer at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers.kafka import jars


class Registry:
    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.asked = 0

    def fetch(self) -> None:
        self.asked += 1
        if self.asked <= self._failures:
            raise RuntimeError("the registry is away")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "FETCH_PAUSE_S", 0)


def test_a_registry_that_is_away_for_a_moment_is_asked_again_and_then_never(tmp_path: Path) -> None:
    registry = Registry(failures=jars.FETCH_TRIES - 1)
    for _ in range(2):
        assert jars.fetched(tmp_path / "kept", registry.fetch).is_dir()
    assert registry.asked == jars.FETCH_TRIES


def test_what_cannot_be_fetched_is_not_tried_for_each_test(tmp_path: Path) -> None:
    registry = Registry(failures=100)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the registry is away"):
            jars.fetched(tmp_path / "missing", registry.fetch)
    assert registry.asked == jars.FETCH_TRIES
