from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.cluster.cluster_config import check_folder, cluster_config
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG, is_controller, is_in_cluster, warnings_of
from oncelog.core.config import ConfigError, Settings
from oncelog.server.listener import between_brokers, parse_listeners
from oncelog.storage.meta_properties import ensure_meta_properties

CONTROLLERS = "controller.quorum.bootstrap.servers"


def settings(**given: str) -> Settings:
    return BROKER_CONFIG.parse(
        {"process.roles": "broker", **{name.replace("_", "."): value for name, value in given.items()}}
    )


def test_one_node_is_the_default_and_settings_of_clusters_have_no_effect_there() -> None:
    alone = BROKER_CONFIG.parse({CONTROLLERS: "a:1", "replica.lag.time.max.ms": "5"})
    assert not is_in_cluster(alone)
    assert not is_in_cluster(BROKER_CONFIG.parse({"process.roles": "controller,broker"}))
    assert [text.split()[0] for text in warnings_of(alone)] == [CONTROLLERS, "replica.lag.time.max.ms"]


def test_in_a_cluster_they_have_their_effect() -> None:
    member = settings(replica_lag_time_max_ms="5", offsets_topic_replication_factor="2", num_io_threads="8")
    assert is_in_cluster(member)
    assert [text.split()[0] for text in warnings_of(member)] == ["num.io.threads"]


def test_a_node_is_a_broker_a_controller_or_both() -> None:
    controller = BROKER_CONFIG.parse({"process.roles": "controller"})
    assert is_controller(controller)
    assert not is_in_cluster(controller)
    for roles in ("", "broker,broker", "broker,observer"):
        with pytest.raises(ConfigError, match=r"process\.roles.*broker joins a cluster; controller decides for one"):
            BROKER_CONFIG.parse({"process.roles": roles})


def test_controllers_by_address_or_as_voters() -> None:
    given = settings(
        controller_quorum_bootstrap_servers="a:1,[::1]:2", controller_quorum_voters="1@a:1,2@b:3", broker_rack="r"
    )
    config = cluster_config(given)
    assert config.controllers == [Address("a", 1), Address("::1", 2), Address("b", 3)]
    assert (config.rack, config.lag_max_ms, config.timing.session_timeout_ms) == ("r", 30_000, 9000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "has to name the controllers of the cluster"),
        ({"controller_quorum_bootstrap_servers": "a"}, r"servers: every entry has the form HOST:PORT"),
        ({"controller_quorum_voters": "a:1"}, r"voters: every entry has the form ID@HOST:PORT"),
    ],
)
def test_what_is_missing_or_wrong_is_said(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster_config(settings(**given))


def test_a_new_folder_needs_the_id_of_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.id: .* has to be named"):
        check_folder(tmp_path, settings())
    check_folder(tmp_path, settings(cluster_id="x"))
    ensure_meta_properties(tmp_path, cluster_id=None, node_id=1)
    check_folder(tmp_path, settings())


def test_the_folder_of_a_node_of_its_own_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).touch()
    with pytest.raises(ConfigError, match="whose topics the cluster does not know"):
        check_folder(tmp_path, settings(cluster_id="x"))


def test_brokers_reach_each_other_by_one_listener() -> None:
    both = settings(
        listeners="INNER://127.0.0.1:1,PLAINTEXT://127.0.0.1:2", listener_security_protocol_map="INNER:PLAINTEXT"
    )

    def chosen(**changes: str) -> str:
        named = {name.replace("_", "."): value for name, value in changes.items()}
        given = Settings(both.table, {**both.values, **named})
        return between_brokers(parse_listeners(given), given).name

    assert chosen() == "PLAINTEXT"
    assert chosen(inter_broker_listener_name="INNER") == "INNER"
    assert chosen(security_inter_broker_protocol="PLAINTEXT") == "PLAINTEXT"
    with pytest.raises(ConfigError, match="OUTER is not among the listeners"):
        chosen(inter_broker_listener_name="OUTER")
    with pytest.raises(ConfigError, match="one of them is enough"):
        chosen(inter_broker_listener_name="INNER", security_inter_broker_protocol="PLAINTEXT")
