"""Answers of brokers that know more kinds of ACLs and mechanisms than this client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog.client import AsyncAdmin
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsMatchingAcl, DeleteAclsResponse
from oncelog.protocol.messages.describe_acls import AclDescription, DescribeAclsResource, DescribeAclsResponse
from oncelog.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from oncelog.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from oncelog.protocol.schema import Message
from oncelog.security.acl import AclAuthorizer, AclFilter, Operation, Pattern, Resource
from tests.unit.client.scripted_broker import Exchange, ScriptedBroker

RESOURCE: dict[str, Any] = {"resource_type": 99, "resource_name": "n", "pattern_type": 98}
RULE: dict[str, Any] = {"principal": "User:a", "host": "*", "operation": 97, "permission_type": 96}
NUMBERS = (99, "n", 98, "User:a", "*", 97, 96)
TEXT = "UNKNOWN_96 UNKNOWN_97 to User:a from * on UNKNOWN_99 UNKNOWN_98 'n'"


def ask(key: ApiKey, response: Message, call: Callable[[AsyncAdmin], Awaitable[Any]]) -> Any:
    async def answer(exchange: Exchange) -> None:
        await exchange.answer(response)

    async def scenario() -> Any:
        async with ScriptedBroker({key: answer}) as broker:

            async def tell_of_itself(exchange: Exchange) -> None:
                brokers = [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.port)]
                await exchange.answer(MetadataResponse(brokers=brokers, controller_id=1, topics=[]))

            broker.handlers[ApiKey.METADATA] = tell_of_itself
            async with AsyncAdmin.connect({"bootstrap.servers": broker.address}) as admin:
                return await call(admin)

    return asyncio.run(scenario())


def test_acls_that_were_deleted_are_told() -> None:
    results = [DeleteAclsFilterResult(matching_acls=[DeleteAclsMatchingAcl(**RESOURCE, **RULE)] * 2)]
    response = DeleteAclsResponse(filter_results=results)
    found = ask(ApiKey.DELETE_ACLS, response, lambda admin: admin.delete_acls([AclFilter()]))
    assert found == [NUMBERS]
    assert str(found[0]) == TEXT


@pytest.mark.parametrize("pattern", [98, Pattern.PREFIXED])
def test_acls_are_described(pattern: int) -> None:
    resources = [DescribeAclsResource(**{**RESOURCE, "pattern_type": pattern}, acls=[AclDescription(**RULE)])]
    response = DescribeAclsResponse(resources=resources)
    (found,) = ask(ApiKey.DESCRIBE_ACLS, response, lambda admin: admin.describe_acls())
    assert found == (99, "n", pattern, *NUMBERS[3:])
    assert AclFilter(*found).matches(found), "so it can be deleted"
    decision = AclAuthorizer([found]).explain("User:a", "h", Operation.READ, Resource.TOPIC, "n")
    assert not decision.allowed


def test_a_mechanism_is_shown_by_its_number() -> None:
    infos = [CredentialInfo(mechanism=7, iterations=4096), CredentialInfo(mechanism=2, iterations=4096)]
    result = DescribeUserScramCredentialsResult(user="a", credential_infos=infos)
    response = DescribeUserScramCredentialsResponse(results=[result])
    found = ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, response, lambda admin: admin.describe_user_scram_credentials())
    assert [each.sasl_name for each in found["a"]] == ["UNKNOWN_7", "SCRAM-SHA-512"]
