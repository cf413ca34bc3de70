"""UpdateFeatures (57): finalise feature levels such as `transaction.version`."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string


class FeatureUpdateKey(Message):
    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = int8(since=1, default=1)


class UpdateFeaturesRequest(Message, api=ApiKey.UPDATE_FEATURES):
    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


class UpdatableFeatureResult(Message):
    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


class UpdateFeaturesResponse(Message, api=ApiKey.UPDATE_FEATURES):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1)
