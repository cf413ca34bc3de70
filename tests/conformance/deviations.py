"""Where Oncelog answers otherwise than Apache Kafka 4.3, on purpose: each with its reason.

A deviation names the scenarios and the step where it shows, and changes what Apache Kafka answered (the recorded
transcript) into what Oncelog answers. One that never applies is an error, so that the table stays true.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.conformance.scenario import Transcript

UNKNOWN_SERVER_ERROR: Final = -1
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_VERSION: Final = 35
INVALID_CONFIG: Final = 40
INVALID_REQUEST: Final = 42
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
INVALID_TXN_STATE: Final = 48
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
PRODUCER_FENCED: Final = 90
ANYTHING: Final = object()
INVALID_RECORD: Final = 87
REFUSED: Final = {"index": 0, "base_offset": -1, "log_append_time": -1, "record_errors": []}
PRODUCED: Final = {"index": 0, "error_code": 0, "log_append_time": -1, "log_start_offset": 0, "record_errors": []}


@dataclass(frozen=True)
class Deviation:
    reason: str
    scenarios: str
    """A regular expression for "file/scenario"."""
    step: str
    """A regular expression for the step's label."""
    changes: Mapping[str, tuple[Any, Any]]
    """By path in the answer: what Apache Kafka says, and what Oncelog says. A step where Kafka says something else
    stays.
    """
    transaction_versions: tuple[int, ...] = (0, 1, 2)


DEVIATIONS: Final[Sequence[Deviation]] = (
    Deviation(
        "An end of the older protocol bumps no epoch, so an EndTxn of TV2 one epoch below it is no retry: its producer "
        "was replaced. Apache Kafka repeats the answer to it, with the identity of its successor.",
        r"ending/(CompleteCommit-commit|CompleteAbort-abort)-stale-v5",
        r"end_txn v5 \((commit|abort|repeated)\)",
        {"error_code": (0, PRODUCER_FENCED), "producer_id": ("producer 1", -1), "producer_epoch": (1, -1)},
        transaction_versions=(2,),
    ),
    Deviation(
        "The same producer wants the opposite.",
        r"ending/CompleteCommit-abort-stale-v5",
        r"end_txn v5 \((abort|repeated)\)",
        {"error_code": (INVALID_TXN_STATE, PRODUCER_FENCED)},
        transaction_versions=(2,),
    ),
    Deviation(
        "KAFKA-20785: a commit that finds its transaction aborted by the coordinator was overtaken by a newer epoch. "
        "Apache Kafka 4.3 calls that an invalid state, which kills the producer; its trunk says fenced.",
        r"ending/(CompleteAbort-commit-stale|opposite-of-abort|empty-aborts).*|timing/timed-out-new-(commit|init)",
        r"end_txn v5 \((commit|repeated|the opposite, same epoch|a commit with the old epoch)\)",
        {"error_code": (INVALID_TXN_STATE, PRODUCER_FENCED)},
    ),
    Deviation(
        "No client sends a batch again when its transaction has ended: one with the numbers of such a batch is another "
        "one, which Apache Kafka acknowledges and does not write.",
        r"producing/overtaking-v(9|11)",
        r"produce v(9|11) \(the lowest refused, a duplicate\)",
        {"responses.0.partition_responses.0": (ANYTHING, {**REFUSED, "error_code": OUT_OF_ORDER_SEQUENCE_NUMBER})},
    ),
    Deviation(
        "A client of TV2 on transaction.version 0: Apache Kafka 4.3 refuses the first record it would have to write "
        "and then answers 51 to that id for ever. Oncelog serves it.",
        r"ending/tv2-client-on-tv0-(ending|empty-abort)",
        r"end_txn v5",
        {"error_code": (UNSUPPORTED_VERSION, 0), "producer_id": (-1, "producer 1"), "producer_epoch": (-1, 1)},
    ),
    Deviation(
        "The same with Produce.",
        r"ending/tv2-client-on-tv0-producing",
        r"produce v12",
        {"responses.0.partition_responses.0": (ANYTHING, {**PRODUCED, "base_offset": 0})},
    ),
    Deviation(
        "A group with offsets pending in a transaction is not deleted: Apache Kafka 4.3 deletes it on request, and the "
        "offsets that the transaction commits later are lost.",
        r"offsets/deleting-while-pending",
        r"delete_groups v2 \(while pending\)",
        {"results.0.error_code": (0, NON_EMPTY_GROUP)},
    ),
    Deviation(
        "So it is still there afterwards.",
        r"offsets/deleting-while-pending",
        r"offset_delete v0",
        {
            "": (
                ANYTHING,
                {"error_code": 0, "topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": 0}]}]},
            )
        },
    ),
    Deviation(
        "And can be deleted once the transaction ended.",
        r"offsets/deleting-while-pending",
        r"delete_groups v2 \(after the end\)",
        {"results.0.error_code": (GROUP_ID_NOT_FOUND, 0)},
    ),
    Deviation(
        "The last stable offset is never below the start of the log. Apache Kafka 4.3 gives the start of the batch "
        "that holds the first offset of the log, when records were deleted up to the middle of an open one's batch.",
        r"reading/records-deleted",
        r"15 list_offsets v7 \(committed\)",
        {"topics.0.partitions.0.offset": (4, 5)},
    ),
    Deviation(
        "The same in Fetch.",
        r"reading/records-deleted",
        r"17 fetch v12 \(committed\)",
        {"responses.0.partitions.0.last_stable_offset": (4, 5)},
    ),
    Deviation(
        "Whoever may ALTER the cluster cannot end transactions of others: WriteTxnMarkers takes ClusterAction.",
        r"securing/cluster-alter",
        r"write_txn_markers",
        {"markers.0.topics.0.partitions.0.error_code": (0, CLUSTER_AUTHORIZATION_FAILED)},
    ),
    Deviation(
        "Before a login no request but those of SASL is decoded. Apache Kafka answers it and then hangs up.",
        r"securing/logins",
        r"metadata v12 \(request instead of a token\)",
        {"": (ANYTHING, "disconnected")},
    ),
    Deviation(
        "An ACL with a number that means unknown (0) is refused as any wrong one. Apache Kafka hangs up.",
        r"securing/acls-created",
        r"create_acls v3 \(wrong .*: 0",
        {"": ("disconnected", {"results": [{"error_code": INVALID_REQUEST}]})},
    ),
    Deviation(
        "So is one with a number for filters, any (1) or match (2). Apache Kafka calls it an error of its own.",
        r"securing/acls-created",
        r"create_acls v3 \(wrong ",
        {"results.0.error_code": (UNKNOWN_SERVER_ERROR, INVALID_REQUEST)},
    ),
    Deviation(
        "A filter with a number that means unknown (0) is refused with an answer, too.",
        r"securing/acls-found",
        r"describe_acls v3 \(wrong ",
        {"": ("disconnected", {"error_code": INVALID_REQUEST, "resources": []})},
    ),
    Deviation(
        "The same in DeleteAcls.",
        r"securing/acls-found",
        r"delete_acls v3 \(wrong ",
        {"": ("disconnected", {"filter_results": [{"error_code": INVALID_REQUEST, "matching_acls": []}]})},
    ),
    Deviation(
        "A filter with a number that does not exist is refused. Apache Kafka finds nothing, though there may be ACLs.",
        r"securing/acls-found",
        r"describe_acls v3 \(unknown ",
        {"error_code": (0, INVALID_REQUEST)},
    ),
    Deviation(
        "A setting of a broker must have a name that means something. Apache Kafka stores any.",
        r"administering/settings",
        r"incremental_alter_configs v1 \(unknown key of a broker\)",
        {"responses.0.error_code": (0, INVALID_CONFIG)},
    ),
    Deviation(
        "The levels of loggers are no settings here, and no logger is described or named.",
        r"administering/resources",
        r"list_config_resources v1 \(\[8\]\)",
        {"config_resources": ([{"resource_name": "1", "resource_type": 8}], [])},
    ),
    Deviation(
        "An entity with two names of one type is refused. Apache Kafka takes the last one.",
        r"securing/quotas-managed",
        r"alter_client_quotas v1 \(twice one type\)",
        {
            "entries.0": (
                ANYTHING,
                {
                    "error_code": INVALID_REQUEST,
                    "entity": [{"entity_type": "user", "entity_name": name} for name in ("ann", "bob")],
                },
            )
        },
    ),
    Deviation(
        "Of an entity that is named twice in a request nothing is changed. Apache Kafka answers so, and does a part.",
        r"securing/quotas-managed",
        r"describe_client_quotas v0 \(client\)",
        {"entries.1.values": (ANYTHING, [{"key": "consumer_byte_rate", "value": 3000000000.0}])},
    ),
    Deviation(
        "Where records are looked at, those that readers cannot be expected to agree on are refused: Apache Kafka 4.3 "
        "takes any negative size of a key for null, believes offset deltas unless the batch is compressed, and does "
        "not compare lengths with fields if it is.",
        r"poisoning/records",
        r"\((a key of -2 bytes|offset deltas .*|zstd, a key of -2 bytes|zstd, a length (beyond the end|of zero)|"
        r"zstd, a negative length)\)",
        {"responses.0.partition_responses.0": (ANYTHING, {**REFUSED, "error_code": INVALID_RECORD})},
    ),
    Deviation(
        "So nothing of it is there.",
        r"poisoning/records",
        r"list_offsets v7",
        {"topics.0.partitions.0.offset": (14, 0)},
    ),
)


def expected(scenario: str, version: int, transcript: Transcript, applied: set[str]) -> Transcript:
    """What Oncelog is to answer where Apache Kafka answered this; the reasons that applied are added to `applied`."""
    changed = copy.deepcopy(transcript)
    for deviation in DEVIATIONS:
        if version not in deviation.transaction_versions or not re.fullmatch(deviation.scenarios, scenario):
            continue
        for step in changed:
            if re.search(deviation.step, step["step"]) and _change(step, deviation.changes):
                applied.add(deviation.reason)
    return changed


def _change(step: dict[str, Any], changes: Mapping[str, tuple[Any, Any]]) -> bool:
    places = []
    for path, (kafka, oncelog) in changes.items():
        *parents, last = (int(part) if part.isdigit() else part for part in f"answer.{path}".strip(".").split("."))
        place: Any = step
        for part in parents:
            place = place[part]
        if kafka is not ANYTHING and place[last] != kafka:
            return False
        places.append((place, last, oncelog))
    for place, last, oncelog in places:
        place[last] = oncelog
    return True
