"""What a client may do: everything, as long as there is no authoriser. The numbers are sets of ACL operations.

Bit n stands for operation n of Kafka's AclOperation (3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe,
9 cluster action, 10 describe configs, 11 alter configs, 12 idempotent write).
"""

from __future__ import annotations

from typing import Final

NOT_ASKED: Final = -(2**31)
"""The client did not want to know."""


def _all_of(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = _all_of(3, 4, 5, 6, 7, 8, 10, 11)
GROUP_OPERATIONS: Final = _all_of(3, 6, 8, 10, 11)
CLUSTER_OPERATIONS: Final = _all_of(5, 7, 8, 9, 10, 11, 12)
