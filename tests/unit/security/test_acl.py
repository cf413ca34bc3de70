"""The rules of ACLs, one row each; and that the index finds what a look at all of them finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.security import acl as acl_module
from oncelog.security.acl import (
    ANY,
    Acl,
    AclAuthorizer,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
    parse_super_users,
)

ALICE, BOB, HOST = "User:alice", "User:bob", "10.0.0.1"
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def acl(
    name: str,
    operation: Operation,
    permission: Permission = ALLOW,
    *,
    principal: str = ALICE,
    host: str = "*",
    resource: Resource = Resource.TOPIC,
) -> Acl:
    """A name that ends with `...` is a prefix."""
    pattern = Pattern.PREFIXED if name.endswith("...") else Pattern.LITERAL
    return Acl(resource, name.removesuffix("..."), pattern, principal, host, operation, permission)


RULES: list[tuple[str, list[Acl], Operation, str, bool]] = [
    ("no ACL", [], READ, "t", False),
    ("literal", [acl("t", READ)], READ, "t", True),
    ("another name", [acl("t", READ)], READ, "tt", False),
    ("another operation", [acl("t", READ)], WRITE, "t", False),
    ("another principal", [acl("t", READ, principal=BOB)], READ, "t", False),
    ("case of a principal", [acl("t", READ, principal="User:Alice")], READ, "t", False),
    ("everybody", [acl("t", READ, principal="User:*")], READ, "t", True),
    ("wildcard of another type", [acl("t", READ, principal="Group:*")], READ, "t", False),
    ("another host", [acl("t", READ, host="10.0.0.2")], READ, "t", False),
    ("the host", [acl("t", READ, host=HOST)], READ, "t", True),
    ("another type", [acl("t", READ, resource=Resource.GROUP)], READ, "t", False),
    ("wildcard", [acl("*", READ)], READ, "t", True),
    ("prefix", [acl("t...", READ)], READ, "tt", True),
    ("a prefix is one of itself", [acl("tt...", READ)], READ, "tt", True),
    ("no prefix", [acl("ttt...", READ)], READ, "tt", False),
    ("a prefixed star is no wildcard", [acl("*...", READ)], READ, "t", False),
    ("All", [acl("t", ALL)], WRITE, "t", True),
    ("Read implies Describe", [acl("t", READ)], DESCRIBE, "t", True),
    ("Write implies Describe", [acl("t", WRITE)], DESCRIBE, "t", True),
    ("Delete implies Describe", [acl("t", Operation.DELETE)], DESCRIBE, "t", True),
    ("Alter implies Describe", [acl("t", Operation.ALTER)], DESCRIBE, "t", True),
    ("Create does not", [acl("t", Operation.CREATE)], DESCRIBE, "t", False),
    ("AlterConfigs implies", [acl("t", Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, "t", True),
    ("Alter implies no configs", [acl("t", Operation.ALTER)], Operation.DESCRIBE_CONFIGS, "t", False),
    ("Describe implies nothing", [acl("t", DESCRIBE)], READ, "t", False),
    ("deny wins over allow", [acl("t", READ), acl("t", READ, DENY)], READ, "t", False),
    ("a wildcard deny wins over literal", [acl("t", READ), acl("*", READ, DENY)], READ, "t", False),
    ("a prefix deny wins", [acl("tt", READ), acl("t...", ALL, DENY)], READ, "tt", False),
    ("deny Read leaves Describe", [acl("t", DESCRIBE), acl("t", READ, DENY)], DESCRIBE, "t", True),
    ("deny Describe hides", [acl("t", WRITE), acl("t", DESCRIBE, DENY)], DESCRIBE, "t", False),
    ("deny Describe leaves Write", [acl("t", WRITE), acl("t", DESCRIBE, DENY)], WRITE, "t", True),
    ("deny of somebody else", [acl("t", READ), acl("t", READ, DENY, principal=BOB)], READ, "t", True),
]


@pytest.mark.parametrize(
    ("acls", "operation", "name", "allowed"), [row[1:] for row in RULES], ids=[r[0] for r in RULES]
)
def test_the_rules(acls: list[Acl], operation: Operation, name: str, allowed: bool) -> None:
    authorizer = AclAuthorizer(acls)
    question = (ALICE, HOST, operation, Resource.TOPIC, name)
    assert authorizer.allows(*question) is allowed
    assert authorizer.allows(*question) is allowed, "remembered"
    assert authorizer.explain(*question).allowed is allowed


def test_super_users_pass_what_is_denied_to_all() -> None:
    authorizer = AclAuthorizer([acl("*", ALL, DENY, principal="User:*")], super_users=parse_super_users(f" {ALICE}; x"))
    assert authorizer.allows(ALICE, HOST, READ, Resource.TOPIC, "t")
    assert authorizer.allows_any(ALICE, HOST, WRITE, Resource.TOPIC)
    assert not authorizer.allows(BOB, HOST, READ, Resource.TOPIC, "t")


def test_names_of_certificates_among_super_users_keep_their_commas() -> None:
    assert parse_super_users("User:CN=a,O=b;User:c") == ("User:CN=a,O=b", "User:c")


def test_allow_everyone_counts_where_no_acl_is_about_the_resource() -> None:
    authorizer = AclAuthorizer([acl("t", READ, principal=BOB)], allow_everyone_if_no_acl_found=True)
    assert authorizer.allows(ALICE, HOST, READ, Resource.TOPIC, "other")
    assert not authorizer.allows(ALICE, HOST, READ, Resource.TOPIC, "t")
    authorizer.add(acl("oth...", WRITE, principal=BOB))
    assert not authorizer.allows(ALICE, HOST, READ, Resource.TOPIC, "other"), "a prefix is about it as well"


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::A", "2001:db8:0:0::a"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1", "fe80::1%eth0"),
        ("fe80:0:0:0:0:0:0:1%2", "fe80::1"),
    ],
)
def test_addresses_are_compared_whatever_way_they_are_written(written: str, seen: str) -> None:
    assert AclAuthorizer([acl("t", READ, host=written)]).allows(ALICE, seen, READ, Resource.TOPIC, "t")
    denied = [acl("t", READ), acl("t", READ, DENY, host=written, principal="User:*")]
    assert not AclAuthorizer(denied).allows(ALICE, seen, READ, Resource.TOPIC, "t")


ANY_RULES: list[tuple[str, list[Acl], bool]] = [
    ("none", [], False),
    ("literal", [acl("t", WRITE)], True),
    ("read is not write", [acl("t", READ)], False),
    ("wildcard deny", [acl("t", WRITE), acl("*", WRITE, DENY)], False),
    ("the same literal denied", [acl("t", WRITE), acl("t", WRITE, DENY)], False),
    ("another literal denied", [acl("t", WRITE), acl("u", WRITE, DENY)], True),
    ("literal under a denied prefix", [acl("tt", WRITE), acl("t...", ALL, DENY)], False),
    ("prefix under a denied prefix", [acl("tt...", WRITE), acl("t...", WRITE, DENY)], False),
    ("prefix over a denied prefix", [acl("t...", WRITE), acl("tt...", WRITE, DENY)], True),
    ("prefix with its literal denied", [acl("t...", WRITE), acl("t", WRITE, DENY)], True),
    ("wildcard allow, prefix denied", [acl("*", WRITE), acl("h...", WRITE, DENY)], True),
    ("All", [acl("t", ALL)], True),
    ("of somebody else", [acl("t", WRITE, principal=BOB)], False),
]


@pytest.mark.parametrize(("acls", "allowed"), [row[1:] for row in ANY_RULES], ids=[r[0] for r in ANY_RULES])
def test_whether_some_resource_may_be_used(acls: list[Acl], allowed: bool) -> None:
    assert AclAuthorizer(acls).allows_any(ALICE, HOST, WRITE, Resource.TOPIC) is allowed


def test_explain_names_what_decides() -> None:
    deny = acl("t", READ, DENY)
    authorizer = AclAuthorizer([acl("t", READ), deny], super_users=["User:root"])
    assert authorizer.explain(ALICE, HOST, READ, Resource.TOPIC, "t") == (False, str(deny))
    assert str(deny) == "DENY READ to User:alice from * on TOPIC LITERAL 't'"
    assert "super user" in authorizer.explain("User:root", HOST, READ, Resource.TOPIC, "t").reason
    assert "none of them allows" in authorizer.explain(BOB, HOST, READ, Resource.TOPIC, "t").reason
    assert "no ACL" in authorizer.explain(BOB, HOST, READ, Resource.TOPIC, "u").reason


@pytest.mark.parametrize(
    "broken",
    [
        acl("t", READ)._replace(pattern=Pattern.MATCH),
        acl("t", READ)._replace(pattern=Pattern.ANY),
        acl("", READ),
        acl("t", READ, principal="alice"),
        acl("t", READ, host=""),
        acl("c", READ, resource=Resource.CLUSTER),
    ],
)
def test_what_cannot_be_added(broken: Acl) -> None:
    assert broken.problem() is not None
    assert acl("t", READ).problem() is None


def test_filters() -> None:
    literal, prefix, star = acl("tea", READ), acl("te...", WRITE, principal=BOB), acl("*", READ, DENY)
    group = acl("tea", READ, resource=Resource.GROUP)

    def found(**fields: object) -> set[Acl]:
        wanted = AclFilter(**fields)  # type: ignore[arg-type]
        return {each for each in (literal, prefix, star, group) if wanted.matches(each)}

    assert found() == {literal, prefix, star, group}
    assert found(name="tea") == {literal, group}
    assert found(name="tea", pattern=Pattern.MATCH, resource=Resource.TOPIC) == {literal, prefix, star}
    assert found(pattern=Pattern.LITERAL, resource=Resource.TOPIC) == {literal, star}
    assert found(pattern=Pattern.PREFIXED, name="te") == {prefix}
    assert found(principal=BOB) == {prefix}
    assert found(permission=DENY) == {star}
    assert found(operation=WRITE, resource=ANY) == {prefix}


names = st.text("ab*", min_size=1, max_size=3)
random_acls = st.builds(
    Acl,
    st.sampled_from([Resource.TOPIC, Resource.GROUP]),
    names,
    st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    st.sampled_from([ALICE, BOB, "User:*"]),
    st.sampled_from(["*", HOST]),
    st.sampled_from([ALL, READ, WRITE, DESCRIBE]),
    st.sampled_from(Permission),
)


def naive(acls: set[Acl], principal: str, host: str, operation: Operation, name: str, *, otherwise: bool) -> bool:
    about = [
        a
        for a in acls
        if a.resource is Resource.TOPIC
        and (name.startswith(a.name) if a.pattern is Pattern.PREFIXED else a.name in (name, "*"))
    ]
    if not about:
        return otherwise
    mine = [a for a in about if a.principal in (principal, "User:*") and a.host in (host, "*")]
    if any(a.permission is DENY and a.operation in (operation, ALL) for a in mine):
        return False
    wide = {operation, ALL} | ({READ, WRITE} if operation is DESCRIBE else set())
    return any(a.permission is ALLOW and a.operation in wide for a in mine)


@settings(max_examples=150)
@given(
    changes=st.lists(st.tuples(st.booleans(), random_acls), max_size=15),
    questions=st.lists(st.tuples(st.sampled_from([READ, WRITE, DESCRIBE]), names), min_size=1, max_size=5),
    otherwise=st.booleans(),
)
def test_the_index_finds_what_a_look_at_all_finds_after_any_changes(
    changes: list[tuple[bool, Acl]], questions: list[tuple[Operation, str]], otherwise: bool
) -> None:
    authorizer, model = AclAuthorizer(allow_everyone_if_no_acl_found=otherwise), set[Acl]()
    for is_removal, each in [*changes, *((True, a) for _, a in changes[::2])]:
        authorizer.remove(each) if is_removal else authorizer.add(each)
        model.discard(each) if is_removal else model.add(each)
        assert set(authorizer) == model
        for operation, name in questions:
            expected = naive(model, ALICE, HOST, operation, name, otherwise=otherwise)
            assert authorizer.allows(ALICE, HOST, operation, Resource.TOPIC, name) is expected


def test_acls_of_others_on_the_same_resource_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Acl] = []
    is_about = acl_module._is_about

    def noted(each: Acl, principal: str, address: str) -> bool:
        looked.append(each)
        return is_about(each, principal, address)

    monkeypatch.setattr(acl_module, "_is_about", noted)
    others = [acl("*", READ, principal=f"User:{number}") for number in range(1_000)]
    authorizer = AclAuthorizer([*others, acl("*", READ), acl("*", WRITE, principal="User:*"), acl("t...", ALL, DENY)])
    assert not authorizer.allows(ALICE, HOST, READ, Resource.TOPIC, "topic")
    assert authorizer.allows("User:7", HOST, READ, Resource.TOPIC, "topic")
    assert len(looked) <= 5
    for each in others:
        authorizer.remove(each)
    assert not authorizer.allows("User:7", HOST, READ, Resource.TOPIC, "topic")
