"""The session: what it sets, what it leaves alone, what it refuses."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import oncelog.spark
from oncelog.spark.spark_session import (
    FILE_MANAGER,
    LOCAL_FILE_MANAGER,
    SETTINGS,
    STAGE_ATTEMPTS,
    UnsafeSetting,
    _loopback,
    refuse_kept_files,
    refuse_unsafe,
)
from tests.spark.conftest import QUIET


@pytest.mark.spark
def test_every_setting_is_in_force_unless_it_was_given(spark: Any) -> None:
    conf = spark.sparkContext.getConf()
    for setting in SETTINGS:
        assert conf.get(setting.key) == QUIET.get(setting.key, setting.value), setting.key
    assert conf.get("spark.driver.host") == "127.0.0.1"
    workers = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert workers == [sys.executable]


@pytest.mark.spark
def test_ctrl_c_for_the_group_of_the_tests_does_not_reach_the_jvm_of_the_session(spark: Any) -> None:
    """It is of their process group, to which a terminal, or a test that means a child of its own, may send it."""
    jvm = spark.sparkContext._gateway.proc
    ignored = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{jvm.pid}/status").read_text(), re.MULTILINE)
    assert ignored is not None
    assert int(ignored[1], 16) >> (signal.SIGINT - 1) & 1
    jvm.send_signal(signal.SIGINT)
    assert spark.range(10).count() == 10


@pytest.mark.spark
def test_a_checkpoint_whose_files_would_not_be_replaced_is_refused(spark: Any, tmp_path: Path) -> None:
    """No server is asked: what kind of file system it is follows from the address."""
    refuse_kept_files(spark, str(tmp_path))
    remote = "hdfs://127.0.0.1:1/checkpoint"
    with pytest.raises(UnsafeSetting, match=r"state of the attempt that failed would stay.*FileContextBased"):
        refuse_kept_files(spark, remote)
    elsewhere = spark.newSession()
    elsewhere.conf.set(FILE_MANAGER, LOCAL_FILE_MANAGER.replace("FileSystemBased", "FileContextBased"))
    refuse_kept_files(elsewhere, remote)


def test_the_session_explains_itself() -> None:
    text = oncelog.spark.explain()
    for setting in SETTINGS:
        assert f"{setting.key}={setting.value}\n    {setting.reason}" in text


@pytest.mark.parametrize(
    ("master", "submitted", "host"),
    [
        ("local[2]", {}, "127.0.0.1"),
        ("local[*,4]", {"spark.driver.host": "10.0.0.1"}, None),
        ("spark://somewhere:7077", {}, None),
    ],
)
def test_only_a_local_driver_keeps_to_itself(
    monkeypatch: pytest.MonkeyPatch, master: str, submitted: Any, host: str | None
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert _loopback(submitted, master).get("spark.driver.host") == host
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.2")
    assert _loopback(submitted, master) == {}


def test_a_connect_session_is_refused_with_the_way_out() -> None:
    class ConnectSession:
        pass

    ConnectSession.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(UnsafeSetting, match=r"Spark Connect session.*oncelog\.spark\.session\(\)"):
        refuse_unsafe(ConnectSession())  # type: ignore[arg-type]


class Session:
    """As far as the checks look at one."""

    def __init__(self, **settings: str) -> None:
        self.sparkContext = self
        self._settings = {key.replace("_", "."): value for key, value in settings.items()}

    def getConf(self) -> dict[str, str]:
        return self._settings


def test_unsafe_settings_are_refused_by_name() -> None:
    good = {"spark_stage_maxConsecutiveAttempts": "1", "spark_stage_maxAttempts": "1"}
    refuse_unsafe(Session(**good))  # type: ignore[arg-type]
    with pytest.raises(UnsafeSetting, match=r"spark\.speculation is on"):
        refuse_unsafe(Session(**good, spark_speculation="true"))  # type: ignore[arg-type]
    with pytest.raises(UnsafeSetting, match=r"spark\.stage\.maxConsecutiveAttempts is 4"):
        refuse_unsafe(Session())  # type: ignore[arg-type]


def test_stages_are_not_retried_after_an_executor_was_decommissioned_either() -> None:
    """Such a retry does not count as a consecutive attempt."""
    assert {"spark.stage.maxConsecutiveAttempts", "spark.stage.maxAttempts"} == STAGE_ATTEMPTS.keys()
    set_to = {setting.key: setting.value for setting in SETTINGS}
    assert [set_to[key] for key in STAGE_ATTEMPTS] == ["1", "1"]
    with pytest.raises(UnsafeSetting, match=r"spark\.stage\.maxAttempts is 2147483647"):
        refuse_unsafe(Session(spark_stage_maxConsecutiveAttempts="1"))  # type: ignore[arg-type]
