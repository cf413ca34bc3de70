"""The APIs: their keys and versions. Everything else that needs a version range takes it from here.

A row is the key, the first and the last version that has a schema, and the first flexible one (with compact lengths and
tagged fields). The tables of the messages are not needed to read it, so a broker starts without loading them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

VERSION_MAX: Final = 2**15 - 1
NEVER: Final = VERSION_MAX + 1


class ApiKey(IntEnum):
    first: int
    last: int
    flexible: int

    def __new__(cls, key: int, *versions: int) -> ApiKey:
        member = int.__new__(cls, key)
        member._value_ = key
        member.first, member.last, *flexible = versions
        member.flexible = flexible[0] if flexible else NEVER
        return member

    PRODUCE = 0, 3, 13, 9
    FETCH = 1, 4, 18, 12
    LIST_OFFSETS = 2, 1, 11, 6
    METADATA = 3, 0, 13, 9
    OFFSET_COMMIT = 8, 2, 10, 8
    OFFSET_FETCH = 9, 1, 10, 6
    FIND_COORDINATOR = 10, 0, 6, 3
    JOIN_GROUP = 11, 0, 9, 6
    HEARTBEAT = 12, 0, 4, 4
    LEAVE_GROUP = 13, 0, 5, 4
    SYNC_GROUP = 14, 0, 5, 4
    DESCRIBE_GROUPS = 15, 0, 6, 5
    LIST_GROUPS = 16, 0, 5, 3
    SASL_HANDSHAKE = 17, 0, 1
    API_VERSIONS = 18, 0, 4, 3
    CREATE_TOPICS = 19, 2, 7, 5
    DELETE_TOPICS = 20, 1, 6, 4
    DELETE_RECORDS = 21, 0, 2, 2
    INIT_PRODUCER_ID = 22, 0, 6, 2
    OFFSET_FOR_LEADER_EPOCH = 23, 2, 4, 4
    ADD_PARTITIONS_TO_TXN = 24, 0, 5, 3
    ADD_OFFSETS_TO_TXN = 25, 0, 4, 3
    END_TXN = 26, 0, 5, 3
    WRITE_TXN_MARKERS = 27, 1, 2, 1
    TXN_OFFSET_COMMIT = 28, 0, 5, 3
    DESCRIBE_ACLS = 29, 1, 3, 2
    CREATE_ACLS = 30, 1, 3, 2
    DELETE_ACLS = 31, 1, 3, 2
    DESCRIBE_CONFIGS = 32, 1, 4, 4
    ALTER_CONFIGS = 33, 0, 2, 2
    ALTER_REPLICA_LOG_DIRS = 34, 1, 2, 2
    DESCRIBE_LOG_DIRS = 35, 1, 5, 2
    SASL_AUTHENTICATE = 36, 0, 2, 2
    CREATE_PARTITIONS = 37, 0, 3, 2
    CREATE_DELEGATION_TOKEN = 38, 1, 3, 2
    RENEW_DELEGATION_TOKEN = 39, 1, 2, 2
    EXPIRE_DELEGATION_TOKEN = 40, 1, 2, 2
    DESCRIBE_DELEGATION_TOKEN = 41, 1, 3, 2
    DELETE_GROUPS = 42, 0, 2, 2
    ELECT_LEADERS = 43, 0, 2, 2
    INCREMENTAL_ALTER_CONFIGS = 44, 0, 1, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, 0, 1, 0
    LIST_PARTITION_REASSIGNMENTS = 46, 0, 0, 0
    OFFSET_DELETE = 47, 0, 0
    DESCRIBE_CLIENT_QUOTAS = 48, 0, 1, 1
    ALTER_CLIENT_QUOTAS = 49, 0, 1, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0, 0, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0, 0, 0
    DESCRIBE_QUORUM = 55, 0, 2, 0
    ALTER_PARTITION = 56, 2, 3, 0
    UPDATE_FEATURES = 57, 0, 2, 0
    ENVELOPE = 58, 0, 0, 0
    FETCH_SNAPSHOT = 59, 0, 1, 0
    DESCRIBE_CLUSTER = 60, 0, 2, 0
    DESCRIBE_PRODUCERS = 61, 0, 0, 0
    BROKER_REGISTRATION = 62, 0, 4, 0
    BROKER_HEARTBEAT = 63, 0, 2, 0
    UNREGISTER_BROKER = 64, 0, 0, 0
    DESCRIBE_TRANSACTIONS = 65, 0, 0, 0
    LIST_TRANSACTIONS = 66, 0, 2, 0
    ALLOCATE_PRODUCER_IDS = 67, 0, 0, 0
    CONSUMER_GROUP_HEARTBEAT = 68, 0, 1, 0
    CONSUMER_GROUP_DESCRIBE = 69, 0, 1, 0
    CONTROLLER_REGISTRATION = 70, 0, 0, 0
    ASSIGN_REPLICAS_TO_DIRS = 73, 0, 0, 0
    LIST_CONFIG_RESOURCES = 74, 0, 1, 0
    DESCRIBE_TOPIC_PARTITIONS = 75, 0, 0, 0
    ADD_RAFT_VOTER = 80, 0, 1, 0
    REMOVE_RAFT_VOTER = 81, 0, 0, 0

    @property
    def advertised(self) -> tuple[int, int]:
        """The versions that Kafka 4.3 names in its ApiVersions answer, both inclusive."""
        return _ADVERTISED.get(self, (self.first, self.last))

    @property
    def stem(self) -> str:
        """How the names of its messages begin: EndTxn."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_ADVERTISED: Final = {
    # Versions 0-2 are never served. Without them librdkafka takes a broker for one without message format 2.
    ApiKey.PRODUCE: (0, ApiKey.PRODUCE.last),
    # Version 6, for two-phase commit, is not stable: a broker names it only where its settings enable it.
    ApiKey.INIT_PRODUCER_ID: (0, 5),
}
