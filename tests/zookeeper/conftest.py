from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from oncelog.testing.zookeeper import ZooKeeperEnsemble, zookeeper_missing

_numbers = count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = zookeeper_missing()
    for item in items:
        if reason is not None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One server for all tests: each has a chroot of its own."""
    provider = {
        "authProvider.1": "org.apache.zookeeper.server.auth.DigestAuthenticationProvider",
        "forceSync": "no",  # it waits for no disk, which others use as well: nobody turns this machine off
    }
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), 1, provider) as ensemble:
        yield ensemble


@pytest.fixture
def chroot() -> str:
    return f"/oncelog/test-{next(_numbers)}"
