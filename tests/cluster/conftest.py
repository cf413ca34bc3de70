"""`make test` runs the short form of these tests, `make test-cluster` all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHORT = (
    "test_membership.py",
    "test_own_controller.py",
    "test_controller_security.py",
    "test_controller_records.py",
    "test_folder_of_one_node.py",
)
LONG_CASE = "[killed]"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.conformance)
            is_short = item.path.name in SHORT and not item.name.endswith(LONG_CASE)
            if not is_short and os.environ.get("ONCELOG_CLUSTER_TESTS") != "all":
                item.add_marker(pytest.mark.skip(reason="takes minutes: make test-cluster"))
