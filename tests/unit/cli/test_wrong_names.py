"""What is given wrongly is refused by the name that was given, and nothing is said to be done that was not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.cli.main import cli
from oncelog.client import Admin
from oncelog.client.admin_configs import ConfigResource, ResourceType

Run = Callable[..., Result]


@pytest.mark.parametrize("command", ["config unset topic {topic}", "topic alter {topic} --unset"])
def test_a_setting_that_does_not_exist_is_not_said_to_have_its_default_again(
    run: Run, admin: Admin, topic: str, command: str
) -> None:
    words = command.format(topic=topic).split()
    done = run(*words, "retention.mss")
    assert done.exit_code == 1
    assert "there is no setting retention.mss; did you mean retention.ms" in done.output
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin.alter_configs(resource, set={"retention.ms": "1000"})
    assert "retention.ms has its default again" in run(*words, "retention.ms").output
    assert admin.describe_configs(resource)["retention.ms"].value == "604800000"


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("topic list --timeout soon", "--timeout: 'soon' is not a duration"),
        ("topic list --timeout 0", "--timeout: '0' is too short"),
        ("txn list --older-than x", "--older-than: 'x' is not a duration"),
        ("txn hanging --older-than x", "--older-than: 'x' is not a duration"),
        ("txn watch --for x", "--for: 'x' is not a duration"),
        ("console --listen 127.0.0.1:0 --hanging-after x", "--hanging-after: 'x' is not a duration"),
        ("acl explain User:a reed --topic t", "for 'OPERATION': 'reed' is not one of"),
    ],
)
def test_an_option_with_a_wrong_value_is_named(run: Run, command: str, complaint: str) -> None:
    done = run(*command.split())
    assert done.exit_code == 2
    assert complaint in done.output


@pytest.mark.parametrize(
    "given", ["--offsets 1..2", "--times -10m..", "--producer 1", "--transactional-id x", "-o json"]
)
def test_what_a_dump_like_kafkas_does_not_heed_is_refused(tmp_path: Path, given: str) -> None:
    done = CliRunner().invoke(cli, ["log", "dump", str(tmp_path), "--format", "kafka", *given.split()])
    assert done.exit_code == 2
    assert "--format kafka prints whole files" in done.output


def test_a_console_that_could_log_no_change_is_not_started(run: Run, tmp_path: Path) -> None:
    done = run("console", "--listen", "127.0.0.1:0", "--allow-changes", "--audit-log", tmp_path / "none" / "audit")
    assert done.exit_code == 2
    assert "audit cannot be written: No such file or directory" in done.output


def test_a_demo_is_not_begun_with_what_cannot_be() -> None:
    for given, complaint in (
        (("--master", "nonsense"), "'nonsense': write local[2,4], spark://HOST:PORT or yarn"),
        (("--kills", "executor", "--master", "local[2]"), "the executor is not started here with --master"),
    ):
        done = CliRunner().invoke(cli, ["demo", *given])
        assert done.exit_code == 2
        assert complaint in done.output
