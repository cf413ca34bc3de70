"""Access control lists with the rules of Kafka's StandardAuthorizer, and why somebody may or may not do something.

1. Super users may do everything.
2. An ACL is about a resource if it has its name, or the name `*`, or, being prefixed, begins it. It is about somebody
   if it has their principal or `User:*`, and their address or `*`.
3. An ACL for All is one for each operation. To be allowed Read, Write, Delete or Alter is to be allowed Describe; to be
   allowed AlterConfigs is to be allowed DescribeConfigs. To be denied something implies nothing.
4. One that denies wins. Else one that allows. Else, if no ACL at all is about the resource, whatever it says of whom,
   `allow.everyone.if.no.acl.found` decides. Else it is denied.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final

from oncelog.core.named_tuple import NamedTuple

CLUSTER_NAME: Final = "kafka-cluster"
WILDCARD: Final = "*"
ANYBODY: Final = "User:*"
MEMO_MAX: Final = 10_000
MEMO_NAME_CHARS_MAX: Final = 256
"""Decisions remembered until ACLs change, if the name is not longer: clients choose both. They take a few megabytes."""


class Operation(IntEnum):
    """The number is that of Kafka's AclOperation."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    """The number is that of Kafka's ResourceType."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """The number is that of Kafka's PatternType. The first two are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """The number is that of Kafka's AclPermissionType."""

    DENY = 2
    ALLOW = 3


ANY: Final = 1
"""In a filter: every resource type, operation or permission."""

_IMPLIED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


class Acl(NamedTuple):
    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.operation.name} to {self.principal} from {self.host} on "
            f"{self.resource.name} {self.pattern.name} {self.name!r}"
        )

    def problem(self) -> str | None:
        """What is wrong with one that somebody wants to add."""
        if self.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
            return f"the pattern type must be LITERAL or PREFIXED, not {self.pattern.name}"
        if not self.name:
            return "the resource name is empty"
        if ":" not in self.principal:
            return f"principal {self.principal!r} has no type, as User:alice has"
        if not self.host:
            return "the host is empty; * stands for all"
        if self.resource is Resource.CLUSTER and self.name != CLUSTER_NAME:
            return f"the only cluster is {CLUSTER_NAME}"
        return None


class AclFilter(NamedTuple):
    """None and ANY match everything. With the pattern MATCH it finds all that are about a resource of the name."""

    resource: int = ANY
    name: str | None = None
    pattern: Pattern = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource in (ANY, acl.resource)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern is not Pattern.MATCH:
            return False
        return acl.name == WILDCARD if acl.pattern is Pattern.LITERAL else self.name.startswith(acl.name)


_Question = tuple[str, str, Operation, Resource, str | None]
"""Principal, host, operation, and a resource by its name, or any of its kind."""


_ByPrincipal = dict[str, list[Acl]]


class Decision(NamedTuple):
    allowed: bool
    reason: str
    """For people."""


class AclAuthorizer:
    """Finds the ACLs about a resource by its name, by those lengths of prefixes that there are, and the wildcard; of
    these, those of a principal. Thousands of users may have one each on the same resource."""

    restricts_clients = True

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: Iterable[str] = (),
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._without_acl = allow_everyone_if_no_acl_found
        self._acls: dict[Acl, None] = {}
        self._literal: dict[tuple[Resource, str], _ByPrincipal] = {}
        self._prefixed: dict[tuple[Resource, str], _ByPrincipal] = {}
        self._prefix_lengths: defaultdict[Resource, Counter[int]] = defaultdict(Counter)
        """How many prefixes of a length there are."""
        self._memo: dict[_Question, bool] = {}
        for acl in acls:
            self.add(acl)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._acls

    # Changes

    def add(self, acl: Acl) -> None:
        if acl in self._acls:
            return
        self._memo.clear()
        self._acls[acl] = None
        index = self._index_of(acl)
        key = (acl.resource, acl.name)
        if acl.pattern is Pattern.PREFIXED and key not in index:
            self._prefix_lengths[acl.resource][len(acl.name)] += 1
        index.setdefault(key, {}).setdefault(acl.principal, []).append(acl)

    def remove(self, acl: Acl) -> None:
        if acl not in self._acls:
            return
        self._memo.clear()
        del self._acls[acl]
        index = self._index_of(acl)
        key = (acl.resource, acl.name)
        index[key][acl.principal].remove(acl)
        if not index[key][acl.principal]:
            del index[key][acl.principal]
        if not index[key]:
            del index[key]
            if acl.pattern is Pattern.PREFIXED:
                lengths = self._prefix_lengths[acl.resource]
                lengths[len(acl.name)] -= 1
                if not lengths[len(acl.name)]:
                    del lengths[len(acl.name)]

    def become(self, acls: Mapping[Acl, None]) -> None:
        """Have these and no others."""
        for gone in self._acls.keys() - acls.keys():
            self.remove(gone)
        for new in acls.keys() - self._acls.keys():
            self.add(new)

    def _index_of(self, acl: Acl) -> dict[tuple[Resource, str], _ByPrincipal]:
        return self._prefixed if acl.pattern is Pattern.PREFIXED else self._literal

    # Questions

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        question = (principal, host, operation, resource, name)
        known = self._memo.get(question)
        if known is None:
            known = self._decide(*question)[0]
            self._remember(question, known)
        return known

    def _remember(self, question: _Question, allowed: bool) -> None:
        if len(question[-1] or "") > MEMO_NAME_CHARS_MAX:
            return
        if len(self._memo) >= MEMO_MAX:
            self._memo.clear()
        self._memo[question] = allowed

    def explain(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> Decision:
        allowed, cause = self._decide(principal, host, operation, resource, name)
        return Decision(allowed, f"{principal} is a super user" if cause == _SUPER else str(cause))

    def _decide(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> tuple[bool, Acl | str]:
        if principal in self._super_users:
            return True, _SUPER
        about = list(self._about(resource, name))
        if not about:
            return self._without_acl, _NO_ACL
        address = normal_host(host)
        mine = [
            acl
            for whose in about
            for acl in (*whose.get(principal, ()), *whose.get(ANYBODY, ()))
            if _is_about(acl, principal, address)
        ]
        for acl in mine:
            if acl.permission is Permission.DENY and acl.operation in (Operation.ALL, operation):
                return False, acl
        enough = {Operation.ALL, operation} | _IMPLIED_BY.get(operation, frozenset())
        for acl in mine:
            if acl.permission is Permission.ALLOW and acl.operation in enough:
                return True, acl
        return False, _NOT_ALLOWED

    def _about(self, resource: Resource, name: str) -> Iterator[_ByPrincipal]:
        found = [self._literal.get((resource, name))]
        if name != WILDCARD:
            found.append(self._literal.get((resource, WILDCARD)))
        found += [
            self._prefixed.get((resource, name[:length]))
            for length in self._prefix_lengths[resource]
            if length <= len(name)
        ]
        return filter(None, found)

    def allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether some resource of the kind may be used: some ACL allows the operation, none denies all it allows."""
        question = (principal, host, operation, resource, None)
        known = self._memo.get(question)
        if known is None:
            known = self._finds_any(principal, host, operation, resource)
            self._remember(question, known)
        return known

    def _finds_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        if self.allows(principal, host, operation, resource, _ANY_NAME):
            return True
        address = normal_host(host)
        mine = [
            acl
            for acl in self._acls
            if acl.resource is resource
            and acl.operation in (Operation.ALL, operation)
            and _is_about(acl, principal, address)
        ]
        denied = [acl for acl in mine if acl.permission is Permission.DENY]
        return any(
            acl.permission is Permission.ALLOW and not any(_covers(deny, acl) for deny in denied) for acl in mine
        )


_SUPER: Final = "super user"
_NO_ACL: Final = "no ACL is about this resource, and allow.everyone.if.no.acl.found decides"
_NOT_ALLOWED: Final = "there are ACLs about this resource, and none of them allows it"
_ANY_NAME: Final = "hardcode"
"""Kafka asks for a resource of this name first; so what is allowed on all names is allowed on some."""


def _is_about(acl: Acl, principal: str, address: str) -> bool:
    return acl.principal in (principal, ANYBODY) and (acl.host == WILDCARD or normal_host(acl.host) == address)


def _covers(deny: Acl, allow: Acl) -> bool:
    """Whether an ACL that denies covers all that another one allows."""
    if deny.pattern is Pattern.PREFIXED:
        return not _is_wildcard(allow) and allow.name.startswith(deny.name)
    return deny.name == WILDCARD or (allow.pattern is Pattern.LITERAL and allow.name == deny.name)


def _is_wildcard(acl: Acl) -> bool:
    return acl.pattern is Pattern.LITERAL and acl.name == WILDCARD


def normal_host(host: str) -> str:
    """Java writes IPv6 addresses in full, Python does not; an IPv4 address may come as one of IPv6. Which interface
    a link-local one belongs to (`%eth0`) is left out: controllers, who ask too, are not told of it."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


def parse_super_users(text: str) -> tuple[str, ...]:
    """Separated by semicolons: names of certificates have commas."""
    return tuple(part.strip() for part in text.split(";") if part.strip())
