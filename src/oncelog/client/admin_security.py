"""Users with SCRAM credentials, ACLs and quotas."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from oncelog.client.admin_base import AdminBase, raise_first
from oncelog.client.arguments import list_of
from oncelog.client.attempts import Attempts
from oncelog.core.open_enum import member_of
from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from oncelog.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from oncelog.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from oncelog.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from oncelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from oncelog.security.acl import Acl, AclFilter, Operation, Pattern, Permission, Resource
from oncelog.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism


class ScramUpsertion(NamedTuple):
    """A user to be made, or to get another password. The password itself is not sent."""

    user: str
    mechanism: ScramMechanism
    password: str
    iterations: int = ITERATIONS_MIN

    def __repr__(self) -> str:
        return f"ScramUpsertion({self.user!r}, {self.mechanism.sasl_name})"


class ScramDeletion(NamedTuple):
    user: str
    mechanism: ScramMechanism


class ClientQuotas(NamedTuple):
    """`entity` has names by type: `user`, `client-id` or `ip`; None stands for all that have no quota of their own."""

    entity: dict[str, str | None]
    quotas: dict[str, float]


class SecurityAdmin(AdminBase):
    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, dict[ScramMechanism, int]]:
        """The SCRAM mechanisms of users, or of all users, with their iterations. Brokers show no keys."""
        names = None if users is None else [UserName(name=user) for user in list_of("users", users)]
        request = DescribeUserScramCredentialsRequest(users=names)
        response = await self._ask_any(request, DescribeUserScramCredentialsResponse)
        raise_first([(response.error_code, "users", response.error_message)])
        raise_first((result.error_code, f"user {result.user}", result.error_message) for result in response.results)
        return {
            result.user: {
                member_of(ScramMechanism, info.mechanism): info.iterations for info in result.credential_infos
            }
            for result in response.results
        }

    async def alter_user_scram_credentials(
        self, upsert: Iterable[ScramUpsertion] = (), delete: Iterable[ScramDeletion] = ()
    ) -> None:
        """Make users, change their passwords, delete them. Use TLS: what is sent is as good as the password."""
        request = AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=each.user, mechanism=each.mechanism) for each in delete],
            upsertions=[await asyncio.to_thread(_salted, each) for each in upsert],
        )
        attempts = Attempts()
        response = await self._ask_any(request, AlterUserScramCredentialsResponse, attempts)
        raise_first(
            ((result.error_code, f"user {result.user}", result.error_message) for result in response.results),
            attempts,
        )

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs. One that exists already is no error."""
        wanted = list(acls)
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource,
                    resource_name=acl.name,
                    resource_pattern_type=acl.pattern,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in wanted
            ]
        )
        attempts = Attempts()
        response = await self._ask_any(request, CreateAclsResponse, attempts)
        raise_first(
            (
                (result.error_code, str(acl), result.error_message)
                for acl, result in zip(wanted, response.results, strict=True)
            ),
            attempts,
        )

    async def describe_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """The ACLs that match a filter, or all."""
        request = DescribeAclsRequest(**_filter_fields(wanted or AclFilter()))
        response = await self._ask_any(request, DescribeAclsResponse)
        raise_first([(response.error_code, "ACLs", response.error_message)])
        return [_acl(resource, acl) for resource in response.resources for acl in resource.acls]

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the ACLs that match any of the filters.

        Returns what was deleted; if an answer was lost, by the repetition alone.
        """
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter_fields(wanted)) for wanted in filters])
        attempts = Attempts()
        response = await self._ask_any(request, DeleteAclsResponse, attempts)
        raise_first(((result.error_code, "ACLs", result.error_message) for result in response.filter_results), attempts)
        matching = [acl for result in response.filter_results for acl in result.matching_acls]
        raise_first(((acl.error_code, "ACL", acl.error_message) for acl in matching), attempts)
        return list(dict.fromkeys(_acl(acl, acl) for acl in matching))

    async def describe_client_quotas(self, entity: Mapping[str, str | None] | None = None) -> list[ClientQuotas]:
        """The quotas of an entity, also together with others, as of a user with a client id; or all.

        An entity has names by type: `user`, `client-id` or `ip`; None stands for all that have no quota of their own.
        """
        components = [
            ComponentData(entity_type=kind, match_type=_EXACT if name is not None else _DEFAULT, match=name)
            for kind, name in (entity or {}).items()
        ]
        request = DescribeClientQuotasRequest(components=components, strict=False)
        response = await self._ask_any(request, DescribeClientQuotasResponse)
        raise_first([(response.error_code, "quotas", response.error_message)])
        return [
            ClientQuotas(
                {part.entity_type: part.entity_name for part in entry.entity},
                {quota.key: quota.value for quota in entry.values},
            )
            for entry in response.entries or []
        ]

    async def alter_client_quotas(self, entity: Mapping[str, str | None], quotas: Mapping[str, float | None]) -> None:
        """Change quotas of an entity, such as `{"user": "alice"}`; None as a value removes one."""
        parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
        ops = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()]
        request = AlterClientQuotasRequest(entries=[EntryData(entity=parts, ops=ops)])
        attempts = Attempts()
        response = await self._ask_any(request, AlterClientQuotasResponse, attempts)
        raise_first(((entry.error_code, "quotas", entry.error_message) for entry in response.entries), attempts)


_EXACT: Final = 0
_DEFAULT: Final = 1


def _salted(given: ScramUpsertion) -> ScramCredentialUpsertion:
    salt = secrets.token_bytes(SALT_BYTES)
    return ScramCredentialUpsertion(
        name=given.user,
        mechanism=given.mechanism,
        iterations=given.iterations,
        salt=salt,
        salted_password=given.mechanism.salted_password(given.password, salt, given.iterations),
    )


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _acl(resource: DescribeAclsResource | DeleteAclsMatchingAcl, acl: AclDescription | DeleteAclsMatchingAcl) -> Acl:
    """Newer brokers may have kinds that are not known here."""
    return Acl(
        member_of(Resource, resource.resource_type),
        resource.resource_name,
        member_of(Pattern, resource.pattern_type),
        acl.principal,
        acl.host,
        member_of(Operation, acl.operation),
        member_of(Permission, acl.permission_type),
    )
