"""What `oncelog.testing` offers, and that it waits for no more than a broker needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import oncelog.testing


def test_every_name_is_there_whatever_was_imported_first() -> None:
    program = "import oncelog.testing as t; t.Cluster; print([callable(getattr(t, name)) for name in t.__all__])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout.strip() == str([True] * len(oncelog.testing.__all__))
    with pytest.raises(AttributeError, match="has no attribute 'brokers'"):
        _ = oncelog.testing.brokers


def test_a_broker_is_imported_without_clusters_and_clients() -> None:
    program = "import sys, oncelog.testing; print([m for m in sys.modules if m.startswith('oncelog.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=180)
    loaded = {"child_process", "janitor", "testing", "testing.broker", "testing.launcher"}
    assert set(eval(done.stdout)) == {f"oncelog.{name}" for name in loaded}


def test_the_launcher_is_started_before_what_it_does_not_need_is_imported() -> None:
    program = "import sys; sys.path[:0] = eval(sys.argv[1]); import oncelog.testing; print(*sys.modules)"
    # Without `site`: other packages may have it import what they like.
    command = [sys.executable, "-S", "-c", program, repr(sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    assert {"json", "pathlib", "tempfile", "shutil"} & set(done.stdout.split()) == set()
