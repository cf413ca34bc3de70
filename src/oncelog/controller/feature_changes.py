"""UpdateFeatures (57): levels of features, as far as all nodes support them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from oncelog.controller.decision import Decision
from oncelog.controller.image import ConfigResource
from oncelog.controller.view import MIN_ISR, View
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import ELR_VERSION, KRAFT_VERSION, METADATA_VERSION, TRANSACTION_VERSION
from oncelog.protocol.messages.broker_registration import Feature
from oncelog.protocol.messages.cluster_metadata import ClearElrRecord, ConfigRecord, FeatureLevelRecord
from oncelog.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from oncelog.protocol.schema import Message

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_NEEDED: Final = {ELR_VERSION: 23, TRANSACTION_VERSION: 0}
"""The metadata.version from which on a feature can be used."""


def update_features(
    view: View, request: UpdateFeaturesRequest, api_version: int, supported: Sequence[Feature], kraft_version: int
) -> Decision:
    """`supported` is what this controller supports."""
    names = [update.feature for update in request.feature_updates]
    levels = {**view.image.features, KRAFT_VERSION: kraft_version}
    proposed = levels | {update.feature: update.max_version_level for update in request.feature_updates}
    records: list[Message] = []
    try:
        for update in request.feature_updates:
            level_type = _upgrade_type(update, api_version)
            _check(view, update, level_type, levels.get(update.feature, 0), supported, proposed)
            if update.feature != KRAFT_VERSION:
                records.append(FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level))
    except KafkaError as error:
        results = [UpdatableFeatureResult(feature=name, error_code=error.code, error_message=error.message)
                   for name in names]  # fmt: skip
        return Decision([], _answer(results, api_version, error))
    if any(update.feature == ELR_VERSION and update.max_version_level > 0 for update in request.feature_updates):
        records = [*_elr_safety(view), *records]
    results = [UpdatableFeatureResult(feature=name, error_message=None) for name in names]
    return Decision([] if request.validate_only else records, _answer(results, api_version))


def _answer(
    results: list[UpdatableFeatureResult], api_version: int, error: KafkaError | None = None
) -> UpdateFeaturesResponse:
    if error is None:
        return UpdateFeaturesResponse(error_message=None, results=results)
    text = f"The update failed for all features since the following feature had an error: {error.message}"
    return UpdateFeaturesResponse(error_code=error.code, error_message=text, results=results)


def _upgrade_type(update: FeatureUpdateKey, api_version: int) -> int:
    if api_version == 0:
        return _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    return update.upgrade_type


def _check(
    view: View,
    update: FeatureUpdateKey,
    upgrade_type: int,
    present: int,
    supported: Sequence[Feature],
    proposed: Mapping[str, int],
) -> None:
    name, level = update.feature, update.max_version_level

    def refuse(reason: str) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {reason}"
        )

    if upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        raise refuse("The controller does not support the given upgrade type.")
    if level < 0:
        raise refuse("A feature version cannot be less than 0.")
    reason = _not_supported(view, name, level, supported)
    if reason is not None:
        raise refuse(reason)
    if level < present and upgrade_type == _UPGRADE:
        raise refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > present and upgrade_type != _UPGRADE:
        raise refuse("Can't downgrade to a newer version.")
    if name == METADATA_VERSION and level < present:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported metadata.version downgrade from {present} to {level}. Refusing to perform the requested "
            "downgrade because it might delete metadata information.",
        )
    if name == KRAFT_VERSION and level != present:
        raise refuse("The version of this feature cannot be changed.")
    if level and proposed[METADATA_VERSION] < _NEEDED.get(name, 0):
        raise refuse(f"It needs {METADATA_VERSION} {_NEEDED[name]}.")


def _not_supported(view: View, name: str, level: int, supported: Sequence[Feature]) -> str | None:
    nodes: list[tuple[str, Sequence[Feature]]] = [("Local controller", supported)]
    nodes += [(f"Broker {each.broker_id}", list(each.features.values())) for each in view.image.brokers.values()]
    nodes += [(f"Controller {node_id}", each.features) for node_id, each in view.image.controllers.items()]
    for node, features in nodes:
        ranges = {each.name: (each.min_supported_version, each.max_supported_version) for each in features}
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            return f"{node} only supports versions {low}-{high}" if high else f"{node} does not support this feature."
    return None


def _elr_safety(view: View) -> list[Message]:
    """With ELR all brokers have the same min.insync.replicas.

    Without it nobody keeps the ELR that a partition had before: whoever is in it may lack what was committed since, and
    would be elected. Kafka's controllers leave it where it is.
    """
    records: list[Message] = []
    if not view.has_elr and any(place.partition.elr or place.partition.last_known_elr for place in view.places()):
        records.append(ClearElrRecord())
    everywhere = view.image.settings.get(ConfigResource(ResourceType.BROKER, ""), {})
    if MIN_ISR not in everywhere:
        value = str(view.static.integer(MIN_ISR))
        records.append(ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name=MIN_ISR, value=value))
    for resource, configs in view.image.settings.items():
        if resource.type == ResourceType.BROKER and resource.name and MIN_ISR in configs:
            records.append(
                ConfigRecord(resource_type=ResourceType.BROKER, resource_name=resource.name, name=MIN_ISR, value=None)
            )
    return records
