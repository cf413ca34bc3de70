"""Users and ACLs on the wire: the same requests by users who may do different things, SASL, and the APIs that manage
users and ACLs.

In a matrix the broker has topics, groups and transactional ids called `mine`, which ACLs of the user are about, and
called `other`, which they are not; `missing` does not exist. Where a user may do something, the answer is one that
depends on nothing else: members and producers that nobody knows, for example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from oncelog.security.acl import Operation, Pattern, Permission, Resource
from tests.conformance.scenario import Batch, Name, Ref, Scenario, Step
from tests.conformance.scenarios.administering import tokens

ANY_TV: Final = (2,)
PROFILE: Final = "secured"
TOPICS: Final = ("mine", "other", "missing")
NAMES: Final = ("mine", "other")
CLUSTER: Final = "kafka-cluster"
NOBODY: Final = {"producer_id": 987_654, "producer_epoch": 0}
PATTERN_ANY, PATTERN_MATCH = 1, 2


def acl(
    resource: Resource,
    name: Any,
    principal: str,
    operation: Operation,
    permission: Permission = Permission.ALLOW,
    pattern: int = Pattern.LITERAL,
    host: str = "*",
) -> dict[str, Any]:
    return {
        "resource_type": int(resource),
        "resource_name": name,
        "resource_pattern_type": int(pattern),
        "principal": principal,
        "host": host,
        "operation": int(operation),
        "permission_type": int(permission),
    }


def create_acls(*acls: dict[str, Any], version: int = 3, connection: str = "main", note: str = "") -> Step:
    return Step("create_acls", version, {"creations": list(acls)}, connection=connection, note=note)


def acl_filter(name: Any = None, **fields: Any) -> dict[str, Any]:
    every = {"resource_type_filter": 1, "resource_name_filter": name, "pattern_type_filter": PATTERN_ANY}
    return {**every, "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1, **fields}


# The matrix


def each(field: str, names: Sequence[str], **more: Any) -> list[dict[str, Any]]:
    return [{field: Name(name), **more} for name in names]


def partitions(field: str, **more: Any) -> list[dict[str, Any]]:
    return each(field, TOPICS, partitions=[more])


def data(**batch: Any) -> list[dict[str, Any]]:
    return each("name", TOPICS, partition_data=[{"index": 0, "records": Batch(1, batch)}])


def producing() -> list[Step]:
    unknown = {"producer_id": NOBODY["producer_id"], "epoch": 0, "sequence": 0, "transactional": True}
    fields = {"transactional_id": None, "acks": -1, "timeout": 10_000}
    steps = [
        Step("produce", 9, {**fields, "topic_data": data()}),
        Step("produce", 9, {**fields, "topic_data": data(**unknown)}, note="transactional batches without an id"),
        Step("init_producer_id", 4, {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}),
    ]
    for name in NAMES:
        given = {"transactional_id": Name(name)}
        topics = [{"name": Name(topic), "partitions": [0]} for topic in TOPICS]
        old = {f"v3_and_below_{key}": value for key, value in {**given, **NOBODY}.items()}
        committed = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
        steps += [
            Step("produce", 9, {**fields, **given, "topic_data": data(**unknown)}, note=name),
            Step("init_producer_id", 4, {**given, "transaction_timeout": 60_000, **unknown_producer()}, note=name),
            Step("add_partitions_to_txn", 3, {**old, "v3_and_below_topics": topics}, note=name),
            Step("add_partitions_to_txn", 3, {**old, "v3_and_below_topics": topics[:1]}, note=f"{name}, one topic"),
            Step("end_txn", 3, {**given, **NOBODY, "committed": True}, note=name),
        ]
        steps += [
            step
            for group in NAMES
            for step in (
                Step("add_offsets_to_txn", 3, {**given, **NOBODY, "group_id": Name(group)}, note=f"{name}, {group}"),
                Step(
                    "txn_offset_commit",
                    3,
                    {
                        **given,
                        **NOBODY,
                        "group_id": Name(group),
                        "member_id": "nobody",
                        "generation_id": 5,
                        "group_instance_id": None,
                        "topics": each("name", TOPICS, partitions=committed),
                    },
                    note=f"{name}, {group}",
                ),
            )
        ]
    return steps


def unknown_producer() -> dict[str, int]:
    """InitProducerId of somebody who claims to have been there."""
    return {"producer_id": NOBODY["producer_id"], "producer_epoch": 3}


def between_brokers() -> list[Step]:
    transaction = {"transactional_id": Name("mine"), **NOBODY, "verify_only": True}
    topics = [{"name": Name("mine"), "partitions": [0]}]
    marker = {**NOBODY, "transaction_result": False, "coordinator_epoch": 0}
    return [
        Step("add_partitions_to_txn", 5, {"transactions": [{**transaction, "topics": topics}]}),
        Step(
            "write_txn_markers", 1, {"markers": [{**marker, "topics": each("name", ["mine"], partition_indexes=[0])}]}
        ),
        Step("fetch", 12, {**fetched("topic"), "replica_id": 7}, note="of a replica"),
    ]


def fetched(field: str, names: Sequence[Any] = ()) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    topics = [{field: name, "partitions": [partition]} for name in names or [Name(name) for name in TOPICS]]
    return {"max_wait": 0, "min_bytes": 0, "max_bytes": 1, "topics": topics, "rack_id": "", "forgotten_topics_data": []}


def reading() -> list[Step]:
    return [
        Step("fetch", 12, fetched("topic")),
        Step("fetch", 13, fetched("topic_id", [Ref("mine.id"), Ref("other.id")]), note="by id"),
        Step("list_offsets", 7, {"replica_id": -1, "topics": partitions("name", partition_index=0, timestamp=-2)}),
        Step("offset_for_leader_epoch", 4, {"topics": partitions("topic", partition=0, leader_epoch=0)}),
        Step("describe_producers", 0, {"topics": each("name", TOPICS, partition_indexes=[0])}),
    ]


def looking() -> list[Step]:
    wanted = {"include_topic_authorized_operations": True, "allow_auto_topic_creation": False}
    by_id = [{"topic_id": Ref(f"{name}.id"), "name": None} for name in NAMES]
    found = [
        Step("metadata", 12, {"topics": each("name", TOPICS), **wanted}),
        Step("metadata", 12, {"topics": by_id, **wanted}, note="by id"),
        Step("metadata", 10, {"topics": each("name", ["mine"]), "include_cluster_authorized_operations": True}),
        Step("describe_topic_partitions", 0, {"topics": each("name", TOPICS)}),
        Step("describe_cluster", 1, {"include_cluster_authorized_operations": True}),
    ]
    keys = [Name(name) for name in NAMES]
    return [
        *found,
        *(Step("find_coordinator", 2, {"key": Name("mine"), "key_type": kind}) for kind in (0, 1)),
        Step("find_coordinator", 4, {"coordinator_keys": keys, "key_type": 0}, note="groups"),
        Step("find_coordinator", 4, {"coordinator_keys": keys, "key_type": 1}, note="ids"),
        Step("describe_groups", 5, {"groups": keys, "include_authorized_operations": True}),
        Step("describe_transactions", 0, {"transactional_ids": keys}),
    ]


def lists() -> list[Step]:
    """What is left out depends on everything that there is: for users who may see nothing of others."""
    return [
        Step("metadata", 12, {"topics": None}, note="all"),
        Step("list_groups", 4, {}),
        Step("list_transactions", 1, {}),
    ]


def in_groups() -> list[Step]:
    steps = []
    for group in NAMES:
        given = {"group_id": Name(group)}
        member = {**given, "member_id": "nobody", "generation_id": 5, "group_instance_id": None}
        joining = {key: value for key, value in member.items() if key != "generation_id"}
        protocols = [{"name": "range", "metadata": b""}]
        times = {"session_timeout": 10_000, "rebalance_timeout": 10_000}
        offsets = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
        alone = {**given, "member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
        leaving = {"members": [{"member_id": "nobody", "group_instance_id": None}]}
        steps += [
            Step(
                "join_group", 5, {**joining, **times, "protocol_type": "consumer", "protocols": protocols}, note=group
            ),
            Step("sync_group", 3, {**member, "assignments": []}, note=group),
            Step("heartbeat", 3, member, note=group),
            Step("leave_group", 3, {**given, **leaving}, note=group),
            Step("offset_commit", 8, {**alone, "topics": each("name", TOPICS, partitions=offsets)}, note=group),
            Step("offset_delete", 0, {**given, "topics": partitions("name", partition_index=0)}, note=group),
        ]
    named = [{"group_id": Name(group), "topics": each("name", TOPICS, partition_indexes=[0])} for group in NAMES]
    every = [{"group_id": Name(group), "topics": None} for group in NAMES]
    return [
        *steps,
        Step("offset_fetch", 8, {"groups": named}),
        Step("offset_fetch", 8, {"groups": every}, note="all topics"),
        Step("offset_fetch", 5, {"group_id": Name("mine"), "topics": named[0]["topics"]}),
    ]


def managing() -> list[Step]:
    resources = [(2, Name("mine")), (2, Name("other")), (2, Name("missing")), (4, "1")]
    keys = {"configuration_keys": ["retention.ms", "offsets.topic.num.partitions"]}
    setting = {"configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000000"}]}
    old_setting = {"configs": [{"name": "retention.ms", "value": "1000000"}]}
    configs = [{"resource_type": kind, "resource_name": name} for kind, name in resources]
    group = {"resource_type": 32, "resource_name": Name("other")}
    group_setting = {"configs": [{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}]}
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    salted = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}
    everybody = acl(Resource.TOPIC, Name("x"), "User:nobody", Operation.READ)
    return [
        Step("describe_configs", 4, {"resources": [{**resource, **keys} for resource in configs]}),
        Step("describe_configs", 4, {"resources": [{**group, "configuration_keys": None}]}, note="group"),
        Step("describe_acls", 3, acl_filter(Name("x"))),
        Step("describe_user_scram_credentials", 0, {"users": [{"name": Name("nobody")}]}),
        Step("describe_client_quotas", 1, {"components": [quota_part("user", Name("nobody"))], "strict": True}),
        Step("delete_records", 2, {"topics": partitions("name", partition_index=0, offset=0), "timeout": 10_000}),
        Step("incremental_alter_configs", 1, {"resources": [{**each, **setting} for each in configs[:3]]}),
        Step("incremental_alter_configs", 1, {"resources": [{**group, **group_setting}]}, note="group"),
        Step("alter_configs", 2, {"resources": [{**each, **old_setting} for each in configs[:3]]}),
        Step("create_partitions", 3, {"topics": each("name", TOPICS, count=4, assignments=None), "timeout": 10_000}),
        Step("create_topics", 7, {"topics": each("name", [*NAMES, "mine-new", "new"], **new), "timeout": 10_000}),
        Step("create_acls", 3, {"creations": [everybody]}),
        Step("delete_acls", 3, {"filters": [acl_filter(Name("x"))]}),
        Step("alter_user_scram_credentials", 0, {"upsertions": [{"name": Name("sam"), **salted}], "deletions": []}),
        Step("alter_client_quotas", 1, {"entries": [quota([("user", Name("sam"))], request_percentage=1e6)]}),
        Step("delete_topics", 6, {"topics": by_name(*TOPICS, "mine-new", "new"), "timeout": 10_000}),
        Step("delete_groups", 2, {"groups_names": [Name(name) for name in TOPICS]}),
    ]


def by_name(*names: str) -> list[dict[str, Any]]:
    return [{"name": Name(name)} for name in names]


def quota_part(kind: str, name: Any, match_type: int = 0) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": match_type, "match": name}


def quota(entity: Sequence[tuple[str, Any]], **rates: float | None) -> dict[str, Any]:
    """Rates by key; None removes one."""
    ops = [{"key": key, "value": rate or 0.0, "remove": rate is None} for key, rate in rates.items()]
    return {"entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity], "ops": ops}


def set_up() -> list[Step]:
    """Groups and transactional ids that exist."""
    offsets = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
    steps = []
    for name in NAMES:
        topics = [{"name": Name(topic), "partitions": offsets} for topic in NAMES]
        alone = {
            "group_id": Name(name),
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
        }
        given = {"transactional_id": Name(name), "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        steps += [Step("offset_commit", 8, {**alone, "topics": topics}), Step("init_producer_id", 4, given)]
    return steps


def matrix(name: str, number: int, acls: Sequence[dict[str, Any]], *, has_lists: bool = True) -> Scenario:
    user = f"User:user{number}"
    own = [{**each, "principal": each["principal"] or user} for each in acls]
    probes = [*looking(), *(lists() if has_lists else []), *reading(), *producing(), *in_groups(), *between_brokers()]
    steps = [dataclasses.replace(step, connection=user) for step in probes + managing()]
    topics = {"mine": 1, "other": 1}
    start = [*([create_acls(*own)] if own else []), *set_up()]
    return Scenario(
        name,
        [*start, *steps],
        topics=topics,
        transaction_versions=ANY_TV,
        profile=PROFILE,
        # Apache Kafka is asked again for some of them only. All are alike.
        slow=name not in ("nobody", "may-all", "cluster-all"),
    )


def on_mine(
    operation: Operation, permission: Permission = Permission.ALLOW, pattern: int = Pattern.LITERAL, name: str = "mine"
) -> list[dict[str, Any]]:
    kinds = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
    return [acl(kind, Name(name), "", operation, permission, pattern) for kind in kinds]


OF_RESOURCES: Final = (
    *(Operation.ALL, Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER),
    *(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
)
OF_CLUSTER: Final = (
    *(Operation.ALL, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE),
    *(Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE),
)
SEES_GROUPS: Final = (Operation.ALL, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE)
"""On the cluster: they include DESCRIBE."""


def matrices() -> list[Scenario]:
    numbers = iter(range(100))
    found = [matrix("nobody", next(numbers), [])]
    found += [matrix(f"may-{op.name.lower()}", next(numbers), on_mine(op)) for op in OF_RESOURCES]
    found += [
        matrix(
            f"cluster-{op.name.lower()}",
            next(numbers),
            [acl(Resource.CLUSTER, CLUSTER, "", op)],
            has_lists=op not in SEES_GROUPS,
        )
        for op in OF_CLUSTER
    ]
    every = on_mine(Operation.ALL)
    prefixed = on_mine(Operation.ALL, pattern=Pattern.PREFIXED, name="mi")
    deny_prefix = on_mine(Operation.READ, Permission.DENY, Pattern.PREFIXED, "m")
    deny_describe = on_mine(Operation.DESCRIBE, Permission.DENY)
    elsewhere = [{**each, "host": "192.0.2.7"} for each in every]
    here = [{**each, "host": "127.0.0.1"} for each in every]
    return [
        *found,
        matrix("prefixed", next(numbers), prefixed),
        matrix("denied-by-prefix", next(numbers), [*every, *deny_prefix]),
        matrix("denied-describe", next(numbers), [*every, *deny_describe]),
        matrix("from-elsewhere", next(numbers), elsewhere),
        matrix("from-here", next(numbers), here),
        matrix("by-everybody", next(numbers), [{**each, "principal": "User:*"} for each in every]),
    ]


# Users and ACLs


def acls_created() -> Scenario:
    good = acl(Resource.TOPIC, Name("t"), "User:ann", Operation.READ)
    wrong: list[dict[str, Any]] = [
        {"resource_type": 0},
        {"resource_type": 1},
        {"resource_type": 99},
        {"resource_name": ""},
        {"resource_pattern_type": 0},
        {"resource_pattern_type": PATTERN_ANY},
        {"resource_pattern_type": PATTERN_MATCH},
        {"resource_pattern_type": 99},
        {"principal": "ann"},
        {"principal": ""},
        {"operation": 0},
        {"operation": 1},
        {"operation": 99},
        {"permission_type": 0},
        {"permission_type": 1},
        {"permission_type": 99},
        {"resource_type": int(Resource.CLUSTER)},
    ]
    unusual: list[dict[str, Any]] = [
        {"principal": "Group:ann"},
        {"operation": int(Operation.IDEMPOTENT_WRITE)},
        {"resource_type": int(Resource.DELEGATION_TOKEN)},
        {"host": "example.org"},
        {"resource_name": "*"},
        {"resource_name": "a/b"},
    ]
    steps = [
        create_acls(good),
        create_acls(good, note="again"),
        *(create_acls({**good, **change}, note=f"wrong {change}") for change in wrong),
        *(create_acls({**good, **change}, note=f"unusual {change}") for change in unusual),
        create_acls(good, {**good, "principal": "ann"}, {**good, "operation": 4}, note="one of three is wrong"),
        create_acls({**good, "host": "192.0.2.1"}, version=1),
        create_acls(note="none"),
        Step("describe_acls", 3, acl_filter(Name("t"))),
        Step("delete_acls", 3, {"filters": [acl_filter(principal_filter="User:ann"), acl_filter("a/b")]}),
        Step("delete_acls", 3, {"filters": [acl_filter(principal_filter="Group:ann")]}),
    ]
    return secured("acls-created", steps)


def acls_found() -> Scenario:
    found = [
        acl(Resource.TOPIC, Name("tea"), "User:ann", Operation.READ),
        acl(Resource.TOPIC, Name("tea"), "User:bob", Operation.WRITE, Permission.DENY, host="192.0.2.1"),
        acl(Resource.TOPIC, Name("te"), "User:ann", Operation.ALL, pattern=Pattern.PREFIXED),
        acl(Resource.GROUP, Name("tea"), "User:ann", Operation.DELETE),
        acl(Resource.TOPIC, "*", "User:ann-of-the-wildcard", Operation.READ),
    ]
    filters = {
        "literal": {"pattern_type_filter": int(Pattern.LITERAL)},
        "prefixed": {"pattern_type_filter": int(Pattern.PREFIXED)},
        "match": {"pattern_type_filter": PATTERN_MATCH},
        "any": {},
        "topics": {"resource_type_filter": int(Resource.TOPIC)},
        "of bob": {"principal_filter": "User:bob"},
        "from all": {"host_filter": "*"},
        "from one": {"host_filter": "192.0.2.1"},
        "read": {"operation": int(Operation.READ)},
        "all": {"operation": int(Operation.ALL)},
        "denied": {"permission_type": int(Permission.DENY)},
        "wrong type": {"resource_type_filter": 0},
        "unknown type": {"resource_type_filter": 99},
        "wrong pattern": {"pattern_type_filter": 0},
        "unknown pattern": {"pattern_type_filter": 99},
        "wrong operation": {"operation": 0},
        "wrong permission": {"permission_type": 0},
        "empty principal": {"principal_filter": ""},
    }
    steps = [create_acls(*found)]
    steps += [
        Step("describe_acls", 3, acl_filter(Name("tea"), **fields), note=note) for note, fields in filters.items()
    ]
    steps += [Step("describe_acls", version, acl_filter(Name("tea")), note="older") for version in (1, 2)]
    steps += [
        Step("delete_acls", 3, {"filters": [acl_filter(Name("tea"), **fields)]}, note=note)
        for note, fields in filters.items()
        if "wrong" in note or "unknown" in note
    ]
    several = [acl_filter(Name("tea"), operation=4), acl_filter(Name("none"))]
    steps += [
        Step("delete_acls", 3, {"filters": several}, note="several"),
        Step("delete_acls", 1, {"filters": [acl_filter(Name("tea"), pattern_type_filter=3)]}, note="older"),
        Step("describe_acls", 3, acl_filter(Name("te"))),
        Step(
            "delete_acls",
            3,
            {"filters": [acl_filter(principal_filter="User:ann-of-the-wildcard"), acl_filter(Name("te"))]},
        ),
    ]
    return secured("acls-found", steps)


def users_managed() -> Scenario:
    def upsert(name: Any, mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
        salted = {"salt": b"some salt", "salted_password": b"x" * 32}
        return {"name": name, "mechanism": mechanism, "iterations": iterations, **salted}

    def change(note: str, *upsertions: dict[str, Any], deletions: Sequence[tuple[Any, int]] = ()) -> Step:
        removed = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
        fields = {"upsertions": list(upsertions), "deletions": removed}
        return Step("alter_user_scram_credentials", 0, fields, note=note)

    def describe(note: str, *names: Any) -> Step:
        return Step("describe_user_scram_credentials", 0, {"users": [{"name": name} for name in names]}, note=note)

    ann, bob = Name("ann"), Name("bob")
    steps = [
        change("two", upsert(ann), upsert(bob, 2, 8192)),
        describe("both", ann, bob),
        describe("unknown", Name("nobody"), ann),
        describe("twice", ann, ann, bob),
        describe("empty", ""),
        change("another mechanism", upsert(ann, 2)),
        change("again", upsert(ann, 1, 16_384)),
        describe("ann", ann),
        change("empty name", upsert("")),
        change("few iterations", upsert(bob, 1, 4095)),
        change("many iterations", upsert(bob, 1, 16_385)),
        change("no mechanism", upsert(bob, 0)),
        change("unknown mechanism", upsert(bob, 3)),
        change("one of two is wrong", upsert(ann, 1, 5000), upsert(bob, 1, 1)),
        change("twice", upsert(ann), upsert(ann)),
        change("twice with others", upsert(ann), upsert(ann), upsert(bob)),
        change("twice with two mechanisms", upsert(ann, 1), upsert(ann, 2)),
        change("added and deleted", upsert(ann), deletions=[(ann, 1)]),
        change("delete the unknown", deletions=[(Name("nobody"), 1)]),
        change("delete with another mechanism", deletions=[(bob, 1), (bob, 2)]),
        change("delete with no mechanism", deletions=[(ann, 0)]),
        change("delete without a name", deletions=[("", 1)]),
        change("nothing"),
        describe("after all that", ann, bob),
        change("delete", deletions=[(ann, 1), (bob, 2)]),
        change("delete the rest", deletions=[(ann, 2)]),
        change("delete bob", deletions=[(bob, 2)]),
        describe("in the end", ann, bob),
    ]
    return secured("users-managed", steps)


def logins() -> Scenario:
    """Each on a connection of its own, which a failure closes."""
    numbers = iter(range(100))

    def attempt(*steps: tuple[str, int, dict[str, Any]], note: str) -> list[Step]:
        connection = f"SASL {next(numbers)}"
        return [Step(api, version, fields, connection=connection, note=note) for api, version, fields in steps]

    def shake(mechanism: str, version: int = 1) -> tuple[str, int, dict[str, Any]]:
        return "sasl_handshake", version, {"mechanism": mechanism}

    def token(content: bytes, version: int = 2) -> tuple[str, int, dict[str, Any]]:
        return "sasl_authenticate", version, {"auth_bytes": content}

    plain, good = shake("PLAIN"), token(b"\0user0\0secret")
    versions: tuple[str, int, dict[str, Any]] = ("metadata", 12, {"topics": []})
    tokens = {
        "wrong password": b"\0user0\0guess",
        "unknown user": b"\0stranger\0secret",
        "no password": b"\0user0\0",
        "no user": b"\0\0secret",
        "for another": b"user1\0user0\0secret",
        "for oneself": b"user0\0user0\0secret",
        "two parts": b"user0\0secret",
        "four parts": b"\0user0\0secret\0",
        "nothing": b"",
        "not UTF-8": b"\0user0\0\xff\xfe",
    }
    scram = {
        "channel binding": b"p=tls-unique,,n=user0,r=abcdef",
        "no nonce": b"n,,n=user0",
        "garbage": b"garbage",
        "nothing": b"",
    }
    steps = [
        *attempt(shake("NONSENSE"), plain, note="unknown mechanism"),
        *attempt(shake("SCRAM-SHA-512"), note="mechanism that is not enabled"),
        *attempt(shake("plain"), note="small letters"),
        *attempt(good, note="token without a handshake"),
        *attempt(versions, note="request without a login"),
        *attempt(plain, plain, note="two handshakes"),
        *attempt(plain, versions, note="request instead of a token"),
        *attempt(plain, good, versions, note="good"),
        *attempt(plain, good, plain, versions, note="handshake after the login"),
        *attempt(plain, good, good, versions, note="token after the login"),
        *(step for version in (0, 1) for step in attempt(plain, token(b"\0user0\0secret", version), note="older")),
        *(step for note, text in tokens.items() for step in attempt(plain, token(text), versions, note=note)),
    ]
    first = shake("SCRAM-SHA-256")
    # Not the first token of an unknown user: Apache Kafka refuses it, Oncelog tells such a user from no other.
    steps += [step for note, text in scram.items() for step in attempt(first, token(text), note=f"SCRAM, {note}")]
    # Apache Kafka takes its time for each connection that it closes.
    return dataclasses.replace(secured("logins", steps), slow=True)


def quotas_managed() -> Scenario:
    def change(note: str, *entries: dict[str, Any], validate_only: bool = False, version: int = 1) -> Step:
        fields = {"entries": list(entries), "validate_only": validate_only}
        return Step("alter_client_quotas", version, fields, note=note)

    def describe(note: str, *parts: dict[str, Any], strict: bool = False, version: int = 1) -> Step:
        return Step("describe_client_quotas", version, {"components": list(parts), "strict": strict}, note=note)

    ann, app = ("user", Name("ann")), ("client-id", Name("app"))
    wrong = {
        "no entity": quota([], producer_byte_rate=1e9),
        "unknown type": quota([("planet", "mars")], producer_byte_rate=1e9),
        "empty name": quota([("user", "")], producer_byte_rate=1e9),
        "twice one type": quota([ann, ("user", Name("bob"))], producer_byte_rate=1e9),
        "unknown key": quota([ann], no_such_rate=1e9),
        "key of addresses": quota([ann], connection_creation_rate=1e9),
        "zero": quota([ann], producer_byte_rate=0.0),
        "negative": quota([ann], producer_byte_rate=-1.0),
        "fraction": quota([ann], producer_byte_rate=1.5),
        "no address": quota([("ip", "not an address")], connection_creation_rate=1e6),
        "address and user": quota([("ip", "192.0.2.1"), ann], connection_creation_rate=1e6),
        "address with another key": quota([("ip", "192.0.2.1")], producer_byte_rate=1e9),
    }
    exact_ann, exact_app = quota_part(*ann), quota_part(*app)
    steps = [
        change("a user", quota([ann], producer_byte_rate=1e9, request_percentage=99.5)),
        change("both", quota([app, ann], consumer_byte_rate=2e9)),
        change("a client", quota([app], consumer_byte_rate=3e9), version=0),
        change("defaults", quota([ann, ("client-id", None)], producer_byte_rate=4e9)),
        change("an address", quota([("ip", "192.0.2.1")], connection_creation_rate=1e6)),
        change("fractions where they may be", quota([ann], controller_mutation_rate=1e6 + 0.5)),
        *(change(note, entry) for note, entry in wrong.items()),
        change(
            "one of two is wrong",
            quota([ann], producer_byte_rate=5e9),
            quota([("user", Name("bob"))], producer_byte_rate=0.0),
        ),
        change("an entity twice", quota([app], producer_byte_rate=5e9), quota([app], consumer_byte_rate=5e9)),
        change("only checked", quota([ann], producer_byte_rate=6e9), validate_only=True),
        change("remove what is not there", quota([app], request_percentage=None)),
        change("nothing"),
        describe("ann", exact_ann),
        describe("ann alone", exact_ann, strict=True),
        describe("both", exact_ann, exact_app, strict=True),
        describe("client", exact_app, version=0),
        describe("default client of ann", exact_ann, quota_part("client-id", None, 1)),
        describe("any client of ann", exact_ann, quota_part("client-id", None, 2)),
        describe("address", quota_part("ip", "192.0.2.1")),
        describe("unknown type", quota_part("planet", "mars")),
        describe("empty type", quota_part("", "x")),
        describe("type twice", exact_ann, exact_ann),
        describe("address and user", quota_part("ip", "192.0.2.1"), exact_ann),
        describe("unknown match", quota_part("user", "x", 7)),
        change("remove", quota([ann], producer_byte_rate=None, request_percentage=None, controller_mutation_rate=None)),
        change("remove others", quota([app, ann], consumer_byte_rate=None), quota([app], consumer_byte_rate=None)),
        describe("what is left", exact_ann),
        change("remove the rest", quota([ann, ("client-id", None)], producer_byte_rate=None)),
        change("remove the address", quota([("ip", "192.0.2.1")], connection_creation_rate=None)),
        describe("nothing is left", exact_ann),
    ]
    return secured("quotas-managed", steps)


def secured(name: str, steps: Sequence[Step]) -> Scenario:
    return Scenario(name, steps, topics={}, transaction_versions=ANY_TV, profile=PROFILE)


def tokens_of_users() -> Scenario:
    """Of somebody who has logged in."""
    return secured("tokens", [dataclasses.replace(step, connection="User:user1") for step in tokens()])


SCENARIOS: Final = (
    *matrices(),
    acls_created(),
    acls_found(),
    users_managed(),
    quotas_managed(),
    logins(),
    tokens_of_users(),
)
