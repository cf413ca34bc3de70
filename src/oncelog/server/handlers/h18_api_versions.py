"""ApiVersions (18), v0-4: which keys and versions this broker serves, and which features are finalised.

A version above 4 is answered in the format of v0 with UNSUPPORTED_VERSION and the one entry a client needs to ask
again; the dispatcher passes such a request on without a body.
"""

from __future__ import annotations

from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

WITH_LEVEL_ZERO = 4
"""Clients that ask in older versions take a feature that begins at level 0 for an error (KAFKA-17011)."""


def handle(broker: Broker, request: ApiVersionsRequest | None, context: RequestContext) -> ApiVersionsResponse:
    versions = broker.dispatcher.versions
    if request is None:
        low, high = versions[ApiKey.API_VERSIONS]
        only = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=low, max_version=high)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[only])
    if context.api_version >= 3 and not _is_named(request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    finalised = broker.finalised_features()
    return ApiVersionsResponse(
        api_keys=broker.dispatcher.advertised,
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in broker.supported_features().items()
            if lowest or context.api_version >= WITH_LEVEL_ZERO
        ],
        finalized_features_epoch=finalised.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalised.levels.items()
            if level
        ],
    )


def _is_named(request: ApiVersionsRequest) -> bool:
    return all(
        name and all(c.isalnum() or c in ".-" for c in name) and name[0].isalnum() and name[-1].isalnum()
        for name in (request.client_software_name, request.client_software_version)
    )
