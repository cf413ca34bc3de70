"""`make test` runs the short form of these tests, `make test-cluster` all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.conformance)
            if item.path.name != "test_membership.py" and os.environ.get("ONCELOG_CLUSTER_TESTS") != "all":
                item.add_marker(pytest.mark.skip(reason="takes minutes: make test-cluster"))
